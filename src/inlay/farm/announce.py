"""Says which resource a node announces for a device: ``python -m inlay.farm.announce TARGET [NAME=VALUE...]``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from inlay.errors import InlayError, UsageError
from inlay.farm.lab import resource_of
from inlay.targets.registry import describe


def resources(words: Sequence[str]) -> str:
    """What ``ray start --resources`` takes, for a target and its options; one thread where none are given, as in a run.

    Raises:
        InlayError: there is no such target or option, or the target cannot be created here.
    """
    if not words:
        raise UsageError("give a target, and its options as NAME=VALUE")
    name, *given = words
    return json.dumps({resource_of(describe(name, given, threads=1)): 1})


def main() -> int:
    """Print it; the exit code."""
    try:
        print(resources(sys.argv[1:]))
    except InlayError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

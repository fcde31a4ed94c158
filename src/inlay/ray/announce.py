"""Says which resource a node announces: ``python -m inlay.ray.announce [--builders N] TARGET [NAME=VALUE...]``.

Without the option that is a device, which measures; with it, ``N`` processors that build ahead of one like it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from inlay.errors import InlayError, UsageError
from inlay.ray.lab import builder_of, resource_of
from inlay.targets.registry import describe


def resources(words: Sequence[str]) -> str:
    """What ``ray start --resources`` takes, for a target and its options; one thread where none are given, as in a run.

    Raises:
        InlayError: there is no such target or option, or the target cannot be created here.
    """
    count, given = _builders(words)
    if not given:
        raise UsageError("give a target, and its options as NAME=VALUE")
    device = resource_of(describe(given[0], given[1:], threads=1))
    return json.dumps({builder_of(device): count} if count else {device: 1})


def _builders(words: Sequence[str]) -> tuple[int, Sequence[str]]:
    """How many processors build ahead, none for a device; and the other words."""
    if not words or words[0] != "--builders":
        return 0, words
    if len(words) < 2 or not words[1].isdecimal() or int(words[1]) < 1:
        raise UsageError("--builders: give how many processors build ahead, such as 2")
    return int(words[1]), words[2:]


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

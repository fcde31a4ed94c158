"""``python -m tests.attack COMMAND``: a command is a module with ``add_arguments(parser)`` and ``run(arguments)``."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import sys

COMMANDS = {
    "fuzz": "hostile models, samples, YAML, journals and options",
    "kills": "signals at random moments of seeded runs",
    "replaced": "models, samples and earlier results written over at random moments of seeded runs",
    "functions": "the user's own functions that hang, end their process, or change what is not theirs",
    "cluster": "nodes, devices and commands of a cluster killed at random moments",
    "fleet": "the same while a fleet of several models is tuned",
    "faults": "runtimes that fail in every way, at every stage",
    "kernels": "random models on a target, against the same files node by node",
}
"""Modules of this package, with what they attack by; one that is not there is not offered."""


def main(arguments: list[str] | None = None) -> int:
    """Run one attack. Returns 0 where nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, summary in COMMANDS.items():
        if importlib.util.find_spec(f"tests.attack.{name}") is not None:
            module = importlib.import_module(f"tests.attack.{name}")
            command = commands.add_parser(name, help=summary, description=module.__doc__)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    given = parser.parse_args(arguments)
    return int(given.run(given))


if __name__ == "__main__":
    sys.exit(main())

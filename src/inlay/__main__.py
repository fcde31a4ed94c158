"""``python -m inlay``."""

from inlay.cli.commands import main

main()

"""``python -m inlay``."""

from inlay.cli import main

main()

"""``python -m inlay``."""

import sys

if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]  # the working directory: files beside a model are data, not modules

from inlay.cli.commands import main

main()

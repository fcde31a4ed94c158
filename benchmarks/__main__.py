"""``python -m benchmarks [quality|growth|ethos] [options]``: one table, or all of them.

Each writes JSON and Markdown to ``benchmarks/out``. Measure on a quiet machine.
"""

from __future__ import annotations

import subprocess
import sys

MODULES = {"quality": "quality", "growth": "growth", "ethos": "ethos_concat"}


def main() -> int:
    """Run the benchmark that is named first, with its options, or all with their defaults."""
    name, *options = sys.argv[1:] or [""]
    if name and name not in MODULES:
        print(f"there is no benchmark {name}: give {', '.join(MODULES)}, or nothing for all", file=sys.stderr)
        return 2
    wanted = [name] if name else list(MODULES)
    codes = [subprocess.call([sys.executable, "-m", f"benchmarks.{MODULES[n]}", *options]) for n in wanted]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())

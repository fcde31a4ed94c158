"""``python -m benchmarks``: the tables of :mod:`benchmarks.quality`."""

from benchmarks.quality import main

main()

"""Does the search space grow linearly with the model?

Generates graphs of five families and several sizes, times regions + patterns + insertion points on each (processor
time of the one thread, which other load on the machine does not inflate as it does wall time; the faster of two
runs), fits ``time = a · nodes^b`` by least squares on logarithms, and writes
``benchmarks/out/growth.json`` and ``growth.md``. Exits with 1 when a limit is missed.

    python -m benchmarks.growth [--sizes 1000,10000,100000]

Each measurement runs in a process of its own, so that peak memory is that of one graph (the graph itself included).
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import resource
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.generated_graphs import FAMILIES
from inlay.regions.search_space import find_search_space
from inlay.targets.onnxruntime.rules import rules_for

OUT = Path(__file__).parent / "out"
MAX_EXPONENT, MAX_SECONDS, MAX_GIB = 1.15, 30.0, 3.0


@dataclass(frozen=True)
class Point:
    """One measurement."""

    family: str
    nodes: int
    seconds: float
    wall_seconds: float
    peak_gib: float
    regions: int
    patterns: int
    points: int


def measure(family: str, count: int) -> Point:
    graph = FAMILIES[family](count)
    rules = rules_for("x86_64", frozenset({"avx512_vnni"}))
    seconds = wall = math.inf
    for _ in range(2):
        began, clock = time.process_time(), time.perf_counter()
        space = find_search_space(graph, rules)
        seconds = min(seconds, time.process_time() - began)
        wall = min(wall, time.perf_counter() - clock)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Point(
        family,
        len(graph.nodes),
        round(seconds, 4),
        round(wall, 4),
        round(peak / (1 << 30 if sys.platform == "darwin" else 1 << 20), 3),
        len(space.tree.regions),
        len(space.patterns),
        sum(len(table) for table in space.tables.values()),
    )


def exponent(points: list[Point]) -> float:
    xs = [math.log(p.nodes) for p in points]
    ys = [math.log(p.seconds) for p in points]
    mx, my = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / sum((x - mx) ** 2 for x in xs)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--sizes", default="1000,10000,100000", help="numbers of nodes, separated by commas")
    sizes = [int(s) for s in parser.parse_args(arguments).sizes.split(",")]
    context = multiprocessing.get_context("spawn")
    found: dict[str, list[Point]] = {}
    for family in FAMILIES:
        for size in sizes:
            with context.Pool(1) as pool:
                point = pool.apply(measure, (family, size))
            found.setdefault(family, []).append(point)
            print(f"{family:>14} {point.nodes:>7} nodes {point.seconds:>8.3f} s {point.peak_gib:>6.2f} GiB", flush=True)
    fits = {family: exponent(points) for family, points in found.items() if len(points) > 1}
    largest = [points[-1] for points in found.values()]
    misses = [f"{f}: exponent {b:.3f} > {MAX_EXPONENT}" for f, b in fits.items() if b > MAX_EXPONENT]
    misses += [f"{p.family}: {p.seconds} s > {MAX_SECONDS} s" for p in largest if p.seconds > MAX_SECONDS]
    misses += [f"{p.family}: {p.peak_gib} GiB > {MAX_GIB} GiB" for p in largest if p.peak_gib > MAX_GIB]
    OUT.mkdir(parents=True, exist_ok=True)
    data = {
        "machine": {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()},
        "limits": {"exponent": MAX_EXPONENT, "seconds": MAX_SECONDS, "gib": MAX_GIB},
        "exponents": {f: round(b, 4) for f, b in fits.items()},
        "points": [asdict(p) for points in found.values() for p in points],
        "misses": misses,
    }
    (OUT / "growth.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf8")
    (OUT / "growth.md").write_text(table(found, fits, misses), encoding="utf8")
    print("\n".join(f"{f:>14} time ~ nodes^{b:.3f}" for f, b in fits.items()))
    print("\n".join(misses) or "all limits kept")
    return 1 if misses else 0


def table(found: dict[str, list[Point]], fits: dict[str, float], misses: list[str]) -> str:
    lines = [
        "# Growth of the search space",
        "",
        "Regions, patterns and insertion points; processor seconds of one thread, peak memory of the whole process.",
        "",
        "| family | nodes | seconds | peak GiB | regions | patterns | points | exponent |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for family, points in found.items():
        for p in points:
            fit = f"{fits[family]:.3f}" if p is points[-1] and family in fits else ""
            lines.append(
                f"| {family} | {p.nodes:,} | {p.seconds:.2f} | {p.peak_gib:.2f} | {p.regions:,} | {p.patterns:,} "
                f"| {p.points:,} | {fit} |"
            )
    limits = f"exponent {MAX_EXPONENT}, {MAX_SECONDS:.0f} s and {MAX_GIB:.0f} GiB at the largest size"
    lines += ["", f"Limits: {limits}.", ""]
    lines += misses or ["All limits are kept."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

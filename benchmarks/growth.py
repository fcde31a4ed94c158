"""Does the work grow linearly with the model, as users run it: ``inlay regions FILE`` and ``inlay quantize FILE``?

Writes models of five families (chain-like, wide, branchy) and several sizes as files, runs the command on each in a
process of its own, and takes its processor time (user and system, which other load inflates less than wall time), its
wall time and its peak memory, all as the system accounts them. Fits ``time = a · nodes^b`` by least squares on
logarithms, less the time that Python and imports take, and writes ``benchmarks/out/growth.json`` and ``growth.md``.
Exits with 1 when a limit is missed.

    python -m benchmarks.growth [--sizes 1000,10000,100000] [--families chain,residual] [--command regions|quantize]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import onnx

from benchmarks.generated_graphs import FAMILIES, model_of

OUT = Path(__file__).parent / "out"
MAX_EXPONENT, MAX_SECONDS, MAX_GIB = 1.15, 60.0, 1.5  # of regions
_START = "import inlay.cli.commands"


@dataclass(frozen=True)
class Point:
    """One run of the command.

    Attributes:
        seconds: processor time of the process and its children.
    """

    family: str
    nodes: int
    megabytes: float
    seconds: float
    wall_seconds: float
    peak_gib: float


@dataclass(frozen=True)
class Usage:
    """What a finished process took."""

    seconds: float
    wall_seconds: float
    peak_gib: float


def run(arguments: Sequence[str]) -> Usage:
    """Run a Python process to its end. Raises CalledProcessError."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(arguments))
    unit = 1 << 30 if sys.platform == "darwin" else 1 << 20
    return Usage(round(used.ru_utime + used.ru_stime, 2), round(wall, 2), round(used.ru_maxrss / unit, 3))


def write(family: str, count: int, path: Path) -> int:
    """Write a model, and return how many nodes it has.

    A process of its own does it: the system counts what this one holds among the memory of those that it starts.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_write, family, count, path).result()


def _write(family: str, count: int, path: Path) -> int:
    graph = FAMILIES[family](count)
    onnx.save(model_of(graph), path)
    return len(graph.nodes)


def measure(family: str, count: int, command: str) -> Point:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.onnx"
        nodes = write(family, count, path)
        size = path.stat().st_size / 1e6
        more = ["-o", str(Path(name) / "out.onnx")] if command == "quantize" else []
        used = run(["-m", "inlay", command, str(path), *more])
    return Point(family, nodes, round(size, 2), **asdict(used))


def exponent(points: Sequence[Point], start: float) -> float:
    """Slope of the logarithms, without the ``start`` seconds that any run takes."""
    xs = [math.log(p.nodes) for p in points]
    ys = [math.log(max(p.seconds - start, 0.01)) for p in points]
    mx, my = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / sum((x - mx) ** 2 for x in xs)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--sizes", default="1000,10000,100000", help="numbers of nodes, separated by commas")
    parser.add_argument("--families", default=",".join(FAMILIES), help="separated by commas")
    parser.add_argument("--command", default="regions", choices=("regions", "quantize"))
    options = parser.parse_args(arguments)
    start = min(run(["-c", _START]).seconds for _ in range(3))
    found: dict[str, list[Point]] = {}
    for family in options.families.split(","):
        for size in map(int, options.sizes.split(",")):
            point = measure(family, size, options.command)
            found.setdefault(family, []).append(point)
            print(f"{family:>14} {point.nodes:>7} nodes {point.seconds:>8.2f} s {point.peak_gib:>6.2f} GiB", flush=True)
    fits = {family: exponent(points, start) for family, points in found.items() if len(points) > 1}
    misses = [f"{f}: exponent {b:.3f} > {MAX_EXPONENT}" for f, b in fits.items() if b > MAX_EXPONENT]
    if options.command == "regions":
        largest = [points[-1] for points in found.values()]
        misses += [f"{p.family}: {p.seconds} s > {MAX_SECONDS} s" for p in largest if p.seconds > MAX_SECONDS]
        misses += [f"{p.family}: {p.peak_gib} GiB > {MAX_GIB} GiB" for p in largest if p.peak_gib > MAX_GIB]
    OUT.mkdir(parents=True, exist_ok=True)
    data = {
        "machine": {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()},
        "command": options.command,
        "start": start,
        "limits": {"exponent": MAX_EXPONENT, "seconds": MAX_SECONDS, "gib": MAX_GIB},
        "exponents": {f: round(b, 4) for f, b in fits.items()},
        "points": [asdict(p) for points in found.values() for p in points],
        "misses": misses,
    }
    (OUT / "growth.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf8")
    (OUT / "growth.md").write_text(table(found, fits, misses, options.command, start), encoding="utf8")
    print("\n".join(f"{f:>14} time ~ nodes^{b:.3f}" for f, b in fits.items()))
    print("\n".join(misses) or "all limits kept")
    return 1 if misses else 0


def table(found: dict[str, list[Point]], fits: dict[str, float], misses: list[str], command: str, start: float) -> str:
    lines = [
        f"# Growth of `inlay {command}`",
        "",
        f"From a file to the end of the process: processor seconds ({start:.1f} of them for the start), wall seconds,",
        "peak memory.",
        "",
        "| family | nodes | MB | seconds | wall | peak GiB | exponent |",
        "|---|---|---|---|---|---|---|",
    ]
    for family, points in found.items():
        for p in points:
            fit = f"{fits[family]:.3f}" if p is points[-1] and family in fits else ""
            lines.append(
                f"| {family} | {p.nodes:,} | {p.megabytes:.1f} | {p.seconds:.1f} | {p.wall_seconds:.1f} "
                f"| {p.peak_gib:.2f} | {fit} |"
            )
    limits = f"exponent {MAX_EXPONENT}; of `regions` {MAX_SECONDS:.0f} s and {MAX_GIB} GiB at the largest size"
    lines += ["", f"Limits: {limits}.", ""]
    lines += misses or ["All limits are kept."]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

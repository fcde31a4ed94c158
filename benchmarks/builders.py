"""A search on a target whose builds and inferences take long: by its device alone, and with a builder besides.

    python -m benchmarks.builders [--models DIR] [--only NAME ...] [--builds 14] [--out DIR]

Needs the extras ``ray`` and ``qnn``. The emulator of Qualcomm's HTP builds for seconds, and runs a sample for seconds.
A cluster of two nodes on this machine has a processor for each: one announces the device, the other a builder, or
nothing. The command is on the device's processor, as it mostly waits. Both ways must end with the same model: the
target reports no latency, so that nothing depends on time.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import inlay
from benchmarks import subjects
from benchmarks.rows import write_json
from inlay.model.load import file_sha256
from inlay.ray.cluster import ray_library
from inlay.ray.lab import builder_of, resource_of
from inlay.run.progress import SearchStep, Silent
from inlay.targets.base import TargetSpec

OUT = Path(__file__).parent / "out"
TARGET = TargetSpec("qnn-htp")
BOUND_DB = 20.0
STORE_BYTES = 500_000_000


class _Search(Silent):
    """When the search began and ended, and what was said of the builders."""

    def __init__(self) -> None:
        self.begun = self.ended = 0.0
        self.trials = 0
        self.said = ""

    def stage(self, text: str) -> None:
        """Note it: the choice of ranges is the last stage before the search."""
        if text.startswith("ranges by"):
            self.begun = time.monotonic()
        elif text.startswith("confirm") and not self.ended:
            self.ended = time.monotonic()
        elif "built ahead" in text:
            self.said = text

    def trial(self, step: SearchStep) -> None:
        """Count it."""
        self.trials += 1


@contextlib.contextmanager
def _nodes(builders: int) -> Iterator[None]:
    """Two nodes, on a processor each; this process is on the first one."""
    ray, here = ray_library(), os.sched_getaffinity(0)
    from ray.cluster_utils import Cluster

    device, (first, second) = resource_of(TARGET), sorted(here)[:2]
    cluster = None
    try:
        offered = {builder_of(device): float(builders)} if builders else {}
        os.sched_setaffinity(0, {first})  # which the node's processes inherit
        head = {"num_cpus": 0, "resources": {device: 1.0}, "object_store_memory": STORE_BYTES}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        os.sched_setaffinity(0, {second})
        cluster.add_node(num_cpus=0, resources=offered, object_store_memory=STORE_BYTES)
        os.sched_setaffinity(0, {first})
        ray.init(address=cluster.address, log_to_driver=False)
        yield
    finally:
        ray.shutdown()
        if cluster is not None:
            cluster.shutdown()
        os.sched_setaffinity(0, here)


def searched(subject: subjects.Subject, builders: int, builds: int, folder: Path) -> dict[str, Any]:
    """What the search for one model took, and what it ended with."""
    seen = _Search()
    with _nodes(builders):
        result = inlay.tune(
            subject.model,
            out=folder,
            data=subject.samples,
            target=TARGET,
            min_sqnr=BOUND_DB,
            budget=None,
            max_builds=builds,
            ray="auto",
            progress=seen,
            cost_db=False,
        )
    return {
        "builders": builders,
        "seconds": round(seen.ended - seen.begun, 1),
        "candidates": seen.trials,
        "said": seen.said,
        "origin": result.best.origin,
        "sha256": file_sha256(result.model_path),
    }


def main() -> None:
    """Run each model both ways, and say how much sooner the search is over."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.builders", description=__doc__)
    parser.add_argument("--models", type=Path, default=subjects.default_models(), help="folder of trained models")
    parser.add_argument("--only", nargs="+", default=["stm_mbv2_flowers", "ultraface_rfb320_simplified", "g2p_bert"])
    parser.add_argument("--builds", type=int, default=14)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        for name in subjects.chosen(options.models, options.only):
            subject = subjects.make(name, options.models, Path(scratch) / name)
            found = [searched(subject, n, options.builds, Path(scratch) / name / str(n)) for n in (0, 1)]
            alone, both = found
            row = {"model": name, "alone": alone, "with_builder": both}
            row["ratio"] = round(alone["seconds"] / both["seconds"], 3)
            row["same"] = alone["sha256"] == both["sha256"]
            print(
                f"{name}: {alone['seconds']} s alone, {both['seconds']} s with a builder, {row['ratio']:.2f}x; ", end=""
            )
            print(f"{both['said']}; the same model: {row['same']}", flush=True)
            rows.append(row)
    options.out.mkdir(parents=True, exist_ok=True)
    write_json(options.out / "builders.json", {"rows": rows})


if __name__ == "__main__":
    main()

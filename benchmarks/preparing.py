"""Preparation of a large model with many samples through Ray: on one processor, and on two.

    OMP_NUM_THREADS=1 python -m benchmarks.preparing [--samples 512] [--model bert_base] [--out DIR]

Needs the extra ``ray``. A seeded transformer of 355 MB is tuned for ONNX Runtime until its ranges are chosen: loading,
the given model's outputs, normalizing, evening out outliers, observing the samples, choosing ranges. The command and
the device have one processor both times, and one thread, as on a machine of their own; the cluster has that processor
alone, or another one besides. Without the variable, linear algebra has a thread for each of the machine's processors,
which get into each other's way on the one that the command may use. Both ways must choose the same.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import inlay
from benchmarks import transformers
from inlay.ray.cluster import ray_library
from inlay.ray.lab import resource_of
from inlay.run.progress import Silent
from inlay.targets.base import TargetSpec

OUT = Path(__file__).parent / "out"
GOAL = 1.7
TARGET = "ort-cpu"
STORE_BYTES = 1_000_000_000


class _Prepared(Exception):
    """The part that is timed is over."""


class _Stages(Silent):
    """When each stage began."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, float]] = []

    def stage(self, text: str) -> None:
        """Note it; the choice of ranges is the last one."""
        self.begun.append((text, time.monotonic()))
        if text.startswith("ranges by"):
            raise _Prepared


def seconds(model: Path, samples: Path, processors: int, folder: Path) -> dict[str, Any]:
    """What preparation takes on a cluster with so many processors: in all, and by stage."""
    ray, here = ray_library(), os.sched_getaffinity(0)
    resources = {resource_of(TargetSpec(TARGET, {})): 1.0}
    os.sched_setaffinity(0, sorted(here)[:processors])  # which Ray's processes inherit
    ray.init(num_cpus=processors, resources=resources, object_store_memory=STORE_BYTES, log_to_driver=False)
    os.sched_setaffinity(0, sorted(here)[:1])
    stages, begun = _Stages(), time.monotonic()
    try:
        inlay.tune(
            model, out=folder, data=samples, target=TARGET, budget=None, ray="auto", progress=stages, cost_db=False
        )
    except _Prepared:
        pass
    finally:
        ray.shutdown()
        os.sched_setaffinity(0, here)
    ends = [*(at for _, at in stages.begun[1:]), time.monotonic()]
    by_stage = {text: round(end - at, 1) for (text, at), end in zip(stages.begun, ends, strict=True)}
    return {"processors": processors, "seconds": round(stages.begun[-1][1] - begun, 1), "stages": by_stage}


def same(rows: list[dict[str, Any]]) -> bool:
    """Whether the stages, whose texts hold what was chosen, are those of the first row; what helped is told besides."""
    said = [[text for text in row["stages"] if "helpers" not in text] for row in rows]
    return all(each == said[0] for each in said)


def main() -> None:
    """Run both, and say how much faster two are."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.preparing", description=__doc__)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--model", default="bert_base", choices=transformers.MODELS)
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        net = transformers.MODELS[options.model]()
        onnx.save(net, folder / "model.onnx")
        np.savez(folder / "samples.npz", **transformers.samples(net, count=options.samples))
        rows = [seconds(folder / "model.onnx", folder / "samples.npz", n, folder / str(n)) for n in (1, 2)]
    found = {"model": options.model, "samples": options.samples, "rows": rows}
    found["speedup"] = round(rows[0]["seconds"] / rows[1]["seconds"], 3)
    found["same"] = same(rows)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "preparing.json").write_text(json.dumps(found, indent=1), encoding="utf8")
    for row in rows:
        print(f"{row['processors']}: {row['seconds']} s  {row['stages']}")
    print(f"two over one: {found['speedup']:.2f}x (goal {GOAL}), the same chosen: {found['same']}")


if __name__ == "__main__":
    main()

"""Preparation of a large model with many samples through Ray: with one processor that helps, and with two.

    python -m benchmarks.preparing [--samples 512] [--model bert_base] [--out DIR]

Needs the extra ``ray``. A seeded transformer of 355 MB is tuned on the simulated target until its ranges are chosen:
loading, normalizing, the given model's own outputs, evening out outliers, observing the samples, choosing ranges. The
cluster has one node, with as many processors as help; one worker is one processor. Both ways must choose the same.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import inlay
from benchmarks import transformers
from inlay.farm.cluster import ray_library
from inlay.farm.lab import resource_of
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
    ray = ray_library()
    resources = {resource_of(TargetSpec(TARGET, {})): 1.0}
    ray.init(num_cpus=processors, resources=resources, object_store_memory=STORE_BYTES, log_to_driver=False)
    stages, begun = _Stages(), time.monotonic()
    try:
        inlay.tune(
            model, out=folder, data=samples, target=TARGET, budget=None, ray="auto", progress=stages, cost_db=False
        )
    except _Prepared:
        pass
    finally:
        ray.shutdown()
    ends = [*(at for _, at in stages.begun[1:]), time.monotonic()]
    by_stage = {text: round(end - at, 1) for (text, at), end in zip(stages.begun, ends, strict=True)}
    return {"processors": processors, "seconds": round(stages.begun[-1][1] - begun, 1), "stages": by_stage}


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
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "preparing.json").write_text(json.dumps(found, indent=1), encoding="utf8")
    for row in rows:
        print(f"{row['processors']}: {row['seconds']} s  {row['stages']}")
    print(f"two over one: {found['speedup']:.2f}x (goal {GOAL})")


if __name__ == "__main__":
    main()

"""Tune Q/DQ placement with a latency function of your own.

    python examples/step_by_step/tune.py MODEL.onnx OUT [--samples SAMPLES.npz] [--schemes 10]

``latency_ms`` below times ONNX Runtime on this machine. Put in its place whatever measures your device: it gets the
path of an ONNX file, and returns milliseconds. If it returns infinity, or keeps raising, that scheme has failed.
Without samples, ranges come from random data, and a warning says so.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort

from inlay.autotune import Config, QDQAutotuner, region_pattern_autotuning_workflow


def latency_ms(model: Path) -> float:
    """Median of 20 runs on one thread, with random inputs."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    feed = {i.name: rng.standard_normal([int(d) for d in i.shape]).astype(np.float32) for i in session.get_inputs()}
    times = []
    for _ in range(20):
        began = time.perf_counter()
        session.run(None, feed)
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def tune(model: str, out: str, schemes: int, samples: str | None = None) -> QDQAutotuner:
    """The whole search; calling it again goes on where it stopped."""
    config = Config(schemes_per_region=schemes)
    return region_pattern_autotuning_workflow(model, out, latency_ms, config=config, samples=samples)


def main() -> None:
    """Read the arguments, tune, and say what came out."""
    parser = argparse.ArgumentParser(description="Tune Q/DQ placement with your own latency function.")
    parser.add_argument("model")
    parser.add_argument("out")
    parser.add_argument("--schemes", type=int, default=10, help="placements tried for each pattern")
    parser.add_argument("--samples", help="inputs to calibrate with, as .npz")
    arguments = parser.parse_args()
    tuner = tune(arguments.model, arguments.out, arguments.schemes, arguments.samples)
    count, where = len(tuner.best_placement), Path(arguments.out) / "model.onnx"
    print(f"{tuner.summary}; {count} ports read Q/DQ in {where}")


if __name__ == "__main__":
    main()

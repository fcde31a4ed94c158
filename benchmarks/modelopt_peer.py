"""NVIDIA ModelOpt's post-training quantization of the same model, run in a process of its own.

    PYTHON -m benchmarks.modelopt_peer MODEL SAMPLES.npz OUT.onnx

ModelOpt is not among Inlay's dependencies: ``PYTHON`` is one that has ``nvidia-modelopt[onnx]``. It writes INT8 with
its defaults, but for the type of what stays in float, which here is that of the model.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np

from benchmarks import nncf_peer

PROVIDERS = ["cpu"]


def quantize(python: str, model: Path, samples: Path, out: Path) -> str:
    """Run it; never raises for what it does. Returns why it failed, or nothing."""
    return nncf_peer.run(python, "benchmarks.modelopt_peer", [str(p.resolve()) for p in (model, samples, out)], out)


def main() -> None:
    """Quantize in this process."""
    quantization = importlib.import_module("modelopt.onnx.quantization")
    onnx = importlib.import_module("onnx")
    model, samples, out = map(Path, sys.argv[1:4])
    form = nncf_peer.OnnxForm()
    given = form.read(model)
    raised = out.with_suffix(".raised.onnx")
    onnx.save(given, str(raised))
    with np.load(samples, allow_pickle=False) as archive:
        feeds = form.feeds(given, {k: archive[k] for k in archive.files})
    quantization.quantize(
        str(raised),
        quantize_mode="int8",
        calibration_data={k: np.concatenate([f[k] for f in feeds]) for k in feeds[0]},
        calibration_eps=PROVIDERS,
        high_precision_dtype="fp32",
        output_path=str(out),
    )


if __name__ == "__main__":
    main()

"""NVIDIA ModelOpt's post-training quantization of the same model, run in a process of its own.

    PYTHON -m benchmarks.modelopt_peer MODEL SAMPLES.npz OUT.onnx fp32|fp16 [quick|default|extensive]

ModelOpt is not among Inlay's dependencies: ``PYTHON`` is one that has ``nvidia-modelopt[onnx]``. It writes INT8 with
its defaults, but for the type of what stays in float, which is named. With a mode its autotuner places the Q/DQ nodes,
by measurements of TensorRT on this machine's GPU.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import nncf_peer

PROVIDERS = ["cpu"]


def quantize(
    python: str,
    model: Path,
    samples: Path,
    out: Path,
    rest: str = "fp32",
    mode: str = "",
    limit_s: float = nncf_peer.LIMIT_S,
) -> str:
    """Run it; never raises for what it does. Returns why it failed, or nothing.

    Args:
        python: that has it.
        model: the file, with its samples and what is to be written.
        samples: see there.
        out: see there.
        rest: type of what is not quantized.
        mode: of its autotuner; empty without that.
        limit_s: seconds that it may take.
    """
    arguments = [*(str(p.resolve()) for p in (model, samples, out)), rest, *filter(None, [mode])]
    return nncf_peer.run(python, "benchmarks.modelopt_peer", arguments, out, limit_s)


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
        high_precision_dtype=sys.argv[4],
        output_path=str(out),
        **(_autotuned(sys.argv[5], out.with_suffix("")) if len(sys.argv) > 5 else {}),
    )


def _autotuned(mode: str, folder: Path) -> dict[str, Any]:
    """What its command line makes of ``--autotune=MODE``; what it has tried is kept in ``folder``."""
    preset = importlib.import_module("modelopt.onnx.quantization.autotune.utils").MODE_PRESETS[mode]
    return {
        "autotune": True,
        "autotune_output_dir": str(folder),
        "autotune_timing_cache": str(folder.with_suffix(".timing")),
        "autotune_num_schemes_per_region": preset["schemes_per_region"],
        "autotune_warmup_runs": preset["warmup_runs"],
        "autotune_timing_runs": preset["timing_runs"],
    }


if __name__ == "__main__":
    main()

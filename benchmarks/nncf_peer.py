"""NNCF's post-training quantization of the same model, run in a process of its own.

    PYTHON -m benchmarks.nncf_peer MODEL SAMPLES.npz OUT.xml performance|mixed

NNCF is not among Inlay's dependencies: ``PYTHON`` is one that has ``nncf`` and ``openvino``. It works on OpenVINO's
form of the model, the one that OpenVINO's documentation recommends, with its defaults but for the preset:
``performance`` is the default one, ``mixed`` has asymmetric activations. Models with MatMuls of two activations are
taken for transformers, and for other models where that fails.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np

PRESETS = ("performance", "mixed")
SAMPLES = 32
LIMIT_S = 900.0


def quantize(python: str, model: Path, samples: Path, out: Path, preset: str) -> str:
    """Run it; never raises for what it does. Returns why it failed, or nothing."""
    command = [python, "-m", "benchmarks.nncf_peer", *(str(p.resolve()) for p in (model, samples, out)), preset]
    root = Path(__file__).parents[1]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=root)
    except subprocess.TimeoutExpired:
        return f"fails: not done after {LIMIT_S:.0f} s"
    if done.returncode == 0 and out.exists():
        return ""
    lines = [t for t in done.stderr.splitlines() if t.strip()]
    return f"fails: {lines[-1] if lines else f'exit code {done.returncode}'}"[:300]


def main() -> None:
    """Quantize in this process."""
    nncf, openvino = (importlib.import_module(name) for name in ("nncf", "openvino"))
    model, samples, out, preset = (*map(Path, sys.argv[1:4]), sys.argv[4])
    with np.load(samples, allow_pickle=False) as archive:
        arrays = {k: archive[k] for k in archive.files}
    count = min(SAMPLES, *(len(a) for a in arrays.values()))
    feeds = [{k: a[i : i + 1] for k, a in arrays.items()} for i in range(count)]
    given = openvino.Core().read_model(str(model))
    options = {"preset": nncf.QuantizationPreset(preset), "subset_size": count}
    special = {"model_type": nncf.ModelType.TRANSFORMER} if _is_transformer(given) else {}
    try:
        made = nncf.quantize(given, nncf.Dataset(feeds), **options, **special)
    except Exception as error:  # of whatever type: its scheme for transformers fails for some
        if not special:
            raise
        print(f"as a transformer: {type(error).__name__}: {error}", file=sys.stderr)
        made = nncf.quantize(openvino.Core().read_model(str(model)), nncf.Dataset(feeds), **options)
    openvino.save_model(made, str(out), compress_to_fp16=False)


def _is_transformer(model: object) -> bool:
    def activation(port: object) -> bool:
        node = port.get_source_output().get_node()  # type: ignore[attr-defined]
        return str(node.get_type_name()) not in ("Constant", "Convert")

    nodes = [n for n in model.get_ordered_ops() if n.get_type_name() == "MatMul"]  # type: ignore[attr-defined]
    return any(all(map(activation, n.inputs())) for n in nodes)


if __name__ == "__main__":
    main()

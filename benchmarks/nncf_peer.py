"""NNCF's post-training quantization of the same model, run in a process of its own.

    PYTHON -m benchmarks.nncf_peer MODEL SAMPLES.npz OUT.xml|OUT.onnx performance|mixed

NNCF is not among Inlay's dependencies: ``PYTHON`` is one that has ``nncf``, and ``openvino`` for ``.xml`` or ``onnx``
for ``.onnx``. The first works on OpenVINO's form of the model, the one that OpenVINO's documentation recommends, the
second on the ONNX model itself; both with NNCF's defaults but for the preset: ``performance`` is the default one,
``mixed`` has asymmetric activations. Models with MatMuls of two activations are taken for transformers, and for other
models where that fails.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

PRESETS = ("performance", "mixed")
SAMPLES = 32
OPSET = 17
LIMIT_S = 900.0


def quantize(python: str, model: Path, samples: Path, out: Path, preset: str) -> str:
    """Run it; never raises for what it does. Returns why it failed, or nothing."""
    return run(python, "benchmarks.nncf_peer", [*(str(p.resolve()) for p in (model, samples, out)), preset], out)


def run(python: str, module: str, arguments: Sequence[str], out: Path, limit_s: float = LIMIT_S) -> str:
    """Run ``module``, which writes ``out``, by another Python. Returns why it failed, or nothing."""
    root = Path(__file__).parents[1]
    command = [python, "-m", module, *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, cwd=root)
    except subprocess.TimeoutExpired:
        return f"fails: not done after {limit_s:.0f} s"
    if done.returncode == 0 and out.exists():
        return ""
    lines = [t for t in done.stderr.splitlines() if t.strip()]
    return f"fails: {lines[-1] if lines else f'exit code {done.returncode}'}"[:300]


def main() -> None:
    """Quantize in this process."""
    nncf = importlib.import_module("nncf")
    model, samples, out, preset = (*map(Path, sys.argv[1:4]), sys.argv[4])
    form: _Form = OnnxForm() if out.suffix == ".onnx" else _OpenVino()
    with np.load(samples, allow_pickle=False) as archive:
        arrays = {k: archive[k] for k in archive.files}
    given = form.read(model)
    feeds = form.feeds(given, arrays)
    options = {"preset": nncf.QuantizationPreset(preset), "subset_size": len(feeds)}
    special = {"model_type": nncf.ModelType.TRANSFORMER} if form.is_transformer(given) else {}
    try:
        made = nncf.quantize(given, nncf.Dataset(feeds), **options, **special)
    except Exception as error:  # of whatever type: its scheme for transformers fails for some
        if not special:
            raise
        print(f"as a transformer: {type(error).__name__}: {error}", file=sys.stderr)
        made = nncf.quantize(form.read(model), nncf.Dataset(feeds), **options)
    form.write(made, out)


class _Form(Protocol):
    """What NNCF takes a model as."""

    def read(self, path: Path) -> Any:
        """The model."""

    def write(self, model: Any, path: Path) -> None:
        """Save it."""

    def feeds(self, model: Any, arrays: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """The first samples."""

    def is_transformer(self, model: Any) -> bool:
        """Whether two activations are multiplied."""


def _feeds(arrays: dict[str, np.ndarray], ranks: dict[str, int]) -> list[dict[str, np.ndarray]]:
    """The first samples, along an axis of their own, or that of the batch."""
    arrays = {k: a if a.ndim > ranks[k] else a[:, None] for k, a in arrays.items()}
    count = min(SAMPLES, *(len(a) for a in arrays.values()))
    return [{k: a[i] for k, a in arrays.items()} for i in range(count)]


class _OpenVino:
    """OpenVINO's own."""

    def read(self, path: Path) -> Any:
        return importlib.import_module("openvino").Core().read_model(str(path))

    def write(self, model: Any, path: Path) -> None:
        importlib.import_module("openvino").save_model(model, str(path), compress_to_fp16=False)

    def feeds(self, model: Any, arrays: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        ranks = {n: len(i.get_partial_shape()) for i in model.inputs for n in i.get_names()}
        return _feeds(arrays, ranks)

    def is_transformer(self, model: Any) -> bool:
        def activation(port: Any) -> bool:
            return str(port.get_source_output().get_node().get_type_name()) not in ("Constant", "Convert")

        nodes = [n for n in model.get_ordered_ops() if n.get_type_name() == "MatMul"]
        return any(all(map(activation, n.inputs())) for n in nodes)


class OnnxForm:
    """A protobuf, of an opset that can say a scale for each channel."""

    def read(self, path: Path) -> Any:
        """The model, at least at that opset."""
        onnx = importlib.import_module("onnx")
        importlib.import_module("onnx.version_converter")
        model = onnx.load(str(path))
        old = any(o.domain in ("", "ai.onnx") and o.version < OPSET for o in model.opset_import)
        return onnx.version_converter.convert_version(model, OPSET) if old else model

    def write(self, model: Any, path: Path) -> None:
        """Save it."""
        importlib.import_module("onnx").save(model, str(path))

    def feeds(self, model: Any, arrays: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
        """The first samples."""
        ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in model.graph.input}
        return _feeds(arrays, ranks)

    def is_transformer(self, model: Any) -> bool:
        """Whether a MatMul reads no constant."""
        fixed = {t.name for t in model.graph.initializer}
        fixed |= {o for n in model.graph.node if n.op_type == "Constant" for o in n.output}
        return any(n.op_type == "MatMul" and not fixed & set(n.input) for n in model.graph.node)


if __name__ == "__main__":
    main()

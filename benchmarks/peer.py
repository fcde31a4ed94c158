"""ONNX Runtime's own quantizer in its usual settings, in a process of its own: it may fail in any way.

    python -m benchmarks.peer static|products|dynamic|weights8|weights4 MODEL SAMPLES.npz OUT.onnx

Static: Q/DQ, uint8 activations, int8 weights per channel, minmax over the first samples. Products: the same of
convolutions and matrix products alone. Dynamic: int8 weights per
channel of matrix products and recurrent cells, which is where it pays. Both after ``quant_pre_process`` where that
works. Weights: those of matrix products alone, 8 or 4 bits in blocks of 32, multiplied as integers (accuracy level 4).
It gets every chance: where that gives no model that loads (scales per channel need opset 13), the opset is raised
first, and where that fails too, weights get one scale each. The last line on standard output is
``{"note": "…"}``.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
import onnxruntime as ort
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

SAMPLES = 16
LIMIT_S = 900.0
OPSET = 17
WEIGHT_BITS = {"weights8": 8, "weights4": 4}
BLOCK, ACCURACY_LEVEL = 32, 4
STATIC_OPERATORS = {"static": None, "products": ["Conv", "ConvTranspose", "MatMul", "Gemm"]}
"""By method; None for all that it knows."""
DYNAMIC_OPERATORS = ["MatMul", "Gemm", "LSTM", "Attention"]
"""Its default also makes ConvInteger of every Conv, which is slower than float."""
ATTEMPTS = (("", False, True), (f"opset raised to {OPSET}", True, True), ("one scale for each weight", False, False))
"""Note, whether the opset is raised first, whether weights have a scale for each channel."""


class Peer:
    """What came of it: the file, or the reason why there is none."""

    def __init__(self, path: Path | None, note: str) -> None:
        self.path, self.note = path, note


def quantize(method: str, model: Path, samples: Path, out: Path) -> Peer:
    """Run the quantizer by one of the module's methods; never raises for what it does."""
    command = [sys.executable, "-m", "benchmarks.peer", method, str(model), str(samples), str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Peer(None, f"fails: not done after {LIMIT_S:.0f} s")
    if done.returncode != 0 or not out.exists():
        lines = [t for t in done.stderr.splitlines() if t.strip()]
        return Peer(None, f"fails: {lines[-1] if lines else f'exit code {done.returncode}'}"[:300])
    facts = json.loads(done.stdout.splitlines()[-1])
    return Peer(out, str(facts["note"]))


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """The first samples, one by one, as the quantizer reads them; along an axis of their own, or that of the batch."""

    def __init__(self, path: Path, model: onnx.ModelProto) -> None:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {k: archive[k] for k in archive.files}
        ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in model.graph.input}
        arrays = {k: a if a.ndim > ranks[k] else a[:, None] for k, a in arrays.items()}
        count = min(SAMPLES, *(len(a) for a in arrays.values()))
        self._feeds = iter([{k: a[i] for k, a in arrays.items()} for i in range(count)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next feed, or None."""
        return next(self._feeds, None)


def main() -> None:
    """Quantize in this process."""
    method = sys.argv[1]
    model, samples, out = (Path(a).resolve() for a in sys.argv[2:5])
    with scratch_folder():
        _quantize(method, model, samples, out)


@contextlib.contextmanager
def scratch_folder() -> Iterator[None]:
    """Work in a folder that is removed: the quantizer's preprocessing leaves files in the working folder."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        try:
            yield
        finally:
            os.chdir(home)


def _quantize(method: str, model: Path, samples: Path, out: Path) -> None:
    """The first attempt whose model loads counts."""
    failures = []
    for note, raised, per_channel in ATTEMPTS:
        try:
            with tempfile.TemporaryDirectory() as folder:
                preprocessed = _attempt(method, model, samples, out, Path(folder), raised, per_channel)
            ort.InferenceSession(str(out), providers=["CPUExecutionProvider"])
        except Exception as error:  # of whatever type
            failures.append(f"{type(error).__name__}: {error}")
            continue
        notes = [n for n in (note, "" if preprocessed else "without preprocessing, which fails") if n]
        if note:
            notes.append(f"as it is: {_one_line(failures[0])}")
        print(json.dumps({"note": "; ".join(notes)}))
        return
    out.unlink(missing_ok=True)
    print(_one_line(failures[0]), file=sys.stderr)
    sys.exit(1)


def _attempt(method: str, model: Path, samples: Path, out: Path, folder: Path, raised: bool, per_channel: bool) -> bool:
    given: Any = model
    if raised:
        given = folder / "raised.onnx"
        onnx.save(onnx.version_converter.convert_version(onnx.load(model), OPSET), given)
    if method in WEIGHT_BITS:
        _quantize_weights(given, out, WEIGHT_BITS[method])
        return True
    prepared: Any = folder / "prepared.onnx"
    preprocessed = True
    try:
        quant_pre_process(str(given), str(prepared))
    except Exception as error:  # of whatever type: then it goes on without
        print(f"quant_pre_process: {type(error).__name__}: {error}", file=sys.stderr)
        prepared, preprocessed = given, False
    if method == "dynamic":
        quantize_dynamic(str(prepared), str(out), DYNAMIC_OPERATORS, per_channel, weight_type=QuantType.QInt8)
        return preprocessed
    quantize_static(
        str(prepared),
        str(out),
        Reader(samples, onnx.load(model, load_external_data=False)),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=STATIC_OPERATORS[method],
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        per_channel=per_channel,
    )
    return preprocessed


def _quantize_weights(model: Path, out: Path, bits: int) -> None:
    # Imported here: it needs a package that the other methods do without.
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    made = MatMulNBitsQuantizer(
        str(model), bits=bits, block_size=BLOCK, is_symmetric=True, accuracy_level=ACCURACY_LEVEL
    )
    made.process()
    made.model.save_model_to_file(str(out))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:300]


if __name__ == "__main__":
    main()

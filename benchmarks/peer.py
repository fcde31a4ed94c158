"""ONNX Runtime's own quantizer in its usual settings, in a process of its own: it may fail in any way.

    python -m benchmarks.peer MODEL SAMPLES.npz OUT.onnx

Q/DQ, uint8 activations, int8 weights per channel, minmax over the first samples, after ``quant_pre_process`` where that
works. The last line on standard output is ``{"preprocessed": true}``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES = 16
LIMIT_S = 900.0


class Peer:
    """What came of it: the file, or the reason why there is none."""

    def __init__(self, path: Path | None, note: str) -> None:
        self.path, self.note = path, note


def quantize(model: Path, samples: Path, out: Path) -> Peer:
    """Run the quantizer; never raises for what it does."""
    command = [sys.executable, "-m", "benchmarks.peer", str(model), str(samples), str(out)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return Peer(None, f"fails: not done after {LIMIT_S:.0f} s")
    if done.returncode != 0 or not out.exists():
        lines = [t for t in done.stderr.splitlines() if t.strip()]
        return Peer(None, f"fails: {lines[-1] if lines else f'exit code {done.returncode}'}"[:300])
    facts = json.loads(done.stdout.splitlines()[-1])
    return Peer(out, "" if facts["preprocessed"] else "without preprocessing, which fails")


class Reader:
    """The first samples, one by one, as the quantizer reads them."""

    def __init__(self, path: Path) -> None:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {k: archive[k] for k in archive.files}
        count = min(SAMPLES, *(len(a) for a in arrays.values()))
        self._feeds = iter([{k: a[i : i + 1] for k, a in arrays.items()} for i in range(count)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        """The next feed, or None."""
        return next(self._feeds, None)


def main() -> None:
    """Quantize in this process."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    model, samples, out = (Path(a) for a in sys.argv[1:4])
    CalibrationDataReader.register(Reader)
    with tempfile.TemporaryDirectory() as folder:
        prepared: Any = Path(folder) / "prepared.onnx"
        try:
            quant_pre_process(str(model), str(prepared))
            preprocessed = True
        except Exception as error:  # of whatever type: then it goes on without
            print(f"quant_pre_process: {type(error).__name__}: {error}", file=sys.stderr)
            prepared, preprocessed = model, False
        quantize_static(
            str(prepared),
            str(out),
            Reader(samples),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )
    print(json.dumps({"preprocessed": preprocessed}))


if __name__ == "__main__":
    main()

"""Print the top-1 accuracy of a digits model, float or quantized: ``python evaluate.py MODEL.onnx``.

Two figures: on ``unseen.npz``, which ``inlay tune`` is never given, and on ``data.npz`` with ``labels.npy``,
which it is. Needs numpy and onnxruntime only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

HERE = Path(__file__).resolve().parent

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


def load_sets() -> dict[str, tuple[Images, Labels]]:
    """Return the labelled samples by file name: images ``(N, 1, 64, 64)``, labels ``(N,)``."""
    with np.load(HERE / "unseen.npz") as unseen, np.load(HERE / "data.npz") as data:
        return {
            "unseen.npz": (unseen["image"], unseen["label"]),
            "data.npz": (data["image"], np.load(HERE / "labels.npy")),
        }


def open_model(path: Path) -> ort.InferenceSession:
    """Open a model on the CPU with one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def count_correct(session: ort.InferenceSession, image: Images, label: Labels) -> int:
    """Return how many samples, run one at a time, have their highest logit at their label."""
    name = session.get_inputs()[0].name
    logits = np.concatenate([session.run(None, {name: sample[np.newaxis]})[0] for sample in image])
    return int(np.sum(logits.argmax(axis=1) == label))


def main() -> None:
    """Read the command line, print one line per set."""
    parser = argparse.ArgumentParser(description="Print the top-1 accuracy of a digits model.")
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    path: Path = parser.parse_args().model
    if not path.is_file():
        raise SystemExit(f"{path}: no such file")
    session = open_model(path)
    for name, (image, label) in load_sets().items():
        correct = count_correct(session, image, label)
        print(f"{name:<10}  top-1 {correct / len(label):.4f}  ({correct} of {len(label)})")


if __name__ == "__main__":
    main()

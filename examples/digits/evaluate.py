"""Print the top-1 accuracy of a digits model, float or quantized: ``python evaluate.py MODEL.onnx``.

Two figures: on ``unseen.npz``, which ``inlay tune`` is never given, and on ``data.npz`` with ``labels.npy``,
which it is. Needs numpy and onnxruntime only.

``inlay tune --evaluate evaluate:top1`` calls :func:`top1`, and ``--evaluate "python evaluate.py --json {model}"`` runs
this file: both say of each of the samples in ``data.npz`` whether the model is right.
"""

from __future__ import annotations

import argparse
import json
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


def correct(session: ort.InferenceSession, image: Images, label: Labels) -> NDArray[np.bool_]:
    """Return whether each sample, run by itself, has its highest logit at its label."""
    name = session.get_inputs()[0].name
    logits = np.concatenate([session.run(None, {name: sample[np.newaxis]})[0] for sample in image])
    return np.equal(logits.argmax(axis=1), label)


def top1(model: str) -> dict[str, list[int]]:
    """Return 1 for each sample of ``data.npz`` that the model at a path gets right, and 0 for the others."""
    image, label = load_sets()["data.npz"]
    return {"top1": [int(right) for right in correct(open_model(Path(model)), image, label)]}


def main() -> None:
    """Read the command line, print one line per set."""
    parser = argparse.ArgumentParser(description="Print the top-1 accuracy of a digits model.")
    parser.add_argument("model", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--json", action="store_true", help="print what top1 returns instead")
    given = parser.parse_args()
    path: Path = given.model
    if not path.is_file():
        raise SystemExit(f"{path}: no such file")
    if given.json:
        print(json.dumps(top1(str(path))))
        return
    session = open_model(path)
    for name, (image, label) in load_sets().items():
        right = int(correct(session, image, label).sum())
        print(f"{name:<10}  top-1 {right / len(label):.4f}  ({right} of {len(label)})")


if __name__ == "__main__":
    main()

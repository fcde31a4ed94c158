"""Train the digits example and write its model and data files.

``python train.py`` trains a small convolutional network on the handwritten digits of scikit-learn and writes,
beside this file or into ``--out``:

* ``digits.onnx``: the trained network, batch size 1, opset 17, batch normalization left unfused;
* ``data.npz`` and ``labels.npy``: the held-back 30 % of the digits, what ``inlay tune`` is given;
* ``unseen.npz``: the validation 10 % with its labels, which ``inlay tune`` never sees;
* ``split.json``: the seed, and which row of ``load_digits`` went into which part.

The same seed and thread count on the same machine give the same weights. Torch is needed here and nowhere
else: ``pip install "inlay[train]"``.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

try:
    import torch
    from torch import Tensor, nn
    from torch.nn import functional
except ImportError as error:
    raise SystemExit('train.py needs PyTorch: pip install "inlay[train]"') from error

HERE = Path(__file__).resolve().parent
SIZE = 64
CLASSES = 10
OPSET = 17
TRAIN_FRACTION, UNSEEN_FRACTION, HELD_BACK_FRACTION = 0.6, 0.1, 0.3

Images = NDArray[np.float32]
Labels = NDArray[np.int64]


# --- data ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Some of the digits: images ``(N, 1, SIZE, SIZE)`` in [0, 1], labels ``(N,)``, their source rows."""

    image: Images
    label: Labels
    row: NDArray[np.int64]


@dataclass(frozen=True)
class Split:
    """The three disjoint parts; ``train`` alone changes weights, ``unseen`` alone picks the epoch."""

    train: Part
    unseen: Part
    held_back: Part


def interpolation_matrix(source: int, target: int) -> NDArray[np.float64]:
    """Return the ``(target, source)`` matrix that interpolates a line of pixels linearly.

    Pixel ``i`` of ``n`` has its centre at ``(i + 0.5) / n``; beyond the outer centres the edge repeats.
    """
    position = np.clip((np.arange(target) + 0.5) * source / target - 0.5, 0, source - 1)
    left = np.minimum(position.astype(np.int64), source - 2)
    fraction = position - left
    matrix = np.zeros((target, source))
    matrix[np.arange(target), left] = 1 - fraction
    matrix[np.arange(target), left + 1] = fraction
    return matrix


def load_images() -> tuple[Images, Labels]:
    """Load the 8x8 digits (17 grey levels), enlarge them to SIZE x SIZE, and round to 8-bit grey."""
    digits = load_digits()
    enlarge = interpolation_matrix(8, SIZE)
    grey = np.round(enlarge @ (digits.images / 16) @ enlarge.T * 255) / 255
    return grey[:, np.newaxis].astype(np.float32), digits.target.astype(np.int64)


def split_data(seed: int) -> Split:
    """Split the digits into three parts, each with the class frequencies of the whole."""
    image, label = load_images()
    rest, held_back = train_test_split(
        np.arange(len(label)), test_size=HELD_BACK_FRACTION, stratify=label, random_state=seed
    )
    unseen_of_rest = UNSEEN_FRACTION / (TRAIN_FRACTION + UNSEEN_FRACTION)
    train, unseen = train_test_split(rest, test_size=unseen_of_rest, stratify=label[rest], random_state=seed)
    train, unseen, held_back = (
        Part(image[rows], label[rows], rows.astype(np.int64)) for rows in (train, unseen, held_back)
    )
    return Split(train, unseen, held_back)


def save_data(split: Split, seed: int, out: Path) -> None:
    """Write the held-back and unseen parts, and the rows of all three."""
    np.savez_compressed(out / "data.npz", image=split.held_back.image)
    np.save(out / "labels.npy", split.held_back.label)
    np.savez_compressed(out / "unseen.npz", image=split.unseen.image, label=split.unseen.label)
    rows = {name: getattr(split, name).row.tolist() for name in ("train", "unseen", "held_back")}
    (out / "split.json").write_text(json.dumps({"seed": seed, **rows}) + "\n", encoding="utf-8")


# --- network ------------------------------------------------------------------------------------------------


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a same-padded convolution without bias, followed by batch normalization."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))


class Fire(nn.Module):
    """Squeeze with 1x1, expand with 1x1 and 3x3 side by side, concatenate: ``2 * expand`` channels out."""

    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeeze, 1)
        self.expand1 = nn.Conv2d(squeeze, expand, 1)
        self.expand3 = nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the two expanded branches, concatenated over channels."""
        x = functional.relu(self.squeeze(x))
        return torch.cat([functional.relu(self.expand1(x)), functional.relu(self.expand3(x))], dim=1)


class Residual(nn.Module):
    """Two 3x3 convolutions with batch normalization, added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = conv_bn(channels, channels, 3)
        self.second = conv_bn(channels, channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``relu(x + second(relu(first(x))))``."""
        return functional.relu(x + self.second(functional.relu(self.first(x))))


class Separable(nn.Module):
    """A 3x3 depthwise convolution, then a 1x1 pointwise one, each with batch normalization and ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.depthwise = conv_bn(inputs, inputs, 3, groups=inputs)
        self.pointwise = conv_bn(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the pointwise convolution of the depthwise one."""
        return functional.relu(self.pointwise(functional.relu(self.depthwise(x))))


class DigitNet(nn.Module):
    """Images ``(N, 1, SIZE, SIZE)`` to logits ``(N, CLASSES)``."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_bn(1, 32, 3), nn.ReLU())
        self.fire1 = Fire(32, squeeze=32, expand=48)
        self.fire2 = Fire(96, squeeze=48, expand=48)
        self.residual = Residual(96)
        self.separable = Separable(96, 128)
        self.fire3 = Fire(128, squeeze=48, expand=64)
        self.fire4 = Fire(128, squeeze=48, expand=96)
        self.pool = nn.MaxPool2d(2)
        self.average = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(192, CLASSES)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits."""
        x = self.pool(self.fire2(self.fire1(self.stem(x))))
        x = self.pool(self.fire3(self.separable(self.residual(x))))
        return self.classify(torch.flatten(self.average(self.fire4(x)), 1))


# --- training -----------------------------------------------------------------------------------------------


def augment(image: Tensor, generator: torch.Generator, shift: int = 6, noise: float = 0.04) -> Tensor:
    """Shift each image by up to ``shift`` pixels each way and add Gaussian noise."""
    padded = functional.pad(image, [shift] * 4)
    offsets = torch.randint(0, 2 * shift + 1, (len(image), 2), generator=generator).tolist()
    moved = [p[:, y : y + SIZE, x : x + SIZE] for p, (y, x) in zip(padded, offsets, strict=True)]
    shifted = torch.stack(moved)
    return shifted + noise * torch.randn(shifted.shape, generator=generator)


def batches(part: Part, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield shuffled, augmented batches; the incomplete last one is left out."""
    image, label = torch.from_numpy(part.image), torch.from_numpy(part.label)
    order = torch.randperm(len(label), generator=generator)
    for rows in order[: len(order) // size * size].split(size):
        yield augment(image[rows], generator), label[rows]


@torch.no_grad()
def evaluate(model: nn.Module, part: Part) -> tuple[float, float]:
    """Return (top-1 accuracy, mean cross-entropy) over a part."""
    model.eval()
    logits = torch.cat([model(image) for image in torch.from_numpy(part.image).split(64)])
    label = torch.from_numpy(part.label)
    accuracy = (logits.argmax(1) == label).double().mean().item()
    return accuracy, functional.cross_entropy(logits, label).item()


def train(split: Split, epochs: int, seed: int, batch_size: int = 16, peak_rate: float = 2e-3) -> DigitNet:
    """Train from scratch; return the weights of the epoch with the lowest loss on the unseen part."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = DigitNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_rate, weight_decay=0.02)
    steps = epochs * (len(split.train.label) // batch_size)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak_rate, total_steps=steps)
    best_loss, best_state = float("inf"), model.state_dict()
    for epoch in range(1, epochs + 1):
        start = time.perf_counter()
        model.train()
        for image, label in batches(split.train, batch_size, generator):
            optimizer.zero_grad(set_to_none=True)
            functional.cross_entropy(model(image), label, label_smoothing=0.05).backward()
            optimizer.step()
            schedule.step()
        accuracy, loss = evaluate(model, split.unseen)
        seconds = time.perf_counter() - start
        figures = f"unseen top-1 {accuracy:.4f}  loss {loss:.4f}  {seconds:.1f} s"
        print(f"epoch {epoch:2d}/{epochs}  {figures}", flush=True)
        if loss < best_loss:
            best_loss, best_state = loss, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    return model


# --- export -------------------------------------------------------------------------------------------------


def export(model: DigitNet, path: Path) -> None:
    """Write the network as ONNX: input ``image`` (1, 1, SIZE, SIZE), output ``logits`` (1, CLASSES).

    ``TrainingMode.PRESERVE`` on a model in eval mode keeps BatchNormalization as its own node.
    """
    model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the newer exporter needs onnxscript
        torch.onnx.export(
            model,
            (torch.zeros(1, 1, SIZE, SIZE),),
            path,
            input_names=["image"],
            output_names=["logits"],
            opset_version=OPSET,
            dynamo=False,
            training=torch.onnx.TrainingMode.PRESERVE,
            do_constant_folding=False,
        )
    strip_documentation(path)


def strip_documentation(path: Path) -> None:
    """Remove doc strings and metadata, where exporters note source files and lines; check the model."""
    model = onnx.load(path)
    model.doc_string = ""
    model.graph.doc_string = ""
    for item in (*model.graph.node, *model.graph.input, *model.graph.output, *model.graph.initializer):
        item.doc_string = ""
        del item.metadata_props[:]
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    model.graph.name = "digits"
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Train the digits example.")
    parser.add_argument("--out", type=Path, default=HERE, help="folder to write (default: beside this file)")
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0, help="for the split, the weights and the augmentation")
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    """Train, report, write the files."""
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.use_deterministic_algorithms(True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    split = split_data(arguments.seed)
    save_data(split, arguments.seed, arguments.out)
    model = train(split, arguments.epochs, arguments.seed)
    for name, part in (("unseen", split.unseen), ("held back", split.held_back)):
        print(f"{name}: top-1 {evaluate(model, part)[0]:.4f} of {len(part.label)} samples")
    export(model, arguments.out / "digits.onnx")


if __name__ == "__main__":
    main()

"""Networks on images with channels last, as exporters of three origins write them around ONNX's channels first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from inlay.testing import Builder

TO_FIRST, TO_LAST = (0, 3, 1, 2), (0, 2, 3, 1)
ORIGINS = ("keras", "jax", "torch")
"""Of Keras, scales and shifts are vectors and pads are nodes; of JAX, constants have all axes and are divided by; of
PyTorch, a module turns before and behind each convolution, and casts to the type that is there."""

Image = tuple[str, tuple[int, int, int]]
"""A value with samples first and channels last, and its rows, columns and channels."""


class ChannelsLast:
    """Builds a network on images with channels last.

    Args:
        origin: whose form of the operators; one of :data:`ORIGINS`.
        rng: for weights.
        samples: a number or a symbol.
    """

    def __init__(self, origin: str, rng: np.random.Generator, samples: int | str = 1) -> None:
        self.origin, self.rng, self.samples, self.b = origin, rng, samples, Builder()

    def input(self, rows: int, columns: int, channels: int) -> Image:
        return self.b.input("x", (self.samples, rows, columns, channels)), (rows, columns, channels)

    def node(self, op_type: str, inputs: Sequence[str], **attributes: object) -> str:
        return self.b.node(f"{op_type}_{len(self.b.nodes)}", op_type, inputs, **attributes)  # type: ignore[arg-type]

    def constant(self, array: object) -> str:
        return self.b.constant(f"c{len(self.b.initializers)}", array)

    def turned(self, x: str, perm: Sequence[int]) -> str:
        return self.node("Transpose", [x], perm=list(perm))

    def first(self, op_type: str, x: str, *more: str, **attributes: object) -> str:
        """An operator that knows channels first only, between two Transposes."""
        y = self.turned(self.node(op_type, [self.turned(x, TO_FIRST), *more], **attributes), TO_LAST)
        return self.node("Cast", [y], to=onnx.TensorProto.FLOAT) if self.origin == "torch" else y

    def per_channel(self, numbers: np.ndarray) -> str:
        return self.constant(numbers if self.origin == "keras" else numbers.reshape(1, 1, 1, -1))

    def conv(self, image: Image, channels: int, kernel: int = 3, stride: int = 1) -> Image:
        x, (rows, columns, given) = image
        deviation = 1 / np.sqrt(given * kernel * kernel)
        weight = self.constant(self.rng.normal(0, deviation, (channels, given, kernel, kernel)))
        pads = [kernel // 2] * 4
        if self.origin == "keras" and stride > 1:
            x = self.node("Pad", [x, self.constant(np.array([0, *pads[:2], 0, 0, *pads[2:], 0]))])
            pads = [0] * 4
        y = self.first("Conv", x, weight, pads=pads, strides=[stride, stride], kernel_shape=[kernel, kernel])
        return y, (-(-rows // stride), -(-columns // stride), channels)

    def normalization(self, image: Image) -> Image:
        """A batch normalization, taken apart."""
        _, sizes = image
        mean, shift = self.rng.normal(0, 1, (2, sizes[2]))
        scale = self.rng.uniform(0.5, 2.0, sizes[2])
        if self.origin == "keras":
            return self._by("Add", self._by("Mul", image, scale), shift - mean * scale)
        centered = self._by("Sub", image, mean)
        if self.origin == "jax":
            return self._by("Add", self._by("Div", centered, 1 / scale), shift)
        return self._by("Add", self._by("Mul", self._by("Add", centered, shift * 0 + 0.1), scale), shift)

    def _by(self, op_type: str, image: Image, numbers: np.ndarray) -> Image:
        return self.node(op_type, [image[0], self.per_channel(numbers)]), image[1]

    def function(self, image: Image, op_type: str = "Relu") -> Image:
        return self.node(op_type, [image[0]]), image[1]

    def block(self, image: Image, channels: int, stride: int = 1, kernel: int = 3) -> Image:
        """Conv, normalization and Relu."""
        return self.function(self.normalization(self.conv(image, channels, kernel, stride)))

    def residual(self, image: Image, channels: int) -> Image:
        """Two convolutions beside one, added up."""
        inner = self.normalization(self.conv(self.block(image, channels), channels))
        skip = image if image[1][2] == channels else self.normalization(self.conv(image, channels, 1))
        return self.function((self.node("Add", [inner[0], skip[0]]), inner[1]))

    def split(self, image: Image) -> Image:
        """One half of the channels through a convolution, and then both joined again."""
        x, (rows, columns, channels) = image
        half = channels // 2
        name = f"Split_{len(self.b.nodes)}"
        parts = [f"{name}_a", f"{name}_b"]
        sizes = self.constant(np.array([half, channels - half]))
        self.b.node(name, "Split", [x, sizes], outputs=parts, axis=-1)
        made, _ = self.block((parts[0], (rows, columns, half)), half)
        return self.node("Concat", [parts[1], made], axis=3), image[1]

    def gate(self, image: Image) -> Image:
        """Channels scaled by what follows from their means."""
        x, (_, _, channels) = image
        weight = self.constant(self.rng.normal(0, 1 / np.sqrt(channels), (channels, channels, 1, 1)))
        if self.origin == "keras":
            mean = self.node("ReduceMean", [x], axes=[1, 2], keepdims=0)
            mean = self.node("Reshape", [mean, self.constant(np.array([-1, 1, 1, channels]))])
        else:
            mean = self.node("ReduceMean", [x], axes=[1, 2], keepdims=1)
        gate = self.node("Sigmoid", [self.first("Conv", mean, weight)])
        return self.node("Mul", [x, gate]), image[1]

    def pool(self, image: Image) -> Image:
        x, (rows, columns, channels) = image
        y = self.first("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
        return y, (rows // 2, columns // 2, channels)

    def upsample(self, image: Image, mode: str = "nearest") -> Image:
        x, (rows, columns, channels) = image
        scales = self.constant(np.array([1, 2, 2, 1], np.float32))
        y = self.node("Resize", [x, "", scales], mode=mode, coordinate_transformation_mode="asymmetric")
        return y, (2 * rows, 2 * columns, channels)

    def crop(self, image: Image) -> Image:
        x, (rows, columns, channels) = image
        bounds = [self.constant(np.array(v)) for v in ([1, 0], [rows, columns - 1], [1, 2])]
        return self.node("Slice", [x, *bounds]), (rows - 1, columns - 1, channels)

    def pad(self, image: Image) -> Image:
        x, (rows, columns, channels) = image
        y = self.node("Pad", [x, self.constant(np.array([0, 1, 0, 0, 0, 0, 1, 0]))], mode="edge")
        return y, (rows + 1, columns + 1, channels)

    def softmax(self, image: Image) -> Image:
        return self.node("Softmax", [image[0]], axis=3), image[1]

    def classifier(self, image: Image, classes: int = 5) -> str:
        x, (_, _, channels) = image
        mean = self.node("ReduceMean", [x], axes=[1, 2], keepdims=0)
        return self.node("MatMul", [mean, self.constant(self.rng.normal(0, 1, (channels, classes)))])

    def sizes(self, image: Image) -> str:
        """Its rows and channels, computed."""
        taken = self.node("Gather", [self.node("Shape", [image[0]]), self.constant(np.array([1, 3]))])
        return self.node("Cast", [taken], to=onnx.TensorProto.FLOAT)


Step = Callable[[ChannelsLast, Image], Image]

EXACT: dict[str, Step] = {
    "block": lambda n, x: n.block(x, 6),
    "stride": lambda n, x: n.block(x, 8, stride=2),
    "residual": lambda n, x: n.residual(x, 6),
    "split": ChannelsLast.split,
    "pool": ChannelsLast.pool,
    "upsample": ChannelsLast.upsample,
    "crop": ChannelsLast.crop,
    "pad": ChannelsLast.pad,
    "normalization": ChannelsLast.normalization,
    "relu": ChannelsLast.function,
}
"""Steps whose numbers are the same bit for bit in any order of axes."""

ROUNDED: dict[str, Step] = {
    "gate": ChannelsLast.gate,
    "softmax": ChannelsLast.softmax,
    "sigmoid": lambda n, x: n.function(x, "Sigmoid"),
    "smooth": lambda n, x: n.upsample(x, "linear"),
}
"""Steps whose kernels add up, or round, differently with the order."""


def residual_network(origin: str, size: int = 16, width: int = 8, samples: int | str = 1) -> onnx.ModelProto:
    """A small residual network with a classifier."""
    net = ChannelsLast(origin, np.random.default_rng(0), samples)
    y = net.pool(net.block(net.input(size, size, 3), width, stride=2))
    for channels in (width, 2 * width):
        y = net.gate(net.residual(y, channels))
    net.b.output(net.classifier(y))
    return net.b.model()

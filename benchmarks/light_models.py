"""The ``light_*`` graphs of the ``onnx`` package with real-sized weights: real architectures, seeded numbers.

The package ships the graphs of well-known networks with each weight as a ``ConstantOfShape``. Here each becomes an
initializer with numbers drawn from a seed: He-normal convolutions, batch normalization near identity, small biases.

    python -m benchmarks.light_models resnet50 resnet50.onnx samples.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

NAMES = ("squeezenet", "inception_v1", "inception_v2", "resnet50", "shufflenet", "densenet121")


def light_graph(name: str) -> onnx.ModelProto:
    """The graph of ``light_<name>.onnx`` as the package ships it."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return onnx.load(folder / f"light_{name}.onnx")


def light_model(name: str, seed: int = 0) -> onnx.ModelProto:
    """``light_<name>`` with seeded weights as initializers, which are taken off the graph's inputs."""
    model = light_graph(name)
    graph = model.graph
    rng = np.random.default_rng(seed)
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    roles = _roles(graph)
    fills = [n for n in graph.node if n.op_type == "ConstantOfShape"]
    used_as_shape = {n.input[0] for n in fills}
    weights = [
        numpy_helper.from_array(_numbers(tuple(shapes[n.input[0]]), roles.get(n.output[0], ""), rng), n.output[0])
        for n in fills
    ]
    kept_nodes = [n for n in graph.node if n.op_type != "ConstantOfShape"]
    kept_tensors = [t for t in graph.initializer if t.name not in used_as_shape]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept_nodes)
    graph.initializer.extend([*kept_tensors, *weights])
    constant = {t.name for t in graph.initializer} | used_as_shape
    inputs = [i for i in graph.input if i.name not in constant]
    del graph.input[:]
    graph.input.extend(inputs)
    model.ir_version = max(model.ir_version, 4)
    return model


def samples(count: int = 16, seed: int = 0, side: int = 224) -> np.ndarray:
    """Smooth random images, shape (count, 3, side, side), roughly normalized like photographs."""
    rng = np.random.default_rng(seed)
    spectrum = np.fft.rfft2(rng.standard_normal((count, 3, side, side)))
    fy, fx = np.fft.fftfreq(side)[:, None], np.fft.rfftfreq(side)[None, :]
    images: np.ndarray = np.fft.irfft2(spectrum / np.maximum(np.hypot(fy, fx), 1.0 / side), s=(side, side))
    images -= images.mean(axis=(2, 3), keepdims=True)
    images /= images.std(axis=(1, 2, 3), keepdims=True)
    return images.astype(np.float32)


def input_name(model: onnx.ModelProto) -> str:
    """The one real input."""
    constant = {t.name for t in model.graph.initializer}
    return next(i.name for i in model.graph.input if i.name not in constant)


def _roles(graph: onnx.GraphProto) -> dict[str, str]:
    """What each filled value is used as: ``scale``, ``variance``, ``mean``, or nothing special."""
    roles: dict[str, str] = {}
    through = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Unsqueeze"}
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            roles.update(zip(node.input[1:5], ("scale", "bias", "mean", "variance"), strict=True))
        elif node.op_type == "Mul":
            for value in node.input:
                if value in through:
                    source = through[value]
                    roles[through.get(source, source)] = "scale"
    return roles


def _numbers(shape: tuple[int, ...], role: str, rng: np.random.Generator) -> np.ndarray:
    if role == "scale":
        values = rng.uniform(0.6, 1.0, shape)
    elif role == "variance":
        values = rng.uniform(0.5, 1.5, shape)
    elif len(shape) > 1:
        values = rng.standard_normal(shape) * np.sqrt(2.0 / np.prod(shape[1:]))
    else:
        values = 0.05 * rng.standard_normal(shape)
    return values.astype(np.float32)


if __name__ == "__main__":
    if len(sys.argv) != 4 or sys.argv[1] not in NAMES:
        sys.exit(__doc__)
    made = light_model(sys.argv[1])
    onnx.save(made, sys.argv[2])
    np.savez(sys.argv[3], **{input_name(made): samples()})

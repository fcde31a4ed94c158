"""Valid small models, samples and runs that attacks start from; Inlay itself makes what it writes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from inlay.errors import UNPROVEN
from inlay.testing import Builder, concat_model, depthwise_model, residual_model, upsampling_model
from tests.attack.case import Case, make_folder
from tests.attack.sandbox import run
from tests.attack.warm import be_warm

Model = onnx.ModelProto

MODEL = "@/model/model.onnx"
QUANTIZE = ("quantize", MODEL, "-o", "@/out/q.onnx", "--target", "null")


def tiny() -> Model:
    """One convolution: the cheapest model that can be quantized."""
    b = Builder()
    b.output(b.conv("conv", b.input("x", (1, 3, 6, 6)), 4, relu=True))
    return b.model()


def dynamic() -> Model:
    """Dynamic batch, height and width, and shapes that are computed."""
    b = Builder()
    x = b.conv("conv", b.input("x", ("N", 3, "H", "W")), 4)
    shape = b.node("shape", "Shape", [x])
    first = b.node("first", "Gather", [shape, b.constant("zero", np.array(0, np.int64))], axis=0)
    row = b.node("row", "Unsqueeze", [first, b.constant("axes", np.array([0], np.int64))])
    to = b.node("to", "Concat", [row, b.constant("rest", np.array([-1], np.int64))], axis=0)
    b.output(b.node("reshape", "Reshape", [x, to]))
    return b.model()


def matmuls() -> Model:
    """MatMul, LayerNormalization in pieces, Softmax, and an integer input through an embedding."""
    b = Builder()
    table = b.constant("table", b.rng.normal(size=(11, 8)))
    x = b.node("embed", "Gather", [table, b.input("ids", (1, 5), TensorProto.INT64)])
    x = b.node("mm", "MatMul", [x, b.constant("w", b.rng.normal(size=(8, 8)))])
    x = b.node("softmax", "Softmax", [x], axis=-1)
    mean = b.node("mean", "ReduceMean", [x], axes=[-1], keepdims=1)
    b.output(b.node("centre", "Sub", [x, mean]))
    return b.model()


def scalars() -> Model:
    """A scalar input beside a tensor, and an optional output that nobody reads."""
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 2, 4, 4)), 3)
    b.output(b.node("scaled", "Mul", [x, b.input("factor", ())]))
    return b.model()


def branches() -> Model:
    """If and Loop around and inside float operators."""
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 2, 4, 4)), 3)
    flag = b.node("flag", "Greater", [b.node("top", "ReduceMax", [x], keepdims=0), b.constant("limit", 0.5)])
    shape = [1, 3, 4, 4]

    def body(name: str, op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(f"{name}_y", TensorProto.FLOAT, shape)
        return helper.make_graph([helper.make_node(op, [x], [f"{name}_y"], name=f"{name}_op")], name, [], [out])

    y = b.node("if", "If", [flag], then_branch=body("then", "Relu"), else_branch=body("else", "Neg"))
    info = helper.make_tensor_value_info
    step = helper.make_graph(
        [
            helper.make_node("Relu", ["state"], ["relu"], name="inner"),
            helper.make_node("Identity", ["going"], ["on"], name="keep"),
        ],
        "body",
        [
            info("i", TensorProto.INT64, []),
            info("going", TensorProto.BOOL, []),
            info("state", TensorProto.FLOAT, shape),
        ],
        [info("on", TensorProto.BOOL, []), info("relu", TensorProto.FLOAT, shape)],
    )
    count, yes = b.constant("count", np.array(2, np.int64)), b.constant("yes", np.array(True))
    b.outputs.append(info(b.node("loop", "Loop", [count, yes, y], body=step), TensorProto.FLOAT, shape))
    return b.model()


def functions() -> Model:
    """Local functions, one of which calls the other."""
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 2, 4, 4)), 3)
    b.output(b.node("twice", "Twice", [x], domain="local"))
    model = b.model(check=False)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    call = [
        helper.make_node("Once", ["a"], ["t"], domain="local"),
        helper.make_node("Once", ["t"], ["b"], domain="local"),
    ]
    model.functions.append(
        helper.make_function("local", "Once", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], imports)
    )
    model.functions.append(helper.make_function("local", "Twice", ["a"], ["b"], call, imports))
    model.graph.output[0].CopyFrom(
        helper.make_tensor_value_info(model.graph.output[0].name, TensorProto.FLOAT, [1, 3, 4, 4])
    )
    return model


def old() -> Model:
    """Opset 7, initializers that are inputs too, and attributes that later became inputs."""
    b = Builder(opset=7)
    x = b.conv("conv", b.input("x", (1, 3, 6, 6)), 4)
    x = b.node("bn", "BatchNormalization", [x, *(b.constant(n, np.ones(4)) for n in ("s", "b", "m", "v"))])
    b.output(b.node("reshape", "Reshape", [b.node("drop", "Dropout", [x]), b.constant("to", np.array([1, -1]))]))
    model = b.model(check=False)
    for tensor in model.graph.initializer:
        model.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return model


def external() -> Model:
    """Weights in a file beside the model: ``weights.bin``, with :func:`external_data`."""
    model, offset = tiny(), 0
    for tensor in model.graph.initializer:
        size = numpy_helper.to_array(tensor).nbytes
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights.bin"), ("offset", str(offset)), ("length", str(size))):
            tensor.external_data.add(key=key, value=value)
        offset += size
    return model


@cache
def external_data() -> bytes:
    """The file that :func:`external` refers to."""
    return b"".join(numpy_helper.to_array(t).tobytes() for t in tiny().graph.initializer)


MODELS: Mapping[str, Callable[[], Model]] = {
    f.__name__: f
    for f in (
        tiny, residual_model, concat_model, depthwise_model, upsampling_model, dynamic, matmuls, scalars, branches,
        functions, old, external,
    )
}  # fmt: skip


@cache
def serialized(name: str) -> bytes:
    """One of :data:`MODELS` as a file."""
    return MODELS[name]().SerializeToString()


def put_model(folder: Path, name: str = "tiny") -> None:
    """Make one of :data:`MODELS` the model of a case."""
    (folder / "model" / "model.onnx").write_bytes(serialized(name))


def samples(count: int = 4) -> dict[str, np.ndarray]:
    """Samples for :func:`tiny`."""
    return {"x": np.random.default_rng(0).standard_normal((count, 3, 6, 6)).astype(np.float32)}


TUNE = ("--target", "null", "--max-measurements", "2", "--budget", "4s", "--strategy", "anchors", "--quiet")
"""Options of a run that is as short as one can be."""


class Seeds:
    """What commands wrote, to be damaged later.

    Args:
        folder: as :func:`make_seeds` filled it.

    Attributes:
        run: folder of a case in which a run of :func:`tiny` was made.
        quantized: :func:`tiny` with Q/DQ nodes.
    """

    def __init__(self, folder: Path) -> None:
        self.run = folder / "run"
        self.quantized = onnx.load(folder / "quantized" / "out" / "q.onnx")

    @property
    def result(self) -> Path:
        """The output folder of the run."""
        return self.run / "out"


def make_seeds(folder: Path) -> Seeds:
    """Let Inlay write the seeds into ``folder``, and import what its commands turn out to import late."""
    model = "@/model/model.onnx"
    for name, argv in (
        ("quantized", QUANTIZE),
        ("run", ("tune", model, "-o", "@/out", "--data", "@/given/samples.npz", *TUNE)),
        ("regions", ("regions", model, "--target", "null", "--json")),
        ("lowered", ("lower", str(folder / "quantized" / "out" / "q.onnx"), "-o", "@/out/q.tosa")),
        ("selected", ("select", str(folder / "run" / "out"), "--fastest", "--to", "@/out/s.onnx")),
        ("shown", ("cache", "show", "@/missing")),
    ):
        inner, listed = folder / name, folder / f"{name}.modules"
        make_folder(inner)
        put_model(inner)
        np.savez(inner / "given" / "samples.npz", **samples())
        ended = run(Case("seed", ("tests.attack.python:list_modules", str(listed), *argv)), inner)
        if ended.code not in (0, UNPROVEN):
            raise RuntimeError(f"{' '.join(argv)}: {(inner / 'stderr').read_text(encoding='utf8')}")
        be_warm([m for m in listed.read_text(encoding="utf8").split() if not m.startswith(("__", "tests."))])
    return Seeds(folder)


def put_run(seeds: Seeds, folder: Path, name: str = "out") -> None:
    """Make the finished run, with its model and its samples, that of a case; its output folder gets ``name``."""
    for source, to in (("model", "model"), ("given", "given"), ("out", name)):
        shutil.copytree(seeds.run / source, folder / to, dirs_exist_ok=True)
    result = folder / name / "result.json"
    held = result.read_text(encoding="utf8")
    result.write_text(held.replace(str(seeds.run), str(folder)), encoding="utf8")

"""TensorRT for RTX: its compiler builds for GPUs that are not here, and its kernels are priced by a data sheet."""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from inlay.errors import CompileFailed, RunFailed, UsageError
from inlay.explanation.waste import taken_in
from inlay.run.facts import not_measured
from inlay.targets.base import Artifact, KernelTime, Target
from inlay.targets.tensorrt.estimate import GPUS, milliseconds, products
from inlay.targets.tensorrt.reports import Layer, Tensor, layers_in_log
from inlay.targets.tensorrt.rtx import EstimatedExecutable, TensorRtRtxTarget
from inlay.testing import Builder, TargetTestCase, depthwise_model, random_feed, residual_model
from tests.cli.conftest import run
from tests.support.command_line import RunCommand
from tests.support.fixtures import SaveModel
from tests.support.workspace import Workspace
from tests.targets.tensorrt.conftest import needs_compiler

__all__ = ["run"]


@needs_compiler
class TestTensorRtRtx(TargetTestCase):
    def target(self) -> Target:
        return TensorRtRtxTarget()


def compiled(model: onnx.ModelProto, folder: Path, capability: str = "") -> EstimatedExecutable:
    onnx.save(model, folder / "model.onnx")
    found = TensorRtRtxTarget(capability).compile(Artifact(folder / "model.onnx", "digest"))
    assert isinstance(found, EstimatedExecutable)
    return found


@needs_compiler
def test_kernels_have_the_products_of_the_model(tmp_path: Path) -> None:
    """Of every Conv: results times the elements of one filter."""
    model = onnx.shape_inference.infer_shapes(depthwise_model())
    shapes = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.value_info}
    shapes |= {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.output}
    weights = {t.name: t.dims for t in model.graph.initializer}
    convs = [n for n in model.graph.node if n.op_type == "Conv"]
    want = sum(prod(shapes[n.output[0]]) * prod(weights[n.input[1]][1:]) for n in convs)
    layers = _layers(model, tmp_path)
    assert sum(map(products, layers)) == want > 0
    found = compiled(model, tmp_path)
    kernels = found.profile(random_feed(model), 1)
    assert {n.name for n in convs} <= {n for k in kernels for n in k.nodes}, "kernels are traced to the model's nodes"
    assert found.time(random_feed(model), 1)[0] == round(sum(k.ns for k in kernels))
    assert found.memory(random_feed(model)) > sum(np.prod(dims) for dims in weights.values())


def _layers(model: onnx.ModelProto, folder: Path) -> list[Layer]:
    from inlay.targets.tensorrt.bindings import RTX
    from inlay.targets.tensorrt.engine import build

    onnx.save(model, folder / "model.onnx")
    return layers_in_log(build(RTX, folder / "model.onnx", (), None, "SM89").layers)


@needs_compiler
@pytest.mark.parametrize(
    "capability", [pytest.param(c, marks=pytest.mark.matrix) for c in ("8.9", "sm86", "80", "SM120", "121")]
)
def test_engines_for_every_gpu(capability: str, tmp_path: Path) -> None:
    model = residual_model()
    assert (compiled(model, tmp_path, capability).time(random_feed(model), 3) > 0).all()
    facts = TensorRtRtxTarget(capability).fingerprint().facts
    assert facts["kind"] == "estimate"
    assert facts["capability"] == "sm" + capability.lower().removeprefix("sm").replace(".", "")


@needs_compiler
def test_kernels_tell_which_pairs_they_took_in(tmp_path: Path) -> None:
    """A product reads the integers of its inputs; what requantizes its result is no second kernel of the product."""
    workspace = Workspace(residual_model(), tmp_path, TensorRtRtxTarget().capabilities())
    model = workspace.emit(workspace.full())
    kernels = compiled(model, tmp_path).profile(workspace.feeds[0], 1)
    products = [n.name for n in model.graph.node if n.op_type in ("Conv", "Gemm")]
    for name in products:
        (own,) = [k for k in kernels if k.op_type in ("correlation", "gemm") and name in k.nodes]
        assert own.family == "int8"
        assert own.values, "whose DQ it took in"
    assert any(k.kind == "quantize" and not k.nodes for k in kernels), "what requantizes is a kernel of its own"
    said = taken_in(ir.from_proto(model).graph, kernels)
    pairs = {n.input[0] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    assert said.startswith(f"of {len(pairs)} quantized values the compiler removed the Q/DQ of ")


def test_pairs_without_a_kernel_were_removed() -> None:
    b = Builder()
    value, zero = b.input("x", (1, 4)), b.constant("zero", np.int8(0))
    for name in ("kept", "gone", "own"):
        value = b.node(name, "Relu", [value])
        quantized = b.node(f"{name}_q", "QuantizeLinear", [value, b.constant("scale", np.float32(1)), zero])
        value = b.node(f"{name}_dq", "DequantizeLinear", [quantized, "scale", zero])
    b.output(value)
    graph = ir.from_proto(b.model()).graph
    computing = KernelTime("k", "gemm", 1.0, nodes=("gone",), values=("kept_out",))
    kernels = [computing, KernelTime("q", "kgen", 1.0, values=("own_out",), kind="quantize")]
    assert taken_in(graph, kernels) == (
        "of 3 quantized values the compiler removed the Q/DQ of 1 (gone_out), took those of 1 into kernels that "
        "compute, and left 1 with kernels of their own"
    )
    assert taken_in(graph, kernels[1:]) == "", "a runtime whose kernels do not tell"


def test_a_capability_that_is_not_built_for_is_refused() -> None:
    with pytest.raises(UsageError, match=r"capability=9\.0: TensorRT for RTX builds for 7\.5, 8\.0, .*, 12\.1"):
        TensorRtRtxTarget("9.0")
    with pytest.raises(UsageError, match=r"12\.1, not for H100 and H200; the target tensorrt does"):
        TensorRtRtxTarget("sm90")
    with pytest.raises(UsageError, match=r"12\.1$"):
        TensorRtRtxTarget("1.0")
    with pytest.raises(UsageError, match="warm_up=-1"):
        TensorRtRtxTarget(warm_up=-1)


@needs_compiler
def test_dynamic_shapes_are_built_for_the_inputs(tmp_path: Path) -> None:
    model = residual_model()
    for value in (*model.graph.input, *model.graph.value_info, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    found, feed = compiled(model, tmp_path), random_feed(residual_model())
    larger = {name: np.concatenate([array] * 8) for name, array in feed.items()}
    assert found.time(larger, 1)[0] > found.time(feed, 1)[0]
    with pytest.raises(RunFailed, match="has the shape"):
        found.time({name: array[..., None] for name, array in feed.items()}, 1)


@needs_compiler
def test_what_the_compiler_refuses_is_told_with_its_node(tmp_path: Path) -> None:
    model = residual_model()
    model.graph.node[0].domain, model.graph.node[0].op_type = "some.vendor", "Unheard"
    model.opset_import.append(onnx.helper.make_opsetid("some.vendor", 1))
    with pytest.raises(CompileFailed, match="Unheard") as raised:
        compiled(model, tmp_path)
    assert "\n" not in str(raised.value)
    assert "cudaError" not in str(raised.value), "that there is no GPU here is no fault of the model"


def test_the_estimate_is_the_longer_of_bytes_and_products() -> None:
    """By hand: 1 GB/s and 10^9 operations a second for 8 bits, a tenth of it for 32."""
    gpu = GPUS["SM89"]
    data, weight, out = (
        Tensor(n, "int8", s) for n, s in (("x", (1, 64, 56, 56)), ("w", (64, 64, 3, 3)), ("y", (1, 64, 56, 56)))
    )
    layer = Layer("conv", "correlation", ("conv",), (data,), (weight,), (out,))
    macs = 64 * 56 * 56 * 64 * 9
    assert products(layer) == macs
    moved = 2 * 64 * 56 * 56 + 64 * 64 * 9
    by_bytes, by_products = moved / (gpu.bandwidth * 1e6), 2 * macs / (gpu.tera_ops[8] * 1e9)
    assert milliseconds(layer, gpu) == pytest.approx(max(by_bytes, by_products) + 0.002)
    wide = Layer("conv", "correlation", (), (Tensor("x", "float32", data.shape),), (weight,), (out,))
    assert milliseconds(wide, gpu) > milliseconds(layer, gpu), "the wider operand decides"
    added = Layer("conv", "correlation", (), (data, Tensor("skip", "int8", out.shape)), (weight,), (out,))
    assert products(added) == macs, "what is added is no weight"
    moving = Layer("copy", "kgen", (), (data,), (), (out,))
    assert products(moving) == 0


@pytest.mark.parametrize(
    ("capability", "multiprocessors", "ops", "ghz", "of_16"),
    [
        ("SM75", 68, 512, 1.545, {32: None, 8: 4, 4: 8}),  # without TF32
        ("SM80", 108, 2048, 1.41, {32: 0.5, 8: 2, 4: 4}),
        ("SM86", 68, 512, 1.71, {32: 0.5, 8: 4, 4: 8}),
        ("SM89", 128, 512, 2.52, {32: 0.5, 8: 4, 4: 8}),
        ("SM120", 170, 512, 2.407, {32: 0.5, 8: 4, 4: 8}),
    ],
)
def test_rates_follow_from_multiprocessors_and_clocks(
    capability: str, multiprocessors: int, ops: int, ghz: float, of_16: dict[int, float | None]
) -> None:
    """The published numbers of multiprocessors and boost clocks; operations of 16 bits in a clock, summed in 32."""
    rates = GPUS[capability].tera_ops
    assert rates[16] == pytest.approx(multiprocessors * ops * ghz / 1e3, rel=0.01)
    for bits, factor in of_16.items():
        if factor is not None:
            assert rates[bits] == pytest.approx(factor * rates[16], rel=0.01)


def test_layers_in_a_log_run_as_often_as_their_loop() -> None:
    tensor = (
        "{{ Name: {}, Dimensions: [{}], Strides: [1], StrideOrder: [0], Datatype: {}, Format: (Linear) Row major }}"
    )

    def line(name: str, kind: str, inputs: str, outputs: str, more: str = "", nodes: str = "") -> str:
        return (
            f"Name: {name}, LayerType: {kind}, Inputs: [{inputs}], Constants: [], Outputs: [{outputs}], TacticName: , "
            f"StreamId: 0{more}, Metadata: {nodes}"
        )

    def scalar(name: str) -> str:
        return tensor.format(name, "1", "Int32")

    text = "\n".join(
        [
            "Layers:",
            line("before", "kgen", tensor.format("x", "2,3", "Float"), "", nodes="[ONNX Layer: a][ONNX Layer: b, c]"),
            line("step", "kgen", "", tensor.format("h", "4", "Half"), nodes="[ONNX Layer: lstm]"),
            line("count", "add", f"{scalar('i')}, {scalar('__d^8i32_myl0')}", scalar("i")),
            line(
                "jump",
                "cjmp",
                f"{scalar('i')}, {scalar('__d^200i32_myl0')}",
                "",
                ", JumpTargetThen: step, JumpTargetElse: z",
            ),
            line("order", "signal", "", ""),
        ]
    )
    before, step = layers_in_log(text)
    assert (before.nodes, before.inputs) == (("a", "b, c"), (Tensor("x", "float32", (2, 3)),))
    assert (step.runs, before.runs) == (25, 1)
    assert milliseconds(step, GPUS["SM89"]) > 24 * milliseconds(before, GPUS["SM89"])


def test_estimates_of_a_target_that_measures_nothing_are_announced() -> None:
    facts = {"kind": "estimate", "measures": "by a data sheet"}
    assert not_measured(facts) == "SPEED WAS NOT MEASURED: times are estimates by a data sheet"
    assert not_measured({"kind": "estimate"}) == not_measured({"device": "a GPU"}) == ""
    assert (
        not_measured({"unit": "operators", "measures": "left"}) == "SPEED WAS NOT MEASURED: figures are operators, left"
    )


@needs_compiler
@pytest.mark.exhaustive
def test_a_run_says_at_once_that_nothing_is_timed(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    feeds = [random_feed(residual_model(), seed) for seed in range(8)]
    np.savez(tmp_path / "data.npz", **{name: np.concatenate([f[name] for f in feeds]) for name in feeds[0]})
    arguments = ("--target", "tensorrt-rtx", "-o", tmp_path / "out", "--budget", "60s", "--min-sqnr", "15")
    found = run("tune", save(residual_model()), "--data", tmp_path / "data.npz", *arguments)
    assert found.code in (0, 3), found.err
    said = "SPEED WAS NOT MEASURED: times are estimates of the compiler's kernels on a GeForce RTX 4090"
    assert said in found.err.splitlines()[0] + found.err.splitlines()[1]
    assert said in found.out
    assert "Verdict (estimated)" in found.out
    assert (tmp_path / "out" / "model.onnx").exists()

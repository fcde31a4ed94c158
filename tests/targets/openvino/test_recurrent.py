"""LSTM and GRU in 8 bits: the runtime's integer kernel is found, and computes what the file says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from inlay.errors import CompileFailed
from inlay.targets.base import Artifact, Capabilities
from inlay.targets.machine import cpu_flags
from inlay.targets.openvino.rewrites import GATES, QuantizedStates, lstm_groups
from inlay.targets.openvino.rules import rules_for
from inlay.targets.openvino.target import OpenVinoCpuTarget
from inlay.testing import Builder, sqnr
from inlay.types import QType
from tests.support.runtime import run_plain
from tests.support.workspace import Workspace

pytest.importorskip("openvino", reason="the extra openvino is not installed")

from inlay.targets.openvino.runtime import core

pytestmark = pytest.mark.skipif("avx512_vnni" not in cpu_flags(), reason="no integer kernel that was looked at")

LENGTH, BATCH, WIDTH, HIDDEN = 9, 1, 16, 24
RIGHT_DB = 25.0
"""Of what the runtime makes of a file, against the file node by node: the state is rounded in each step."""


def recurrent(
    b: Builder, x: str, name: str = "op", kind: str = "LSTM", spread: float = 0.5, bias: bool = True, **options: Any
) -> str:
    """An LSTM or GRU over ``x``, whose rows of weights are of very different sizes; ``state``: that it begins with."""
    if options.get("activations") == "usual":
        options["activations"] = ["Sigmoid", "Tanh", "Tanh"][: GATES[kind] - 1]
    directions, state = 2 if options.get("direction") == "bidirectional" else 1, options.pop("state", "")
    rows, inputs = GATES[kind] * HIDDEN, options.pop("inputs", WIDTH)
    sizes = np.exp(b.rng.normal(0.0, spread, (1, rows, 1)))
    weights = [b.rng.normal(0.0, n**-0.5, (directions, rows, n)) * sizes for n in (inputs, HIDDEN)]
    arrays = [*weights, *([b.rng.normal(0.0, 0.3, (directions, 2 * rows))] if bias else [])]
    names = [b.constant(f"{name}_{i}", np.asarray(a, np.float32)) for i, a in enumerate(arrays)]
    names += [""] * (4 - len(names)) + [state] if state else []
    return b.node(name, kind, [x, *names], hidden_size=HIDDEN, **options)


def computed_state(b: Builder, x: str, directions: int = 1, zeros: bool = False) -> str:
    """Of as many sequences as there are, as exporters write zeros, or the same for each."""
    batch = b.node("batch", "Gather", [b.node("shape", "Shape", [x]), b.constant("one", np.array([1]))], axis=0)
    size = [b.constant(n, np.array([v])) for n, v in (("directions", directions), ("hidden", HIDDEN))]
    whole = b.node("sizes", "Concat", [size[0], batch, size[1]], axis=0)
    if zeros:
        return b.node("state", "ConstantOfShape", [whole])
    state = b.rng.uniform(-0.9, 0.9, (directions, 1, HIDDEN)).astype(np.float32)
    return b.node("state", "Expand", [b.constant("begin", state), whole])


def model(kind: str = "LSTM", state: str = "", batch: int | str = BATCH, **options: Any) -> onnx.ModelProto:
    """A recurrent layer between Tanh and a linear one."""
    b = Builder(opset=17)
    x = b.node("before", "Tanh", [b.input("x", (LENGTH, batch, WIDTH))])
    directions = 2 if options.get("direction") == "bidirectional" else 1
    if state in ("computed", "zeros"):
        options["state"] = computed_state(b, x, directions, state == "zeros")
    elif state:
        options["state"] = b.constant("begin", np.full((directions, BATCH, HIDDEN), 0.25, np.float32))
    b.output(recurrent(b, x, kind=kind, **options))
    return b.model()


def space_of(proto: onnx.ModelProto, folder: Path, target: Capabilities | None = None) -> Workspace:
    drawn = (np.random.default_rng(i).normal(0, 1, (LENGTH, BATCH, WIDTH)) for i in (1, 2))
    feeds = tuple({"x": array.astype(np.float32)} for array in drawn)
    return Workspace(proto, folder, target or Capabilities.of(OpenVinoCpuTarget(precision="f32")), feeds=feeds)


def computed(space: Workspace, proto: onnx.ModelProto) -> tuple[Mapping[str, np.ndarray], dict[str, str]]:
    """Outputs for the first feed, and the precision of each recurrent kernel."""
    path = space.path.with_name("emitted.onnx")
    path.write_bytes(proto.SerializeToString())
    executable = OpenVinoCpuTarget(precision="f32").compile(Artifact(path, "emitted"))
    kernels = {k.name: k.precision for k in executable.profile(space.feeds[0], 1) if k.op_type == "RNNSeq"}
    return executable.run(space.feeds[0]), kernels


def agreement(space: Workspace, proto: onnx.ModelProto) -> float:
    """SQNR in dB of what the runtime computes of a file against the file node by node, the worst output's."""
    got, kernels = computed(space, proto)
    assert set(kernels.values()) == {"int8"} or set(kernels.values()) == {"uint8"}, kernels
    return min(sqnr(want, got[name]) for name, want in run_plain(proto, space.feeds[0]).items())


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "backwards": {"direction": "reverse"},
    "both ways": {"direction": "bidirectional"},
    "without bias": {"bias": False},
    "functions that are stated": {"activations": "usual"},
    "constant state": {"state": "constant"},
    "computed state": {"state": "computed"},
    "computed states, both ways": {"state": "computed", "direction": "bidirectional"},
    "any batch": {"batch": "batch"},
    "any batch, both ways": {"batch": "batch", "direction": "bidirectional", "bias": False},
    "any batch, zeros": {"state": "zeros", "batch": "batch"},
    "any batch, computed state": {"state": "computed", "batch": "batch"},
}


@pytest.mark.parametrize("kind", GATES)
@pytest.mark.parametrize("case", CASES)
def test_it_runs_in_8_bits_and_computes_what_the_file_says(case: str, kind: str, tmp_path: Path) -> None:
    space = space_of(model(kind, **CASES[case]), tmp_path)
    emitted = space.emit(space.label("op"))
    assert agreement(space, emitted) > RIGHT_DB
    extracted = space.extract(emitted)
    assert extracted.placement == space.label("op")
    assert not extracted.leftovers
    if "batch" in CASES[case]:  # also where the runtime is not told the size beforehand
        path = tmp_path / "free.onnx"
        path.write_bytes(emitted.SerializeToString())
        compiled = core().compile_model(str(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        many = {"x": np.repeat(space.feeds[0]["x"], 3, axis=1)}
        (want,) = run_plain(emitted, many).values()
        assert sqnr(want, compiled(many)[compiled.outputs[0]]) > RIGHT_DB


def test_its_float_kernel_can_be_told_from_it(tmp_path: Path) -> None:
    space = space_of(model(), tmp_path)
    assert set(computed(space, space.emit(space.label()))[1].values()) == {"float32"}


def test_without_its_rewrite_nothing_is_built(tmp_path: Path) -> None:
    own = Capabilities.of(OpenVinoCpuTarget())
    bare = replace(own, rewrites=tuple(r for r in own.rewrites if not isinstance(r, QuantizedStates)))
    space = space_of(model(), tmp_path, bare)
    with pytest.raises(CompileFailed, match="expects Constant"):
        computed(space, space.emit(space.label("op")))


def changed(**scales: Any) -> Capabilities:
    """The target that asks for other scales of an LSTM."""
    own = Capabilities.of(OpenVinoCpuTarget(precision="f32"))
    row = own.rules.ops["LSTM"]
    ops = {**own.rules.ops, "LSTM": replace(row, recurrence=replace(row.recurrence, **scales))}
    return replace(own, rules=replace(own.rules, ops=ops))


def test_scales_of_input_and_forget_gates_are_equal_since_the_runtime_takes_one_for_the_other(tmp_path: Path) -> None:
    proto = model(spread=1.0)
    right, wrong = space_of(proto, tmp_path / "right"), space_of(proto, tmp_path / "wrong", changed(scale_groups=None))
    assert agreement(right, right.emit(right.label("op"))) > RIGHT_DB
    assert agreement(wrong, wrong.emit(wrong.label("op"))) < RIGHT_DB, "the runtime has been mended"
    rows = np.asarray(right.table.params("op_0", QType.INT8).scale).reshape(4, HIDDEN)
    assert np.array_equal(rows[0], rows[2])
    assert len(np.unique(rows)) == 3 * HIDDEN
    assert np.array_equal(lstm_groups(right.graph, right.graph.node("op")) % HIDDEN, np.arange(4 * HIDDEN) % HIDDEN)


def test_layers_of_one_size_have_one_set_of_scales_since_the_runtime_builds_one_kernel(tmp_path: Path) -> None:
    b = Builder(opset=17)
    x = b.node("before", "Tanh", [b.input("x", (LENGTH, BATCH, WIDTH))])
    first = recurrent(b, x, "first")
    b.output(recurrent(b, b.node("much", "Mul", [x, b.constant("three", np.float32(3.0))]), "second", spread=0.1))
    b.output(first)
    proto = b.model()
    right, wrong = space_of(proto, tmp_path / "right"), space_of(proto, tmp_path / "wrong", changed(family=None))
    assert agreement(right, right.emit(right.label("first", "second"))) > RIGHT_DB
    assert agreement(wrong, wrong.emit(wrong.label("first", "second"))) < RIGHT_DB, "the runtime has been mended"
    for value in ("first_1", "second_0", "second_1"):
        assert right.table.params(value, QType.INT8) == right.table.params("first_0", QType.INT8)
    assert right.table.params("before_out", QType.UINT8) == right.table.params("much_out", QType.UINT8)


def test_data_that_others_read_as_well_are_quantized_once_and_read_back(tmp_path: Path) -> None:
    b = Builder(opset=17)
    x = b.node("before", "Tanh", [b.input("x", (LENGTH, BATCH, WIDTH))])
    weight = b.constant("w", b.rng.normal(0, 0.3, (WIDTH, 8)).astype(np.float32))
    b.output(recurrent(b, x))
    b.output(recurrent(b, x, "other", direction="reverse"))
    b.output(b.node("product", "MatMul", [x, weight]))
    space = space_of(b.model(), tmp_path)
    placement = space.label("op", "other", "product")
    emitted = space.emit(placement)
    assert agreement(space, emitted) > RIGHT_DB
    extracted = space.extract(emitted)
    assert extracted.placement == placement
    assert not extracted.leftovers


def test_kernels_are_attributed_to_the_layers_that_they_compute(tmp_path: Path) -> None:
    b = Builder(opset=17)
    x = b.node("before", "Tanh", [b.input("x", (LENGTH, BATCH, WIDTH))])
    both = recurrent(b, x, "both", direction="bidirectional")
    joined = b.node("joined", "Reshape", [both, b.constant("to", np.array([LENGTH, BATCH, 2 * HIDDEN]))])
    b.output(recurrent(b, joined, "behind", inputs=2 * HIDDEN))
    b.output(recurrent(b, x, "beside", kind="GRU"))
    space = space_of(b.model(), tmp_path)
    for names in ((), ("both", "behind", "beside")):
        emitted = space.emit(space.label(*names))
        path = tmp_path / "emitted.onnx"
        path.write_bytes(emitted.SerializeToString())
        kernels = OpenVinoCpuTarget(precision="f32").compile(Artifact(path, "emitted")).profile(space.feeds[0], 1)
        found = sorted(node for k in kernels if k.op_type == "RNNSeq" for node in k.nodes)
        assert found == ["behind", "beside", "both", "both"]


def test_data_in_int8_are_read_as_uint8(tmp_path: Path) -> None:
    space = space_of(model(), tmp_path)
    placement = space.prepared.label({"op": "static"})
    signed = type(placement)((port, QType.INT8 if port.slot == 0 else qtype) for port, qtype in placement)
    emitted = space.emit(signed)
    assert agreement(space, emitted) > RIGHT_DB
    assert space.extract(emitted).placement == signed


def test_the_range_of_the_data_holds_the_state(tmp_path: Path) -> None:
    b = Builder(opset=17)
    small = b.node("small", "Mul", [b.input("x", (LENGTH, BATCH, WIDTH)), b.constant("c", np.float32(0.01))])
    b.output(recurrent(b, small))
    space = space_of(b.model(), tmp_path)
    params = space.table.params("small_out", QType.UINT8)
    assert params.scale[0] * 255 == pytest.approx(2.0, rel=0.02)


REJECTED: dict[str, dict[str, Any]] = {
    "its integer kernel is that of the plain LSTM": {"clip": 3.0},
    "is that of the plain LSTM": {"activations": ["Sigmoid", "Relu", "Tanh"]},
    "its integer kernel is that of the plain GRU": {"kind": "GRU", "linear_before_reset": 1},
}


@pytest.mark.parametrize("reason", REJECTED)
def test_what_has_no_integer_kernel_stays_in_float_and_says_why(reason: str, tmp_path: Path) -> None:
    space = space_of(model(**REJECTED[reason]), tmp_path)
    (unit,) = [u for u in space.prepared.units if u.name == "op"]
    assert not unit.selectable
    assert reason in unit.rejection


def test_weights_that_are_read_twice_stay_in_float(tmp_path: Path) -> None:
    b = Builder(opset=17)
    x = b.node("before", "Tanh", [b.input("x", (LENGTH, BATCH, WIDTH))])
    b.output(recurrent(b, x))
    b.output(b.node("again", "LSTM", [x, "op_0", "op_1"], hidden_size=HIDDEN))
    space = space_of(b.model(), tmp_path)
    found = {u.name: u.rejection for u in space.prepared.units if u.op_type == "LSTM"}
    assert found == dict.fromkeys(("op", "again"), "its weights have other readers")


def test_other_processors_have_no_row() -> None:
    for machine, flags in (("x86_64", {"avx2"}), ("x86_64", {"avx_vnni"}), ("aarch64", {"asimddp"})):
        assert not GATES.keys() & rules_for(machine, frozenset(flags)).ops.keys()
    assert GATES.keys() <= rules_for("x86_64", frozenset({"avx512_vnni"})).ops.keys()

"""Fake quantization that is written out, by Round and what is around it, is imported as the Q/DQ nodes it means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.model.load import load
from inlay.prepare.strip_qdq import is_quantized_file, strip_qdq
from inlay.quant.extract import Extraction
from inlay.testing import run_reference

node = helper.make_node
F = np.float32


class Written:
    """A network whose fake quantization is spelled in one way; constants are nodes."""

    def __init__(self, spelling: str, computed: bool = False) -> None:
        self.spelling, self.computed = spelling, computed
        self.nodes, self.held = list[onnx.NodeProto](), dict[str, np.ndarray]()

    def constant(self, array: np.ndarray) -> str:
        name = f"constant_{len(self.nodes)}"
        self.nodes.append(node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(array))))
        return name

    def add(self, op_type: str, *inputs: str | np.ndarray | np.floating | float, **attributes: Any) -> str:
        names = [v if isinstance(v, str) else self.constant(np.asarray(v, F)) for v in inputs]
        name = f"{op_type.lower()}_{len(self.nodes)}"
        self.nodes.append(node(op_type, names, [name], name, **attributes))
        return name

    def qdq(self, x: str, scale: np.ndarray, zero: int, kind: type, axis: int) -> str:
        own: dict[str, Any] = {} if scale.size == 1 else {"axis": axis}
        flat = scale.reshape(()) if scale.size == 1 else scale.reshape(-1)
        grid = [self.constant(flat.astype(F)), self.constant(np.full(flat.shape, zero, kind))]
        self.nodes.append(node("QuantizeLinear", [x, *grid], [f"{x}_q"], f"{x}_Q", **own))
        self.nodes.append(node("DequantizeLinear", [f"{x}_q", *grid], [f"{x}_dq"], f"{x}_DQ", **own))
        return f"{x}_dq"

    def activation(self, x: str, scale: float, zero: int) -> str:
        if self.spelling == "qdq":
            return self.qdq(x, np.asarray(scale), zero, np.uint8, 0)
        return SPELLINGS[self.spelling](self, x, scale, zero)

    def weight(self, array: np.ndarray, axis: int) -> str:
        """Symmetric, by channel; the integers are not limited: the largest weight says the scale."""
        name = f"w{len(self.held)}"
        self.held[name] = array = array.astype(F)
        others = tuple(i for i in range(array.ndim) if i != axis)
        scale: np.ndarray | str = np.abs(array).max(others, keepdims=True) / F(127)
        if self.spelling == "qdq":
            return self.qdq(name, np.asarray(scale), 0, np.int8, axis)
        if self.computed:
            largest = self.add("ReduceMax", self.add("Abs", name), axes=list(others), keepdims=1)
            scale = self.add("Div", largest, 127.0)
        return self.add("Mul", self.add("Round", self.add("Div", name, scale)), scale)

    def model(self, output: str, shape: list[int], out: list[int]) -> onnx.ModelProto:
        self.nodes.append(node("Identity", [output], ["y"], "end"))
        tensors = [numpy_helper.from_array(array, name) for name, array in self.held.items()]
        ends = [[helper.make_tensor_value_info(v, TensorProto.FLOAT, s)] for v, s in (("x", shape), ("y", out))]
        made = helper.make_model(
            helper.make_graph(self.nodes, "fake", ends[0], ends[1], tensors),
            opset_imports=[helper.make_opsetid("", 17)],
            ir_version=8,
        )
        onnx.checker.check_model(made, full_check=True)
        return made


def plain(to: Written, x: str, s: float, z: int) -> str:
    """``(clip(round(x / s) + z, 0, 255) - z) * s``."""
    k = to.add("Clip", to.add("Add", to.add("Round", to.add("Div", x, s)), z), 0.0, 255.0)
    return to.add("Mul", to.add("Sub", k, z), s)


def inverse(to: Written, x: str, s: float, z: int) -> str:
    """By the rounded inverse of the scale, with the zero point inside, and two operators that clip."""
    u = to.add("Add", z, to.add("Mul", F(1) / F(s), x))
    k = to.add("Max", to.add("Min", to.add("Round", u), 255.0), 0.0)
    return to.add("Div", to.add("Add", k, -z), F(1) / F(s))


def learned(to: Written, x: str, s: float, z: int) -> str:
    """As learned step sizes are: clipped before it is rounded; gradients go straight through the rounding."""
    u = to.add("Clip", to.add("Div", x, s), -z, 255.0 - z)
    k = to.add("Add", u, to.add("Sub", to.add("Round", u), u))
    return to.add("Mul", k, s)


def around_all(to: Written, x: str, s: float, z: int) -> str:
    """Gradients go straight through all of it: ``x + (fake(x) - x)``."""
    return to.add("Add", to.add("Sub", plain(to, x, s, z), x), x)


def by_floor(to: Written, x: str, s: float, z: int) -> str:
    """Half is rounded up."""
    k = to.add("Floor", to.add("Add", to.add("Div", x, s), 0.5))
    return to.add("Mul", to.add("Clip", k, -z, 255.0 - z), s)


def by_range(to: Written, x: str, s: float, z: int) -> str:
    """Clipped to a range of floats; then from its lower end on."""
    low = F(-z) * F(s)
    held = to.add("Clip", x, low, low + F(255) * F(s))
    return to.add("Add", to.add("Mul", to.add("Round", to.add("Div", to.add("Sub", held, low), s)), s), low)


SPELLINGS: dict[str, Callable[[Written, str, float, int], str]] = {
    f.__name__: f for f in (plain, inverse, learned, around_all, by_floor, by_range)
}


def convolutions(to: Written) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    x = to.activation("x", 0.031, 128)
    for inputs in (3, 8):
        w = to.weight(rng.normal(0, 0.3, (8, inputs, 3, 3)), 0)
        x = to.activation(to.add("Relu", to.add("Conv", x, w, pads=[1] * 4)), 0.021, 0)
    return to.model(x, [1, 3, 12, 12], [1, 8, 12, 12])


def products(to: Written) -> onnx.ModelProto:
    rng = np.random.default_rng(1)
    x = to.activation("x", 0.033, 120)
    for bias in (False, True):
        hidden = to.add("MatMul", x, to.weight(rng.normal(0, 0.2, (16, 16)), 1))
        if bias:
            hidden = to.add("Add", hidden, rng.normal(0, 0.1, 16))
        x = to.activation(to.add("Add", to.activation(to.add("Tanh", hidden), 0.0078, 127), x), 0.04, 122)
    return to.model(x, [4, 16], [4, 16])


NETWORKS = {"convolutions": convolutions, "products": products}


def apart(made: onnx.ModelProto, folder: Path) -> Extraction | None:
    onnx.save(made, folder / "model.onnx")
    return strip_qdq(load(folder / "model.onnx"), feeds(made), folder)


def feeds(made: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
    shape = [d.dim_value for d in made.graph.input[0].type.tensor_type.shape.dim]
    rng = np.random.default_rng(2)
    return [{"x": rng.normal(0, 1, shape).astype(F)} for _ in range(4)]


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("computed", [False, True], ids=["constants", "computed"])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_site_is_imported_as_the_pair_that_it_means(
    spelling: str, network: str, computed: bool, tmp_path: Path
) -> None:
    twin, given = NETWORKS[network](Written("qdq")), NETWORKS[network](Written(spelling, computed))
    for feed in feeds(given):
        (want,), (got,) = (run_reference(made, feed).values() for made in (twin, given))
        assert np.mean(np.abs(want - got) > 1e-4) < 0.02, "both are one function but for ties"
    wanted, found = apart(twin, tmp_path), apart(given, tmp_path)
    assert wanted is not None
    assert found is not None
    assert (found.opaque, found.leftovers) == ("", ())
    assert len(found.placement) == len(wanted.placement) > 4
    assert not [n for n in found.model.graph if n.op_type in ("Round", "Floor", "QuantizeLinear", "DequantizeLinear")]
    grids = [
        sorted((q.axis or 0, q.zero_point[0] - q.qtype.qmin, np.round(q.scale, 6).tolist()) for q in e.qparams.values())
        for e in (wanted, found)
    ]
    assert grids[0] == grids[1]


def test_fewer_bits_keep_their_limits(tmp_path: Path) -> None:
    to = Written("plain")
    k = to.add("Clip", to.add("Round", to.add("Div", "x", 0.25)), 0.0, 15.0)
    made = to.model(to.add("Mul", k, 0.25), [1, 64], [1, 64])
    found = apart(made, tmp_path)
    assert found is not None
    assert len(found.placement) == 1
    assert {"Max", "Min"} <= {n.op_type for n in found.model.graph}, "eight bits hold more than these four"
    assert is_quantized_file(load(tmp_path / "model.onnx"))


def dynamic(to: Written) -> str:
    """The scale is that of each inference."""
    s = to.add("Div", to.add("ReduceMax", to.add("Abs", "x"), keepdims=1), 127.0)
    return to.add("Mul", to.add("Clip", to.add("Round", to.add("Div", "x", s)), -127.0, 127.0), s)


def halfway(to: Written) -> str:
    k = to.add("Clip", to.add("Round", to.add("Add", to.add("Div", "x", 0.1), 7.5)), 0.0, 15.0)
    return to.add("Mul", to.add("Sub", k, 7.5), 0.1)


def unlimited(to: Written) -> str:
    return to.add("Mul", to.add("Round", to.add("Div", "x", 0.1)), 0.1)


def two_factors(to: Written) -> str:
    return to.add("Mul", to.add("Clip", to.add("Round", to.add("Div", "x", 0.1)), 0.0, 9.0), 0.3)


def nothing_times(to: Written) -> str:
    return to.add("Mul", to.add("Clip", to.add("Round", to.add("Div", "x", 0.0)), 0.0, 9.0), 0.0)


def spoiled(to: Written) -> str:
    to.held["w"] = np.array([[np.nan] * 64] * 64, F)
    return to.add("MatMul", "x", to.add("Mul", to.add("Round", to.add("Div", "w", 0.1)), 0.1))


@pytest.mark.parametrize(
    ("spell", "reason"),
    [
        (nothing_times, "what follows it does not undo what is before it"),
        (spoiled, "its values are not finite"),
        (dynamic, "its scale is computed at run time"),
        (halfway, "its zero point is no integer"),
        (unlimited, "nothing limits its integers"),
        (two_factors, "what follows it does not undo what is before it"),
    ],
)
def test_what_is_no_pair_stays_and_is_listed(spell: Callable[[Written], str], reason: str, tmp_path: Path) -> None:
    to = Written("plain")
    odd = spell(to)
    made = to.model(to.add("Add", odd, to.activation("x", 0.03, 128)), [1, 64], [1, 64])
    found = apart(made, tmp_path)
    assert found is not None
    assert [left.reason for left in found.leftovers] == [f"Round: {reason}"]
    assert [n.op_type for n in found.model.graph].count("Round") == 1
    alone = Written("plain")
    assert apart(alone.model(spell(alone), [1, 64], [1, 64]), tmp_path) is None, "a float model that rounds"
    assert not is_quantized_file(load(tmp_path / "model.onnx")), "inlay inspect calls it so"

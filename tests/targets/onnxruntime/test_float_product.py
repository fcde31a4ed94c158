"""Products of two activations on ARM64 without dot products: in float, also between the Q/DQ nodes of others."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.targets.onnxruntime.rewrites import FloatProduct
from inlay.targets.onnxruntime.target import OrtCpuTarget, capabilities_for
from inlay.testing.models import Builder, run_reference
from tests.support.emulated_arm import CPUS, MISSING, Job, emulated
from tests.support.workspace import Workspace

INTEGER = ("QLinearMatMul", "MatMulIntegerToFloat")


def attention(then_float: bool) -> onnx.ModelProto:
    """Two products with weights, and one of their results; the last one quantized or a float output."""
    b = Builder()
    weights = [b.constant(f"w{i}", b.rng.standard_normal((16, 16)).astype(np.float32)) for i in range(3)]
    x = b.input("x", (1, 16, 16))
    parts = [b.node(f"part{i}", "MatMul", [x, weights[i]]) for i in range(2)]
    y = b.node("op", "MatMul", [b.node(f"{part}_turned", "Transpose", [part], perm=[0, 2, 1]) for part in parts])
    b.output(b.node("after", "Tanh", [y]) if then_float else b.node("last", "MatMul", [y, weights[2]]))
    return b.model()


def space_of(model: onnx.ModelProto, folder: Path, without: bool = False) -> Workspace:
    target = capabilities_for("aarch64", frozenset())
    rewrites = tuple(r for r in target.rewrites if not (without and isinstance(r, FloatProduct)))
    return Workspace(model, folder, replace(target, rewrites=rewrites))


def low(space: Workspace) -> onnx.ModelProto:
    """All that can be quantized, and both operands of the product."""
    return space.emit(space.prepared.label({u.name for u in space.prepared.selectable}))


@pytest.fixture(params=[False, True], ids=["quantized", "float"])
def spaces(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Workspace, Workspace]:
    """With the rewrite, and without it."""
    model = attention(request.param)
    return space_of(model, tmp_path / "with"), space_of(model, tmp_path / "plain", without=True)


def test_extracting_undoes_it(spaces: tuple[Workspace, Workspace]) -> None:
    space, plain = spaces
    written, without = low(space), low(plain)
    (product,) = (node for node in written.graph.node if node.name == "op")
    made = {name: node.op_type for node in written.graph.node for name in node.output}
    assert [made[name] for name in product.input] == ["DequantizeLinear", "Max"]
    feed = dict(space.feeds[0])
    want, found = run_reference(without, feed), run_reference(written, feed)
    assert all(np.array_equal(want[name], found[name]) for name in want)
    taken = space.extract(written)
    assert not taken.leftovers
    assert {n.op_type for n in taken.model.graph} <= {n.op_type for n in space.graph.nodes}
    assert space.emit(taken.placement) == written


@pytest.mark.exhaustive
def test_it_runs_in_float(spaces: tuple[Workspace, Workspace], tmp_path: Path) -> None:
    """In the runtime for ARM64; the control is that without the rewrite nothing does."""
    machine = emulated()
    if machine is None:
        pytest.skip(MISSING)
    jobs = {name: Job(low(space)) for name, space in zip(("with", "without"), spaces, strict=True)}
    kinds = {n: Counter(a.operators) for n, a in machine.ask(jobs, tmp_path / "jobs", CPUS[0]).items()}
    products = sum(node.op_type == "MatMul" for node in spaces[0].graph.nodes)
    assert (kinds["without"]["MatMul"], sum(kinds["without"][kind] for kind in INTEGER)) == (0, products)
    assert (kinds["with"]["MatMul"], sum(kinds["with"][kind] for kind in INTEGER)) == (1, products - 1)


def test_only_there() -> None:
    for processor, has in (("armv8", True), ("armv8.2-dotprod", False), ("avx2", False), ("armv8+amx", False)):
        rewrites = OrtCpuTarget(processor=processor).capabilities().rewrites
        assert any(isinstance(each, FloatProduct) for each in rewrites) == has, processor

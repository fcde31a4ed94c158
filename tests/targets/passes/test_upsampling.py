"""Linear upsampling is two products, and computes what Resize does."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from inlay.targets.conditions import no_interpolation
from inlay.targets.passes.upsampling import TO_THE_END, Worth, interpolation, multiply_upsampling
from inlay.testing import Builder
from tests.support.examples import examples
from tests.support.fixtures import MakeWorkspace, RewriteModel
from tests.support.runtime import check_and_load

ANY = Worth(products=1e9)
MODES = ["half_pixel", "asymmetric", "pytorch_half_pixel", "align_corners"]


def anywhere(model: ir.Model) -> tuple[ir.Model, int]:
    """The pass, wherever it can."""
    return multiply_upsampling(model, ANY)


def enlarged(
    size: tuple[int, int] = (5, 7),
    results: tuple[int, int] = (20, 21),
    by_scales: bool = False,
    shape: tuple[int, int] = (2, 3),
    **attributes: Any,
) -> tuple[Builder, str]:
    """An image, enlarged."""
    b = Builder()
    x = b.input("x", (*shape, *size))
    if by_scales:
        scales = [1.0, 1.0, *((r + 0.25) / s for r, s in zip(results, size, strict=True))]
        inputs = [x, "", b.constant("scales", scales)]
    else:
        inputs = [x, "", "", b.constant("sizes", [*shape, *results])]
    attributes = {"mode": "linear", "coordinate_transformation_mode": "half_pixel", **attributes}
    return b, b.node("resize", "Resize", inputs, channels=shape[1], **attributes)


def multiplied(b: Builder, y: str, rewritten: RewriteModel) -> list[str]:
    """Operators after the pass, whose outputs are checked against the original's."""
    b.output(y)
    done = rewritten(b.model(), anywhere)
    done.assert_close(rtol=1e-4, atol=1e-5)
    check_and_load(ir.to_proto(done.model))
    return done.operators


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_products_compute_what_resize_does(data: st.DataObject, rewritten: RewriteModel) -> None:
    size = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 9))
    results = tuple(s + data.draw(st.integers(0, 20)) for s in size)
    assume(results != size)
    by_scales = data.draw(st.booleans())
    mode = data.draw(st.sampled_from(MODES[:2] if by_scales else MODES))
    b, y = enlarged(size, (results[0], results[1]), by_scales, coordinate_transformation_mode=mode)
    assert multiplied(b, y, rewritten) == ["MatMul", "MatMul"]


@settings(max_examples=examples(60), deadline=None)
@given(
    size=st.integers(1, 9),
    more=st.integers(1, 20),
    mode=st.sampled_from([*MODES, "half_pixel_symmetric"]),
    scale=st.booleans(),
)
def test_the_matrix_is_that_of_the_specification(size: int, more: int, mode: str, scale: bool) -> None:
    """By the reference implementation of ONNX, one unit vector at a time."""
    factor = 1 + more / 4 if scale else (size + more) / size  # scales that are exact, and so is the number of results
    results = math.floor(size * factor) if scale else size + more
    assume(mode != "align_corners" or size * factor == results)
    given_size = {} if scale else {"sizes": np.array([1, 1, size, results])}
    inputs = ["x", "", "scales"] if scale else ["x", "", "", "sizes"]
    node = onnx.helper.make_node("Resize", inputs, ["y"], mode="linear", coordinate_transformation_mode=mode)
    evaluator = ReferenceEvaluator(_model(node, size, scale))
    scales = {"scales": np.array([1.0, 1.0, 1.0, factor], np.float32)} if scale else given_size
    (want,) = evaluator.run(None, {"x": np.eye(size, dtype=np.float32)[None, None], **scales})
    matrix = interpolation(size, results, float(np.float32(factor)), mode)
    np.testing.assert_allclose(matrix.T, np.asarray(want)[0, 0], atol=1e-5)


def _model(node: onnx.NodeProto, size: int, scale: bool) -> onnx.ModelProto:
    kind = onnx.TensorProto.FLOAT if scale else onnx.TensorProto.INT64
    inputs = [
        onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 1, size, size]),
        onnx.helper.make_tensor_value_info("scales" if scale else "sizes", kind, [4]),
    ]
    outputs = [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)]
    graph = onnx.helper.make_graph([node], "g", inputs, outputs)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)])


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"mode": "nearest"}, id="nearest"),
        pytest.param({"mode": "cubic"}, id="cubic"),
        pytest.param({"results": (3, 7)}, id="smaller"),
        pytest.param({"results": (5, 7)}, id="as large"),
        pytest.param(
            {"results": (7, 10), "by_scales": True, "coordinate_transformation_mode": "align_corners"}, id="no corner"
        ),
    ],
)
def test_other_ways_to_resize_stay(changes: dict[str, Any], rewritten: RewriteModel) -> None:
    b, y = enlarged(**changes)
    assert "MatMul" not in multiplied(b, y, rewritten)


@pytest.mark.parametrize(
    ("worth", "channels", "tail", "done"),
    [
        (Worth(products=20), 8, "", True),
        (Worth(products=8), 8, "", False),
        (Worth(products=8, of_few=20), 1, "", True),
        (Worth(products=20, scale=4), 8, "", True),
        (Worth(products=20, scale=5), 8, "", False),
        (Worth(products=20, scale=5, few=8), 8, "", True),
        (Worth(products=20, readers=frozenset({"Sigmoid"})), 8, "Sigmoid", True),
        (Worth(products=20, readers=frozenset({"Sigmoid"})), 8, "MaxPool", False),
        (Worth(products=20, readers=TO_THE_END), 8, "", True),
        (Worth(products=20, readers=TO_THE_END), 8, "Softmax", True),
        (Worth(products=20, readers=TO_THE_END), 8, "Transpose", False),
    ],
)
def test_it_is_done_where_it_is_worth_it(
    worth: Worth, channels: int, tail: str, done: bool, rewritten: RewriteModel
) -> None:
    b, y = enlarged((8, 8), (32, 32), shape=(1, channels))
    if tail:
        window: dict[str, Any] = {"kernel_shape": [2, 2]} if tail == "MaxPool" else {}
        y = b.node("tail", tail, [y], **window)
    b.output(y)

    def where_it_pays(model: ir.Model) -> tuple[ir.Model, int]:
        return multiply_upsampling(model, worth)

    assert ("MatMul" in rewritten(b.model(), where_it_pays).operators) is done


def test_its_products_stay_in_float(workspace: MakeWorkspace) -> None:
    """Other products with constants do not, on the same target."""
    b = Builder()
    x = b.input("x", (1, 1, 8, 8))
    rows, columns = (b.constant(n, m) for n, m in (("rows", _matrix()), ("columns", _matrix().T.copy())))
    y = b.node("columns_product", "MatMul", [b.node("rows_product", "MatMul", [rows, x]), columns])
    b.output(b.node("other", "MatMul", [y, b.constant("w", b.rng.standard_normal((32, 8)))]))
    graph = workspace(b.model()).graph
    found = {n.name: no_interpolation(graph, n) for n in graph.nodes}
    assert [name for name, reason in found.items() if reason is None] == ["other"]
    assert [u.name for u in workspace(b.model()).prepared.selectable] == ["other"]


def _matrix() -> np.ndarray:
    return interpolation(8, 32, 4.0, "half_pixel").astype(np.float32)

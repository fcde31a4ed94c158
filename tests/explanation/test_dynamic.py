"""Files whose operators quantize in each inference: what they take beside float, and what comes back to float."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import inlay
from inlay.data import Samples
from inlay.explanation.command import lines
from inlay.explanation.executed import Executed, Ran
from inlay.explanation.explanation import Explanation, Operator
from inlay.explanation.floats import grouped
from inlay.explanation.mended import put_back
from inlay.explanation.repair import repair
from inlay.model.load import load
from inlay.model.passes.names import fix_names
from inlay.model.serialize import proto_with
from inlay.quant.plain.form import write_plain
from inlay.run.progress import Silent
from inlay.targets.base import TargetSpec
from inlay.targets.registry import known_operators
from inlay.testing import Builder, run_reference, sqnr
from tests.support.runtime_quantizer import quantize_dynamically

pytestmark = pytest.mark.filterwarnings("ignore")  # the runtime's quantizer warns about this and that


@pytest.fixture(scope="module")
def dynamic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two Conv and a classifier by ``quantize_dynamic``; the float model lies beside it."""
    b = Builder()
    x = b.conv("first", b.input("x", (1, 8, 12, 12)), 8, 3, relu=True)
    b.output(b.classifier("scores", b.conv("second", x, 8, 3, relu=True), 4))
    return quantize_dynamically(b.model(), tmp_path_factory.mktemp("dynamic"))


def feed() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(0).standard_normal((1, 8, 12, 12)).astype(np.float32)}


def test_casts_scalings_and_biases_count_for_their_operator(dynamic: Path) -> None:
    """Each nanosecond is in exactly one operator, and what the plain form does not have is in none of its own."""
    given, _ = fix_names(load(dynamic).model.clone())
    plain = given.clone()
    replaced = write_plain(plain, known_operators()).replaced
    kept = {str(n.name) for n in plain.graph}
    ran = {str(n.name): Ran("float", n.op_type, 1.0) for n in given.graph if n.op_type != "DynamicQuantizeLinear"}
    ran["first_quant"] = Ran("int8", "ConvInteger", 5.0)
    found = grouped(Executed(ran, {}, 0.0, 0.0), given.graph, replaced, kept).operators
    assert sum(r.ns for r in found.values()) == sum(r.ns for r in ran.values())
    assert set(found) <= kept
    assert (found["first"].precision, found["first"].kernel) == ("int8", "ConvInteger")
    assert found["first"].ns >= 5.0 + 4.0, "a Cast, two Mul, an Add of the bias"
    assert found["first_relu"].ns == 1.0, "negative control: it is an operator of the float model"


@pytest.mark.parametrize("names", [{"first"}, {"second", "scores_MatMul"}])
def test_operators_put_back_round_nothing_and_all_others_stay(dynamic: Path, names: set[str]) -> None:
    given = onnx.load(dynamic)
    made = put_back(load(dynamic).model, known_operators(), names)
    assert made is not None
    proto = proto_with(made, lambda _, t: t)
    onnx.checker.check_model(proto)
    counts = [sum(n.op_type in ("ConvInteger", "MatMulInteger") for n in p.graph.node) for p in (given, proto)]
    assert counts[0] - counts[1] == len(names)
    plain = {n.name for n in proto.graph.node if n.op_type in ("Conv", "MatMul")}
    assert plain == names


def test_all_operators_put_back_are_the_float_model_with_dequantized_weights(dynamic: Path) -> None:
    held = {t.name: numpy_helper.to_array(t) for t in onnx.load(dynamic).graph.initializer}
    wanted = onnx.load(dynamic.with_name("float.onnx"))
    weights = [t for t in wanted.graph.initializer if f"{t.name}_quantized" in held]
    assert len(weights) == 3
    for tensor in weights:
        integers, scale, zero = (held[f"{tensor.name}_{part}"] for part in ("quantized", "scale", "zero_point"))
        array = (integers.astype(np.float32) - zero.astype(np.float32)) * scale
        array = array if array.shape == tuple(tensor.dims) else array.T  # of a Gemm, which became a MatMul
        tensor.CopyFrom(numpy_helper.from_array(array.astype(np.float32), tensor.name))
    made = put_back(load(dynamic).model, known_operators(), {"first", "second", "scores_MatMul"})
    assert made is not None
    (want,), (got,) = (run_reference(p, feed()).values() for p in (wanted, proto_with(made, lambda _, t: t)))
    (given,) = run_reference(onnx.load(dynamic), feed()).values()
    assert sqnr(want, got) > 100.0
    assert sqnr(want, given) < 70.0, "negative control"


def test_what_is_no_dynamic_operator_is_not_put_back(dynamic: Path) -> None:
    model = load(dynamic).model
    assert put_back(model, known_operators(), {"first_relu", "nowhere"}) is None
    assert put_back(load(dynamic.with_name("float.onnx")).model, known_operators(), {"first"}) is None


def test_an_explanation_tells_what_each_operator_takes_in_float(dynamic: Path) -> None:
    found = inlay.explain(dynamic, budget=None)
    operators = {o.name: o for o in found.operators}
    assert {o.name for o in found.operators if o.op_type in ("Cast", "ConvInteger")} == set()
    low = [operators[n] for n in ("first", "second")]
    assert {o.precision for o in low} == {"int8"}
    assert all(o.float_ms is not None and o.float_ms > 0.0 for o in low)
    assert operators["first_relu"].float_ms is None
    assert found.over_float is not None
    assert found.as_json()["operators"][0].keys() >= {"float_ms"}


def test_slower_ones_are_told_with_what_they_take_in_float() -> None:
    def told(float_ms: float | None) -> str:
        operator = Operator("conv", "Conv", "int8", "ConvInteger", 3.0, True, float_ms=float_ms)
        found = Explanation(
            model="m", target="t", quantized=True, latency_ms=4.0, kernels_ms=4.0, operators=(operator,), waste=()
        )
        return "\n".join(line for line in lines(found) if isinstance(line, str))

    assert "1 x Conv as ConvInteger: 3.000 ms, 75.0%; in float 1.000 ms" in told(1.0)
    for faster in (4.0, None):
        assert "in float" not in told(faster)


def test_a_graph_without_integers_is_grouped_as_it_is() -> None:
    graph = ir.Graph((), (), nodes=(), name="empty")
    found = Executed({"a": Ran("float", "Conv", 1.0)}, {}, 0.0, 1.0)
    assert grouped(found, graph, {}, set()) == found


@pytest.mark.exhaustive
def test_a_search_is_made_where_nothing_is_left_on_integers(dynamic: Path, tmp_path: Path) -> None:
    """Each operator is slower than in float: the search starts from the float model, and need not end there."""
    rng = np.random.default_rng(0)
    feeds = tuple({"x": rng.standard_normal((1, 8, 12, 12)).astype(np.float32)} for _ in range(8))
    done, made = repair(
        load(dynamic),
        tmp_path / "repaired.onnx",
        TargetSpec("null"),
        Samples(feeds, "feeds", "samples"),
        budget_s=None,
        seed=0,
        progress=Silent(),
        slower={"first", "second", "scores_MatMul"},
    )
    assert made is not None
    assert done.repaired_db is not None
    assert done.given_db - 0.01 <= done.repaired_db < 100.0, "the float model would have no noise"
    assert any(n.op_type == "QuantizeLinear" for n in made.model.graph)

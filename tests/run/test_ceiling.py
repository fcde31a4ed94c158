"""The ceiling: counts against what operators compute, bounds below times, and peaks that are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import inlay
from inlay import api
from inlay.cli.speed import ceiling_lines, peaks_line, verdict_lines
from inlay.deadline import NEVER
from inlay.measure.client import Worker
from inlay.model.graph import Graph, build_graph
from inlay.model.products import multiply_accumulates
from inlay.run.ceiling.bound import Ceiling, Ceilings, ceiling, reached_by
from inlay.run.ceiling.counts import Counter, Work
from inlay.run.ceiling.measure import judged, measure_peaks
from inlay.run.machine_costs import keep_peaks, read_costs, read_peaks, write_costs
from inlay.search.cost_table import CostTable, Fit
from inlay.search.peaks import Peaks, Reached, peaks_of, precision_of
from inlay.search.workload import sort_of
from inlay.targets.base import Capabilities, Fingerprint, KernelTime, TargetSpec
from inlay.targets.null import NullTarget
from inlay.targets.registry import create
from inlay.testing.models import Builder, random_feed, residual_model

PEAKS = Peaks({"float": 50.0, "int8": 400.0}, ((0.0, 60.0), (1048576.0, 30.0)))
HERE = Fingerprint("null", {"cpu": "this one"})
TABLE = CostTable({("Conv", "float"): Fit((1.0, 2.0, 3.0, 4.0), 0.1, 5)})


def _model(
    op: str, data: list[int], weights: Mapping[str, list[int]], **attributes: Any
) -> tuple[onnx.ModelProto, Graph]:
    """One operator on ones, with weights of ones; and the graph with all of its sizes."""
    node = helper.make_node(op, ["x", *weights], ["y"], "node", **attributes)
    ones = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in weights.items()]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "g", [value("x", TensorProto.FLOAT, data)], [value("y", TensorProto.FLOAT, None)], ones
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return proto, build_graph(ir.from_proto(onnx.shape_inference.infer_shapes(proto, strict_mode=True)))


def _sum_of_ones(proto: onnx.ModelProto, data: list[int]) -> float:
    """What all outputs sum up to where every factor is one: the number of products."""
    session = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.ones(data, np.float32)})
    return float(found.astype(np.float64).sum())


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["Conv", "ConvTranspose"]),
    st.integers(1, 3),
    st.lists(st.integers(4, 9), min_size=1, max_size=2),
    st.lists(st.integers(1, 3), min_size=6, max_size=6),
    st.lists(st.integers(0, 2), min_size=4, max_size=4),
    st.sampled_from(["NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"]),
)
def test_products_of_convolutions_are_those_that_are_no_padding(
    op: str, groups: int, rows: list[int], sizes: list[int], pads: list[int], auto: str
) -> None:
    axes = len(rows)
    window, strides = sizes[:axes], sizes[2 : 2 + axes]
    dilations = [1] * axes if auto.startswith("SAME") or op == "ConvTranspose" else sizes[4 : 4 + axes]
    spans = [(w - 1) * d + 1 for w, d in zip(window, dilations, strict=True)]
    assume(op == "ConvTranspose" or all(span <= row for span, row in zip(spans, rows, strict=True)))
    explicit = [min(p, s - 1) for p, s in zip(pads, spans * 2, strict=False)][: 2 * axes]
    attributes: dict[str, Any] = {"group": groups, "strides": strides, "dilations": dilations, "kernel_shape": window}
    if auto == "NOTSET" or op == "ConvTranspose":
        attributes["pads"] = explicit
    else:
        attributes["auto_pad"] = auto
    data = [2, 2 * groups, *rows]
    proto, graph = _model(op, data, {"w": [2 * groups, 3 if op == "ConvTranspose" else 2, *window]}, **attributes)
    assert multiply_accumulates(graph, graph.node("node"), padding=False) == _sum_of_ones(proto, data)
    each = (graph.size("w") or 0) // (2 * groups)  # products of an output of a Conv, of an input of a ConvTranspose
    assert multiply_accumulates(graph, graph.node("node")) == each * (graph.size("y" if op == "Conv" else "x") or 0)


@pytest.mark.parametrize(
    ("op", "data", "weight", "attributes"),
    [
        ("MatMul", [3, 5, 7], [7, 4], {}),
        ("MatMul", [7], [7, 4], {}),
        ("MatMul", [2, 1, 3, 7], [5, 7, 4], {}),
        ("Gemm", [3, 7], [7, 4], {}),
        ("Gemm", [7, 3], [4, 7], {"transA": 1, "transB": 1}),
    ],
)
def test_products_of_matrices(op: str, data: list[int], weight: list[int], attributes: dict[str, Any]) -> None:
    proto, graph = _model(op, data, {"w": weight}, **attributes)
    assert multiply_accumulates(graph, graph.node("node"), padding=False) == _sum_of_ones(proto, data)


def test_products_of_recurrent_layers_are_counted_for_each_step() -> None:
    weights = {"w": [1, 4 * 5, 3], "r": [1, 4 * 5, 5]}
    _, graph = _model("LSTM", [6, 2, 3], weights, hidden_size=5)
    assert multiply_accumulates(graph, graph.node("node"), padding=False) == 6 * 2 * (4 * 5 * 3 + 4 * 5 * 5)


def test_a_recurrent_layer_on_integers_has_as_many_products_as_one_in_float(tmp_path: Path) -> None:
    """As the recipe `dynamic` writes it, with the weights turned."""
    rng = np.random.default_rng(0)
    b = Builder()
    x = b.input("x", (6, 2, 3))
    weights = [b.constant(n, rng.normal(size=(1, 20, k)).astype(np.float32)) for n, k in (("w", 3), ("r", 5))]
    b.output(b.node("node", "LSTM", [x, *weights], hidden_size=5))
    data = [{"x": np.ones((6, 2, 3), np.float32)}]
    file = inlay.quantize(b.model(), tmp_path / "q.onnx", data=data, recipe="dynamic").path
    graph = build_graph(ir.from_proto(onnx.load(file)))
    assert graph.node("node").op_type == "DynamicQuantizeLSTM"
    assert multiply_accumulates(graph, graph.node("node"), padding=False) == 6 * 2 * (4 * 5 * 3 + 4 * 5 * 5)


@pytest.mark.parametrize(
    ("behind", "sort"),
    [((), ""), (("DequantizeLinear",), ""), (("Transpose", "Identity"), ""), (None, "of activations")],
)
def test_a_weight_behind_a_few_nodes_is_no_activation(behind: tuple[str, ...] | None, sort: str) -> None:
    """As in a quantized file, or where an exporter left a Transpose before it."""
    b = Builder()
    rows = b.input("x", (1, 64, 64))
    value = rows if behind is None else b.constant("weight", np.ones((64, 64), np.float32))
    if behind == ("DequantizeLinear",):
        value = b.constant("stored", np.ones((64, 64), np.int8))
    for number, op_type in enumerate(behind or ()):
        scale = [b.constant("scale", np.array(0.5, np.float32))] if op_type == "DequantizeLinear" else []
        value = b.node(f"node{number}", op_type, [value, *scale])
    b.output(b.node("product", "MatMul", [rows, value]))
    graph = build_graph(ir.from_proto(b.model()))
    assert sort_of(graph, graph.node("product")) == sort


def test_what_computes_no_products_has_none() -> None:
    _, graph = _model("Relu", [6, 2, 3], {})
    assert multiply_accumulates(graph, graph.node("node"), padding=False) == 0.0


def _chain() -> Graph:
    """Conv, Relu, a Slice of half of that, and its Transpose."""
    b = Builder()
    x = b.input("x", (1, 4, 8, 8))
    y = b.node("relu", "Relu", [b.conv("conv", x, 6, kernel=1)])
    ends = [b.constant(n, np.array([i], np.int64)) for n, i in (("from", 0), ("to", 3), ("axis", 1))]
    b.output(b.node("turn", "Transpose", [b.node("slice", "Slice", [y, *ends])], perm=[0, 2, 3, 1]))
    return build_graph(ir.from_proto(onnx.shape_inference.infer_shapes(b.model())))


def _kernel(op: str, *nodes: str, ns: float = 1e5, precision: str = "float", **more: Any) -> KernelTime:
    return KernelTime(f"{op} {nodes} {more}", op, ns, precision, nodes, **more)


def test_bytes_are_those_that_a_kernel_must_read_and_write() -> None:
    graph = _chain()
    weights = sum(graph.size(v) or 0 for v in graph.node("conv").inputs[1:])
    data, written = 4 * 64, 6 * 64
    apart = [_kernel("Conv", "conv"), _kernel("Relu", "relu"), _kernel("Slice", "slice"), _kernel("Transpose", "turn")]
    counter = Counter(graph, apart)
    assert [counter.work(k).bytes for k in apart] == [
        4 * (data + weights + written),
        4 * 2 * written,
        4 * (written // 2 * 2) + 3 * 8,  # of its data no more than it writes, and three indices
        4 * written,
    ]
    low = Counter(graph, [_kernel("QLinearConv", "conv", precision="uint8"), *apart[1:]])
    assert low.work(_kernel("QLinearConv", "conv", precision="uint8")).bytes == data + weights + written


def test_a_kernel_that_is_named_by_its_last_operator_is_its_product() -> None:
    graph = _chain()
    fused = [_kernel("Conv", "relu"), _kernel("Slice", "slice"), _kernel("Transpose", "turn")]
    work = Counter(graph, fused).work(fused[0])
    assert work.node is graph.node("conv")
    assert work.products == multiply_accumulates(graph, graph.node("conv"), padding=False) > 0


def test_a_kernel_is_no_more_than_one_product() -> None:
    """A sum of two convolutions, one of which has no kernel that is known: only one of them is in the fused kernel."""
    b = Builder()
    x = b.input("x", (1, 4, 8, 8))
    b.output(b.node("relu", "Relu", [b.node("sum", "Add", [b.conv("first", x, 4), b.conv("second", x, 4)])]))
    graph = build_graph(ir.from_proto(onnx.shape_inference.infer_shapes(b.model())))
    fused = _kernel("Conv", "relu")
    assert Counter(graph, [fused]).work(fused).products == multiply_accumulates(
        graph, graph.node("first"), padding=False
    )


def test_what_only_moves_elements_multiplies_nothing() -> None:
    """A Transpose of the runtime's own is said to stand for all operators that it was moved past, products included."""
    graph = _chain()
    moved = _kernel("Transpose", "conv", "relu", "slice", "turn")
    work = Counter(graph, [moved]).work(moved)
    assert work.products == 0
    assert work.node is graph.node("turn")
    alone = _kernel("Transpose", "turn")
    assert work.bytes == Counter(graph, [alone]).work(alone).bytes
    unknown = _kernel("Transpose", "conv", "relu")
    assert Counter(graph, [unknown]).work(unknown) == Work(), "nothing is known of it"


def test_a_window_that_jumps_reads_a_part_of_its_data() -> None:
    proto, graph = _model("Conv", [1, 4, 8, 8], {"w": [4, 4, 1, 1]}, strides=[2, 2])
    kernel = _kernel("Conv", "node")
    assert Counter(graph, [kernel]).work(kernel).bytes == 4 * (4 * 16 + 16 + 4 * 16)
    assert _sum_of_ones(proto, [1, 4, 8, 8]) == multiply_accumulates(graph, graph.node("node"), padding=False)


def _profile(seed: int, efficiency: float) -> tuple[list[KernelTime], Graph]:
    """A simulated machine: every kernel runs at a random share of its peaks, up to ``efficiency``, and has a call."""
    rng = np.random.default_rng(seed)
    b = Builder(seed=seed)
    x = b.input("x", (1, int(rng.integers(4, 9)), 160, 160))
    for i in range(int(rng.integers(3, 9))):
        x = b.conv(f"conv{i}", x, int(rng.integers(8, 65)), kernel=int(rng.choice([1, 3])))
        x = b.node(f"act{i}", str(rng.choice(["Relu", "Sigmoid"])), [x])
    b.output(x)
    graph = build_graph(ir.from_proto(onnx.shape_inference.infer_shapes(b.model())))
    names = {n.name: n.op_type for n in graph.nodes}
    kernels = [_kernel(op, name, precision=str(rng.choice(["float", "uint8"]))) for name, op in names.items()]
    counter, timed = Counter(graph, kernels), []
    for kernel in kernels:
        work = counter.work(kernel)
        least = PEAKS.least_ns(precision_of(kernel), work.products, work.bytes)
        ns = least / (efficiency * float(rng.uniform(0.3, 1.0))) + 1000.0
        timed.append(KernelTime(kernel.name, kernel.op_type, ns, kernel.precision, kernel.nodes))
    return timed, graph


@pytest.mark.parametrize("seed", range(20))
def test_no_simulated_model_is_faster_than_its_bound(seed: int) -> None:
    kernels, graph = _profile(seed, 1.0)
    now = sum(k.ns for k in kernels)
    found = ceiling(kernels, graph, PEAKS, now)
    assert not found.beaten
    assert 0.0 < found.bound_ms <= found.now_ms == now / 1e6
    assert sum(g.ms for g in found.gaps) <= found.now_ms - found.bound_ms + 1e-9
    assert found.gaps == tuple(sorted(found.gaps, key=lambda g: -g.ms))
    assert Ceiling.from_json(json.loads(json.dumps(found.as_json()))) == found


@pytest.mark.parametrize("seed", range(5))
def test_where_a_model_beats_the_peaks_no_bound_is_claimed(seed: int) -> None:
    kernels, graph = _profile(seed, 9.0)
    found = ceiling(kernels, graph, PEAKS, sum(k.ns for k in kernels))
    assert found.beaten
    assert found.as_json()["bound_ms"] is None
    assert "none is claimed" in next(ceiling_lines(found))
    raised = PEAKS.raised(reached_by(kernels, graph))
    assert not ceiling(kernels, graph, raised, sum(k.ns for k in kernels)).beaten


def test_what_only_moves_elements_may_be_a_view() -> None:
    """A runtime that hands on views beats every rate; the control computes."""
    graph = _chain()
    moved = [_kernel("Transpose", "turn", ns=1.0), _kernel("Conv", "conv"), _kernel("Relu", "relu")]
    assert not ceiling(moved, graph, PEAKS, 0.0).beaten
    slow = Peaks(PEAKS.products, ((0.0, 0.001),))
    assert "Relu" in ceiling(moved, graph, slow, 0.0).beaten or "Conv" in ceiling(moved, graph, slow, 0.0).beaten


def test_gaps_are_named_with_their_reasons() -> None:
    b = Builder()
    x = b.input("x", (1, 32, 56, 56))
    y = b.conv("depthwise", x, 32, group=32)
    y = b.node("soft", "Softmax", [b.conv("narrow", y, 16)], axis=-1)
    b.output(y)
    graph = build_graph(ir.from_proto(onnx.shape_inference.infer_shapes(b.model())))
    kernels = [
        _kernel("Conv", "depthwise", ns=4e6),
        _kernel("Conv", "narrow", ns=3e6),
        _kernel("Softmax", "soft", ns=2e6),
        _kernel("QuantizeLinear", ns=1e6, kind="quantize", values=("x",)),
    ]
    found = ceiling(kernels, graph, PEAKS, 10e6)
    assert [g.name for g in found.gaps] == ["1 Conv in float", "1 Conv in float", "1 Softmax"]
    assert "depthwise" in found.gaps[0].why
    assert "few output channels: 16" in found.gaps[1].why
    assert "outside products" in found.gaps[2].why
    assert found.outside == pytest.approx(3 / 10)
    said = [*verdict_lines(Ceilings(PEAKS, found, found))]
    assert len(said) == 2
    assert f"{found.bound_ms:.3f} of 10.000 ms" in said[0]
    assert "depthwise" in said[1]
    assert [*verdict_lines(Ceilings())] == []


@pytest.mark.exhaustive
def test_a_real_model_keeps_above_the_bound_of_this_machine(tmp_path: Path) -> None:
    """Load only slows: a bound by the best that was measured, here or by the model itself, holds for what it took."""
    spec = TargetSpec("ort-cpu", {"threads": 1})
    b = Builder()
    y = b.input("x", (1, 32, 56, 56))
    for i in range(4):
        y = b.conv(f"conv{i}", y, 64, relu=True)
    b.output(b.node("soft", "Softmax", [y], axis=-1))
    proto = onnx.shape_inference.infer_shapes(b.model())
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    from inlay.data import save_feed
    from inlay.targets.base import Artifact

    save_feed(tmp_path / "feed.npz", random_feed(proto, 0))
    with Worker(spec, tmp_path) as worker:
        capabilities = Capabilities.of(create(spec))
        peaks = measure_peaks(worker, capabilities, tmp_path / "peaks", np.random.default_rng(0), NEVER, brief=True)
        assert peaks is not None
        assert {"float", "int8"} <= peaks.products.keys()
        artifact = Artifact(path, "model")
        kernels = worker.profile(artifact, tmp_path / "feed.npz", 10)
        timed = worker.time([artifact], tmp_path / "feed.npz", 3, 10_000_000, 0).models[0].median_ns
        ns = max(timed, sum(k.ns for k in kernels))  # the machine may have been busy while one of them was taken
    graph = build_graph(ir.from_proto(proto))
    work = [Counter(graph, kernels).work(k).products for k in kernels]
    assert sum(work) == sum(multiply_accumulates(graph, n, padding=False) for n in graph.nodes), "no product is missed"
    found = ceiling(kernels, graph, peaks.raised(reached_by(kernels, graph)), ns)
    assert not found.beaten
    assert 0.0 < found.bound_ms <= found.now_ms
    assert set(found.reached) == {"float"}


# --- peaks ---------------------------------------------------------------------------------------------------------


def test_peaks_are_the_best_of_all_and_fall_with_what_is_moved() -> None:
    reached = [
        Reached("float", 1e6, 1e3, 1e5),
        Reached("float", 3e6, 1e3, 1e5),
        Reached("", 0.0, 2e6, 1e5),
        Reached("", 0.0, 5e5, 1e4),
        Reached("", 0.0, 1e8, 1e8),
        Reached("", 0.0, 1e3, 0.0),
    ]
    found = peaks_of(reached)
    assert found is not None
    assert found.products == {"float": 30.0}
    assert [found.bytes_per_ns(size) for size in (1.0, 5e5, 2e6, 1e8)] == [50.0, 50.0, 20.0, 1.0]
    assert found.products_per_ns("bfloat16") == 30.0, "the highest where a precision was not measured"
    assert peaks_of(reached[2:]) is None
    assert Peaks.from_json(json.loads(json.dumps(found.as_json()))) == found
    assert "float 30" in peaks_line(found)


@pytest.mark.parametrize(("int8", "said"), [(18.0, "no faster"), (20.0, "hardly faster"), (60.0, ""), (0.0, "")])
def test_where_integers_are_multiplied_no_faster_it_is_said(int8: float, said: str) -> None:
    """On processors of 2017 with AVX2, they are not: nothing else tells a user why 8 bits gain nothing there."""
    products = {"float": 18.2, **({"int8": int8} if int8 else {})}
    peaks = Peaks(products, ((0.0, 43.0),))
    assert [said in remark for remark in Ceilings(peaks).remarks] == [True] * bool(said)
    assert ("Note: this processor multiplies" in peaks_line(peaks)) == bool(said)
    assert not Ceilings().remarks


@given(st.lists(st.tuples(st.floats(1e3, 1e9), st.floats(1.0, 1e8)), min_size=1, max_size=9), st.integers(0, 8))
def test_no_peak_is_below_what_was_reached(moved: list[tuple[float, float]], split: int) -> None:
    product = Reached("float", 1.0, 0.0, 1.0)
    reached = [Reached("", 0.0, size, ns) for size, ns in moved]
    whole = peaks_of([product, *reached])
    first, second = peaks_of([product, *reached[:split]]), peaks_of([product, *reached[split:]])
    assert whole is not None
    start = first or second
    assert start is not None
    for found in (whole, start.raised(reached)):
        assert all(found.bytes_per_ns(r.bytes) >= r.bytes / r.ns * (1 - 1e-9) for r in reached)


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"products_per_ns": {}, "bytes_per_ns": [[0, 1]]},
        {"products_per_ns": {"float": -1}, "bytes_per_ns": [[0, 1]]},
        {"products_per_ns": {"float": math.inf}, "bytes_per_ns": [[0, 1]]},
        {"products_per_ns": {"float": 1}, "bytes_per_ns": [[4, 1], [0, 1]]},
        {"products_per_ns": {"float": "x"}, "bytes_per_ns": [[0, 1]]},
    ],
)
def test_damaged_peaks_are_refused(data: object) -> None:
    with pytest.raises(ValueError, match="peaks"):
        Peaks.from_json(data)


def test_peaks_are_kept_beside_costs(tmp_path: Path) -> None:
    write_costs(HERE, TABLE, tmp_path)
    assert read_peaks(HERE, tmp_path) is None, "a table of an earlier version has none"
    keep_peaks(HERE, PEAKS, tmp_path)
    assert read_peaks(HERE, tmp_path) == PEAKS
    assert read_costs(NullTarget(), HERE, tmp_path).table == TABLE
    assert read_peaks(Fingerprint("null", {"cpu": "another"}), tmp_path) is None


def test_peaks_alone_are_no_cost_table(tmp_path: Path) -> None:
    path = keep_peaks(HERE, PEAKS, tmp_path)
    found = read_costs(NullTarget(), HERE, tmp_path)
    assert (found.table, found.own, found.warning) == (None, False, "")
    path.write_text(path.read_text(encoding="utf8")[:-20], encoding="utf8")
    assert read_peaks(HERE, tmp_path) is None


@pytest.mark.exhaustive
def test_a_run_and_an_explanation_tell_the_ceiling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_CACHE_DIR", str(tmp_path / "cache"))
    target = create(TargetSpec("ort-cpu", {"threads": 1}))
    keep_peaks(target.fingerprint(), Peaks({"float": 1e6, "int8": 1e6}, ((0.0, 1e6),)))
    model = tmp_path / "model.onnx"
    onnx.save(residual_model(), model)
    feeds = [random_feed(model, seed) for seed in range(4)]
    found = api.tune(model, out=tmp_path / "out", data=feeds, strategy="anchors", max_measurements=3).as_json()
    told = json.loads((tmp_path / "out" / "result.json").read_text(encoding="utf8"))["ceiling"]
    assert told == json.loads(json.dumps(found["ceiling"]))
    assert 0.0 < told["float"]["bound_ms"] < told["float"]["now_ms"]
    explained = inlay.explain(model, data=feeds, budget=20).as_json()["ceiling"]
    assert 0.0 < explained["bound_ms"] < explained["now_ms"]
    assert explained["gaps"]


def test_judging_raises_what_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_CACHE_DIR", str(tmp_path))
    kernels, graph = _profile(0, 9.0)

    class _Worker:
        fingerprint = HERE

    keep_peaks(HERE, PEAKS)
    (first,) = judged(_Worker(), PEAKS, [(kernels, graph, 0.0)])  # type: ignore[arg-type]
    kept = read_peaks(HERE)
    assert first is not None
    assert kept is not None
    assert first.beaten
    (second,) = judged(_Worker(), kept, [(kernels, graph, 0.0)])  # type: ignore[arg-type]
    assert second is not None
    assert not second.beaten
    assert judged(_Worker(), kept, [([], graph, 1.0)]) == [None]  # type: ignore[arg-type]

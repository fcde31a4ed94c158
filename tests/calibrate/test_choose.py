"""How the qparams of a run are chosen: never worse than one method for all, always the same, and journaled."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.simulated import Clock
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import inlay
from inlay.calibrate import policy
from inlay.calibrate.choose import choose_calibration, choose_method
from inlay.calibrate.clock import StepClock
from inlay.calibrate.gptq import round_weights
from inlay.calibrate.observe import observe, stretched
from inlay.calibrate.ranges import RangeProbe
from inlay.calibrate.scorer import Question, Score, in_process, score_by
from inlay.calibrate.table_search import CalibrationTask, StressTask, TableSearch, most_gained_db
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import Feed, Samples, StressSet, Variation
from inlay.deadline import Deadline
from inlay.model.pool import pooled
from inlay.model.reference import Session
from inlay.quant.accuracy import Bound, Judge
from inlay.quant.gptq import NEAREST, Rounding, Steps, scale_digest
from inlay.quant.observers import METHODS, Method
from inlay.quant.qparams import QParamsTable
from inlay.run import preparation
from inlay.targets.onnxruntime.target import capabilities_for
from inlay.testing import Builder, small_model, sqnr
from inlay.trial import Failed, decibels
from inlay.types import Placement, QType
from tests.support.fixtures import MakeWorkspace
from tests.support.pool import PoolHere
from tests.support.workspace import Workspace


def model(layers: int = 4, outliers: bool = False) -> onnx.ModelProto:
    """Convs with Relu between them: means are not zero, so that rounding weights shifts every channel."""
    rng = np.random.default_rng(2)
    nodes, tensors = [], []
    for i in range(layers):
        weight = (rng.normal(0, 0.25, (8, 8, 3, 3)) ** 3).astype(np.float32) * 8
        if outliers and i == 1:
            weight[0] *= 60.0
        tensors += [numpy_helper.from_array(weight, f"w{i}")]
        tensors += [numpy_helper.from_array(rng.normal(0, 0.1, 8).astype(np.float32), f"b{i}")]
        nodes.append(helper.make_node("Conv", [f"v{i}", f"w{i}", f"b{i}"], [f"c{i}"], f"conv{i}", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"v{i + 1}"], f"relu{i}"))
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 8, 10, 10]) for n in ("v0", f"v{layers}")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(count: int) -> tuple[dict[str, np.ndarray], ...]:
    rng = np.random.default_rng(1)
    return tuple({"v0": rng.uniform(0, 1, (1, 8, 10, 10)).astype(np.float32)} for _ in range(count))


class Scorer:
    """The worst output's SQNR over the last samples, with what the runtime makes of the emitted model."""

    def __init__(self, space: Workspace) -> None:
        self.space, self.asked = space, list[Placement]()

    def each(self, questions: Iterable[Question]) -> Iterator[float | Failed]:
        return (self(*question) for question in questions)

    def __call__(self, table: QParamsTable, placement: Placement) -> float:
        self.asked.append(placement)
        p = self.space.prepared
        exact, session = Session(p.emitter.base, p.store), Session(p.emitter.emit(placement, table), p.store)
        pairs = [(exact.run(f), session.run(f)) for f in self.space.feeds[-4:]]
        return min(sqnr(np.stack([a[n] for a, _ in pairs]), np.stack([b[n] for _, b in pairs])) for n in pairs[0][0])


def by(function: Callable[[QParamsTable, Placement], float | Failed]) -> Score:
    """The score that a function gives."""
    return lambda questions: (function(*question) for question in questions)


def task(space: Workspace, feeds: Sequence[Feed], score: Score, **more: Any) -> CalibrationTask:
    given: dict[str, Any] = {"observed": space.observed, "placement": space.full(), **more}
    return CalibrationTask(prepared=space.prepared, feeds=feeds, score=score, **given)


def choose(space: Workspace, least_db: float | None = None) -> tuple[CalibrationChoice, Scorer]:
    scorer = Scorer(space)
    some = [dict(feed) for feed in space.feeds[:8]]
    return choose_calibration(task(space, some, scorer.each, min_sqnr_db=least_db), 3.0, clock=StepClock()), scorer


def test_never_worse_than_the_best_method_alone(workspace: MakeWorkspace) -> None:
    space = workspace(model(), feeds=feeds(12))
    found, scorer = choose(space)
    partial = space.observed.half(1)
    single, scores = choose_method(task(space, (), scorer.each), space.full())
    after = scorer(found.table(space.prepared, partial), space.full())
    assert set(scores) == set(METHODS)
    if found.method != single:  # another one may be better once weights are rounded: that depends on the processor
        assert scorer(replace(found, method=single).table(space.prepared, partial), space.full()) < after
    assert after >= scores[single] + 1.0  # rounding the weights shifts means here
    assert found.report["bias_correction"] or found.report["rounded_weights"], "either makes up for it"
    assert found.report["before_db"] == pytest.approx(scores[single])
    assert found.report["after_db"] == pytest.approx(after)
    assert sum(found.report["methods"].values()) == len(space.observed.histograms)


def test_the_method_is_chosen_for_the_weights_as_they_are_rounded(workspace: MakeWorkspace) -> None:
    """The best one for weights at the nearest integers may be so by chance."""
    space = workspace(model(), feeds=feeds(12))
    half, weights = space.observed.half(1), [f"w{i}" for i in range(4)]
    tables = {method: CalibrationChoice(method).table(space.prepared, half) for method in METHODS}
    ranges = {method: table.params("v1", QType.UINT8) for method, table in tables.items()}
    first: Method = "minmax"
    last = next(m for m in METHODS if ranges[m] != ranges["minmax"])
    scorer, asked = Scorer(space), set[bool]()

    def score(table: QParamsTable, placement: Placement) -> float:
        plain = tables["minmax"]
        rounded = any((table.quantized(w, QType.INT8) != plain.quantized(w, QType.INT8)).any() for w in weights)
        asked.add(rounded)
        credits = {ranges[last]: 60.0 if rounded else 20.0, ranges[first]: 40.0}
        return scorer(table, placement) + credits.get(table.params("v1", QType.UINT8), 0.0)

    some = [dict(feed) for feed in space.feeds[:8]]
    found = choose_calibration(task(space, some, by(score), methods=(first, last)), 3.0, clock=StepClock())
    assert found.rounding.steps
    assert asked == {False, True}
    assert max(found.scores, key=found.scores.__getitem__) == first
    assert found.method == last


@pytest.mark.parametrize("exact", [False, True])
def test_weights_that_make_no_noise_are_not_rounded(
    workspace: MakeWorkspace, monkeypatch: pytest.MonkeyPatch, exact: bool
) -> None:
    """Where activations make all of it, the moments of weights would be found for nothing: so of whole steps."""
    network = model()
    for tensor in network.graph.initializer if exact else ():
        array = numpy_helper.to_array(tensor)
        if array.ndim == 4:
            step = np.abs(array).max(axis=(1, 2, 3), keepdims=True) / 127
            tensor.CopyFrom(numpy_helper.from_array((np.rint(array / step) * step).astype(np.float32), tensor.name))
    rounded = list[QType]()

    def note(*asked: Any) -> Any:
        rounded.extend(asked[-1])
        return round_weights(*asked)

    monkeypatch.setattr("inlay.calibrate.table_search.round_weights", note)
    found, _ = choose(workspace(network, capabilities_for("x86_64", limit=127), feeds=feeds(12)))  # on any processor
    assert (QType.INT8 in rounded) == (not exact)
    assert bool(found.rounding.steps) == (not exact)
    assert not (exact and found.report["bias_correction"]), "their mean errors are as small"
    assert "nearest" not in found.cut, "nothing was left out for want of time"


@pytest.mark.parametrize("least_db", [10.0, 60.0])
def test_types_of_weights_that_are_far_too_noisy_are_not_rounded(
    workspace: MakeWorkspace, monkeypatch: pytest.MonkeyPatch, least_db: float
) -> None:
    """The usual one is: a part of it may be near the bound."""
    rng, rounded, net = np.random.default_rng(0), set[QType](), Builder()
    x, w = net.input("x", (16, 128)), net.constant("w", rng.normal(size=(128, 64)))
    net.output(net.node("product", "MatMul", [x, w]))
    some = tuple({"x": rng.normal(size=(16, 128)).astype(np.float32)} for _ in range(12))

    def note(*asked: Any) -> Any:
        rounded.update(asked[-1])
        return round_weights(*asked)

    monkeypatch.setattr("inlay.calibrate.table_search.round_weights", note)
    choose(workspace(net.model(), feeds=some), least_db)
    assert QType.INT8 in rounded
    assert any(t.bits == 4 for t in rounded) == (least_db == 10.0)


@pytest.mark.parametrize(("spread_db", "bound_db", "alone"), [(0.9, 20.0, False), (1.2, 20.0, True), (0.9, 40.0, True)])
def test_ranges_of_single_values_are_not_chosen_where_methods_are_alike(
    workspace: MakeWorkspace, monkeypatch: pytest.MonkeyPatch, spread_db: float, bound_db: float, alone: bool
) -> None:
    """Far below the bound that says nothing: a few noisy values drown all others."""
    space, chosen = workspace(model(), feeds=feeds(12)), list[int]()
    half = space.observed.half(1)
    best = CalibrationChoice("minmax").table(space.prepared, half).params("v1", QType.UINT8)
    really = TableSearch.select_ranges

    def note(search: TableSearch, seconds: float) -> Any:
        chosen.append(1)
        return really(search, seconds)

    monkeypatch.setattr(TableSearch, "select_ranges", note)

    def score(table: QParamsTable, placement: Placement) -> float:
        return 30.0 + (spread_db if table.params("v1", QType.UINT8) == best else 0.0)

    some = [dict(feed) for feed in space.feeds[:8]]
    found = choose_calibration(task(space, some, by(score), min_sqnr_db=bound_db), 3.0, clock=StepClock())
    assert bool(chosen) == alone
    assert found.cut == "", "nothing was left out for want of time"


@given(parts=st.tuples(*[st.floats(1e-6, 1.0)] * 2))
def test_what_a_whole_gains_without_a_part_of_its_noise(parts: tuple[float, float]) -> None:
    part, rest = parts
    gained = most_gained_db(decibels(part), decibels(part + rest))
    assert gained == pytest.approx(decibels(rest) - decibels(part + rest), abs=1e-6)
    assert most_gained_db(decibels(part), decibels(part)) == math.inf, "it is all of the noise"


def test_equal_calls_choose_equally(workspace: MakeWorkspace) -> None:
    spaces = [workspace(model(), feeds=feeds(12)) for _ in range(2)]
    made = [choose(space)[0] for space in spaces]
    assert made[0] == made[1]
    assert made[0].digest(spaces[0].observed) == made[1].digest(spaces[1].observed)


@pytest.mark.parametrize("sound", [1000, 7])
@pytest.mark.exhaustive
def test_several_hands_choose_as_one_does(
    workspace: MakeWorkspace, monkeypatch: pytest.MonkeyPatch, sound: int
) -> None:
    monkeypatch.setattr(policy, "MOMENT_BYTES", 1)  # a call for each weight,
    monkeypatch.setattr(policy, "WEIGHT_ERROR_BYTES", 1)  # and a model for its mean error
    made, pool = [], PoolHere(3, sound)
    for open_pool in (None, pool.open_pool):
        space = workspace(model(), feeds=feeds(12))
        some = Samples(tuple(dict(feed) for feed in space.feeds), "feeds", "test")
        exact = Session(space.prepared.emitter.base, space.prepared.store)
        last = some.part(range(8, 12))
        judge = Judge([exact.run(feed) for feed in last.feeds], last, Bound(), confidence=None)
        score = score_by(judge, in_process(space.prepared, last.feeds))
        with pooled(open_pool, 1e9):
            observed = observe(space.prepared, some)
            asked = task(space, some.feeds, score, observed=observed, min_sqnr_db=60.0)
            choice = choose_calibration(asked, 3.0, clock=StepClock())
        made.append((choice, choice.rounding.digest, choice.digest(observed)))
    assert made[0] == made[1]
    assert made[0][0].rounding.steps
    assert {"outputs_of", "_rounded", "_answer"} <= pool.asked.keys()


def test_a_choice_survives_json(workspace: MakeWorkspace) -> None:
    space = workspace(model(), feeds=feeds(12))
    found, _ = choose(space)
    again = CalibrationChoice.from_json(json.loads(json.dumps(found.as_json(), allow_nan=False)))
    assert again == found
    params = found.table(space.prepared, space.observed).params("w0", QType.INT8)
    weight = space.prepared.graph.constant("w0")
    assert weight is not None
    steps = Steps(scale_digest(params), np.where(weight > 0, -1, 0).astype(np.int8))
    found = found.rounding_by(Rounding({("w0", QType.INT8): steps}))
    assert again != found
    again = CalibrationChoice.from_json(json.loads(json.dumps(found.as_json(), allow_nan=False)))
    again = again.rounding_by(Rounding.from_arrays(found.rounding.as_arrays()))  # which is kept beside it
    assert again == found
    emitted = [space.emit(space.full(), n.table(space.prepared, space.observed)) for n in (found, again)]
    assert emitted[0].SerializeToString() == emitted[1].SerializeToString()
    assert "dB" in str(found)


@pytest.mark.parametrize("flags", [frozenset[str](), frozenset({"avx512_vnni"})], ids=["7-bit", "8-bit"])
@pytest.mark.exhaustive
def test_it_is_made_for_the_part_that_keeps_the_constraint(workspace: MakeWorkspace, flags: frozenset[str]) -> None:
    """A unit that ruins everything is left out before the choice; nothing is where everything keeps the constraint."""
    space = workspace(model(outliers=True), capabilities_for("x86_64", flags), feeds=feeds(12))
    whole, scorer = choose(space)
    assert set(scorer.asked) == {space.full()}
    assert whole.report["whole"]
    part, _ = choose(space, max(whole.report["before_db"], whole.report["after_db"]) + 4.0)  # correction reaches less
    assert not part.report["whole"]
    assert 0 < part.report["ports"] < len(space.full())
    assert part.report["after_db"] >= part.report["before_db"]
    easy, _ = choose(space, 1.0)
    assert easy == whole


@pytest.mark.parametrize(("full_db", "apart"), [(10.0, True), (19.0, False)])
def test_products_are_chosen_for_where_all_is_clearly_below_the_bound(
    workspace: MakeWorkspace, full_db: float, apart: bool
) -> None:
    """That costs one scoring of everything; near the bound, or above it, ranges are for everything."""
    space = workspace(model(), feeds=feeds(12))
    full = space.full()
    products = Placement([*full][:3])
    asked: list[Placement] = []

    def score(table: QParamsTable, placement: Placement) -> float:
        asked.append(placement)
        return full_db if placement == full else 30.0

    some = [dict(feed) for feed in space.feeds]
    given = task(space, some, by(score), min_sqnr_db=20.0, products=products)
    found = choose_calibration(given, 0.0, clock=StepClock())
    assert (asked.count(full), asked.count(products) >= len(METHODS)) == ((1, True) if apart else (len(asked), False))
    assert set(found.scores) == set(METHODS)
    assert found.report["whole"] == (not apart)


def test_a_choice_that_fails_is_never_taken(workspace: MakeWorkspace) -> None:
    space = workspace(model(), feeds=feeds(12))

    def score(table: QParamsTable, placement: Placement) -> float | Failed:
        return Failed("run", "no") if table.corrects("conv0") else 10.0

    some = [dict(feed) for feed in space.feeds]
    found = choose_calibration(task(space, some, by(score)), 0.0, clock=StepClock())
    assert not found.weight_error_means
    assert found.method == METHODS[0]


def test_a_method_that_fails_is_never_taken(workspace: MakeWorkspace) -> None:
    space = workspace(small_model())
    failed = iter([True, False, True, False, False, False])

    def score(table: QParamsTable, placement: Placement) -> float | Failed:
        return Failed("run", "no") if next(failed) else -10.0

    method, scores = choose_method(task(space, (), by(score)), space.full())
    assert method == METHODS[1]
    assert list(scores) == [METHODS[i] for i in (1, 3, 4, 5)]
    nothing = choose_method(task(space, (), by(lambda *_: Failed("run", "no"))), space.full())
    assert nothing == (METHODS[0], {})


def test_where_the_first_method_is_hopeless_no_other_is_tried(workspace: MakeWorkspace) -> None:
    space, asked = workspace(model(), feeds=feeds(4)), list[float]()

    def score(table: QParamsTable, placement: Placement) -> float:
        asked.append(5.0 + len(asked))
        return asked[-1]

    given = task(space, (), by(score)), space.full()
    assert choose_method(*given, least_db=6.0) == (METHODS[0], {METHODS[0]: 5.0})
    del asked[:]
    assert set(choose_method(*given, least_db=5.0)[1]) == {*METHODS}, "at the limit all are"


def test_without_samples_one_method_serves(workspace: MakeWorkspace) -> None:
    space = workspace(model(), feeds=feeds(4))
    found = choose_calibration(task(space, (), Scorer(space).each), 3.0, clock=StepClock())
    assert not found.chosen
    assert not found.weight_error_means
    assert str(found) == f"ranges by {found.method}"


@pytest.mark.exhaustive
def test_a_continued_run_keeps_its_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(model(), path)
    options: dict[str, Any] = {"target": "null", "min_sqnr": 10.0, "data": list(feeds(12)), "out": tmp_path / "out"}
    first = inlay.tune(path, max_measurements=3, **options)
    data = json.loads((tmp_path / "out" / "result.json").read_text())["data"]
    assert data["numbers"]["after_db"] >= data["numbers"]["before_db"]
    assert data["ranges"] in METHODS

    def never(*_: object, **__: object) -> CalibrationChoice:
        raise AssertionError("decided twice")

    monkeypatch.setattr(preparation, "choose_calibration", never)
    again = inlay.tune(path, max_measurements=8, **options)
    assert again.search["replayed"] >= first.search["measurements"]
    with pytest.raises(AssertionError, match="decided twice"):
        inlay.tune(path, max_measurements=8, restart=True, **options)


@pytest.mark.exhaustive
def test_random_inputs_decide_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(small_model(), path)
    inlay.tune(path, target="null", max_measurements=3, out=tmp_path / "out")
    assert json.loads((tmp_path / "out" / "result.json").read_text())["data"]["numbers"] == {}


@pytest.mark.exhaustive
def test_a_busy_machine_makes_the_same_choice(workspace: MakeWorkspace) -> None:
    """However long anything takes; where it must end before, it says so, and still is no worse than one for all."""
    space = workspace(model(), feeds=feeds(12))
    scorer, clock = Scorer(space), Clock()
    some = [dict(feed) for feed in space.feeds[:8]]

    def slow(seconds: float) -> Score:
        def score(table: QParamsTable, placement: Placement) -> float:
            clock.sleep(seconds)
            return scorer(table, placement)

        return by(score)

    def chosen(score: Score, seconds: float, inference_s: float = 0.0) -> CalibrationChoice:
        until = Deadline(clock() + seconds, clock)
        return choose_calibration(task(space, some, score), 3.0, deadline=until, inference_s=inference_s)

    quiet = chosen(slow(0.0), math.inf)
    assert chosen(slow(10.0), 1000.0) == chosen(slow(99.0), math.inf) == quiet
    assert quiet.weight_error_means or quiet.rounding.steps
    assert not quiet.cut
    hurried, late = chosen(slow(10.0), 150.0), chosen(slow(10.0), 60.0)
    assert hurried.rounding.steps, "which gains most for its time"
    assert not chosen(slow(10.0), 150.0, inference_s=10.0).rounding.steps, "nor is begun what cannot be ended"
    assert not hurried.chosen
    assert not late.weight_error_means
    assert not late.rounding.steps
    for cut in (hurried, late):
        assert "one range method" in cut.cut
        assert CalibrationChoice.from_json(cut.as_json()) == replace(cut, rounding=NEAREST)


def on_varied(scorer: Scorer, factor: float) -> Scorer:
    """The score on samples that are scaled up."""
    space = scorer.space
    varied = Workspace.__new__(Workspace)
    varied.__dict__.update(space.__dict__, feeds=tuple({n: factor * x for n, x in f.items()} for f in space.feeds))
    return Scorer(varied)


@pytest.mark.matrix(every=2)
@pytest.mark.parametrize("factor", [1.0, 1.1, 60.0])
def test_ranges_are_widened_for_variations_at_a_small_price_only(workspace: MakeWorkspace, factor: float) -> None:
    space = workspace(model(), feeds=feeds(12))
    some = Samples(tuple(dict(feed) for feed in space.feeds[:8]), "feeds", "test")
    stress = StressSet(tuple(Variation("up", {"v0": factor * f["v0"]}, i >= 4) for i, f in enumerate(some.feeds)))
    scorer, placement = Scorer(space), space.full()
    varied = on_varied(scorer, factor)

    def chosen(stress: StressTask | None) -> CalibrationChoice:
        more: dict[str, Any] = {"observed": plain, "methods": ("minmax",), "stress": stress}
        return choose_calibration(task(space, some.feeds, scorer.each, **more), 0.0)

    plain = observe(space.prepared, some)
    stressed = stretched(plain, space.prepared, stress)
    before, after = chosen(None), chosen(StressTask(reach=stress, score=varied.each))
    tables = [c.table(space.prepared, o.half(1)) for c, o in ((before, plain), (after, stressed))]
    of_samples, of_varied = ([score(t, placement) for t in tables] for score in (scorer, varied))
    assert of_samples[1] >= of_samples[0] - policy.STRESS_PRICE_DB
    assert (after.report["varied_before_db"], after.report["varied_after_db"]) == pytest.approx(of_varied)
    assert after.report["price_db"] == pytest.approx(of_samples[0] - of_samples[1])
    if factor == 1.1:
        assert after.report["widened"]
        assert of_varied[1] > of_varied[0] + 1.0
        assert "widened" in str(after)
    else:  # nothing is overrun, or all of it by so much that the samples would lose too much
        assert not after.report["widened"]
        assert not after.is_widened
        assert of_varied[1] == of_varied[0]
    assert CalibrationChoice.from_json(json.loads(json.dumps(after.as_json()))) == after


def test_a_selection_that_is_cut_short_says_so(workspace: MakeWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
    space = workspace(model(), feeds=feeds(12))
    clock, each = Clock(), RangeProbe.each

    def slow(*arguments: Any) -> Any:
        for outputs in each(*arguments):
            clock.sleep(1.0)
            yield outputs

    monkeypatch.setattr(RangeProbe, "each", slow)
    some, until = [dict(feed) for feed in space.feeds[:8]], Deadline(clock() + 60.0, clock)
    found = choose_calibration(task(space, some, Scorer(space).each), 3.0, deadline=until)
    assert "fewer trials" in found.cut
    assert found.report["after_db"] >= found.report["before_db"]


def test_the_step_clock_depends_on_the_model_alone(workspace: MakeWorkspace) -> None:
    space = workspace(model(), feeds=feeds(2))
    one, other = StepClock.for_model(space.prepared), StepClock.for_model(space.prepared)
    assert [one() for _ in range(5)] == [other() for _ in range(5)]
    assert one() > 0.0


def test_the_step_clock_knows_that_recurrent_operators_take_long(workspace: MakeWorkspace) -> None:
    """By what the weights multiply at every step: elements of results alone say nothing about it."""

    def step(steps: int, hidden: int) -> float:
        b = Builder()
        weights = [b.constant(n, b.rng.standard_normal((1, 3 * hidden, hidden))) for n in ("w", "r")]
        x = b.input("x", (steps, 1, hidden))
        b.output(b.node("gru", "GRU", [x, *weights], hidden_size=hidden))
        return StepClock.for_model(workspace(b.model()).prepared)()

    products = 400 * 2 * 3 * 256 * 256
    assert step(400, 256) == pytest.approx(policy.SECONDS_PER_RECURRENT_PRODUCT * products, rel=0.05)
    assert step(400, 256) > 10 * step(400, 32)

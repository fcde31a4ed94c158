"""The choice of a range for every value: planted optima, honest refusals, and the probe against emitted models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.calibrate.ranges import RangeProbe, Ranges, RangeTask, choose_ranges
from inlay.calibrate.tables import CalibrationChoice, domains_of
from inlay.data import AUTO_MASK, Feed
from inlay.model.pool import pooled
from inlay.model.reference import Session
from inlay.quant.metrics import Outputs
from inlay.quant.observers import METHODS, Method
from inlay.quant.parts import Parts, Reference
from inlay.testing import concat_model, residual_model, small_model, sqnr
from inlay.types import QParams, QType
from tests.support.fixtures import MakeWorkspace
from tests.support.pool import PoolHere

TRIED: tuple[Method, ...] = ("minmax", "mse", "percentile")
OPTIONS: dict[Method, QParams] = {m: QParams(QType.UINT8, (1.0 + i,), (0,)) for i, m in enumerate(TRIED)}


class Planted:
    """Stands in for a probe: the noise of each class and method is given, per sample; they add up."""

    def __init__(self, noise: Mapping[str, Mapping[Method, np.ndarray]]) -> None:
        self.domains = tuple(noise)
        self.noise = noise
        self.runs = 0

    def each(
        self, questions: Iterable[tuple[Mapping[str, np.ndarray], Mapping[str, QParams]]]
    ) -> Iterator[dict[str, np.ndarray]]:
        for feed, qparams in questions:
            self.runs += 1
            yield self.run(feed, qparams)

    def run(self, feed: Mapping[str, np.ndarray], qparams: Mapping[str, QParams]) -> dict[str, np.ndarray]:
        sample = int(feed["x"][0])
        method = {p.scale[0]: m for m, p in OPTIONS.items()}
        total = sum(float(self.noise[c][method[qparams[c].scale[0]]][sample]) for c in self.domains)
        return {"y": np.array([1.0 + np.sqrt(total)], np.float32)}


def choose(*planted: Planted, samples: int = 6, seconds: float = 2000.0) -> Ranges:
    ticks = iter(range(10**6))
    feeds = [{"x": np.array([i], np.int64)} for i in range(samples)]
    domains = planted[0].domains
    wanted = [{"y": np.ones(1, np.float32)} for _ in feeds]
    task = RangeTask(
        options=[dict.fromkeys(domains, OPTIONS)] * samples,
        own_noise={c: dict.fromkeys(OPTIONS, 1.0) for c in domains},
        feeds=feeds,
        reference=against(feeds, wanted),
        seconds=seconds,
        clock=lambda: float(next(ticks)),
    )
    return choose_ranges([cast(RangeProbe, each) for each in planted], "minmax", task)


def against(feeds: Sequence[Feed], outputs: Sequence[Outputs]) -> Reference:
    return Reference(feeds, outputs, AUTO_MASK, Parts())


def planted(count: int, rng: np.random.Generator) -> tuple[Planted, dict[str, Method]]:
    noise: dict[str, dict[Method, np.ndarray]] = {}
    best: dict[str, Method] = {}
    for i in range(count):
        name = f"v{i}"
        best[name] = TRIED[int(rng.integers(3))]
        noise[name] = {m: np.full(16, 1e-4 if m == best[name] else 1e-2) for m in TRIED}
    return Planted(noise), best


@pytest.mark.parametrize("count", [1, 3, 17])
def test_a_planted_optimum_is_found(count: int) -> None:
    probe, best = planted(count, np.random.default_rng(count))
    found = choose(probe)
    assert dict(found.methods) == best
    assert found.complete
    assert found.after_db >= found.before_db


def test_a_gain_on_which_samples_disagree_is_refused() -> None:
    steady = np.full(16, 1e-3)
    moody = steady * np.where(np.arange(16) % 2 == 0, 0.2, 1.6)  # less on average, by far; worse for every second one
    probe = Planted({"a": {"minmax": steady, "mse": moody, "percentile": steady * 1.01}})
    assert moody.mean() < steady.mean()
    assert choose(probe).methods == {"a": "minmax"}
    calm = Planted({"a": {"minmax": steady, "mse": steady * 0.9, "percentile": steady * 1.01}})
    assert choose(calm).methods == {"a": "mse"}


def test_samples_that_did_not_choose_may_veto() -> None:
    noise = np.full(16, 1e-3)
    better = noise * 0.5
    worse_later = better.copy()
    worse_later[8:] = 1e-2  # at most the first eight choose
    same: dict[Method, np.ndarray] = {"percentile": noise}
    assert choose(Planted({"a": {"minmax": noise, "mse": better, **same}}), samples=12).methods == {"a": "mse"}
    vetoed = choose(Planted({"a": {"minmax": noise, "mse": worse_later, **same}}), samples=12)
    assert vetoed.methods == {"a": "minmax"}
    assert vetoed.after_db == vetoed.before_db


def test_ranges_are_chosen_for_the_better_model_and_nothing_is_run_twice_before() -> None:
    rng = np.random.default_rng(3)
    good = {f"v{i}": {m: rng.uniform(1e-4, 1e-2, 16) for m in TRIED} for i in range(5)}
    bad = {v: {m: 4.0 * noise for m, noise in known.items()} for v, known in good.items()}
    alone = choose(Planted(good))
    for models, number in (((bad, good), 1), ((good, bad), 0)):
        probes = [Planted(noise) for noise in models]
        found = choose(*probes)
        assert (found.probe, found.methods, found.after_db) == (number, alone.methods, alone.after_db)
        assert probes[1 - number].runs == 4, "as many samples as tell them apart"
        assert found.runs == alone.runs + 4
    unhurried = [Planted(good), Planted(bad)]
    choose(*unhurried, seconds=0.0)
    assert [probe.runs for probe in unhurried] == [4, 4]


def test_without_time_nothing_changes() -> None:
    probe, _ = planted(9, np.random.default_rng(0))
    found = choose(probe, seconds=0.0)
    assert set(found.methods.values()) == {"minmax"}
    assert not found.complete
    assert probe.runs < 10


def test_equal_calls_choose_equally_and_no_choice_is_worse_than_its_start() -> None:
    rng = np.random.default_rng(5)
    noise = {f"v{i}": {m: rng.uniform(1e-4, 1e-2, 16) for m in TRIED} for i in range(12)}
    for seconds in (5.0, 20.0, 100.0, 1e5):
        one, other = (choose(Planted(noise), seconds=seconds) for _ in range(2))
        assert one == other
        assert one.after_db >= one.before_db


def test_the_worst_output_counts() -> None:
    class Two(Planted):
        def run(self, feed: Mapping[str, np.ndarray], qparams: Mapping[str, QParams]) -> dict[str, np.ndarray]:
            moved = qparams["a"].scale[0] != OPTIONS["minmax"].scale[0]
            good, bad = (1e-5, 1e-2) if moved else (1e-3, 2e-3)
            return {"y": np.array([1 + good**0.5], np.float32), "z": np.array([1 + bad**0.5], np.float32)}

    probe = Two({"a": {m: np.ones(16) for m in TRIED}})
    feeds = [{"x": np.array([i])} for i in range(4)]
    wanted = [{"y": np.ones(1, np.float32), "z": np.ones(1, np.float32)} for _ in feeds]
    local = {"a": dict.fromkeys(OPTIONS, 1.0)}
    given, ticks = [cast(RangeProbe, probe)], iter(range(10**6)).__next__
    found = choose_ranges(
        given,
        "minmax",
        RangeTask(
            options=[{"a": OPTIONS}] * 4,
            own_noise=local,
            feeds=feeds,
            reference=against(feeds, wanted),
            seconds=100.0,
            clock=ticks,
        ),
    )
    assert found.methods == {"a": "minmax"}


def test_a_range_that_larger_samples_overrun_loses_its_small_lead() -> None:
    """Both are told apart by what narrower numbers do; where samples are all alike, nothing narrows them."""

    class Tight(Planted):
        def run(self, feed: Mapping[str, np.ndarray], qparams: Mapping[str, QParams]) -> dict[str, np.ndarray]:
            noise = {1.0: 1e-3, 2.0: 0.5e-3, 3.0: 1e-3}.get(qparams["a"].scale[0], 1e-3)
            overrun = 1.0 < qparams["a"].scale[0] < 2.0  # what "mse" gives, made narrower
            return {"y": np.array([1.0 + np.sqrt(0.1 if overrun else noise)], np.float32)}

    def found(headroom: dict[str, float]) -> Method:
        feeds = [{"x": np.array([i])} for i in range(6)]
        wanted = [{"y": np.ones(1, np.float32)} for _ in feeds]
        probe = cast(RangeProbe, Tight({"a": {m: np.ones(16) for m in TRIED}}))
        options, local = [{"a": OPTIONS}] * 6, {"a": dict.fromkeys(OPTIONS, 1.0)}
        ticks = iter(range(10**6)).__next__
        chosen = choose_ranges(
            [probe],
            "minmax",
            RangeTask(
                options=options,
                own_noise=local,
                feeds=feeds,
                reference=against(feeds, wanted),
                seconds=1000.0,
                clock=ticks,
                headroom=headroom,
            ),
        )
        return chosen.methods["a"]

    assert found({}) == found({"a": 0.0}) == "mse"
    assert found({"a": 0.25}) == "minmax"


def test_each_sample_has_its_own_qparams() -> None:
    """Ranges of other samples judge each one: a method that is best with its own ranges only is not chosen."""
    own = {m: QParams(QType.UINT8, (10.0 + i,), (0,)) for i, m in enumerate(TRIED)}

    class Seen(Planted):
        def run(self, feed: Mapping[str, np.ndarray], qparams: Mapping[str, QParams]) -> dict[str, np.ndarray]:
            noise = {11.0: 1e-5, 2.0: 1e-2}.get(qparams["a"].scale[0], 1e-3)  # "mse": good on what it has seen
            return {"y": np.array([1.0 + np.sqrt(noise)], np.float32)}

    feeds = [{"x": np.array([i])} for i in range(6)]
    wanted = [{"y": np.ones(1, np.float32)} for _ in feeds]
    probe, local = cast(RangeProbe, Seen({"a": {m: np.ones(16) for m in TRIED}})), {"a": dict.fromkeys(TRIED, 1.0)}
    for options, best in ((own, "mse"), (OPTIONS, "minmax")):
        ticks = iter(range(10**6)).__next__
        found = choose_ranges(
            [probe],
            "minmax",
            RangeTask(
                options=[{"a": options}] * 6,
                own_noise=local,
                feeds=feeds,
                reference=against(feeds, wanted),
                seconds=1000.0,
                clock=ticks,
            ),
        )
        assert found.methods == {"a": best}


@pytest.mark.parametrize(("width", "seconds"), [(2, 2000.0), (3, 150.0), (8, 2000.0), (8, 150.0)])
def test_runs_ahead_of_a_trial_change_nothing(width: int, seconds: float) -> None:
    """Nor when the time ends: only what was looked at counts. Samples differ, so that trials stop at different ones."""
    rng = np.random.default_rng(width)
    noise = {f"v{i}": {m: rng.uniform(1e-4, 1e-2, 16) for m in TRIED} for i in range(9)}
    alone, several = Planted(noise), Planted(noise)
    want = choose(alone, seconds=seconds)
    with pooled(PoolHere(width).open_pool, 1e9):
        assert choose(several, seconds=seconds) == want
    assert want.runs == alone.runs <= several.runs


@pytest.mark.parametrize("make", [small_model, residual_model, concat_model])
def test_the_probe_computes_what_is_emitted(workspace: MakeWorkspace, make: Callable[[], onnx.ModelProto]) -> None:
    space = workspace(make(), samples=3)
    p, full = space.prepared, space.full()
    domains = domains_of(p, space.observed, "minmax")
    probe = RangeProbe(p, full, space.table, domains)
    assert probe.domains
    feed = dict(space.feeds[0])
    found = {}
    methods: tuple[Method, ...] = ("minmax", "percentile-99.9")
    for method in methods:
        table = CalibrationChoice("minmax", chosen=dict.fromkeys(probe.domains, method)).table(p, space.observed)
        qparams = {c: table.params(c, p.rules.activation) for c in probe.domains}
        got, want = next(probe.each([(feed, qparams)])), Session(p.emitter.emit(full, table), p.store).run(feed)
        for name in want:
            assert sqnr(want[name], got[name]) > 35.0
        found[method] = got
    assert any(not np.array_equal(a, found["percentile-99.9"][n]) for n, a in found["minmax"].items())


def outlier_model() -> onnx.ModelProto:
    """Two values with rare outliers: the head ignores those of one value, and its output holds those of the other."""
    rng = np.random.default_rng(0)
    ignoring = np.zeros((4, 4, 1, 1), np.float32)
    ignoring[:, 1:] = rng.normal(0, 1, (4, 3, 1, 1))
    minding = np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1)
    mixing = minding.copy()  # so that no value lies on the grid of the one before
    mixing[1:, 1:, 0, 0] = np.linalg.qr(rng.normal(0, 1, (3, 3)))[0]
    nodes = [
        helper.make_node("Conv", ["x", "mixing"], ["a"], "one"),
        helper.make_node("Conv", ["z", "mixing"], ["b"], "two"),
        helper.make_node("Conv", ["a", "ignoring"], ["c"], "three"),
        helper.make_node("Conv", ["b", "minding"], ["d"], "four"),
    ]
    tensors = {"ignoring": ignoring, "minding": minding, "mixing": mixing}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, 40, 40]) for n in ("x", "z")],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("c", "d")],
        [numpy_helper.from_array(a, n) for n, a in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_values_whose_outliers_do_not_matter_are_clipped_and_others_are_not(workspace: MakeWorkspace) -> None:
    rng = np.random.default_rng(1)
    feeds = []
    for _ in range(6):
        x, z = (rng.normal(0, 0.3, (1, 4, 40, 40)).astype(np.float32) for _ in range(2))
        for array in (x, z):
            array[0, 0, 3, :3] = 40.0
        feeds.append({"x": x, "z": z})
    space = workspace(outlier_model(), feeds=tuple(feeds))
    p, full = space.prepared, space.full()
    reference = Session(p.emitter.base, p.store)
    wanted = [reference.run(f) for f in feeds]
    domains = domains_of(p, space.observed, "minmax")
    probe = RangeProbe(p, full, space.table, domains)
    tables = {
        m: CalibrationChoice("minmax", chosen=dict.fromkeys(probe.domains, m)).table(p, space.observed) for m in METHODS
    }
    options = {c: {m: t.params(c, p.rules.activation) for m, t in tables.items()} for c in probe.domains}
    local = {c: dict.fromkeys(METHODS, 0.0) for c in probe.domains}
    ticks = iter(range(10**6))

    def run(seconds: float, start: Method) -> Ranges:
        given = [options] * len(feeds)
        return choose_ranges(
            [probe],
            start,
            RangeTask(
                options=given,
                own_noise=local,
                feeds=feeds,
                reference=against(feeds, wanted),
                seconds=seconds,
                clock=lambda: float(next(ticks)),
            ),
        )

    found = run(1e5, "minmax")
    assert covered_high(options, found, "a") < 20.0
    assert covered_high(options, found, "z") > 35.0
    for method in METHODS:  # one method for both is worse
        assert found.after_db > run(0.0, method).before_db


def covered_high(options: Mapping[str, Mapping[Method, QParams]], found: Ranges, name: str) -> float:
    params = options[name][found.methods[name]]
    return (params.qtype.qmax - params.zero_point[0]) * params.scale[0]


@pytest.mark.parametrize("method", METHODS)
def test_no_method_moves_the_zero_point_behind_a_relu(workspace: MakeWorkspace, method: Method) -> None:
    """Otherwise the runtime keeps the Relu as a kernel of its own."""
    space = workspace(residual_model(), samples=3)
    table = CalibrationChoice(method).table(space.prepared, space.observed)
    relus = [n.outputs[0] for n in space.graph.nodes if n.op_type == "Relu"]
    assert relus
    for value in relus:
        params = table.params(value, space.prepared.rules.activation)
        assert params.zero_point == (params.qtype.qmin,)

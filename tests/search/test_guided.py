"""The guided strategy on a simulated runtime: it finds the planted optimum, within the bound, and repeats itself."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from inlay.quant.sensitivity import Sensitivity
from inlay.search import policy
from inlay.search.base import Strategy
from inlay.search.guided import Guided
from inlay.search.rewrite_choice import RewriteChoice
from inlay.search.surrogate import Oracles, Surrogate
from inlay.search.unit_graph import UnitGraph
from inlay.space.units import STATIC
from inlay.targets.base import KernelTime
from inlay.trial import Accuracy, Failed, Infeasible, Interval, Latency, Measured, Outcome, OutputError, Proposal, Trial
from inlay.types import Placement, Port, PortRewrite, QType
from tests.search.test_cost_model import Runtime, every
from tests.search.unit_graphs import chain

N = 8


class Bench:
    """Judges placements of a chain; unit ``i`` in low precision adds ``noise[i]`` at the output."""

    def __init__(self, seed: int, noise: np.ndarray, bound: float, probes: bool = True) -> None:
        self.graph: UnitGraph = chain(N)
        self.runtime = Runtime(self.graph, seed)
        self.noise, self.bound = noise, bound
        self.probes, self.probed = probes, 0
        self.measured: dict[Placement, tuple[float, float]] = {}
        self.base_ns = self.runtime.ns(np.zeros(N, bool))
        self.asked: list[Placement] = []
        self.best = 1.0
        self.rewrites: frozenset[PortRewrite] = frozenset()  # selectable ones
        self.usual = RewriteChoice()  # what usually pays
        self.profiles = True  # there is time for them
        self.priced: np.ndarray | None = None  # costs of all parameters by the processor's table
        self.hurried = False
        self.goes_on = True  # although hardly anything is left
        self.origins: list[str] = []
        self.shown_db = -np.inf  # from which on the samples show the bound

    def label(self, names: Mapping[str, str]) -> Placement:
        return Placement((Port(n, 0), QType.UINT8) for n in names)

    def labels(self, placement: Placement) -> np.ndarray:
        return self.graph.labels([p.node for p, _ in placement])

    def made(self, labels: np.ndarray) -> float:
        touched = self.graph.states(labels) != 0
        return float(self.noise[touched].sum())

    def probe(self, placement: Placement) -> tuple[float, ...] | None:
        """What a probe says: the truth, or nothing."""
        self.probed += 1
        return (self.made(self.labels(placement)),) if self.probes else None

    def computed(self, placement: Placement) -> Mapping[str, float] | None:
        """What the numeric reference says: it is not asked."""
        return {}

    def judge(self, proposal: Proposal) -> Trial:
        self.asked.append(proposal.placement)
        self.origins.append(proposal.origin)
        labels = self.labels(proposal.placement)
        noise = self.made(labels)
        sqnr = float(-10 * np.log10(max(noise, 1e-12)))
        short_db = max(0.0, self.shown_db - sqnr)
        accuracy = Accuracy(noise <= self.bound, sqnr, (OutputError("out", sqnr, 1.0),), short_db=short_db)
        if not accuracy.feasible and not (proposal.anchor or proposal.timed):
            return Trial(proposal, Infeasible(accuracy))
        gain = self.base_ns / self.time(proposal.placement)
        self.measured[proposal.placement] = (gain, sqnr)
        accepted = accuracy.feasible and gain > self.best
        self.best = max(self.best, gain) if accuracy.feasible else self.best
        outcome: Outcome = Measured(Latency(1.0, Interval(gain, gain, gain), 1), accuracy)
        return Trial(proposal, outcome, accepted)

    def profile(self, placement: Placement) -> list[KernelTime]:
        return self.runtime.kernels(self.labels(placement))

    def time(self, placement: Placement) -> float:
        return sum(k.ns for k in self.profile(placement))

    def run(self) -> None:
        names: dict[str, Mapping[str, str]] = {"float": {}, "full-int8": {u.name: STATIC for u in self.graph.units}}
        anchors = {n: self.judge(Proposal(self.label(units), n, anchor=True)) for n, units in names.items()}
        values = [e.value for e in self.graph.edges]
        alone = Sensitivity({v: (float(x),) for v, x in zip(values, self.noise, strict=True)})
        oracles = Oracles(
            profile=lambda placement: self.profile(placement) if self.profiles else [],
            outputs=["out"],
            sensitivity=lambda: alone,
            noise=self.probe,
            label=self.label,
            computed=self.computed,
            hurried=lambda: self.hurried,
            rewrites=self.rewrites,
            usual_rewrites=lambda: self.usual,
            goes_on=lambda: self.goes_on,
        )
        rng = np.random.default_rng(0)
        surrogate = Surrogate(
            self.graph,
            oracles,
            anchors,
            names,
            bound=self.bound,
            baseline_ns=self.base_ns,
            priced=self.priced,
        )
        guided = Guided(surrogate, rng)
        self.answer(guided)
        self.guided = guided

    def answer(self, strategy: Strategy) -> list[Trial]:
        trials = []
        while (proposal := strategy.ask()) is not None:
            trials.append(self.judge(proposal))
            strategy.tell(trials[-1])
        return trials

    def optimum(self) -> float:
        return max(self.base_ns / self.runtime.ns(y) for y in every(N) if self.made(y) <= self.bound)


@pytest.mark.parametrize("seed", range(5))
def test_planted_optimum_is_found(seed: int) -> None:
    bench = Bench(seed, np.zeros(N + 1), 1.0)
    bench.run()
    assert bench.best >= 0.99 * bench.optimum()
    assert len(bench.asked) <= 40


@pytest.mark.exhaustive
def test_a_search_ends_once_it_has_found_what_it_will_find() -> None:
    tried, losses = [], []
    for seed in range(20):
        found = []
        for goes_on in (True, False):
            bench = Bench(seed, np.zeros(N + 1), 1.0)
            bench.goes_on = goes_on
            bench.run()
            found.append(bench)
        whole, ended = found
        assert ended.asked == whole.asked[: len(ended.asked)], "until then it is the same search"
        assert not whole.guided.is_done
        tried.append((len(whole.asked), len(ended.asked)))
        losses.append(float(np.log(whole.best / ended.best)))
        assert losses[-1] < 0.02 or ended.guided.is_done, "what is missed is stated to be unlikely"
    assert np.mean(losses) < 0.01
    assert sum(few for _, few in tried) < 0.9 * sum(many for many, _ in tried)


@pytest.mark.parametrize("profiles", [True, False])
def test_without_time_for_profiles_the_best_anchor_is_tried_with_what_usually_pays(profiles: bool) -> None:
    bench = Bench(0, np.zeros(N + 1), 1.0)
    first = bench.graph.units[0].name
    offered = [PortRewrite(Port(u.name, 0), "rows") for u in bench.graph.units]
    bench.rewrites, bench.profiles = frozenset(offered), profiles
    bench.usual = RewriteChoice(frozenset(offered[:1]), {first: 0.5})
    bench.runtime.units[:, 1] = 0.5 * bench.runtime.units[:, 0]  # low precision gains
    bench.run()
    tried = bench.asked[2:]
    if profiles:
        assert len(tried) != 1
        assert not any(p.rewrites for p in tried), "the control: profiles show no gain by them"
    else:
        (only,) = tried
        assert only.rewrites == frozenset(offered[:1])


@pytest.mark.parametrize("probes", [True, False])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.matrix
def test_best_within_the_bound_is_found(seed: int, probes: bool) -> None:
    noise = np.random.default_rng(seed).exponential(1.0, N + 1)
    bench = Bench(seed, noise, float(noise.sum() / 2), probes)
    bench.run()
    assert bench.best >= 0.97 * bench.optimum()


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("seed", range(5))
def test_the_first_candidate_is_the_best_by_the_processors_table(seed: int) -> None:
    """With the true costs as the table, it is the best there is: nothing else was measured before but the anchors."""
    bench = Bench(seed, np.ones(N + 1), 4.5)
    cases = bench.runtime.units.reshape(-1)  # unit, label, context
    bench.priced = np.concatenate([cases, bench.runtime.edges.reshape(-1)])
    bench.run()
    anchors = 2
    gain, _ = bench.measured[bench.asked[anchors]]
    assert gain >= 0.97 * bench.optimum()


def test_without_a_table_nothing_changes() -> None:
    first, second = Bench(3, np.ones(N + 1), 4.0), Bench(3, np.ones(N + 1), 4.0)
    second.priced = np.zeros(0)
    first.run()
    second.run()
    assert first.asked == second.asked


def test_same_answers_same_questions() -> None:
    first, second = Bench(3, np.ones(N + 1), 4.0), Bench(3, np.ones(N + 1), 4.0)
    first.run()
    second.run()
    assert first.asked == second.asked
    assert len(set(first.asked)) == len(first.asked)


def test_guesses_change_nothing_and_some_are_right() -> None:
    class Guessing(Bench):
        right, guesses = 0, 0

        def answer(self, strategy: Strategy) -> list[Trial]:
            likely, trials = list[Placement](), list[Trial]()
            while (proposal := strategy.ask()) is not None:
                self.right += proposal.placement in likely
                likely = [*strategy.upcoming(3)]
                self.guesses += bool(likely)
                trials.append(self.judge(proposal))
                strategy.tell(trials[-1])
            return trials

    plain, guessing = (kind(3, np.ones(N + 1), 4.0) for kind in (Bench, Guessing))
    plain.run()
    guessing.run()
    assert guessing.asked == plain.asked
    assert isinstance(guessing, Guessing)
    assert 0 < guessing.right <= guessing.guesses


class Refusing(Bench):
    """A runtime that fails wherever one of some units is float beside others that are not."""

    refused: tuple[int, ...] = (2, 5)

    def judge(self, proposal: Proposal) -> Trial:
        if self.is_refused(proposal.placement):
            self.asked.append(proposal.placement)
            return Trial(proposal, Failed("compile", "refused"))
        return super().judge(proposal)

    def optimum(self) -> float:
        kept = [y for y in every(N) if not y.any() or y[list(self.refused)].all()]
        return max(self.base_ns / self.runtime.ns(y) for y in kept if self.made(y) <= self.bound)

    def is_refused(self, placement: Placement) -> bool:
        labels = self.labels(placement)
        return bool(labels.any() and not labels[list(self.refused)].all())


def among_refusals() -> tuple[list[float], int]:
    """Of some landscapes, the best that was found over the optimum, and how often refused ones were proposed in all."""
    found, refused = list[float](), 0
    for seed in range(8):
        noise = np.random.default_rng(seed).exponential(1.0, N + 1)
        bench = Refusing(seed, noise, float(noise.sum() / 1.2))
        bench.run()
        found.append(bench.best / bench.optimum())
        refused += sum(map(bench.is_refused, bench.asked))
    return found, refused


@pytest.mark.exhaustive
def test_what_a_runtime_refuses_is_found_out_and_avoided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control learns nothing of failures."""
    found, refused = among_refusals()
    assert np.mean(found) >= 0.98
    assert min(found) >= 0.9
    monkeypatch.setattr(policy, "BLAMES", 0)
    control, often = among_refusals()
    assert np.mean(control) < 0.98
    assert refused < 0.7 * often


class Coupled(Bench):
    """Where sources are not independent: what one alone adds foretells nothing like what all add together."""

    def made(self, labels: np.ndarray) -> float:
        touched = self.graph.states(labels) != 0
        alone = self.noise * np.where(labels.sum() > 1, 0.2, 1.0)
        return float(alone[touched].sum())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.matrix
def test_probes_correct_noise_that_does_not_add_up(seed: int) -> None:
    noise = np.random.default_rng(seed).exponential(1.0, N + 1)
    bench = Coupled(seed, noise, float(0.2 * noise.sum() / 2))
    bench.run()
    assert bench.best >= 0.97 * bench.optimum()
    infeasible = [p for p in bench.asked if p not in bench.measured]
    assert len(infeasible) <= 3  # probes refute a solution before it is built


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.matrix
def test_the_front_holds_the_fastest_and_the_best_within_the_bound(seed: int) -> None:
    noise = np.random.default_rng(seed).exponential(1e-2, N + 1)
    bench = Bench(seed, noise, float(noise.sum() / 4))
    bench.run()
    fastest = max(bench.base_ns / bench.runtime.ns(y) for y in every(N))
    kept = [gain for gain, db in bench.measured.values() if db >= -10 * np.log10(bench.bound) - 1e-9]
    # exploring serves the bound, not the fastest
    assert max(gain for gain, _ in bench.measured.values()) >= 0.95 * fastest
    assert max(kept) >= 0.97 * bench.optimum()
    beyond = [db for _, db in bench.measured.values() if -10 * np.log10(bench.bound) + 2.0 < db < 100.0]
    assert beyond, "points that are more accurate than the bound asks for are on the front, too"


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_in_a_hurry_all_that_is_tried_first_approaches_the_bound(seed: int) -> None:
    noise = np.random.default_rng(seed).exponential(1e-2, N + 1)
    first: dict[bool, list[str]] = {}
    for hurried in (False, True):
        bench = Bench(seed, noise, float(noise.sum() / 4))
        bench.hurried = hurried
        bench.run()
        assert bench.best >= 0.97 * bench.optimum()
        first[hurried] = bench.origins[2:7]  # behind the anchors
    elsewhere = ("cut without", "front")
    assert any(origin.startswith(elsewhere) for origin in first[False]), "else it would show nothing"
    assert not any(origin.startswith(elsewhere) for origin in first[True][:3])


def test_in_a_hurry_without_a_bound_in_the_way_nothing_is_left_out() -> None:
    asked = []
    for hurried in (False, True):
        bench = Bench(0, np.zeros(N + 1), 1.0)
        bench.hurried = hurried
        bench.run()
        asked.append(bench.asked)
    assert asked[0] == asked[1]


@pytest.mark.parametrize("seed", range(5))
def test_retreat_finds_the_best_of_so_much_accuracy(seed: int) -> None:
    noise = np.random.default_rng(seed).exponential(1.0, N + 1)
    bench = Bench(seed, noise, float(noise.sum()))  # the search itself finds nothing outside the bound
    bench.run()
    least = noise.sum() / 3
    trials = bench.answer(bench.guided.retreat(float(-10 * np.log10(least))))
    gains = [
        bench.base_ns / bench.runtime.ns(bench.labels(p)) for p in bench.asked if bench.made(bench.labels(p)) <= least
    ]
    bench.bound = least
    assert max(gains) >= 0.97 * bench.optimum()
    assert len(trials) <= 6


def test_the_fastest_that_samples_show_is_tried_where_they_do_not_show_the_fastest() -> None:
    """Before the exploration: what is delivered then must not be found by chance."""
    found: dict[bool, list[float]] = {True: [], False: []}
    for seed, knows in itertools.product(range(6), found):
        noise = np.random.default_rng(seed).exponential(1e-3, N + 1)
        least = float(noise.sum() / 4)
        bench = Bench(seed, noise, 2.0 * least)
        bench.shown_db = float(-10 * np.log10(least)) if knows else -np.inf
        bench.run()
        early = list(itertools.takewhile(lambda o: not o.startswith(("draw", "flip", "front")), bench.origins))
        tried = [bench.measured[p] for p in bench.asked[: len(early)] if p in bench.measured]
        best = max(bench.base_ns / bench.runtime.ns(y) for y in every(N) if bench.made(y) <= least)
        found[knows].append(max(gain for gain, sqnr_db in tried if sqnr_db >= -10 * np.log10(least)) / best)
    assert min(found[True]) > 0.95
    assert min(found[False]) < 0.9, "the control: samples would show the fastest"


def test_retreat_gives_up_where_only_float_is_accurate_enough() -> None:
    bench = Bench(0, np.ones(N + 1), 20.0)
    bench.run()
    assert bench.answer(bench.guided.retreat(60.0)) == []


class Miscomputing(Bench):
    """A runtime that computes some units wrong in low precision, whatever else a model holds; probes do not show it."""

    faulty: tuple[int, ...] = ()

    def judge(self, proposal: Proposal) -> Trial:
        labels = self.labels(proposal.placement)
        if not labels[list(self.faulty)].any():
            return super().judge(proposal)
        self.asked.append(proposal.placement)
        self.origins.append(proposal.origin)
        accuracy = Accuracy(False, -3.0, (OutputError("out", -3.0, 1.0),))
        if not (proposal.anchor or proposal.timed):
            return Trial(proposal, Infeasible(accuracy))
        gain = self.base_ns / self.time(proposal.placement)
        return Trial(proposal, Measured(Latency(1.0, Interval(gain, gain, gain), 1), accuracy))

    def optimum(self) -> float:
        return max(
            self.base_ns / self.runtime.ns(y)
            for y in every(N)
            if self.made(y) <= self.bound and not y[list(self.faulty)].any()
        )


def where_units_are_wrong(faulty: tuple[int, ...]) -> tuple[list[float], list[set[str]]]:
    """Of some landscapes, the best that was found over the optimum, and which units were found out."""
    found, blamed = list[float](), list[set[str]]()
    for seed in range(8):
        noise = np.random.default_rng(seed).exponential(1e-3, N + 1)
        bench = Miscomputing(seed, noise, float(noise.sum()))
        bench.faulty = faulty
        bench.run()
        found.append(bench.best / bench.optimum())
        blamed.append({b.unit for b in bench.guided.surrogate.bars.found if not b.refused})
    return found, blamed


@pytest.mark.parametrize("faulty", [(3,), (1, 6)])
@pytest.mark.exhaustive  # in every run of the tests: the next one, and tests/run/test_wrong_kernels.py
def test_what_a_runtime_computes_wrong_is_found_out_and_avoided(
    faulty: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control does not look for it."""
    found, blamed = where_units_are_wrong(faulty)
    assert min(found) >= 0.95
    assert all(units <= {f"u{i}" for i in faulty} for units in blamed)
    assert all(blamed), "the model with everything in low precision is wrong each time"
    monkeypatch.setattr(policy, "BLAMES", 0)
    control, _ = where_units_are_wrong(faulty)
    assert np.mean(control) < np.mean(found) - 0.02


class Verified(Miscomputing):
    """With a numeric reference, which has the noise that probes show, or the runtime's, or no time."""

    faulty = (3,)
    says: float | None = 0.0
    verified = 0

    def computed(self, placement: Placement) -> Mapping[str, float] | None:
        self.verified += 1
        return None if self.says is None else {"out": self.says}


@pytest.mark.parametrize(("says", "blamed"), [(1e-4, ["u3"]), (2.0, []), (None, [])])
def test_a_runtime_is_blamed_for_what_the_numeric_reference_does_not_compute(
    says: float | None, blamed: list[str]
) -> None:
    bench = Verified(0, np.full(N + 1, 1e-4), 1e-2)
    bench.says = says
    bench.run()
    assert [b.unit for b in bench.guided.surrogate.bars.found] == blamed
    assert bench.verified, "the negative control: probes alone would blame it"


class Rewriting(Miscomputing):
    """With a rewrite that makes one unit faster."""

    faulty = (3,)

    def profile(self, placement: Placement) -> list[KernelTime]:
        kernels, faster = super().profile(placement), {r.port.node for r in placement.rewrites}
        return [replace(k, ns=0.5 * k.ns) if faster & {*k.nodes} else k for k in kernels]


def test_anchors_that_are_wrong_are_found_out_where_others_have_rewrites() -> None:
    bench = Rewriting(0, np.full(N + 1, 1e-4), 1e-2)
    bench.rewrites = frozenset({PortRewrite(Port("u5", 0), "rows")})
    bench.run()
    assert bench.guided.rewrites == bench.rewrites, "the control: anchors have none of them"
    assert [b.unit for b in bench.guided.surrogate.bars.found] == ["u3"]
    told = [origin for origin in bench.origins if origin.startswith("between")]
    assert set(told) == {"between one that came out wrong and one that did not"}, "none of them failed"


class Hopeful(Bench):
    """Probes show a tenth of the noise."""

    def probe(self, placement: Placement) -> tuple[float, ...] | None:
        return (self.made(self.labels(placement)) / 10.0,)


@pytest.mark.exhaustive
def test_nobody_is_blamed_for_what_is_only_noisier_than_probes() -> None:
    for seed in range(4):
        bench = Hopeful(seed, np.full(N + 1, 1e-3), 4e-3)
        bench.run()
        assert not bench.guided.surrogate.bars.found
        assert bench.best >= 0.95 * bench.optimum()

"""A budget bounds the whole command: a slow model gets coarser steps, or a clear refusal, but never more time."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import onnx
import pytest
from benchmarks import honesty
from benchmarks.simulated import Clock, simulated

from inlay.deadline import Deadline
from inlay.errors import Late, UsageError
from inlay.measure.costs import Costs, Ending
from inlay.measure.journal import Journal
from inlay.model.child import Child, Part
from inlay.model.load import load
from inlay.prepare.config import TuneConfig
from inlay.prepare.model import PreparedModel
from inlay.quant.accuracy import Bound
from inlay.quant.emit import Emitter
from inlay.run.budget import TimeLimit, has_enough
from inlay.run.inputs import TuneRequest
from inlay.run.preparation import prepare_model
from inlay.run.result import TuneResult
from inlay.run.schedule import Schedule, deadline_of, efforts
from inlay.run.session import Session
from inlay.run.tune import tune
from inlay.targets.base import Fingerprint, TargetSpec
from inlay.targets.null import NullTarget
from inlay.trial import Accuracy, Interval, Latency, Measured
from inlay.types import Placement

SLOW = 3000.0
"""Scale of a model that takes a quarter of a second."""


def schedule(
    budget_s: float | None, size: int = 0, started_s: float = 0.0, clock: Callable[[], float] = lambda: 0.0
) -> Schedule:
    """Of a command that begins now."""
    deadline = deadline_of(budget_s, 0.0, clock(), clock)
    config = TuneConfig(budget_s=budget_s)
    return Schedule(begun=clock(), deadline=deadline, config=config, size=size, started_s=started_s)


def run(
    folder: Path,
    seconds: float | None,
    scale: float = SLOW,
    least_db: float = 30.0,
    before_s: float = 0.0,
    slower: tuple[float, float] = (1.0, 1e9),
    clock: Clock | None = None,
) -> tuple[TuneResult, Clock]:
    """A run, whose steps take so many times as long from a moment on as ``slower`` says."""
    onnx.save(honesty.network(), folder / "model.onnx")
    clock = clock or Clock()

    def advance(step_s: float) -> None:
        factor, since = slower
        clock.sleep(step_s * factor if clock.seconds >= since else step_s)

    target = NullTarget(noise=0.01, scale=scale, advance_clock=advance)
    config = TuneConfig(target=TargetSpec("null"), budget_s=seconds, cost_db=False, bound=Bound(min_sqnr_db=least_db))
    lab = simulated(target, clock)
    file = load(folder / "model.onnx")
    return tune(
        TuneRequest(file=file, out=folder / "out", samples=honesty.samples(), config=config, lab=lab, before_s=before_s)
    ), clock


def is_used_up(result: TuneResult, took_s: float, seconds: float) -> bool:
    """Whether a search had all the time that it could use."""
    return took_s >= 0.85 * seconds or result.search["stopped_because"] == "nothing promising is left"


@pytest.mark.parametrize("scale", [10.0, 300.0, SLOW])
@pytest.mark.parametrize("seconds", [15.0, 45.0, 120.0])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_a_command_uses_its_budget_and_no_more(scale: float, seconds: float, tmp_path: Path) -> None:
    try:
        result, clock = run(tmp_path, seconds, scale, before_s=2.0)
    except UsageError as error:
        least = re.search(r"too short: one inference takes .* give (\d+)s or more", str(error))
        assert least is not None
        assert int(least[1]) > seconds
        assert not (tmp_path / "out").exists(), "nothing is half written"
        seconds = float(least[1])
        result, clock = run(tmp_path, seconds, scale, before_s=2.0)
    assert 2.0 + clock.seconds <= 1.1 * seconds
    assert is_used_up(result, 2.0 + clock.seconds, seconds)
    assert result.best.speedup.low > 1.02, "null plants a real gain, and there is time for the least proof of it"


@pytest.mark.parametrize("factor", [0.25, 4.0])
@pytest.mark.parametrize("since", [0.2, 0.6, 0.85])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_a_machine_may_become_faster_or_slower(factor: float, since: float, tmp_path: Path) -> None:
    result, clock = run(tmp_path, 60.0, 300.0, slower=(factor, since * 60.0))
    assert clock.seconds <= 66.0
    late = since > 0.6  # in the confirmation: what becomes free is of no use, and what is missing cannot be made up for
    assert (late and factor < 1.0) or is_used_up(result, clock.seconds, 60.0)
    assert (late and factor > 1.0) or result.best.speedup.low > 1.02


@pytest.mark.exhaustive
def test_a_run_that_is_done_ends_and_a_larger_budget_looks_further(tmp_path: Path) -> None:
    (first, took), (again, _), (further, _) = (run(tmp_path, seconds, 10.0) for seconds in (60.0, 60.0, 240.0))
    assert took.seconds < 30.0, "the budget is the most, not the measure"
    assert first.search["left"]["probability"] < 0.1
    assert again.search["measurements"] == 0, "the same command finds it done"
    assert further.search["measurements"] > first.search["measurements"]
    assert again.best.speedup == first.best.speedup
    assert further.best.speedup.value < 1.02 * first.best.speedup.value, "what was unlikely is not there"


def test_where_preparing_takes_all_the_time_the_given_model_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()

    def prepare(*_: object) -> None:
        clock.sleep(80.0)
        raise Late("running the model took more than 60 s and was ended")

    monkeypatch.setattr("inlay.run.preparation.prepare_model", prepare)
    result, _ = run(tmp_path, 60.0, 300.0, clock=clock)
    assert (tmp_path / "out" / "model.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()
    assert result.best.origin == "original"
    assert not result.best.confirmed
    assert "no model in low precision was built" in result.undecided
    assert set(result.not_timed) == {"float", "full-int8"}
    assert result.as_json()["undecided"] == result.undecided
    assert "took more than 60 s" in str(result.search["stopped_because"])


def test_a_candidate_that_there_is_no_time_to_write_has_not_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends the search, and is judged by the same command with more time."""
    emit, written, raised = Emitter.emit, list[Placement](), list[Placement]()

    def late(self: Emitter, placement: Placement, *others: Any) -> onnx.ModelProto:
        written.append(placement)
        if len(set(written)) == 5 and not raised:
            raised.append(placement)
            raise Late("converting the opset: there is no time left for it")
        return emit(self, placement, *others)

    with monkeypatch.context() as patched:
        patched.setattr(Emitter, "emit", late)
        first, _ = run(tmp_path, 60.0, 300.0)
    assert first.search["stopped_because"] == "converting the opset: there is no time left for it"
    assert first.search["failed"] == 0
    again, _ = run(tmp_path, 120.0, 300.0)
    assert again.search["failed"] == 0
    assert again.search["measurements"] > first.search["measurements"]


def test_where_preparing_leaves_almost_no_time_a_model_is_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()

    def prepare(session: Session) -> PreparedModel:
        clock.sleep(59.0 - clock.seconds)
        return prepare_model(session)

    monkeypatch.setattr("inlay.run.preparation.prepare_model", prepare)
    result, _ = run(tmp_path, 60.0, 300.0, clock=clock)
    assert result.best.origin == "original"
    assert clock.seconds <= 66.0


@pytest.mark.parametrize("left_s", [6.0, 8.0, 12.0])
def test_however_long_preparing_takes_one_recipe_is_timed(
    left_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Better ranges and a thorough confirmation are no use to what is never timed."""
    clock = Clock()

    def prepare(session: Session) -> PreparedModel:
        clock.sleep(60.0 - left_s - clock.seconds)
        return prepare_model(session)

    monkeypatch.setattr("inlay.run.preparation.prepare_model", prepare)
    result, _ = run(tmp_path, 60.0, 1000.0, clock=clock)
    timed = [a.name for a in result.anchors if isinstance(a.outcome, Measured)]
    assert set(timed) & {"full-int8", "conv-matmul"}
    assert clock.seconds <= 66.0


def test_shapes_that_latency_is_measured_on_are_counted() -> None:
    """A block takes one reading of each, however short it is."""
    one, four = (Costs.assumed(1.0, 0.1, 0.05, 4_000_000, feeds=feeds) for feeds in (1, 4))
    assert four.turn_s == pytest.approx(4 * one.turn_s)
    assert four.beside_s(8, 4_000_000) > 3 * one.beside_s(8, 4_000_000) - 3.0
    quick = [Costs.assumed(1.0, 0.1, 1e-5, 4_000_000, feeds=feeds).turn_s for feeds in (1, 4)]
    assert quick[1] < 1.1 * quick[0], "the time of a reading is shared"


@pytest.mark.exhaustive
def test_without_a_limit_the_same_model_takes_longer(tmp_path: Path) -> None:
    """Negative control: the limit is what ends it, and coarser steps are what makes it end with a result."""
    _, clock = run(tmp_path, None)
    assert clock.seconds > 200.0


@pytest.mark.exhaustive
def test_a_run_whose_budget_is_spent_delivers_the_same_again(tmp_path: Path) -> None:
    first, _ = run(tmp_path, 120.0)
    delivered = (tmp_path / "out" / "model.onnx").read_bytes()
    again, clock = run(tmp_path, 120.0, before_s=119.0)
    assert (tmp_path / "out" / "model.onnx").read_bytes() == delivered
    assert again.best.origin == first.best.origin != "original"
    assert again.best.confirmed
    assert clock.seconds <= 0.3 * 120.0, "for confirming it"


def test_what_is_left_goes_to_later_phases() -> None:
    clock = Clock()
    config = TuneConfig(budget_s=100.0)
    costs = Costs.assumed(worker_s=1.0, build_s=0.1, inference_s=0.01, slot_ns=4_000_000)
    plan = replace(schedule(100.0, clock=clock), config=config, costs=lambda: costs)
    wanted = plan.efforts
    taken = [e.seconds(costs, 8) for e in wanted]
    assert taken == sorted(taken, reverse=True)
    assert plan.confirmation(8) == wanted[0], "a search that ended early leaves it all"
    clock.sleep(plan.search(8).left)
    assert plan.confirmation(8).second >= 2, "its share was kept free"
    clock.sleep(plan.least_search(8).left)
    least = plan.confirmation(8)
    assert (least.contenders, least.first, least.second) == (2, 0, 1)
    assert wanted[-1].blocks <= least.blocks < 24
    assert plan.deadline.left >= wanted[-1].seconds(costs, 8)


def test_every_fresh_process_has_time_to_load_models_in_float() -> None:
    """Their weights may take many times as long as those of the candidates that were built lately."""
    large = Costs.assumed(worker_s=1.0, build_s=5.0, inference_s=0.01, slot_ns=4_000_000)
    small = replace(large, build_s=0.5)
    lately = {"load": [5.0, 0.5, 0.4, 0.6]}
    assert large.learned(lately).candidate_build_s == 0.5
    more = large.learned(lately).process_s(3, 4) - small.learned(lately).process_s(3, 4)
    assert more == pytest.approx(2 * 4.5)
    effort = efforts(TuneConfig(), 0.01)[0]
    later = effort.seconds(large.learned(lately), 8) - effort.seconds(small.learned(lately), 8)
    assert later >= (effort.first + effort.second) * 2 * 4.5


def test_readings_leave_time_for_judging_the_winner_on_all_samples() -> None:
    """Unless there is no time for both: without readings there is no winner. Rounding weights anew is counted."""
    clock = Clock()
    plain = Costs.assumed(worker_s=1.0, build_s=0.1, inference_s=0.01, slot_ns=4_000_000)
    costs = replace(plain, ending=Ending(crossed=10, rounding_s=3.0))
    assert costs.crossing_s(10, 10) - plain.crossing_s(10, 10) == pytest.approx(3.0)
    effort = efforts(TuneConfig(), costs.inference_s)[0]
    plan = replace(schedule(100.0, clock=clock), costs=lambda: costs)
    end = plan.before_writing
    assert replace(plan, costs=lambda: plain).readings(effort, 3) == end, "nothing else is to be judged"
    assert plan.readings(effort, 3) == end.earlier(costs.crossing_s(10, 10))
    clock.sleep(end.left - 2.0)
    assert plan.readings(effort, 3) == plan.deadline


def test_a_verdict_of_the_users_evaluation_goes_before_all_but_the_fewest_readings() -> None:
    """And what is planned for further ones is no reason to find nothing that could be evaluated."""
    plain = Costs.assumed(worker_s=1.0, build_s=0.1, inference_s=0.01, slot_ns=4_000_000)
    costs = replace(plain, ending=Ending(evaluating_s=5.0, evaluating_more_s=4.0))
    effort, *_, least = efforts(TuneConfig(), costs.inference_s)
    assert effort.seconds(costs, 3) - effort.seconds(plain, 3) == pytest.approx(1.1 * 9.0)
    assert least.seconds(costs, 3) - least.seconds(plain, 3) == pytest.approx(1.1 * 5.0)
    plan = replace(schedule(100.0, clock=Clock()), costs=lambda: plain)
    later = replace(plan, costs=lambda: costs)
    assert plan.weighing(effort, 3).at < later.weighing(effort, 3).at < later.before_writing.at


def test_a_resumed_run_has_what_is_left(tmp_path: Path) -> None:
    spent = [0.0]
    first = Journal(tmp_path / "run.sqlite", {}, seconds=lambda: spent[0])
    spent[0] = 30.0
    first.record_seconds()
    second = Journal(tmp_path / "run.sqlite", {}, seconds=lambda: 0.0)
    clock = Clock()
    assert deadline_of(45.0, second.spent_s, clock(), clock).left == 15.0
    assert deadline_of(60.0, second.spent_s, clock(), clock).left == 30.0, "a larger budget extends the whole"
    assert deadline_of(20.0, second.spent_s, clock(), clock).left == 0.0
    assert deadline_of(None, second.spent_s, clock(), clock) == Deadline(float("inf"), clock)
    second.close()
    first.close()


@pytest.mark.exhaustive
def test_a_run_whose_time_is_over_finds_again_what_it_found(tmp_path: Path) -> None:
    """Killed while it confirmed, or simply started again: all trials are in the journal, and no new one is begun."""
    first, _ = run(tmp_path, 200.0, 300.0)
    assert first.best.origin not in {a.name for a in first.anchors}
    delivered = tmp_path / "out" / "model.onnx"
    cost = honesty.total(onnx.load(delivered), 1.0)
    second, clock = run(tmp_path, 200.0, 300.0)
    assert second.best.origin not in {a.name for a in second.anchors}
    assert honesty.total(onnx.load(delivered), 1.0) == pytest.approx(cost, rel=0.005), "it, or one that costs the same"
    assert cost < 0.9 * honesty.total(onnx.load(tmp_path / "model.onnx"), 1.0)
    assert second.search["replayed"] == first.search["measurements"]
    assert second.search["measurements"] == 0
    assert clock.seconds < 100.0, "it confirms with the least effort"


@pytest.mark.exhaustive
def test_with_a_larger_budget_the_search_goes_on(tmp_path: Path) -> None:
    """What earlier sessions judged is replayed in no time, however long the machine has been up."""
    first, _ = run(tmp_path, 45.0, 300.0)
    second, clock = run(tmp_path, 300.0, 300.0)
    assert second.search["replayed"] == first.search["measurements"]
    assert second.search["measurements"] > 3
    assert is_used_up(second, 45.0 + clock.seconds, 300.0)


def test_where_nothing_can_keep_the_bound_float_is_delivered_in_time(tmp_path: Path) -> None:
    result, clock = run(tmp_path, 60.0, least_db=120.0)
    outcomes = [a.outcome for a in result.anchors if a.name == "full-int8"]
    assert all(isinstance(o, Measured) and not o.accuracy.feasible for o in outcomes)
    assert result.best.is_float
    assert clock.seconds <= 66.0


def test_guarded_calls_end_with_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a hostile model may take is bounded by what is left, too."""
    limits: list[float] = []
    send = Child.ask

    def seen(self: Child, message: Sequence[Part], limit_s: float) -> list[Part]:
        if message:  # the process itself may take longer to start
            limits.append(limit_s)
        return send(self, message, limit_s)

    monkeypatch.setattr(Child, "ask", seen)
    run(tmp_path, 45.0, 10.0)
    assert limits[0] <= 45.0 / 2
    assert limits[-1] < limits[0], "what is left becomes less"


@pytest.mark.parametrize(
    ("feasible", "sites", "gain", "refused"),
    [(True, 1, 1.5, True), (True, 1, 1.0, False), (False, 1, 1.5, False), (True, 0, 1.5, False), (None, 0, 1.0, False)],
)
def test_the_search_goes_on_while_no_quantized_model_keeps_the_bound_and_gains(
    feasible: bool | None, sites: int, gain: float, refused: bool
) -> None:
    """There is only the float model to confirm until then."""
    now = Clock()
    begun = now()
    now.sleep(12.0)
    time = SimpleNamespace(
        end=lambda: Deadline(begun + 10.0, now),
        least=lambda: Deadline(begun + 20.0, now),
        trial_s=5.0,
        plan=SimpleNamespace(
            config=SimpleNamespace(budget_s=60.0),
            deadline=Deadline(begun + 30.0, now),
            before_writing=Deadline(begun + 30.0, now),
        ),
    )
    given = SimpleNamespace(trial=SimpleNamespace(feasible=True), placement=(), speedup=1.0)
    trial = SimpleNamespace(feasible=feasible)
    judged = (
        [given] if feasible is None else [given, SimpleNamespace(trial=trial, placement=range(sites), speedup=gain)]
    )
    journal, worker = SimpleNamespace(trial=lambda key: None), SimpleNamespace(busy_s=0.0)
    limit = TimeLimit(cast(Any, time), cast(Any, journal), cast(Any, worker))
    proposal, evaluator = SimpleNamespace(anchor=False), SimpleNamespace(judged=judged)
    turn = limit.turn(cast(Any, proposal), "key", cast(Any, evaluator))
    assert isinstance(turn, str) == refused
    assert limit.left_s == 0.0
    assert isinstance(turn, str) or turn.until.left == 8.0, "what is not refused has its time"
    now.sleep(4.0)
    assert isinstance(limit.turn(cast(Any, proposal), "key", cast(Any, evaluator)), str), "no longer than anchors may"


@pytest.mark.parametrize(
    ("inside", "outside", "enough"),
    [
        ((1.08,), (1.4, 1.3), False),
        ((1.2,), (1.4,), True),
        ((1.08,), (), True),
        ((), (1.4,), False),
        ((1.01,), (), False),
    ],
)
def test_what_gains_little_of_what_is_there_is_not_enough(
    inside: Sequence[float], outside: Sequence[float], enough: bool
) -> None:
    def judged(speedup: float, feasible: bool, placement: object = "low") -> Any:
        return SimpleNamespace(trial=SimpleNamespace(feasible=feasible), placement=placement, speedup=speedup)

    tried = [*(judged(x, True) for x in inside), *(judged(x, False) for x in outside)]
    assert has_enough([judged(1.0, True, None), *tried]) == enough
    assert has_enough([judged(1.0, True, None), judged(2.0, True, ()), *tried]) == enough, "float is no such model"
    assert has_enough([judged(1.0, True, None), judged(0.0, False), *tried]) == enough, "what failed was not timed"


@pytest.mark.parametrize(
    ("low", "float_gain", "refused"), [(None, 1.0, False), (False, 1.0, False), (True, 1.0, True), (False, 1.3, True)]
)
def test_anchors_go_on_until_there_is_something_to_confirm(low: bool | None, float_gain: float, refused: bool) -> None:
    """Confirming that float is no faster than the given model is worth less than another recipe."""
    now = Clock()
    begun = now()
    now.sleep(12.0)
    time = SimpleNamespace(
        end=lambda: Deadline(begun + 10.0, now),
        least=lambda: Deadline(begun + 15.0, now),
        trial_s=5.0,
        plan=SimpleNamespace(config=SimpleNamespace(budget_s=60.0), before_writing=Deadline(begun + 20.0, now)),
    )

    def judged(placement: object, feasible: bool, gain: float) -> SimpleNamespace:
        outcome = Measured(Latency(1e6, Interval(gain, gain, gain), 9), Accuracy(feasible, 30.0))
        return SimpleNamespace(
            trial=SimpleNamespace(feasible=feasible, outcome=outcome), placement=placement, speedup=1
        )

    others = [judged((), True, float_gain), *([] if low is None else [judged("low", low, 2.0)])]
    journal, worker = SimpleNamespace(trial=lambda key: None), SimpleNamespace(busy_s=0.0)
    limit = TimeLimit(cast(Any, time), cast(Any, journal), cast(Any, worker))
    proposal = SimpleNamespace(anchor=True, placement="another")
    evaluator = SimpleNamespace(judged=[judged((), True, 1.0), *others])
    assert isinstance(limit.turn(cast(Any, proposal), "key", cast(Any, evaluator)), str) == refused
    now.sleep(4.0)
    late = limit.turn(cast(Any, proposal), "key", cast(Any, evaluator))
    assert isinstance(late, str), "and no longer than there is time"


def test_more_time_is_kept_for_writing_where_processes_start_slowly() -> None:
    """Loading what the report takes is as slow there; yet most of a short budget is for the search."""

    def kept_s(budget_s: float, started_s: float) -> float:
        return budget_s - schedule(budget_s, 1_000, started_s).before_writing.left

    assert kept_s(15.0, 0.2) == kept_s(15.0, 0.0)
    assert kept_s(15.0, 1.2) == pytest.approx(1.2)
    assert kept_s(15.0, 300.0) == pytest.approx(1.5), "a device that was waited for"
    assert kept_s(600.0, 300.0) == kept_s(600.0, 0.0)
    plan = schedule(15.0, 1_000, 1.2)
    assert plan.before_report.left == pytest.approx(13.8)
    assert schedule(None, 1_000, 1.2).before_report.left == float("inf")


def test_a_large_model_has_more_time_to_be_written_and_short_budgets_have_no_less_for_the_rest() -> None:
    small, large = (schedule(180.0, size) for size in (1_000, 64_000_000))
    assert large.before_writing.left < small.before_writing.left - 2.0
    assert large.before_writing.left > 0.95 * 180.0
    short = [schedule(30.0, size).before_writing.left for size in (1_000, 64_000_000)]
    assert short[0] == short[1]


def test_several_shapes_ask_for_no_longer_budget(tmp_path: Path) -> None:
    """There are fewer blocks of readings then."""
    one, four = (Costs.assumed(1.0, 0.1, 0.1, 4_000_000, feeds=feeds) for feeds in (1, 4))
    for costs in (one, four):
        schedule(30.0).require(costs, 0.0)
    with pytest.raises(UsageError, match="too short"):
        schedule(2.0).require(one, 0.0)


@pytest.mark.parametrize("unit", ["", "million points"])
@pytest.mark.exhaustive
def test_figures_that_are_no_times_say_nothing_about_the_time_that_is_left(unit: str, tmp_path: Path) -> None:
    """Inferences are quick here; the target's figures are in the seconds, where they are not points."""

    class Counting(NullTarget):
        def fingerprint(self) -> Fingerprint:
            own = super().fingerprint()
            return Fingerprint(own.target, {**own.facts, **({"unit": unit, "measures": "bytes"} if unit else {})})

    onnx.save(honesty.network(), tmp_path / "model.onnx")
    clock = Clock()
    config = TuneConfig(target=TargetSpec("null"), budget_s=20.0, cost_db=False)
    lab = simulated(Counting(scale=1e5, advance_clock=lambda _: clock.sleep(0.001)), clock)
    request = TuneRequest(
        file=load(tmp_path / "model.onnx"), out=tmp_path / "out", samples=honesty.samples(), config=config, lab=lab
    )
    if unit:
        assert tune(request).search["measurements"] > 0
    else:
        with pytest.raises(UsageError, match="one inference takes"):
            tune(request)


def busy_at_first(readings: int, seconds: float, folder: Path) -> tuple[TuneResult, Clock]:
    """A run whose model's first inferences take 1.5 s, as where other work has the processor, and later ones 0.03 s."""
    onnx.save(honesty.network(), folder / "model.onnx")
    clock, asked = Clock(), [0]

    def advance(step_s: float) -> None:
        asked[0] += step_s > 0.0
        clock.sleep(step_s * (50.0 if asked[0] <= readings else 1.0))

    target = NullTarget(noise=0.01, scale=300.0, advance_clock=advance)
    config = TuneConfig(target=TargetSpec("null"), budget_s=seconds, cost_db=False)
    request = TuneRequest(
        file=load(folder / "model.onnx"),
        out=folder / "out",
        samples=honesty.samples(),
        config=config,
        lab=simulated(target, clock),
    )
    return tune(request), clock


def test_a_budget_is_not_refused_by_readings_that_other_work_held_up(tmp_path: Path) -> None:
    """The least reading counts; where all are as long, the budget is refused, with durations in units that fit."""
    held_up = r"one inference takes 1\.\d+ s here, a build [\d.]+ (us|ms|s) and a process"
    result, clock = busy_at_first(3, 40.0, tmp_path)
    assert result.search["measurements"] > 1
    assert clock.seconds <= 44.0
    (tmp_path / "other").mkdir()
    with pytest.raises(UsageError, match=held_up):
        busy_at_first(10**9, 40.0, tmp_path / "other")

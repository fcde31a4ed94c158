"""Several targets, in a simulation where the truth is known: who is tuned for, what is delivered, what is repeated."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.simulated import Clock, InProcessWorker

import inlay
from inlay.data import Samples
from inlay.errors import UNPROVEN, CompileFailed, JournalError, TargetError, UsageError
from inlay.measure.client import Limit, Worker
from inlay.measure.lab import Lab
from inlay.model.load import load
from inlay.portfolio import across as portfolio
from inlay.portfolio import comparing, policy
from inlay.portfolio.across import tune_across
from inlay.portfolio.command import verdict
from inlay.portfolio.labels import labelled
from inlay.portfolio.outlook import Look, Reach
from inlay.portfolio.result import GIVEN, ONE, AcrossResult, Cell, regret
from inlay.prepare.config import TuneConfig
from inlay.quant.accuracy import Bound
from inlay.run.inputs import TuneRequest
from inlay.run.tune import tune as tune_one
from inlay.targets.base import Artifact, Target, TargetSpec
from inlay.targets.null import NullExecutable, NullTarget, price
from inlay.testing import random_feed, small_model
from inlay.testing.models import Builder
from inlay.trial import Accuracy, Interval
from tests.support.fixtures import SaveModel
from tests.support.rounding import Rounding, rounding

SHORT_S = 40.0
EXACT = Interval(1.0, 1.0, 1.0)


class Picky(NullTarget):
    """Refuses files with Q/DQ nodes."""

    def compile(self, model: Artifact) -> NullExecutable:
        if any(n.op_type == "QuantizeLinear" for n in onnx.load(model.path).graph.node):
            raise CompileFailed("no Q/DQ here")
        return super().compile(model)


class Rig:
    """A lab of simulated targets that counts what it starts."""

    def __init__(self, special: Mapping[str, type[NullTarget]] | None = None) -> None:
        self.clock, self.special = Clock(), dict(special or {})
        self.started: list[float] = []

    def lab(self) -> Lab:
        def start(spec: TargetSpec, folder: Path, limit: Limit) -> Worker:
            scale = float(spec.options.get("scale", 1.0))
            self.started.append(scale)
            if scale == 13.0:
                raise TargetError("no such device")
            kind = self.special.get(str(scale), NullTarget)
            target: Target = kind(advance_clock=self.clock.sleep, **spec.options)  # type: ignore[arg-type]
            return InProcessWorker(spec, folder, limit, target=target, clock=self.clock)

        return Lab(start, self.clock, self.clock.sleep)


def null(scale: float, **options: Any) -> TargetSpec:
    return TargetSpec("null", {"scale": scale, "noise": 0.01, "seed": int(scale), **options})


def across(
    path: Path,
    out: Path,
    specs: Mapping[str, TargetSpec],
    rig: Rig | None = None,
    others: Mapping[str, str] | None = None,
    **options: Any,
) -> AcrossResult:
    model = onnx.load(path)
    feeds = tuple(dict(random_feed(model, seed)) for seed in range(options.pop("count", 4)))
    config = TuneConfig(
        bound=options.pop("bound", Bound(min_sqnr_db=10.0)),
        budget_s=options.pop("budget_s", None),
        strategy="anchors",
        cost_db=False,
    )
    samples = Samples(feeds, "test", "test")
    return tune_across(
        TuneRequest(file=load(path), out=out, samples=samples, config=config, lab=(rig or Rig()).lab(), **options),
        specs,
        others,
    )


def finds_nothing(monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Have the run for a target deliver the given model."""
    real = portfolio._delivered

    def lame(comparison: Any, label: str, found: Any) -> Any:
        return comparison.given if label == target else real(comparison, label, found)

    monkeypatch.setattr(portfolio, "_delivered", lame)


@pytest.mark.exhaustive
def test_of_two_precisions_that_keep_the_bound_the_exact_one_must_be_faster(
    save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slowed(rounding(40.0)):  # type: ignore[misc]  # made by a function
        def __init__(self, scale: float, effect: float = 1.0, **options: Any) -> None:
            super().__init__(scale=scale if effect == 0.9 else 1.2 * scale, effect=effect, **options)

    monkeypatch.setattr(NullTarget, "own_precision", Rounding.own_precision, raising=False)
    specs = {"rough": null(1.0), "rough effect=0.9": null(1.0, effect=0.9)}
    result = across(save(small_model()), tmp_path / "out", specs, Rig({"1.0": Slowed}), others={})
    assert result.deployed == "rough effect=0.9"
    assert result.columns["rough"].why == "the given model is faster on rough effect=0.9"


@pytest.mark.parametrize("others", [None, {}])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_a_run_for_one_of_several_targets_stays_in_its_precision(
    others: dict[str, str] | None, save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it would be faster in float32, which is a target of its own there, or was not asked for."""

    class Slowed(rounding(40.0)):  # type: ignore[misc]  # made by a function
        def __init__(self, scale: float, effect: float = 1.0, **options: Any) -> None:
            started.append(effect)
            super().__init__(scale=scale if effect == 0.9 else 1.2 * scale, effect=effect, **options)

    started: list[float] = []
    monkeypatch.setattr(NullTarget, "own_precision", Rounding.own_precision, raising=False)
    rig = Rig({"1.0": Slowed})
    across(save(small_model()), tmp_path / "out", {"a": null(1.0), "b": null(2.0)}, rig, others, any_precision=True)
    assert set(started) == {1.0}
    for label in ("a", "b"):
        found = json.loads((tmp_path / "out" / label / "result.json").read_text())
        assert found["precision"] is None
        assert found["target"]["facts"]["effect"] == "1.0"


@pytest.mark.parametrize("own_db", [5.0, 12.0, 40.0])
@pytest.mark.exhaustive
def test_a_target_is_tuned_for_in_the_precision_that_keeps_the_bound(
    own_db: float, save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = rounding(own_db)
    monkeypatch.setattr(NullTarget, "own_precision", kind.own_precision, raising=False)
    specs = {"rough": null(1.0), "rough effect=0.9": null(1.0, effect=0.9), "slow": null(50.0)}
    result = across(save(small_model()), tmp_path / "out", specs, Rig({"1.0": kind}), others={}, count=12)
    is_rough = own_db < 15.0
    assert result.deployed == ("rough effect=0.9" if is_rough else "rough")
    assert (tmp_path / "out" / "rough").exists() is not is_rough
    assert (tmp_path / "out" / "rough-effect=0.9").exists() is is_rough
    why = result.columns["rough" if is_rough else "rough effect=0.9"].why
    rough = f"in the target's own precision, the given model has {own_db:.1f} dB there"
    assert (rough if is_rough else "in the precision of rough") in why
    assert ("dB too few to show the bound for new samples" in why) == (own_db == 12.0)


def test_one_file_for_all_is_measured_on_all(save: SaveModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = across(save(small_model()), out, {"one": null(1.0), "two": null(3.0)})
    data = json.loads((out / "result.json").read_text())
    assert data["best"]["output_sha256"] == hashlib.sha256(result.model_path.read_bytes()).hexdigest()
    assert {(c["tuned_for"], c["run_on"]) for c in data["table"]} == set(
        itertools.product([GIVEN, "one", "two", ONE], ["one", "two"])
    )
    given, delivered = (sum(k.ns for k in price(onnx.load(p))) for p in (tmp_path / "model.onnx", result.model_path))
    for label, scale in (("one", 1.0), ("two", 3.0)):
        cell = result.table[result.row, label]
        assert cell.speedup is not None
        assert cell.speedup.value == pytest.approx(given / delivered, rel=0.02), "the planted truth"
        assert result.table[GIVEN, label].latency_ms == pytest.approx(scale * given / 1e6, rel=0.02)
        assert (out / label / "model.onnx").is_file()
    assert delivered < given, "there is something to gain"
    assert result.worst_regret == pytest.approx(1.0, abs=0.03), "both targets want the same"


@pytest.mark.exhaustive
def test_what_one_target_refuses_is_not_for_all(save: SaveModel, tmp_path: Path) -> None:
    """The second runs float only: its front holds the single file, and the table says what the first one loses."""
    rig = Rig({"2.0": Picky})
    result = across(save(small_model()), tmp_path / "out", {"one": null(1.0), "two": null(2.0)}, rig)
    refused = result.table["one", "two"]
    assert not refused.serves
    assert "no Q/DQ here" in refused.reason
    assert result.table[result.row, "two"].serves
    assert not any(n.op_type == "QuantizeLinear" for n in onnx.load(result.model_path).graph.node)
    own = next(r for r in result.ratios if r.on == "one")
    assert own.ratio.low > 1.05, "its own file is faster than the compromise"
    assert result.worst_regret == pytest.approx(own.ratio.value, rel=0.03)


def test_auto_deploys_on_the_fastest_and_passes_over_what_cannot_win(save: SaveModel, tmp_path: Path) -> None:
    rig, specs = Rig(), {"slow": null(9.0), "fast": null(1.0), "near": null(1.5), "broken": null(13.0)}
    result = across(save(small_model()), tmp_path / "out", specs, rig, others={"absent": "pip install it"})
    assert result.deployed == "fast"
    assert result.row == "fast"
    assert {label for label, c in result.columns.items() if c.folder} == {"fast", "near"}
    assert "times as slow" in result.columns["slow"].why
    assert "no such device" in result.columns["broken"].why
    assert result.columns["absent"].why == "pip install it"
    over = {r.over: r.ratio for r in result.ratios}
    assert over["near"].low <= 1.5 <= over["near"].high
    assert not (tmp_path / "out" / "slow").exists()
    data = json.loads((tmp_path / "out" / "result.json").read_text())
    assert data["deploy"] == "fast"
    assert data["target"]["options"]["scale"] == 1.0


@pytest.mark.exhaustive
def test_auto_takes_a_file_made_for_another_target_where_it_is_faster(
    save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run for the fastest target finds nothing, as where its time was too short."""
    finds_nothing(monkeypatch, "fast")
    specs = {"fast": null(1.0), "near": null(1.2)}
    result = across(save(small_model()), tmp_path / "out", specs, others={})
    assert (result.row, result.deployed) == ("near", "fast")
    assert result.model_path.read_bytes() == (tmp_path / "out" / "near" / "model.onnx").read_bytes()
    assert all(r.ratio.low > 1.0 for r in result.ratios)


@pytest.mark.exhaustive
def test_a_target_is_told_of_a_better_file_that_was_made_for_another(
    save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second runs Q/DQ nodes as fast as the first, but its own run finds nothing; the third runs float only."""
    finds_nothing(monkeypatch, "two")
    specs, out = {"one": null(1.0), "two": null(2.0), "float": null(3.0)}, tmp_path / "out"
    result = across(save(small_model()), out, specs, Rig({"3.0": Picky}))
    assert result.best == {"one": "one", "two": "one", "float": "float"}
    assert {r.on: r.of for r in result.ratios} == result.best
    assert next(r for r in result.ratios if r.on == "two").ratio.low > 1.05
    files = {t["label"]: t["file"] for t in json.loads((out / "result.json").read_text())["targets"]}
    assert Path(files["one"]) == Path(files["two"]) == out / "one" / "model.onnx"
    said = "\n".join(str(line) for line in verdict(result))
    assert f"two: {out / 'one' / 'model.onnx'} is " in said
    assert "one: its own file is " in said
    own = "nothing is measurably faster there" if result.row == "float" else "its own file is "
    assert f"float: {own}" in said


@pytest.mark.exhaustive
def test_where_an_equal_share_is_too_short_the_fastest_gets_all(save: SaveModel, tmp_path: Path) -> None:
    # inferences of about 0.1 s; far from the policy's 1.1, at which the noise of the readings would decide
    specs = {"fast": null(1000.0), "near": null(1040.0)}
    with pytest.raises(UsageError, match=r"its share of --budget 40s is \d+ s, and it needs \d+ s: give \d+s or more"):
        across(save(small_model()), tmp_path / "both", specs, budget_s=SHORT_S)
    result = across(save(small_model()), tmp_path / "out", specs, others={}, budget_s=SHORT_S)
    assert result.columns["fast"].folder
    assert "no time left" in result.columns["near"].why
    assert result.deployed == "fast"


def test_the_target_that_can_become_the_fastest_gets_the_time(
    save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The faster one gains nothing in low precision; the slower one does, and a half of the time would be too short."""
    path, specs = save(small_model()), {"even": null(1000.0, effect=0.0), "low": null(1200.0)}
    result = across(path, tmp_path / "out", specs, others={}, budget_s=SHORT_S)
    assert (result.row, result.deployed) == ("low", "low")
    assert result.columns["even"].folder is None
    assert "its fastest form" in result.columns["even"].why
    finds_nothing(monkeypatch, "low")
    spared = across(path, tmp_path / "spared", specs, others={}, budget_s=SHORT_S)
    assert (spared.row, spared.deployed) == (GIVEN, "even"), "what was not tuned for may be the fastest all the same"
    assert spared.table[GIVEN, "even"].accuracy is not None, "it is measured and judged, not only looked at"


@pytest.mark.exhaustive
def test_runs_that_are_over_count_where_no_time_is_left(
    save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first session ended while files were compared."""
    path, out, specs = save(small_model()), tmp_path / "out", {"one": null(50.0), "two": null(50.5)}

    def ends(*_: object) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(portfolio, "choose_target", ends)
        with pytest.raises(KeyboardInterrupt):
            across(path, out, specs, others={}, budget_s=200.0)
    monkeypatch.setattr(policy, "LEAST_TRIALS", 10**6)
    result = across(path, out, specs, others={}, budget_s=200.0)
    assert {label for label, c in result.columns.items() if c.folder} == {"one", "two"}


@pytest.mark.exhaustive
def test_a_machine_that_became_slower_rules_out_no_target(
    save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first readings were of a quiet moment: every form then took longer than they did."""
    real = comparing.Comparison._looked

    def slower(comparison: comparing.Comparison, labels: Sequence[str]) -> Look:
        found = real(comparison, labels)
        reached = {label: Reach(2.0 * r.fastest_ns, 2.0 * r.kept_ns) for label, r in found.reached.items()}
        assert reached, "there was a look"
        return replace(found, reached=reached)

    monkeypatch.setattr(comparing.Comparison, "_looked", slower)
    specs = {"one": null(100.0, effect=0.0), "two": null(101.0, effect=0.0)}
    result = across(save(small_model()), tmp_path / "out", specs, others={}, budget_s=SHORT_S)
    assert result.columns["one"].folder


@pytest.mark.exhaustive
def test_without_a_look_at_the_forms_the_fastest_float_is_first(
    save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> Any:
        raise CompileFailed("no form can be made")

    monkeypatch.setattr(comparing, "quick_forms", fails)
    specs = {"even": null(1000.0, effect=0.0), "low": null(1200.0)}
    result = across(save(small_model()), tmp_path / "out", specs, others={}, budget_s=SHORT_S)
    assert result.columns["even"].folder


@pytest.mark.exhaustive
def test_what_a_slow_target_needs_beyond_its_share_it_gets_of_the_others(save: SaveModel, tmp_path: Path) -> None:
    specs = {"slow": null(1000.0), "quick": null(1.0)}
    result = across(save(small_model()), tmp_path / "out", specs, budget_s=SHORT_S)
    assert {label for label, c in result.columns.items() if c.folder} == {"slow", "quick"}


@pytest.mark.exhaustive
def test_the_budget_bounds_the_whole_command(save: SaveModel, tmp_path: Path) -> None:
    rig = Rig()
    specs = {"one": null(200.0), "two": null(300.0)}
    result = across(save(small_model()), tmp_path / "out", specs, rig, budget_s=120.0)
    assert rig.clock.seconds <= 1.1 * 120.0
    assert result.wall_s == pytest.approx(rig.clock.seconds, abs=1.0)
    assert {label for label, c in result.columns.items() if c.folder} == {"one", "two"}


@pytest.mark.exhaustive
def test_a_finished_run_is_neither_repeated_nor_taken_for_another(save: SaveModel, tmp_path: Path) -> None:
    path, out, specs = save(small_model()), tmp_path / "out", {"one": null(1.0), "two": null(2.0)}
    first = across(path, out, specs)
    written = {label: (out / label / "result.json").stat().st_mtime_ns for label in specs}
    again = across(path, out, specs)
    assert {label: (out / label / "result.json").stat().st_mtime_ns for label in specs} == written
    assert again.table.keys() == first.table.keys()
    (out / "two" / "model.onnx").write_bytes(b"damaged")
    across(path, out, specs)
    assert onnx.load(out / "two" / "model.onnx").graph.node, "what was damaged is made again"
    with pytest.raises(JournalError, match="target"):
        across(path, out, {"one": null(1.0), "two": null(4.0)})


@pytest.mark.exhaustive
def test_an_interrupted_run_leaves_the_best_so_far(save: SaveModel, tmp_path: Path) -> None:
    path, out, specs = save(small_model()), tmp_path / "out", {"one": null(1.0), "two": null(2.0)}

    class Impatient:
        trials = 0

        def stage(self, text: str) -> None: ...
        def doing(self, text: str) -> None: ...
        def close(self) -> None: ...

        def trial(self, step: object) -> None:
            self.trials += 1
            if self.trials == 2:
                raise KeyboardInterrupt

    result = across(path, out, specs, progress=Impatient())
    assert result.interrupted
    assert "interrupted" in result.columns["two"].why
    assert result.model_path.is_file()
    whole = across(path, out, specs)
    assert not whole.interrupted
    assert (ONE, "two") in whole.table


def test_regret_is_the_worst_ratio_to_the_best_file_there() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows, columns = ["a", "b", "c"], ["x", "y"]
        gains = {(r, c): float(rng.uniform(0.5, 3.0)) for r in rows for c in columns}
        feasible = {key: bool(rng.random() < 0.8) for key in gains}
        table = {key: Cell(1.0, replace(EXACT, value=v), Accuracy(feasible[key], 30.0)) for key, v in gains.items()}
        for row in rows:
            if not all(feasible[row, c] for c in columns):
                assert regret(table, row, rows, columns) == float("inf")
                continue
            worst = max(max(gains[r, c] for r in rows if feasible[r, c]) / gains[row, c] for c in columns)
            assert regret(table, row, rows, columns) == pytest.approx(worst)


@pytest.mark.exhaustive
def test_a_file_without_a_figure_on_one_target_is_said_so(save: SaveModel, tmp_path: Path) -> None:
    """As where no time is left for a slow one: what cannot be compared is no number, in the result and in words."""
    result = across(save(small_model()), tmp_path / "out", {"one": null(1.0), "two": null(3.0)})
    assert result.worst_regret is not None, "the control"
    late = Cell(None, None, None, "it did not finish within 2 s")
    cut = replace(result, table={**result.table, (result.row, "two"): late})
    assert json.loads(json.dumps(cut.as_json(), allow_nan=False))["worst_regret"] is None
    text = "\n".join(line for line in verdict(cut) if isinstance(line, str))
    assert "it was not compared everywhere" in text
    assert "two: not measured there: it did not finish within 2 s" in text


def test_options_reach_the_targets_that_they_are_for() -> None:
    specs = labelled(["ort-cpu", "null"], ["threads=2", "null.seed=3", "noise=0.5"], None)
    assert specs["ort-cpu"].options == {"threads": 2}
    assert specs["null"].options == {"seed": 3, "noise": 0.5}
    twice = labelled([TargetSpec("null", {"seed": 1}), TargetSpec("null", {"seed": 2})], [], None)
    assert list(twice) == ["null seed=1", "null seed=2"]


@pytest.mark.parametrize(
    ("targets", "options", "words"),
    [
        (["null", "null"], (), "twice"),
        (["null", "ort-cpu"], ["device=3"], "none of the targets"),
        (["null", "auto"], (), "auto alone"),
        (["null", "no-such"], (), "no such target"),
        ([], (), "give targets"),
    ],
)
def test_mistakes_are_one_line(save: SaveModel, tmp_path: Path, targets: list[str], options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        inlay.tune(save(small_model()), target=targets, target_options=options, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_output_of_any_run_may_be_an_input(save: SaveModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "null").mkdir(parents=True)
    path = out / "null" / "model.onnx"
    path.write_bytes(save(small_model()).read_bytes())
    before = path.read_bytes()
    with pytest.raises(UsageError, match="would overwrite"):
        inlay.tune(path, target=["null", "ort-cpu"], out=out)
    assert path.read_bytes() == before


@pytest.mark.exhaustive
def test_files_are_judged_in_the_terms_of_the_task(save: SaveModel, tmp_path: Path) -> None:
    """On all targets, as their own runs judge them: an embedding by cosine and ranks, where no SQNR is asked for."""
    b = Builder()
    pooled = b.node("pool", "GlobalAveragePool", [b.conv("first", b.input("x", (1, 3, 16, 16)), 24, relu=True)])
    b.output(b.node("flat", "Flatten", [pooled], outputs=["embedding"], axis=1))
    path = save(b.model())
    found = across(path, tmp_path / "out", {"a": null(1.0), "b": null(2.0)}, others={}, bound=TuneConfig().bound)
    judged = [cell.accuracy for cell in found.table.values() if cell.accuracy is not None]
    assert judged
    assert all([figure.name for figure in each.figures][:1] == ["cosine"] for each in judged)
    assert found.bound.startswith("SQNR at least 14 dB and at most 0.02 of cosine")
    asked = across(path, tmp_path / "asked", {"a": null(1.0), "b": null(2.0)}, others={})
    assert asked.bound == "SQNR at least 10 dB"


@pytest.mark.parametrize("broken", [True, False])
@pytest.mark.exhaustive
def test_a_bound_that_the_chosen_run_breaks_is_told_in_the_first_line(
    broken: bool, save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = "mine falls by 0.3"

    def doubtful(asked: TuneRequest) -> Any:
        found = tune_one(asked)
        return replace(found, best=replace(found.best, bound_shown=False, bound_note=note, bound_broken=broken))

    monkeypatch.setattr(portfolio, "tune", doubtful)
    path, specs = save(small_model()), {"a": null(1.0), "b": null(2.0)}
    for _ in range(2):  # the second time by what was recorded
        result = across(path, tmp_path / "out", specs, others={})
        assert result.exit_code == UNPROVEN
        first = next(iter(verdict(result)))
        assert first == f"{'BELOW THE BOUND' if broken else 'BOUND NOT SHOWN'}: {note}."
        best = result.as_json()["best"]
        assert (best["bound_note"], best["bound_broken"]) == (note, broken)
        monkeypatch.undo()

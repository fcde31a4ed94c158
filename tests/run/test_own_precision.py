"""A target that computes float32 operators in fewer bits is tuned for in the precision in which the model is faster."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from benchmarks.simulated import Clock, InProcessWorker

from inlay.cli.render import verdict
from inlay.data import Samples
from inlay.errors import JournalError, TargetError
from inlay.measure.client import Limit, Worker
from inlay.measure.lab import Lab
from inlay.measure.own_precision import FASTER
from inlay.model.load import load
from inlay.prepare.config import TuneConfig
from inlay.quant.accuracy import Bound
from inlay.run.facts import PrecisionChoice
from inlay.run.inputs import TuneRequest
from inlay.run.result import TuneResult
from inlay.run.select import select, wish
from inlay.run.tune import tune
from inlay.targets.base import Fingerprint, OptionValue, OwnPrecision, TargetSpec
from inlay.targets.null import NullTarget
from inlay.testing import random_feed, small_model

START_S = 0.25
LOOKING = "time the given model in halves and in float32"
OWN: Mapping[str, OptionValue] = {"noise": 0.01, "seed": 3}
EXACT: Mapping[str, OptionValue] = {**OWN, "effect": 0.9}


class Halves(NullTarget):
    """Known costs; in fewer bits, unless ``effect`` is 0.9, they are ``slower`` times as high."""

    slower = 1.0

    def __init__(self, scale: float = 1.0, effect: float = 1.0, **options: Any) -> None:
        super().__init__(scale=scale * (1.0 if effect == 0.9 else self.slower), effect=effect, **options)
        self._asked = scale

    def fingerprint(self) -> Fingerprint:
        found = super().fingerprint()
        return replace(found, facts={**found.facts, "scale": str(self._asked)})

    @property
    def own_precision(self) -> OwnPrecision | None:
        return OwnPrecision("halves", {"effect": 0.9}) if self.effect == 1.0 else None


class Heard:
    """Keeps the stages, with the moments at which they began."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self.stages, self.begun = clock, list[str](), list[float]()

    def stage(self, text: str) -> None:
        self.stages.append(text.partition(", at most")[0])
        self.begun.append(self._clock.seconds)

    def took(self, stage: str) -> float:
        at = self.stages.index(stage)
        return self.begun[at + 1] - self.begun[at]

    def doing(self, text: str) -> None:
        pass

    def trial(self, step: object) -> None:
        pass

    def close(self) -> None:
        pass


class Rig:
    """A lab where float32 is ``gains`` times as fast for the first, second, ... process of the target's own precision,
    the last for all others; a process takes a quarter of a second to start."""

    def __init__(self, *gains: float, refuses: bool = False) -> None:
        self.gains, self.refuses, self.clock = list(gains), refuses, Clock()
        self.heard = Heard(self.clock)
        self.started: list[float] = []

    def lab(self) -> Lab:
        def start(spec: TargetSpec, folder: Path, limit: Limit) -> Worker:
            self.clock.sleep(START_S)
            effect = float(spec.options.get("effect", 1.0))
            if self.refuses and effect == 0.9:
                raise TargetError("announced with other options")
            own = self.started.count(1.0)
            kind = type("Halves", (Halves,), {"slower": self.gains[min(own, len(self.gains) - 1)]})
            self.started.append(effect)
            target = kind(advance_clock=self.clock.sleep, **spec.options)
            return InProcessWorker(spec, folder, limit, target=target, clock=self.clock)

        return Lab(start, self.clock, self.clock.sleep)


@pytest.fixture(autouse=True)
def _halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NullTarget, "own_precision", Halves.own_precision, raising=False)


def run(
    folder: Path,
    rig: Rig,
    options: Mapping[str, OptionValue] = OWN,
    any_precision: bool = True,
    budget_s: float | None = None,
    measurements: int = 4,
    restart: bool = False,
) -> TuneResult:
    onnx.save(small_model(), folder / "model.onnx")
    samples = Samples(tuple(dict(random_feed(small_model(), n)) for n in range(4)), "npz", "seeds")
    config = TuneConfig(
        target=TargetSpec("null", options),
        bound=Bound(min_sqnr_db=10.0),
        budget_s=budget_s,
        strategy="anchors",
        max_measurements=measurements,
        cost_db=False,
    )
    request = TuneRequest(
        file=load(folder / "model.onnx"), out=folder / "out", samples=samples, config=config, lab=rig.lab()
    )
    return tune(replace(request, any_precision=any_precision, progress=rig.heard, restart=restart))


def read(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "out" / "result.json").read_text(encoding="utf8"))
    return found


@pytest.mark.exhaustive
def test_where_float32_is_faster_the_run_is_in_float32_and_says_so(tmp_path: Path) -> None:
    rig = Rig(1.2)
    result = run(tmp_path, rig)
    assert rig.started[:4] == [1.0, 0.9, 1.0, 0.9], "the second look is in fresh processes"
    assert set(rig.started[4:]) == {0.9}, "and the confirmation is where the search was"
    assert result.facts["effect"] == "0.9"
    data = read(tmp_path)
    assert data["target"]["facts"]["effect"] == "0.9"
    found = data["precision"]
    assert (found["own"], found["options"], found["late"]) == ("halves", {"effect": 0.9}, False)
    assert found["speedup_low"] <= found["speedup"] <= found["speedup_high"]
    assert found["speedup"] == pytest.approx(1.2, rel=0.01), "the planted truth"
    interval = f"{found['speedup']:.2f}x [{found['speedup_low']:.2f}, {found['speedup_high']:.2f}]"
    what = f"float32 is {interval} as fast as halves for the given model"
    note = f"{what}: it was tuned with effect=0.9; run it with that, too"
    assert data["notes"][0] == result.notes[0] == note
    assert any(note in line for line in verdict(result) if isinstance(line, str))
    assert LOOKING in rig.heard.stages
    (tmp_path / "exact").mkdir()
    priced = run(tmp_path / "exact", Rig(1.0), EXACT)
    assert result.baseline_ms == pytest.approx(priced.baseline_ms, rel=0.02), "speed-ups are over the faster one"


@pytest.mark.parametrize("gain", [1.0, 0.8, FASTER - 0.015])
@pytest.mark.exhaustive
def test_where_it_is_not_faster_nothing_changes(gain: float, tmp_path: Path) -> None:
    rig = Rig(gain)
    result = run(tmp_path, rig)
    assert rig.started[:2] == [1.0, 0.9]
    assert set(rig.started[2:]) == {1.0}
    assert result.facts["effect"] == "1.0"
    found = read(tmp_path)["precision"]
    assert found["options"] == {}
    assert found["speedup"] == pytest.approx(gain, rel=0.01)
    assert not any("as fast as halves" in note for note in result.notes)


@pytest.mark.exhaustive
def test_noise_is_no_reason(tmp_path: Path) -> None:
    rig = Rig(1.03)
    result = run(tmp_path, rig, {**OWN, "noise": 0.8})
    assert result.facts["effect"] == "1.0"
    assert result.precision is not None
    assert result.precision.gain is not None
    assert result.precision.gain.low < 1.0


@pytest.mark.exhaustive
def test_what_one_process_shows_and_the_next_does_not_is_no_reason(tmp_path: Path) -> None:
    rig = Rig(1.1, 1.0)
    result = run(tmp_path, rig)
    assert rig.started[:4] == [1.0, 0.9, 1.0, 0.9]
    assert set(rig.started[4:]) == {1.0}
    assert result.precision is not None
    assert result.precision.options == {}
    assert result.precision.gain is not None
    assert result.precision.gain.value == pytest.approx(1.0, abs=0.01), "of the second look, which nobody chose"


@pytest.mark.parametrize("options", [EXACT, {**OWN, "effect": 1.0}])
@pytest.mark.exhaustive
def test_an_option_that_was_given_stands(options: Mapping[str, OptionValue], tmp_path: Path) -> None:
    rig = Rig(1.2)
    result = run(tmp_path, rig, options)
    assert set(rig.started) == {options["effect"]}
    assert result.precision is None
    assert read(tmp_path)["precision"] is None


@pytest.mark.parametrize("options", [{}, {"noise": 0.0, "seed": 3}])
@pytest.mark.exhaustive
def test_exact_estimates_are_not_compared(options: Mapping[str, OptionValue], tmp_path: Path) -> None:
    rig = Rig(1.2)
    assert run(tmp_path, rig, options).precision is None
    assert set(rig.started) == {1.0}


@pytest.mark.exhaustive
def test_a_target_that_refuses_float32_is_tuned_for_as_it_is(tmp_path: Path) -> None:
    result = run(tmp_path, Rig(1.2, refuses=True))
    assert result.facts["effect"] == "1.0"
    assert result.precision is not None
    assert result.precision.gain is None


@pytest.mark.parametrize("first", [1.2, 1.0])
@pytest.mark.exhaustive
def test_a_run_that_goes_on_keeps_what_it_chose(first: float, tmp_path: Path) -> None:
    before = run(tmp_path, Rig(first), measurements=2)
    rig = Rig(1.2 if first == 1.0 else 0.5)
    after = run(tmp_path, rig, measurements=8)
    assert after.precision == before.precision
    assert after.target == before.target
    assert after.search["replayed"] > 0, "the journal was found"
    assert [n for n in after.notes if "as fast" in n] == [n for n in before.notes if "as fast" in n]
    assert rig.started[1:2] == ([0.9] if first > 1.0 else [1.0])
    assert LOOKING not in rig.heard.stages


@pytest.mark.parametrize(("options", "any_precision"), [({**OWN, "effect": 1.0}, True), (OWN, False)])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_a_run_in_float32_is_not_gone_on_with_in_another_precision(
    options: Mapping[str, OptionValue], any_precision: bool, tmp_path: Path
) -> None:
    run(tmp_path, Rig(1.2))
    with pytest.raises(JournalError, match="a run in float32, which was faster than halves"):
        run(tmp_path, Rig(1.2), options, any_precision)
    again = run(tmp_path, Rig(1.2), options, any_precision, restart=True)
    assert again.facts["effect"] == "1.0"
    assert run(tmp_path, Rig(1.2)).facts["effect"] == "1.0", "the first decision of the folder's run stands"


@pytest.mark.parametrize(("gain", "most"), [(1.0, 1.0), (1.2, 3.0)])
@pytest.mark.parametrize(("seconds", "scale"), [(20.0, 30.0), (60.0, 70.0), (60.0, 30.0), (300.0, 1000.0)])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_the_look_keeps_within_its_share(
    seconds: float, scale: float, gain: float, most: float, tmp_path: Path
) -> None:
    """A gain is looked at a second time, with two more processes."""
    rig = Rig(gain)
    result = run(tmp_path, rig, {**OWN, "scale": scale}, budget_s=seconds)
    assert rig.clock.seconds <= seconds
    assert result.precision is not None
    assert result.precision.late is False
    assert bool(result.precision.options) is (gain > 1.0)
    share_s = max(0.03 * seconds, min(2.0, 0.05 * seconds))
    assert 0.0 < rig.heard.took(LOOKING) <= most * share_s


@pytest.mark.parametrize(("seconds", "scale"), [(20.0, 100.0), (60.0, 1000.0)])
@pytest.mark.exhaustive
def test_where_there_is_no_time_it_is_said(seconds: float, scale: float, tmp_path: Path) -> None:
    rig = Rig(1.2)
    result = run(tmp_path, rig, {**OWN, "scale": scale}, budget_s=seconds)
    assert result.precision == PrecisionChoice("halves", late=True)
    assert set(rig.started) == {1.0}
    assert any("the given model timed in halves, not in float32" in note for note in result.notes)
    again = run(tmp_path, Rig(1.2), {**OWN, "scale": scale}, budget_s=10.0 * seconds)
    assert again.precision == result.precision, "trials are there in its own precision"


@pytest.mark.exhaustive
def test_a_model_of_a_run_in_float32_is_written_again(tmp_path: Path) -> None:
    run(tmp_path, Rig(1.2))
    done = select(tmp_path / "out", tmp_path / "selected.onnx", wish(10.0, None, None, "latency", False))
    assert done.path.is_file()

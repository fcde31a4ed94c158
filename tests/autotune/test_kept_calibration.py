"""A search that goes on uses what calibration found, and calibrates again wherever that may be another one."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.autotune import QDQAutotuner, region_pattern_autotuning_workflow
from inlay.autotune.subject import Subject, beside
from inlay.calibrate.observe import observe
from inlay.data import read_arrays
from inlay.errors import UsageError
from inlay.quant.rewrite import stated
from inlay.targets.base import Capabilities, TargetSpec
from inlay.targets.registry import create
from inlay.types import QType
from tests.autotune.test_resume import FAST, Device, Killed
from tests.support.branches import branches

TARGET = Capabilities.of(create(TargetSpec("null")))
OTHER_TYPE = QType.INT8 if TARGET.rules.activation is QType.UINT8 else QType.UINT8
Feeds = list[dict[str, np.ndarray]]


def samples(seed: int = 0) -> Feeds:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(6)]


@pytest.fixture
def calibrations(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Grows by one with every calibration."""
    made: list[object] = []
    original = observe

    def counted(*arguments: object) -> object:
        made.append(arguments)
        return original(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("inlay.autotune.subject.observe", counted)
    return made


def written(
    place: Path, model: onnx.ModelProto | None = None, feeds: Feeds | None = None, target: Capabilities = TARGET
) -> bytes:
    """The model with everything quantized, by a tuner that keeps its calibration at ``place``."""
    made = Subject(model or branches(), target, feeds or samples())
    made.keep_calibration(place)
    everything = made.prepared.label(frozenset(u.name for u in made.prepared.selectable))
    assert len(everything)
    return bytes(made.emit(everything).SerializeToString(deterministic=True))


@pytest.mark.exhaustive
def test_what_is_kept_gives_the_same_bytes_and_nothing_is_calibrated(
    calibrations: list[object], tmp_path: Path
) -> None:
    first = written(tmp_path / "kept.npz")
    assert len(read_arrays(tmp_path / "kept.npz")) > 1, "some weights are not rounded to nearest, which is kept too"
    assert written(tmp_path / "kept.npz") == first
    assert len(calibrations) == 1
    assert written(tmp_path / "elsewhere.npz") == first, "and it is what a calibration finds"
    assert len(calibrations) == 2


def _scaled(feeds: Feeds) -> Feeds:
    return [{name: 3 * array for name, array in feed.items()} for feed in feeds]


OTHERS: dict[str, Callable[[Path], bytes]] = {
    "model": lambda place: written(place, branches(seed=1)),
    "samples": lambda place: written(place, feeds=_scaled(samples())),
    "fewer samples": lambda place: written(place, feeds=samples()[:5]),
    "symmetry": lambda place: written(
        place, target=replace(TARGET, rules=replace(TARGET.rules, symmetric_activations=True))
    ),
    "type": lambda place: written(place, target=replace(TARGET, rules=replace(TARGET.rules, activation=OTHER_TYPE))),
}


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.exhaustive
def test_another_calibration_is_never_used(what: str, calibrations: list[object], tmp_path: Path) -> None:
    first = written(tmp_path / "kept.npz")
    fresh, after = OTHERS[what](tmp_path / "fresh.npz"), OTHERS[what](tmp_path / "kept.npz")
    assert fresh == after != first
    assert len(calibrations) == 3
    assert OTHERS[what](tmp_path / "kept.npz") == fresh, "the new one is what is kept"
    assert len(calibrations) == 3


@pytest.mark.exhaustive
def test_a_version_calibrates_by_itself(
    calibrations: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(tmp_path / "kept.npz")
    monkeypatch.setattr("inlay.autotune.subject.__version__", "another")
    written(tmp_path / "kept.npz")
    assert len(calibrations) == 2


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _flipped(data: bytes) -> bytes:
    middle = len(data) // 3
    return data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :]


def _foreign(_: bytes) -> bytes:
    import io

    buffer = io.BytesIO()
    np.savez(buffer, other=np.zeros(3))
    return buffer.getvalue()


@pytest.mark.parametrize("damage", [_cut, _flipped, _foreign, lambda _: b"", lambda _: b"nonsense"])
@pytest.mark.exhaustive
def test_a_damaged_one_is_told_in_one_line_and_made_anew(
    damage: Callable[[bytes], bytes], calibrations: list[object], tmp_path: Path
) -> None:
    place = tmp_path / "kept.npz"
    first = written(place)
    place.write_bytes(damage(place.read_bytes()))
    with pytest.warns(UserWarning, match="the model is calibrated again") as told:
        assert written(place) == first
    (line,) = [str(each.message) for each in told if "calibrated again" in str(each.message)]
    assert str(place) in line
    assert "\n" not in line
    assert len(calibrations) == 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert written(place) == first
    assert len(calibrations) == 2


@pytest.mark.parametrize("at", [1, 2, 5, 9])
@pytest.mark.exhaustive
def test_a_workflow_that_was_killed_does_not_calibrate_again(
    at: int, calibrations: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(out: Path, kill_at: int = 0) -> bytes:
        region_pattern_autotuning_workflow(branches(), out, Device(kill_at), config=FAST, samples=samples())
        return (out / "model.onnx").read_bytes()

    whole = run(tmp_path / "whole")
    assert len(calibrations) == 1
    with monkeypatch.context() as patch:
        patch.setattr("inlay.autotune.workflow._finish", lambda *_: None)
        with pytest.raises(Killed):
            run(tmp_path / "killed", at)
    assert len(calibrations) == 2
    assert run(tmp_path / "killed") == whole
    assert len(calibrations) == 2, "no calibration since the kill"


def test_save_state_keeps_what_load_state_finds(calibrations: list[object], tmp_path: Path) -> None:
    state = tmp_path / "state.yaml"
    exported = []
    for resumed in (False, True):
        tuner = QDQAutotuner(branches(), samples=samples())
        tuner.initialize(FAST)
        if resumed:
            tuner.load_state(state)
        else:
            tuner.export_onnx()
            tuner.submit(10.0)
            tuner.save_state(state)
        tuner.set_profile_region(tuner.regions[0])
        assert tuner.generate() == 1
        exported.append(tuner.export_onnx())
    assert exported[0] == exported[1]
    assert len(calibrations) == 1


def test_no_samples_are_overwritten(tmp_path: Path) -> None:
    state = tmp_path / "state.yaml"
    np.savez(beside(state), x=np.concatenate([feed["x"] for feed in samples()])[:, None])
    tuner = QDQAutotuner(branches(), samples=beside(state))
    tuner.initialize(FAST)
    tuner.submit(10.0)
    with pytest.raises(UsageError, match="is an input"):
        tuner.save_state(state)


@pytest.mark.exhaustive
def test_rules_say_the_same_in_every_process_and_functions_differ_by_what_they_hold() -> None:
    program = (
        "from inlay.quant.rewrite import stated; from inlay.targets.base import Capabilities, TargetSpec; "
        "from inlay.targets.registry import create; print(stated(Capabilities.of(create(TargetSpec('ort-cpu')))))"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    assert " at 0x" not in said.pop(), "no addresses"

    def below(limit: int) -> Callable[[int], bool]:
        return lambda number: number < limit

    assert stated(below(1)) == stated(below(1)) != stated(below(2))
    assert stated(lambda n: n < 1) != stated(lambda n: n < 2)

"""A run that goes on keeps the winner that it confirmed before, unless its new readings speak against it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import inlay
from inlay.measure.journal import Journal
from inlay.measure.paired import Series
from inlay.model.load import file_sha256
from inlay.run.confirm.decision import Confirmation
from inlay.run.confirm.delivered import Confirmed, best_of
from inlay.run.confirm.earlier import WINNER
from inlay.run.confirm.verification import OnOthers
from inlay.run.evaluate import Candidate
from inlay.testing import random_feed, small_model
from inlay.trial import Interval
from inlay.types import Placement
from tests.support.fixtures import SaveModel

pytestmark = pytest.mark.usefixtures("null_in_process")

OPEN = "1 of 24 deciding blocks leave open whether full-int8 is faster: give --budget 90s or more"


def leave_open(
    monkeypatch: pytest.MonkeyPatch, measured: Mapping[str, Interval], given_up: frozenset[str] = frozenset()
) -> None:
    """Make every later confirmation one that decides nothing, with these readings."""
    decide = Confirmation.decide
    as_fast = Interval(1.0, 1.0, 1.0)

    def undecided(self: Confirmation, incumbent: Candidate, least_db: float | None = None) -> Confirmed:
        found = decide(self, incumbent, least_db)
        base = replace(self.original, readings=Series(np.array([found.baseline_ms * 1e6])))
        return replace(
            found,
            best=replace(best_of(base, base, as_fast, as_fast, None), confirmed=False),
            file=self.given.file.path,
            placement=Placement(),
            key=base.key,
            rejected=(),
            rounds=replace(found.rounds, measured=measured, given_up=given_up),
            undecided=OPEN,
            on_others=OnOthers(),
        )

    monkeypatch.setattr(Confirmation, "decide", undecided)


def tune(path: Path, out: Path, feeds: list[dict[str, np.ndarray]], most: int) -> inlay.TuneResult:
    """A run on the null target, whose costs are known, or more of it."""
    return inlay.tune(path, out=out, data=feeds, target="null", min_sqnr=10.0, max_measurements=most, budget=None)


@pytest.mark.exhaustive
def test_an_undecided_confirmation_never_takes_back_an_earlier_one(
    save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model()
    path, out, feeds = save(model), tmp_path / "out", [dict(random_feed(model, seed)) for seed in range(8)]

    first = tune(path, out, feeds, 8)
    assert not first.best.is_float
    assert first.best.speedup.shows_gain()
    with contextlib.closing(Journal(out / "run.sqlite", None)) as journal:
        winner = journal.fact(WINNER)
    assert winner is not None

    for readings in ({}, {winner.key: Interval(1.2, 0.9, 1.5)}):
        with monkeypatch.context() as patched:
            leave_open(patched, readings)
            later = tune(path, out, feeds, 10)
        assert file_sha256(out / "model.onnx") == first.best.output_sha256
        assert (later.best.speedup, later.best.origin) == (first.best.speedup, first.best.origin)
        assert later.best.verification == first.best.verification
        assert later.undecided == ""
        assert later.best.confirmed
        (note,) = [n for n in later.notes if "an earlier confirmation of this run is kept" in n]
        assert note.endswith(OPEN)

    with monkeypatch.context() as patched:  # the control: its own readings exclude a gain
        leave_open(patched, {winner.key: Interval(0.9, 0.8, 0.99)})
        refuted = tune(path, out, feeds, 10)
    assert refuted.best.is_float
    assert refuted.undecided == OPEN
    assert file_sha256(out / "model.onnx") == file_sha256(path)
    with monkeypatch.context() as patched:
        leave_open(patched, {})
        assert tune(path, out, feeds, 10).best.is_float, "what was refuted does not come back"


@pytest.mark.exhaustive
def test_a_winner_that_fails_later_is_given_up(
    save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model()
    path, feeds = save(model), [dict(random_feed(model, seed)) for seed in range(8)]
    tune(path, tmp_path / "out", feeds, 8)
    with contextlib.closing(Journal(tmp_path / "out" / "run.sqlite", None)) as journal:
        winner = journal.fact(WINNER)
    assert winner is not None
    leave_open(monkeypatch, {}, frozenset([winner.key]))
    assert tune(path, tmp_path / "out", feeds, 8).best.is_float

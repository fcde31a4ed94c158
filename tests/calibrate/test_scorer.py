"""Scores of qparams tables: the same in process and on a target, and failures are values."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inlay.calibrate.clock import FeedsUntil
from inlay.calibrate.scorer import ExactOutputs, OnTarget, Outcomes, Question, Run, in_process, score_by
from inlay.data import Feed, Samples, save_feed
from inlay.deadline import Deadline
from inlay.errors import CompileFailed, RunFailed, TargetError, TimedOut
from inlay.measure.client import Worker
from inlay.model.pool import pool_for, pooled
from inlay.model.reference import Session
from inlay.quant.accuracy import EXACT_DB, Bound, Judge
from inlay.ray import helper
from inlay.targets.base import TargetSpec
from inlay.testing import small_model, sqnr
from inlay.trial import Failed
from inlay.types import Placement
from tests.support.fixtures import MakeWorkspace
from tests.support.pool import PoolHere
from tests.support.workspace import Workspace


def judge_of(space: Workspace) -> Judge:
    reference = Session(space.prepared.emitter.base, space.prepared.store)
    samples = Samples(tuple(map(dict, space.feeds)), "feeds", "test")
    return Judge([reference.run(feed) for feed in space.feeds], samples, Bound(), confidence=None)


def here_on(space: Workspace) -> Run:
    return in_process(space.prepared, [dict(feed) for feed in space.feeds])


def test_the_score_is_the_sqnr_of_the_worst_output(workspace: MakeWorkspace) -> None:
    space = workspace(small_model(), samples=3)
    judge = judge_of(space)
    run = here_on(space)
    (found,) = score_by(judge, run)([(space.table, space.full())])
    outputs = next(run([(space.table, space.full())])).result()
    pairs = [
        (np.stack([want[name] for want in judge.reference]), np.stack([got[name] for got in outputs]))
        for name in judge.reference[0]
    ]
    assert found == pytest.approx(min(sqnr(want, got) for want, got in pairs))
    assert [*score_by(judge, run)([(space.table, Placement())])] == [EXACT_DB]
    both = [(space.table, space.full()), (space.table, Placement())]
    assert [*score_by(judge, run)(both)] == [found, EXACT_DB]


def test_exact_outputs_are_computed_once_and_in_time(workspace: MakeWorkspace, monkeypatch: pytest.MonkeyPatch) -> None:
    space = workspace(small_model(), samples=4)
    exact, ran, run, now = ExactOutputs(space.prepared), list[int](), Session.run, 0.0

    def counted(session: Session, feed: Feed) -> dict[str, np.ndarray]:
        ran.append(id(feed))
        return run(session, feed)

    monkeypatch.setattr(Session, "run", counted)
    feeds = FeedsUntil([dict(feed) for feed in space.feeds], Deadline(1.0, lambda: now))
    some, found = exact.of([feeds[3], feeds[1]]), exact.of(feeds)
    assert len(ran) == len(feeds)
    assert (found[3], found[1]) == (some[0], some[1])
    judge = judge_of(space)
    for want, got in zip(judge.reference, found, strict=True):
        np.testing.assert_allclose([*got.values()], [*want.values()], rtol=1e-4, atol=1e-5)
    now = 1.0
    with pytest.raises(TimedOut):
        exact.of(feeds)


def test_a_worker_gives_the_score_of_this_process(workspace: MakeWorkspace, tmp_path: Path) -> None:
    space = workspace(small_model(), samples=2)
    judge, paths = judge_of(space), [tmp_path / f"{i}.npz" for i in range(2)]
    for path, feed in zip(paths, space.feeds, strict=True):
        save_feed(path, dict(feed))
    (here,) = score_by(judge, here_on(space))([(space.table, space.full())])
    with Worker(TargetSpec("null"), tmp_path) as worker:
        target = OnTarget(space.prepared, worker, paths)
        (there,) = score_by(judge, target.outputs)([(space.table, space.full())])
        assert there == pytest.approx(here, abs=0.5)
        outputs, ns = target.timed_outputs(space.table, space.full(), 1_000_000)
    assert judge.judge(outputs).sqnr_db == pytest.approx(here, abs=0.5)
    assert ns > 0.0


@pytest.mark.parametrize(
    ("error", "stage"),
    [
        (CompileFailed("a"), "compile"),
        (RunFailed("b"), "run"),
        (TimedOut("c"), "timeout"),
        (TargetError("d"), "worker"),
    ],
)
def test_failures_are_values(workspace: MakeWorkspace, error: TargetError, stage: str) -> None:
    def broken(questions: Iterable[Question]) -> Outcomes:
        for _ in questions:
            outcome: Future[list[dict[str, np.ndarray]]] = Future()
            outcome.set_exception(error)
            yield outcome

    space = workspace(small_model())
    failed = Failed(stage, str(error))  # type: ignore[arg-type]
    assert [*score_by(judge_of(space), broken)([(space.table, space.full())] * 2)] == [failed] * 2


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.matrix
def test_a_stand_in_scores_in_place_of_a_device_that_it_is_like(
    workspace: MakeWorkspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alike: bool
) -> None:
    space = workspace(small_model(), samples=2)
    paths = [tmp_path / f"{i}.npz" for i in range(2)]
    for path, feed in zip(paths, space.feeds, strict=True):
        save_feed(path, dict(feed))
    questions = [(space.table, p) for p in (space.full(), Placement(), space.full())]
    with Worker(TargetSpec("null"), tmp_path) as worker:
        score = score_by(judge_of(space), OnTarget(space.prepared, worker, paths).outputs)
        alone, builds = [*score(questions)], worker.builds
        if not alike:
            monkeypatch.setattr(worker, "fingerprint", replace(worker.fingerprint, facts={"cpu": "another"}))
        busy_s, pool = worker.busy_s, PoolHere(2)
        with pooled(pool.open_pool):
            pool_for(1e9)
            assert [*score(questions)] == alone
        assert worker.builds == 2 * builds, "whoever built them"
        assert (worker.busy_s > busy_s) is not alike
    assert pool.asked == {"stand_in": 3}
    assert not helper._workers, "nor is the runtime left that answered in its place"

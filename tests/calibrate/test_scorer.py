"""Scores of qparams tables: the same in process and on a target, and failures are values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from inlay.calibrate.scorer import OnTarget, Run, TableScorer, in_process
from inlay.data import Samples, save_feed
from inlay.errors import CompileFailed, RunFailed, TargetError, TimedOut
from inlay.measure.client import Worker
from inlay.model.reference import Session
from inlay.quant.accuracy import EXACT_DB, Bound, Judge, Outputs
from inlay.quant.qparams import QParamsTable
from inlay.targets.base import TargetSpec
from inlay.testing import small_model, sqnr
from inlay.trial import Failed
from inlay.types import Placement
from tests.support.fixtures import MakeWorkspace
from tests.support.workspace import Workspace


def judge_of(space: Workspace) -> Judge:
    reference = Session(space.prepared.emitter.base, space.prepared.store)
    samples = Samples(tuple(map(dict, space.feeds)), "feeds", "test")
    return Judge([reference.run(feed) for feed in space.feeds], samples, Bound(), margin=False)


def here_on(space: Workspace) -> Run:
    return in_process(space.prepared, [dict(feed) for feed in space.feeds])


def test_the_score_is_the_sqnr_of_the_worst_output(workspace: MakeWorkspace) -> None:
    space = workspace(small_model(), samples=3)
    judge = judge_of(space)
    run = here_on(space)
    found = TableScorer(judge, run).sqnr_db(space.table, space.full())
    outputs = run(space.table, space.full())
    pairs = [
        (np.stack([want[name] for want in judge.reference]), np.stack([got[name] for got in outputs]))
        for name in judge.reference[0]
    ]
    assert found == pytest.approx(min(sqnr(want, got) for want, got in pairs))
    assert TableScorer(judge, run).sqnr_db(space.table, Placement()) == EXACT_DB


def test_a_worker_gives_the_score_of_this_process(workspace: MakeWorkspace, tmp_path: Path) -> None:
    space = workspace(small_model(), samples=2)
    judge, paths = judge_of(space), [tmp_path / f"{i}.npz" for i in range(2)]
    for path, feed in zip(paths, space.feeds, strict=True):
        save_feed(path, dict(feed))
    here = TableScorer(judge, here_on(space)).sqnr_db(space.table, space.full())
    with Worker(TargetSpec("null"), tmp_path) as worker:
        target = OnTarget(space.prepared, worker, paths)
        assert TableScorer(judge, target.outputs).sqnr_db(space.table, space.full()) == pytest.approx(here, abs=0.5)
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
    def broken(table: QParamsTable, placement: Placement) -> Sequence[Outputs]:
        raise error

    space = workspace(small_model())
    scorer = TableScorer(judge_of(space), broken)
    assert scorer.sqnr_db(space.table, space.full()) == Failed(stage, str(error))  # type: ignore[arg-type]
    with pytest.raises(type(error)):
        scorer.accuracy(space.table, space.full())

"""Which recipes are evaluated before the search, where evaluations take time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from inlay.run import steering
from inlay.run.evaluation.judging import Verdict
from inlay.targets.base import Artifact
from inlay.trial import Accuracy


class Evaluation:
    """There is time for so many evaluations; what has no more SQNR than ``least_db`` fails."""

    def __init__(self, most: int, least_db: float) -> None:
        self.most, self.least_db = most, least_db
        self.asked: list[float] = []
        self.remarks: list[str] = []

    def affords(self, _: Any) -> int:
        return self.most - len(self.asked)

    def verdict(self, _model: Any, _name: str, sqnr_db: float, _until: Any) -> Verdict:
        self.asked.append(sqnr_db)
        return Verdict(evaluator="mine", failure="" if sqnr_db > self.least_db else "it fails")

    def needs_db(self, _share: float) -> float | None:
        return None


@pytest.mark.parametrize(
    ("most", "asked", "steered_db"),
    [(9, [2.0], 20.0), (3, [2.0], 20.0), (2, [15.0], 15.0), (1, [15.0], 15.0), (0, [], 20.0)],
)
def test_noise_is_not_what_few_evaluations_are_spent_on(
    most: int, asked: list[float], steered_db: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recipes of 2, 15 and 17 dB: where there is time for all, the first one is evaluated, and its failure ends it."""
    each_db = dict(zip(("full-int8", "conv-matmul", "dynamic"), (2.0, 15.0, 17.0), strict=True))
    evaluation = Evaluation(most, least_db=10.0)
    session = SimpleNamespace(
        evaluation=evaluation, plan=SimpleNamespace(least_search=lambda: None), stage=lambda _: None, work=tmp_path
    )
    model = SimpleNamespace(candidates=SimpleNamespace(deliver=lambda _, path: Artifact(path, "")))
    monkeypatch.setattr(steering, "_judged", lambda _s, _g, file: Accuracy(True, each_db[file.path.parent.name]))
    recipes = {name: SimpleNamespace(digest=name) for name in each_db}
    found = steering._by_recipes(cast(Any, session), cast(Any, None), cast(Any, model), cast(Any, recipes))
    assert evaluation.asked == asked
    assert found == pytest.approx(steered_db, abs=0.2)

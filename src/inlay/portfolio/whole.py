"""The user's own evaluation of a whole pipeline: which choice of its models keeps the bound."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from inlay.deadline import Deadline
from inlay.model.load import load
from inlay.portfolio.parts import Tuned
from inlay.portfolio.pipeline_result import FILES
from inlay.portfolio.points import Choice, fastest_kept
from inlay.portfolio.runs import Portfolio
from inlay.quant.bound import EvaluationBound
from inlay.run.evaluation.evaluator import ModelEvaluator
from inlay.run.evaluation.judging import EvaluationJudge, Verdict
from inlay.run.result import Doubt
from inlay.targets.base import Artifact


@dataclass(frozen=True, eq=False)
class WholeJudge:
    """Has pipelines evaluated, each a folder of all models under their names."""

    judge: EvaluationJudge  # asks the evaluation, and keeps what was found
    work: Path  # folder for the pipelines

    def choose(self, parts: Sequence[Tuned], until: Deadline) -> Choice:
        """The fastest choice of points that the evaluation does not reject."""

        def keeps(choice: Choice) -> bool:
            found = self.verdict(parts, choice, until)
            return found.asked and not found.breaks

        return fastest_kept([each.points for each in parts], [each.part.runs for each in parts], keeps)

    def verdict(self, parts: Sequence[Tuned], choice: Choice, until: Deadline) -> Verdict:
        """What the evaluation says of a choice."""
        chosen = [each.points[at] for each, at in zip(parts, choice, strict=True)]
        if all(at == len(each.points) - 1 for each, at in zip(parts, choice, strict=True)):
            return self.judge.own
        folder = self.work / f"choice-{'-'.join(map(str, choice))}" / FILES
        try:
            for each, at in zip(parts, choice, strict=True):
                each.write(at, folder / f"{each.part.name}.onnx")
            digest = digest_of(folder)
            return self.judge.verdict(Artifact(folder, digest), digest, min(p.sqnr_db for p in chosen), until)
        finally:
            shutil.rmtree(folder.parent, ignore_errors=True)


def digest_of(folder: Path) -> str:
    """Over the models in a folder, by name."""
    said = [f"{path.name} {load(path).sha256}" for path in sorted(folder.glob("*.onnx"))]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()


def whole_judge(
    evaluator: ModelEvaluator,
    bound: EvaluationBound,
    parts: Sequence[Tuned],
    held: Portfolio,
    budget_s: float,
    seed: int,
) -> WholeJudge:
    """The judge, once the given pipeline is evaluated.

    Args:
        budget_s: of the command; infinite without a limit.

    Raises:
        DataError: the evaluation fails.
        UsageError: its scores cannot be bounded as asked for, or the budget is too short for it.
    """
    given = held.work / "given" / FILES
    for each in parts:
        each.write_given(given / f"{each.part.name}.onnx")
    judge = EvaluationJudge(
        evaluator=evaluator,
        bound=bound,
        given=given,
        place=held.work,
        journal=held.journal,
        budget_s=budget_s,
        clock=held.deadline.clock,
        seed=seed,
    )
    judge.begin(held.deadline)
    return WholeJudge(judge, held.work)


def doubt_of(verdict: Verdict) -> Doubt:
    """Why the bound is not shown for what is delivered; empty where it is."""
    return Doubt("" if verdict.shows else verdict.why, verdict.breaks)

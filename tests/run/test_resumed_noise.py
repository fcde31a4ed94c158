"""A run on a noisy target that is killed and resumed measures what an undisturbed one does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

import inlay
from inlay.run.progress import SearchStep
from inlay.testing import random_feed, small_model
from tests.attack.kills import trials

pytestmark = pytest.mark.usefixtures("null_in_process")


class Killed(Exception):
    """Stands for the end of the process."""


@dataclass
class KilledAt:
    """Ends a run at the so-many-th thing that it reports; never where that is negative."""

    at: int

    def stage(self, text: str) -> None:
        self.at -= 1
        if self.at == 0:
            raise Killed

    def doing(self, text: str) -> None:
        """Nothing."""

    def trial(self, step: SearchStep) -> None:
        self.stage("")

    def close(self) -> None:
        """Nothing."""


@pytest.mark.exhaustive
def test_the_figures_do_not_depend_on_where_a_run_was_killed(tmp_path: Path) -> None:
    model = small_model()
    onnx.save(model, tmp_path / "m.onnx")
    samples = [dict(random_feed(model, seed)) for seed in range(9)]

    def tune(folder: str, at: int) -> tuple[object, ...]:
        done = inlay.tune(
            tmp_path / "m.onnx",
            data=samples,
            out=tmp_path / folder,
            target="null",
            target_options=["noise=0.02"],
            max_measurements=6,
            cost_db=False,
            progress=KilledAt(at),
        )
        figures = done.best.speedup, done.best.latency_ms, done.best.output_sha256, done.baseline_ms
        return *figures, trials(tmp_path / folder)

    whole = tune("whole", -1)
    with pytest.raises(Killed):
        tune("killed", 6)  # as the second candidate is judged
    assert tune("killed", -1) == whole

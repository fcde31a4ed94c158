"""What is rejected on unseen samples, and how much more accuracy the next attempt asks for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from inlay.run.confirm import Confirmed, Rejected
from inlay.run.evaluate import Candidate
from inlay.run.plan import Effort
from inlay.run.result import Best
from inlay.targets.base import Artifact
from inlay.trial import Accuracy, Failed, Interval, Latency, Measured, Proposal, Trial
from inlay.types import Placement, Port, QType

FILE = Artifact(Path("model.onnx"), "digest")
QUANTIZED = Placement([(Port("conv", 0), QType.UINT8)])


def rejected(unseen: Accuracy | Failed, searched_db: float = 25.0, placement: Placement = QUANTIZED) -> Rejected:
    outcome = Measured(Latency(1e6, Interval(1.2, 1.1, 1.3), 9), Accuracy(True, searched_db))
    return Rejected(Candidate("key", Trial(Proposal(placement, "cut 1"), outcome), lambda: FILE, placement), unseen)


def outside(sqnr_db: float) -> Accuracy:
    return Accuracy(False, sqnr_db, reason=f"SQNR of output y is {sqnr_db} dB, below 20 dB")


def confirmed(*found: Rejected) -> Confirmed:
    return Confirmed(cast(Best, SimpleNamespace()), 1.0, FILE.path, Placement(), found, Effort(5, 1, 3, 8))


def test_the_next_attempt_asks_for_what_was_missing() -> None:
    assert rejected(outside(17.0)).least_db(20.0) == pytest.approx(28.0)
    assert rejected(outside(19.99)).least_db(20.0) == pytest.approx(25.1), "another model, however narrow it was"
    assert rejected(outside(17.0)).least_db(None) == pytest.approx(28.0), "under a metric: half the noise"
    both = confirmed(rejected(outside(17.0)), rejected(outside(10.0), 24.0))
    assert both.least_db(20.0) == pytest.approx(34.0)
    assert confirmed().least_db(20.0) is None


def test_a_failure_on_unseen_samples_is_no_amount_of_noise() -> None:
    failed = rejected(Failed("accuracy", "out of memory"))
    assert failed.reason == "it failed on unseen samples: out of memory"
    assert failed.least_db(20.0) is None
    assert confirmed(rejected(outside(17.0)), failed).least_db(20.0) is None, "more accuracy would not mend it"


def test_float_is_told_from_quantized_models() -> None:
    assert rejected(outside(17.0), placement=Placement()).is_float
    assert not rejected(outside(17.0)).is_float

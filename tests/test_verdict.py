"""What people are told about a result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from inlay.confirm import Confirmed, Rejected
from inlay.evaluate import Candidate
from inlay.imported import Imported
from inlay.targets.base import Artifact
from inlay.trial import Accuracy, Failed, Interval, Latency, Measured, Proposal, Trial
from inlay.types import Placement, Port, QType
from inlay.verdict import notes_for

LATENCY = Latency(1e6, Interval(1.0, 1.0, 1.0), 9)
QUANTIZED = Placement({Port("conv", 0): QType.UINT8})


def notes(*rejected: tuple[Placement, Accuracy], anchors: dict[str, Trial] | None = None) -> tuple[str, ...]:
    found = []
    for placement, accuracy in rejected:
        trial = Trial(Proposal(placement, "cut 1"), Failed("measure", ""))
        candidate = Candidate("key", trial, lambda: Artifact(Path("m.onnx"), "m"), placement)
        found.append(Rejected(candidate, accuracy))
    confirmed = cast(Confirmed, SimpleNamespace(best=SimpleNamespace(is_float=False), rejected=tuple(found)))
    return notes_for(
        confirmed,
        reports=(),
        units=(),
        anchors=anchors or {},
        imported=cast(Imported, SimpleNamespace(missing=())),
        data_kind="npz",
        verified=True,
        interrupted=False,
        why_slow=lambda: "",
    )


def test_samples_without_signal_are_named_where_float_itself_fails() -> None:
    """Noise of the order of rounding says nothing about a quantized model, and is no fault of it."""
    outside = Accuracy(False, 6.6, reason="SQNR of output y is 6.6 dB, below 20 dB")
    (note,) = notes((Placement(), outside))
    assert note.startswith("the samples tell nothing about accuracy")
    assert "6.6 dB" in note
    (note,) = notes((QUANTIZED, outside), (QUANTIZED, outside))
    assert note == "cut 1 was faster, but on unseen samples SQNR of output y is 6.6 dB, below 20 dB"
    assert notes() == ()
    files = {"qdq-baseline: other.onnx": Placement(), "float": QUANTIZED, "full-int8": QUANTIZED}
    trials = {
        n: Trial(Proposal(p, n), Measured(LATENCY, replace(outside, feasible=n == "float"))) for n, p in files.items()
    }
    assert notes(anchors=trials) == ()  # a given file has no placement: it is not float for that
    failed = {"float": Trial(Proposal(Placement(), "float"), Measured(LATENCY, outside))}
    assert notes(anchors=failed)[0].startswith("the samples tell nothing about accuracy")

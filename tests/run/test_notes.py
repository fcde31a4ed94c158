"""What people are told about a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from inlay.prepare.qdq_import import ImportedQDQ
from inlay.quant.accuracy import Bound
from inlay.run.confirm.delivered import Confirmed
from inlay.run.confirm.verification import Rejected
from inlay.run.evaluate import Candidate
from inlay.run.outcome.assemble import Found, Losses
from inlay.run.outcome.notes import About, notes_for
from inlay.run.robustness import Robustness
from inlay.space.rules import OpRule
from inlay.space.units import Unit
from inlay.targets.base import Artifact
from inlay.targets.onnxruntime.rewrites import NonzeroZeroPoint
from inlay.trial import Accuracy, Failed, Interval, Latency, Measured, Proposal, Trial
from inlay.types import Placement, Port, PortRewrite, QType

RULE = OpRule("Conv")
LATENCY = Latency(1e6, Interval(1.0, 1.0, 1.0), 9)
QUANTIZED = Placement([(Port("conv", 0), QType.UINT8), (Port("conv", 1), QType.INT8)])


def notes(
    *rejected: tuple[Placement, Accuracy],
    anchors: dict[str, Trial] | None = None,
    operators: tuple[str, ...] = (),
    is_float: bool = False,
    placement: Placement = QUANTIZED,
    cuts: Sequence[str] = (),
    varied: Mapping[str, float] | None = None,
    silent: tuple[str, ...] = (),
    unseen: Accuracy | None = None,
    given_quantized: bool = False,
    undecided: str = "",
    sure: bool = True,
    not_timed: Sequence[str] = (),
    shown: bool | None = None,
    unsearched: str = "",
    least_db: float | None = None,
    left_out: Sequence[str] = (),
    interrupted: bool = False,
) -> tuple[str, ...]:
    found = []
    for refused, accuracy in rejected:
        trial = Trial(Proposal(refused, "cut 1"), Failed("measure", ""))
        candidate = Candidate("key", trial, lambda: Artifact(Path("m.onnx"), "m"), refused)
        found.append(Rejected(candidate, accuracy))
    searched = Accuracy(True, 30.0, silent=silent)
    said = None if least_db is None else SimpleNamespace(least_db=least_db)
    best = SimpleNamespace(
        is_float=is_float,
        confirmed=sure,
        selection=searched,
        verification=unseen,
        bound_shown=shown,
        statement=said,
    )
    known = {"best": best, "rejected": tuple(found), "placement": placement, "troubles": (), "undecided": undecided}
    confirmed = cast(Confirmed, SimpleNamespace(**known))
    about = About(
        units=[Unit(f"n{i}", (f"n{i}",), op, RULE, "") for i, op in enumerate(operators)],
        rewrites=[NonzeroZeroPoint()],
        imported=cast(ImportedQDQ, SimpleNamespace(missing=(), given_quantized=given_quantized)),
        bound=Bound(20.0),
        data_kind="npz",
        verified=True,
        left_out=left_out,
    )
    told = Found(
        confirmed=confirmed,
        anchors=anchors or {},
        losses=Losses(None if varied is None else Robustness(20.4, varied)),
        not_timed=tuple(not_timed),
        unsearched=unsearched,
    )
    return notes_for(about, told, interrupted=interrupted, why_slow=lambda: "Mul takes longer", cuts=cuts)


def test_outputs_without_signal_are_named() -> None:
    """Once, whichever samples they say nothing on; and nothing where all of them tell something."""
    unseen = Accuracy(True, 28.0, silent=("boxes", "masks"))
    (note,) = notes(silent=("boxes",), unseen=unseen)
    assert note.startswith("not counted in the accuracy, because they are constant on these samples: boxes, masks;")
    assert notes(unseen=Accuracy(True, 28.0)) == ()


def test_data_that_was_not_used_is_told_also_where_a_run_is_interrupted() -> None:
    assert "4 of 14 rows" in notes(left_out=["4 of 14 rows"])
    assert "4 of 14 rows" in notes(left_out=["4 of 14 rows"], interrupted=True)


def test_what_variations_lose_is_told() -> None:
    """Where the bound breaks there alone, that is said first."""
    (note,) = notes(varied={"0.8x brightness": 17.8, "noise of 2 %": 20.1})
    assert note == "20 dB holds on your samples, but not on variations of them: 17.8 dB with 0.8x brightness"
    (same,) = notes(varied={"0.8x brightness": 17.8}, shown=True, least_db=20.3)
    assert same == note
    for doubted in (
        notes(varied={"0.8x brightness": 17.8}, shown=False),
        notes(varied={"0.8x brightness": 17.8}, least_db=19.0),
    ):
        assert doubted == ("on variations of your samples, it falls below 20 dB: 17.8 dB with 0.8x brightness",)
    (note,) = notes(varied={"0.8x brightness": 20.2, "noise of 2 %": 20.3})
    assert note == ("varied samples: 20.4 dB over all samples, 20.2 dB with 0.8x brightness, the worst of 2 variations")
    (note,) = notes(varied={"0.8x brightness": 21.0})
    assert "no less" in note
    assert notes() == ()


def test_samples_without_signal_are_named_where_float_itself_fails() -> None:
    """Noise of the order of rounding says nothing about a quantized model, and is no fault of it."""
    outside = Accuracy(False, 6.6, reason="SQNR of output y is 6.6 dB, below 20 dB")
    (note,) = notes((Placement(), outside))
    assert note.startswith("the samples say nothing about accuracy")
    assert "6.6 dB" in note
    (note,) = notes((QUANTIZED, outside), (QUANTIZED, outside))
    assert note == "cut 1 was faster, but on unseen samples SQNR of output y is 6.6 dB, below 20 dB"
    assert notes() == ()
    assert notes(cuts=["a", "b"]) == ("the budget cut short: a; b",)
    files = {"qdq-baseline: other.onnx": Placement(), "float": QUANTIZED, "full-int8": QUANTIZED}
    trials = {
        n: Trial(Proposal(p, n), Measured(LATENCY, replace(outside, feasible=n == "float"))) for n, p in files.items()
    }
    assert notes(anchors=trials) == ()  # a given file has no placement: it is not float for that
    failed = {"float": Trial(Proposal(Placement(), "float"), Measured(LATENCY, outside))}
    assert notes(anchors=failed)[0].startswith("the samples say nothing about accuracy")
    (note,) = notes(anchors=failed, given_quantized=True)
    assert note.startswith("the given model is quantized"), "its own rounding is to blame, not the samples"
    assert "6.6 dB" in note
    assert "--repair" in note


def test_what_a_dynamic_quantizer_made_is_named() -> None:
    operators = ("ConvInteger", "ConvInteger", "MatMulInteger", "DynamicQuantizeLSTM", "DynamicQuantizeLinear", "Conv")
    (note,) = notes(operators=operators)
    assert "2 ConvInteger, 1 MatMulInteger, 1 DynamicQuantizeLSTM" in note
    assert "start from the float model" in note
    assert notes(operators=("Conv", "QuantizeLinear", "DequantizeLinear")) == ()


def test_full_int8_is_explained_only_where_it_is_slow() -> None:
    """Outside the bound and fast: which kernels take longer explains nothing."""

    def told(speedup: float) -> str:
        latency = Latency(1e6 / speedup, Interval(speedup, speedup, speedup), 9)
        outside = Accuracy(False, 12.0, reason="SQNR of output y is 12.0 dB, below 20 dB")
        full = Trial(Proposal(QUANTIZED, "full-int8"), Measured(latency, outside))
        return notes(anchors={"full-int8": full}, operators=("Conv",), is_float=True)[-1]

    assert told(0.8) == "full INT8 runs at 0.80x of the given model: Mul takes longer"
    assert told(2.4) == "full INT8 runs at 2.40x of the given model"


def test_float_is_not_called_the_best_where_nothing_else_was_tried() -> None:
    in_float = {"float": Trial(Proposal(Placement(), "float"), Measured(LATENCY, Accuracy(True, 30.0)))}
    (note,) = notes(anchors=in_float, operators=("Conv",), is_float=True)
    assert "full INT8 and similar placements were not" in note


def test_selected_rewrites_are_explained() -> None:
    (note,) = notes(placement=QUANTIZED.with_rewrites([PortRewrite(Port("conv", 1), "off zero")]))
    assert "1 operator is" in note
    assert NonzeroZeroPoint.reason in note
    assert notes() == ()


def test_nothing_is_called_best_beside_what_was_not_timed_or_not_decided() -> None:
    full = Trial(Proposal(QUANTIZED, "full-int8"), Measured(LATENCY, Accuracy(True, 30.0)))
    kept = {"anchors": {"full-int8": full}, "operators": ("Conv",), "is_float": True}
    assert "float is best: no Q/DQ placement that keeps the bound was measurably faster" in notes(**kept)  # type: ignore[arg-type]
    cut = notes(**kept, not_timed=("conv-matmul", "dynamic"))  # type: ignore[arg-type]
    assert not any("float is best" in note for note in cut)
    assert any(note.endswith("not timed: conv-matmul, dynamic") for note in cut)
    unsure = notes(**kept, sure=False)  # type: ignore[arg-type]
    assert not any("best" in note or "measurably" in note for note in unsure)
    opened = "1 of 24 deciding blocks leave open whether full-int8 is faster: give --budget 90s or more"
    first, *others = notes(**kept, undecided=opened, sure=False)  # type: ignore[arg-type]
    assert first == f"NOT DECIDED: {opened}"
    assert not any("best" in note or "measurably" in note for note in others)


def test_float_is_not_called_the_best_of_placements_that_were_not_searched() -> None:
    trial = Trial(Proposal(QUANTIZED, "full-int8"), Measured(LATENCY, Accuracy(True, 30.0)))
    failed = Trial(Proposal(QUANTIZED, "dynamic"), Failed("run", "no"))
    tried = {"full-int8": trial, "conv-matmul": trial, "dynamic": failed}
    why = "no placement was searched: give a larger --budget"
    found = notes(anchors=tried, operators=("Conv",), is_float=True, unsearched=why)
    assert f"none of the 2 placements timed keeps the bound and was measurably faster than float; {why}" in found
    assert not any("float is best" in note for note in found)


def test_no_ratio_is_told_without_an_interval() -> None:
    unsure = Latency(1e6, Interval(6.33, 0.0, float("inf")), 2)
    full = Trial(Proposal(QUANTIZED, "full-int8"), Measured(unsure, Accuracy(True, 30.0)))
    assert not any("6.33" in note for note in notes(anchors={"full-int8": full}, operators=("Conv",), is_float=True))

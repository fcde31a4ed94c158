"""What a run found, as values and as ``result.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from inlay.errors import INTERRUPTED, UNPROVEN
from inlay.files import replacing
from inlay.installed import __version__
from inlay.measure.serving import Served
from inlay.quant.metric_limits import MetricStatement
from inlay.quant.tolerance import Statement
from inlay.run import notebook
from inlay.run.ceiling.bound import NO_CEILINGS, Ceilings
from inlay.run.evaluation.judging import Verdict
from inlay.run.facts import PrecisionChoice, not_measured
from inlay.run.robustness import Robustness
from inlay.targets.base import is_estimate, unit_of
from inlay.trial import Accuracy, Failed, Interval, Measured, Outcome, shown_latency, shown_ratio, shown_sqnr, together


@dataclass(frozen=True)
class AnchorResult:
    """One anchor: its figures from the search, or why it has none."""

    name: str
    outcome: Outcome
    size_bytes: int | None = None
    robustness: Robustness | None = None
    memory_bytes: int | None = None

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``."""
        left = {
            "size_bytes": self.size_bytes,
            "stress": None if self.robustness is None else self.robustness.as_json(),
            "memory_bytes": self.memory_bytes,
        }
        if isinstance(self.outcome, Failed):
            none = dict.fromkeys(("latency_ms", "speedup", "sqnr_db"))
            why = f"{self.outcome.stage}: {self.outcome.message}"
            return {"name": self.name, **none, "worst_output": "", "feasible": False, "why": why, **left}
        accuracy = self.outcome.accuracy
        latency = self.outcome.latency if isinstance(self.outcome, Measured) else None
        told = latency is not None and latency.speedup.is_told
        return {
            "name": self.name,
            "latency_ms": latency.ns / 1e6 if latency is not None and told else None,
            "speedup": latency.speedup.value if latency is not None and told else None,
            "speedup_low": None if latency is None else _finite(latency.speedup.low),
            "speedup_high": None if latency is None else _finite(latency.speedup.high),
            "sqnr_db": accuracy.sqnr_db,
            "worst_output": accuracy.worst,
            "metric": accuracy.metric,
            **accuracy.task_json,
            "feasible": accuracy.feasible,
            "why": accuracy.reason,
            **left,
        }


def speedup_json(found: Interval | None) -> dict[str, float | None]:
    """A speed-up as in ``result.json``, where numbers that are none are null."""
    low, high = (None, None) if found is None else (_finite(found.low), _finite(found.high))
    return {"speedup": None if found is None else found.value, "speedup_low": low, "speedup_high": high}


@dataclass(frozen=True)
class ShapeFigures:
    """One of several shapes that latency was measured on."""

    shapes: Mapping[str, list[int]]  # of each input
    weight: float  # its share of the mean latency
    baseline_ms: float  # median of the given model
    latency_ms: float  # of the delivered one: that over `speedup`
    speedup: float  # median of their ratios in the same blocks


@dataclass(frozen=True, kw_only=True)
class Use:
    """Both models in one use."""

    # `latency`, `throughput`, `cpu-time`, or `cold` for a run behind other work that has used the caches
    name: str
    streams: int  # inferences at once
    speedup: Interval  # of the delivered model over the given one, paired by block, in one process
    given_ms: float  # what an inference of the given model takes, milliseconds; with several at once, its share of them
    # how each answers requests as fast as it can: the given model, then the delivered one; None for one inference
    # after another
    served: tuple[Served, Served] | None = None

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``."""
        served = self.served
        return {
            "use": self.name,
            "streams": self.streams,
            **speedup_json(self.speedup),
            "given_ms": self.given_ms,
            **({} if served is None else {"served": {"given": asdict(served[0]), "delivered": asdict(served[1])}}),
        }


@dataclass(frozen=True)
class Doubt:
    """Why the accuracy bound is not shown for what is delivered; as text, the first line of a verdict."""

    note: str = ""  # the reason; empty where there is no doubt
    broken: bool = False  # the judged samples themselves break the bound; otherwise it is not shown for new ones

    def __str__(self) -> str:
        word = "BELOW THE BOUND" if self.broken else "BOUND NOT SHOWN"
        return f"{word}: {self.note}" if self.note else ""


NO_DOUBT = Doubt()  # the bound is shown, or there is none


@dataclass(frozen=True)
class Best:
    """The delivered model."""

    origin: str  # which anchor or strategy proposed it
    placement_digest: str  # its placement; of the empty one for float
    latency_ms: float  # the given model's median in the confirmation over `speedup`
    speedup: Interval  # over the model as it was given
    over_float: Interval  # over the normalized float model, in the same blocks
    selection: Accuracy  # accuracy on the samples that the search looked at
    verification: Accuracy | None  # accuracy on samples that nothing has seen, or None when there were too few
    qdq_pairs: int  # QuantizeLinear nodes in the file
    is_float: bool  # nothing of it is quantized: no placement was applied, and the file holds no Q/DQ nodes
    output_sha256: str  # of the delivered file, which is the measured file
    size_bytes: int  # of that file with its weights
    confirmed: bool = True  # the figures are those of fresh processes; where none ran, they are those of the search
    shapes: tuple[ShapeFigures, ...] = ()  # the figures by shape, where latency was measured on several
    uses: tuple[Use, ...] = ()  # how it compares where it is used otherwise than it was measured
    robustness: Robustness | None = None  # what variations of the samples lose; None for float, or where none were made
    # that a session of it takes at most; None where it was not measured, or the target cannot tell
    memory_bytes: int | None = None
    # what the samples say about new ones; None for random ones, and for the given model that is computed as it stands
    statement: Statement | None = None
    metric_statement: MetricStatement | None = None  # the same of the user's metric; None without one
    evaluation: Verdict | None = None  # what the user's own evaluation of whole models says of it; None without one
    # whether they reach the bound; None where there is nothing to show: without a bound, of float and the given model
    bound_shown: bool | None = None
    bound_note: str = ""  # why they do not, and what would show it; empty where they do
    bound_broken: bool = False  # the judged samples themselves break it

    @property
    def unproven(self) -> str:
        """That the bound is broken, or not shown for new samples, and why, for the first line; empty where it is."""
        return str(self.doubt)

    @property
    def doubt(self) -> Doubt:
        """The same as a value."""
        return Doubt(self.bound_note, self.bound_broken) if self.bound_shown is False else NO_DOUBT

    @property
    def verified(self) -> bool:
        """Whether samples that had no part in it were judged, and more than one: one tells nothing of others."""
        judged = 0 if self.statement is None else self.statement.samples
        return self.verification is not None and max(judged, self.verification.samples) != 1

    def as_json(self) -> dict[str, Any]:
        """As in ``result.json``; accuracy from the verification samples where there are some."""
        accuracy = self.verification or self.selection
        return {
            "origin": self.origin,
            "placement_digest": self.placement_digest,
            "latency_ms": self.latency_ms,
            **speedup_json(self.speedup),
            "speedup_over_normalized_float": self.over_float.value if self.over_float.is_told else None,
            "confirmed": self.confirmed,
            "sqnr_db": accuracy.sqnr_db,
            "worst_output": accuracy.worst,
            "metric": accuracy.metric,
            "metric_drop": accuracy.drop,
            **accuracy.task_json,
            "verified": self.verified,
            "bound_shown": self.bound_shown,
            "bound_broken": self.bound_broken,
            "bound_note": self.bound_note,
            "statement": None if self.statement is None else self.statement.as_json(),
            "metric_statement": None if self.metric_statement is None else self.metric_statement.as_json(),
            "evaluation": None if self.evaluation is None else self.evaluation.as_json(),
            "outputs": [asdict(o) for o in accuracy.outputs],
            "silent_outputs": list(accuracy.silent),
            "qdq_pairs": self.qdq_pairs,
            "is_float": self.is_float,
            "stress": None if self.robustness is None else self.robustness.as_json(),
            "output_sha256": self.output_sha256,
            "size_bytes": self.size_bytes,
            "memory_bytes": self.memory_bytes,
            **({"shapes": [asdict(s) for s in self.shapes]} if self.shapes else {}),
            "uses": [use.as_json() for use in self.uses],
        }


@dataclass(frozen=True)
class TuneResult:
    """The outcome of :func:`inlay.tune`."""

    folder: Path  # where `model.onnx`, `result.json` and `run.sqlite` are
    model: tuple[str, str]  # path and SHA-256 of the given model
    target: tuple[str, str]  # name and fingerprint digest of the target
    facts: Mapping[str, str]  # the fingerprint's facts
    data: Mapping[str, Any]  # kind of samples, how many, and how they were split
    baseline_ms: float  # median latency of the given model, milliseconds
    baseline_bytes: int  # size of the given model with its weights
    best: Best  # the delivered model
    anchors: tuple[AnchorResult, ...]  # every anchor
    pareto: tuple[Mapping[str, Any], ...]  # measured models that no other beats in both latency and accuracy
    search: Mapping[str, Any]  # how much work was done, and why it ended
    bound: str  # the accuracy bound, as text
    seed: int  # of the run
    notes: tuple[str, ...] = ()  # what people should know: passes rolled back, why float is best, too few samples
    interrupted: bool = False  # the run was stopped by the user
    command: str = ""  # the line that asks for this run
    # bytes that a session of the given model takes at most; None where they are not known
    baseline_memory: int | None = None
    # a program that runs the delivered model with the options that it was measured with; may be empty
    run_with: str = ""
    # what a target that computes float32 operators in fewer bits was tuned for in; None where there was nothing to
    # choose
    precision: PrecisionChoice | None = None
    # which models may be faster than the one that is delivered, and what it would take to know; empty where the
    # readings say
    undecided: str = ""
    not_timed: tuple[str, ...] = ()  # anchors that there was no time for
    accept_unproven: bool = False  # a bound that is not shown for new samples was accepted beforehand
    # how far the delivered model, and the one in float, are from what the processor can do
    ceilings: Ceilings = NO_CEILINGS

    @property
    def exit_code(self) -> int:
        """Of the command: 130 where it was interrupted, 3 where the bound is not shown and nobody accepted that."""
        return exit_code(self.interrupted, self.best.unproven, self.accept_unproven)

    @property
    def model_path(self) -> Path:
        """The delivered model."""
        return self.folder / "model.onnx"

    @property
    def not_measured(self) -> str:
        """That speed was not measured, where the target says so in its facts ``measures`` and ``unit`` or ``kind``."""
        return not_measured(self.facts)

    def summary(self) -> str:
        """The verdict in one line."""
        best, unit = self.best, unit_of(self.facts)
        accuracy = best.verification or best.selection
        where = together(accuracy.samples, "unseen" if best.verification else "")
        if accuracy.samples == 0:
            where = "on the given model itself"
        elif not best.verification:
            where += " that the search saw"
        fidelity = shown_sqnr(accuracy.sqnr_db)
        metric = "" if accuracy.metric is None else f"metric {accuracy.metric:.4f}, "
        metric += f"{accuracy.figures[0].said}, " if accuracy.figures else ""
        metric += "" if best.evaluation is None or best.evaluation.failure else f"{best.evaluation}, "
        sure = "" if best.confirmed else "NOT CONFIRMED: "
        unproven = f"{best.unproven}. " if best.unproven else ""
        sure += "estimated " if is_estimate(self.facts) else ""
        return (
            f"{unproven}{sure}{shown_ratio(best.speedup)} over the given model "
            f"({self.baseline_ms:.3f} {unit} -> {shown_latency(best.latency_ms, best.speedup, unit)}) "
            f"by {best.origin}; {metric}{fidelity} {where}; {self.model_path}"
        )

    def _repr_html_(self) -> str:
        """The verdict, the front, the anchors and the notes, for notebooks."""
        rows = []
        for anchor in self.anchors:
            found = anchor.as_json()
            timed = anchor.outcome.latency.speedup if isinstance(anchor.outcome, Measured) else None
            ms, db = found["latency_ms"], found["sqnr_db"]
            row = anchor.name, "" if ms is None else f"{ms:.3f}", "" if timed is None else shown_ratio(timed)
            rows.append((*row, "" if db is None else shown_sqnr(db)))
        return notebook.shown(self.summary(), rows, self.pareto, self.notes)

    def as_json(self) -> dict[str, Any]:
        """The content of ``result.json``: stable keys."""
        return {
            "version": __version__,
            "model": {"path": self.model[0], "sha256": self.model[1]},
            "target": {"name": self.target[0], "fingerprint": self.target[1], "facts": dict(self.facts)},
            "data": dict(self.data),
            "precision": None if self.precision is None else self.precision.as_json(),
            "bound": self.bound,
            "baseline": {
                "latency_ms": self.baseline_ms,
                "size_bytes": self.baseline_bytes,
                "memory_bytes": self.baseline_memory,
            },
            "best": self.best.as_json(),
            "anchors": [a.as_json() for a in self.anchors],
            "pareto": [dict(p) for p in self.pareto],
            "ceiling": self.ceilings.as_json(),
            "search": dict(self.search),
            "undecided": self.undecided or None,
            "not_timed": list(self.not_timed),
            "seed": self.seed,
            "command": self.command,
            "run_with": self.run_with,
            "notes": list(self.notes),
        }


def why_kept(bound: str, undecided: str, not_timed: bool, confirmed: bool) -> str:
    """Why the given model is delivered, for people: no more than was measured."""
    if undecided:
        return "whether anything is faster is not known"
    kept = "" if bound == "none" else " and keeps the bound"
    if not_timed or not confirmed:
        return f"nothing that was timed{kept} was measurably faster"
    return f"nothing{' that keeps the bound' if kept else ''} is measurably faster"


def exit_code(interrupted: bool, unproven: str, accepted: bool) -> int:
    """Of a command that delivered a model.

    Args:
        unproven: that the bound is not shown for new samples; empty where it is.
        accepted: beforehand.
    """
    if interrupted:
        return INTERRUPTED
    return UNPROVEN if unproven and not accepted else 0


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write JSON atomically."""
    with replacing(path) as fresh:
        fresh.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n", encoding="utf8")


def pareto(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Points (``speedup``, ``sqnr_db``) that no other beats in both, fastest first.

    Speedups and not latencies are compared: they come from blocks in which the given model ran beside the candidate,
    so that a machine that slows down between two measurements makes no difference.
    """
    front: list[dict[str, Any]] = []
    for point in sorted(points, key=lambda p: (-p["speedup"], -p["sqnr_db"])):
        if not front or point["sqnr_db"] > front[-1]["sqnr_db"]:
            front.append(point)
    return front


def _finite(value: float) -> float | None:
    return value if abs(value) != float("inf") else None

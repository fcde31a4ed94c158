"""Notes on a result: why it is what it is, what full INT8 loses, what kept a faster model from being delivered."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.errors import InlayError
from inlay.measure.client import Worker
from inlay.measure.costs import PROFILED
from inlay.model.normalize import PassReport
from inlay.prepare.qdq_import import ImportedQDQ
from inlay.quant.accuracy import Bound
from inlay.quant.rewrite import Rewrite
from inlay.run.confirm.delivered import Confirmed
from inlay.run.outcome.assemble import Found, Losses
from inlay.run.result import Best
from inlay.search.bars import Barred
from inlay.search.baselines import FLOAT, FULL_INT8
from inlay.space.units import Unit, rejection_counts
from inlay.targets.base import Artifact, KernelTime, Lack
from inlay.trial import Failed, Measured, Trial, counted, shown_ratio

_PREFIXES = re.compile(r"^(QLinear|Fused|Nhwc|Q(?=Gemm))")
_INTEGER = re.compile(r"^(QLinear|QGemm|QAttention|DynamicQuantize(?!Linear$))|Integer$|IntegerToFloat$")
_LACKING: Mapping[Lack, str] = {
    "accuracy": "the target returns no outputs: accuracy is that of the same file on the numeric reference",
    "profile": "the target reports no kernel times: the search went by the times of whole models, and by a cost table "
    "if there is one",
    "memory": "the target does not report how much memory a session takes",
}
RANDOM = "NO SAMPLES WERE GIVEN: inputs were random. Latency is real, accuracy is not: give --data"
_QDQ = frozenset({"QuantizeLinear", "DequantizeLinear"})
_LAYOUT = frozenset({"ReorderInput", "ReorderOutput", "Transpose"})


@dataclass(frozen=True, kw_only=True)
class About:
    """What a run was about, as far as notes tell of it."""

    units: Sequence[Unit]  # of the prepared model
    reports: Sequence[PassReport] = ()  # what normalization did
    rewrites: Sequence[Rewrite[Any]] = ()  # of quantized operators, that the target has
    lacks: Set[Lack] = frozenset()  # what the target cannot tell
    imported: ImportedQDQ  # quantized models that were given
    bound: Bound  # what was to be kept
    data_kind: str  # of the samples
    verified: bool  # some of these were held back
    left_out: Sequence[str] = ()  # what of the user's data is in none of them
    inputs: Sequence[str] = ()  # what is to be said of the model's inputs
    kept_wide: str = ""  # what stays in float32 beside half precision


def notes_for(
    about: About,
    found: Found,
    *,
    interrupted: bool,
    why_slow: Callable[[], str],
    own_precision: str = "",
    cuts: Sequence[str] = (),
    remarks: Sequence[str] = (),
    closing: Sequence[str] = (),
) -> tuple[str, ...]:
    """Everything that people should know about a result, most important first.

    Args:
        why_slow: says why full INT8 is slower than float.
        own_precision: what the target computes floats in, where that is fewer bits.
        remarks: on how it was measured and judged.
    """
    confirmed, units = found.confirmed, about.units
    cut = [f"the budget cut short: {'; '.join(cuts)}"] if cuts else []
    own = [RANDOM] if about.data_kind == "random" else []
    own += [own_precision] if own_precision else []
    own += [f"NOT DECIDED: {confirmed.undecided}"] if confirmed.undecided else []
    if interrupted:
        return (
            *own,
            *confirmed.troubles,
            *_data_notes(about),
            *cut,
            "the search was interrupted: this is the best model so far; run the same command again to continue",
        )
    return (
        *own,
        *confirmed.troubles,
        *_data_notes(about),
        *(note for lack, note in _LACKING.items() if lack in about.lacks),
        *cut,
        *filter(None, remarks),
        *_stress_notes(found.losses, about.bound, confirmed.best),
        *(() if own_precision else _signal_notes(confirmed, found.anchors, about.imported)),
        *_silent_notes(confirmed),
        *_integer_notes(units),
        *filter(None, [about.kept_wide]),
        *about.inputs,
        *_float_notes(found, units, why_slow),
        *_rewrite_notes(confirmed, about.rewrites),
        *dict.fromkeys(
            f"{r.candidate.origin} was faster, but {'' if r.by_evaluation else 'on unseen samples '}{r.reason}"
            for r in confirmed.rejected
            if not r.is_float
        ),
        *(f"normalization left out '{r.name}': {r.rolled_back}" for r in about.reports if r.rolled_back),
        *_import_notes(about.imported),
        *closing,
    )


def _data_notes(about: About) -> Iterator[str]:
    yield from about.left_out
    if about.data_kind != "random" and not about.verified:
        yield "there were too few samples to hold some back: the accuracy is that of samples that the search has seen"


def _stress_notes(losses: Losses, bound: Bound, best: Best) -> Iterator[str]:
    loss = losses.delivered
    if loss is None:
        return
    least, broken = bound.min_sqnr_db, []
    if least is not None:
        broken = [f"{db:.1f} dB with {name}" for name, db in loss.varied_db.items() if db < least <= loss.samples_db]
    least_db = None if best.statement is None else best.statement.least_db
    single = least is not None and least_db is not None and least_db < least
    if broken and (single or best.bound_shown is False):
        yield f"on variations of your samples, it falls below {least:g} dB: {', '.join(broken)}"
    elif broken:
        yield f"{least:g} dB holds on your samples, but not on variations of them: {', '.join(broken)}"
    else:
        yield f"varied samples: {loss}"


def _signal_notes(confirmed: Confirmed, anchors: Mapping[str, Trial], imported: ImportedQDQ) -> Iterator[str]:
    """Why even float is outside the bound.

    In another order of rounding it is as exact as float can be: where it fails, outputs hold nothing else, or the given
    model is quantized and far from the float model in it.
    """
    reasons = [r.reason for r in confirmed.rejected if r.is_float]
    anchor = anchors.get(FLOAT)
    if anchor is not None and anchor.accuracy is not None and not anchor.accuracy.feasible:
        reasons.append(anchor.accuracy.reason)
    if reasons and imported.given_quantized:
        yield (
            "the given model is quantized, so that the bound compares with outputs that are rounded already: even for "
            f"the float model in it, {reasons[0]}. Give the float model that it was made from, or labels and a "
            "--metric; inlay explain --repair looks for a faster one that is as close to the float model in it"
        )
    elif reasons:
        yield (
            f"the samples say nothing about accuracy: even for the normalized float model, {reasons[0]}; "
            "outputs close to zero hold nothing but rounding. Give samples that the model responds to, or a --metric"
        )


def _silent_notes(confirmed: Confirmed) -> Iterator[str]:
    """Outputs that the figures leave out, on what the search saw or on what nothing saw."""
    best = confirmed.best
    parts = [p for p in (best.selection, best.verification) if p is not None]
    silent = dict.fromkeys(name for part in parts for name in part.silent)
    if silent:
        yield (
            f"not counted in the accuracy, because they are constant on these samples: {', '.join(silent)}; "
            "give samples in which the model finds something"
        )


def _integer_notes(units: Sequence[Unit]) -> Iterator[str]:
    """Models that a dynamic quantizer made compute in integers already, by operators that take no Q/DQ."""
    found = Counter(u.op_type for u in units if _INTEGER.search(u.op_type))
    if found:
        listed = ", ".join(f"{n} {op_type}" for op_type, n in found.most_common(3))
        yield f"parts of the model are quantized already ({listed}) and stay as they are: start from the float model"


def _float_notes(found: Found, units: Sequence[Unit], why_slow: Callable[[], str]) -> Iterator[str]:
    confirmed, anchors = found.confirmed, found.anchors
    if not confirmed.best.is_float:
        return
    if not any(u.quantizable for u in units):
        reasons = "; ".join(f"{n} x {reason}" for reason, n in rejection_counts(units).most_common(3))
        yield f"float is best: no operator of the model runs in 8 bits here ({reasons})"
        return
    if not any(trial.proposal.placement for trial in anchors.values()):
        yield (
            "float is the best of what was tried, but full INT8 and similar placements were not: give a larger --budget"
        )
        return
    if not confirmed.undecided:
        yield _why_float(found)
    full = anchors.get(FULL_INT8)
    if full is None:
        return
    if isinstance(full.outcome, Failed):
        yield f"full INT8 failed in {full.outcome.stage}: {full.outcome.message}"
        return
    accuracy = full.accuracy
    if accuracy is not None and not accuracy.feasible:
        yield f"full INT8 is outside the accuracy bound: {accuracy.reason}"
    if isinstance(full.outcome, Measured) and full.outcome.latency.speedup.is_told:
        gained = full.outcome.latency.speedup
        reason = why_slow() if gained.value < 1.0 else ""
        yield f"full INT8 runs at {shown_ratio(gained)} of the given model{': ' + reason if reason else ''}"


def _why_float(found: Found) -> str:
    """Why nothing is quantized, and of what that is not known: nothing is best beside what was not measured."""
    if found.not_timed:
        return (
            "no Q/DQ placement that was timed and keeps the bound was measurably faster than float; "
            f"not timed: {', '.join(found.not_timed)}"
        )
    if not found.confirmed.best.confirmed:
        return "no Q/DQ placement that keeps the bound was faster than float in the readings that were taken"
    if found.unsearched:
        low = [t for t in found.anchors.values() if t.proposal.placement and isinstance(t.outcome, Measured)]
        count = "the only placement" if len(low) == 1 else f"none of the {len(low)} placements"
        wrong = "does not keep the bound or was not" if len(low) == 1 else "keeps the bound and was"
        return f"{count} timed {wrong} measurably faster than float; {found.unsearched}"
    return "float is best: no Q/DQ placement that keeps the bound was measurably faster"


def _rewrite_notes(confirmed: Confirmed, rewrites: Sequence[Rewrite[Any]]) -> Iterator[str]:
    """What a selected rewrite does looks like a mistake to whoever opens the model."""
    counts = Counter(r.name for r in confirmed.placement.rewrites) if confirmed.placement is not None else {}
    for rewrite in rewrites:
        if rewrite.name in counts:
            written = "operator is written" if counts[rewrite.name] == 1 else "operators are written"
            yield f"{counts[rewrite.name]} {written} as '{rewrite.name}': {rewrite.reason}"


def bar_notes(found: Sequence[Barred]) -> Iterator[str]:
    """What the runtime refuses, and what it computes wrong."""
    for refused, what in ((True, "does not build models with"), (False, "computes wrong results with")):
        units = [each for each in found if each.refused is refused]
        if units:
            listed = ", ".join(f"{each.unit} ({each.op_type})" for each in units)
            yield f"the runtime {what} these operators in low precision, so they were left as they were: {listed}"


def _import_notes(imported: ImportedQDQ) -> Iterator[str]:
    lost = [m for m in imported.missing if not m.within]
    if not lost:
        return
    reasons = Counter(m.reason for m in lost)
    listed = "; ".join(f"{n} x {reason}" for reason, n in reasons.most_common(4))
    count = f"{counted(len(lost), 'quantized site')} of the imported model"
    were = "was" if len(lost) == 1 else "were"
    yield f"{count} {were} not taken over (search.imported in result.json lists each): {listed}"


def compare_profiles(
    worker: Worker, float_model: Callable[[], Artifact], other: Callable[[], Artifact], feed: Path
) -> str:
    """Which kinds of kernel take longer in ``other`` than in float, in microseconds; empty where that is unknown."""
    if "profile" in worker.lacks:
        return ""
    try:
        before, after = (by_kind(worker.profile(write(), feed, PROFILED)) for write in (float_model, other))
    except (InlayError, OSError):
        return ""
    grown = sorted(((after[k] - before[k], k) for k in after), reverse=True)
    parts = [
        f"{kind} takes {after[kind] / 1e3:.0f} us against {before[kind] / 1e3:.0f} us in float"
        for gain, kind in grown[:3]
        if gain > 0.02 * sum(before.values())
    ]
    return ", ".join(parts)


def by_kind(kernels: Sequence[KernelTime]) -> Mapping[str, float]:
    """Nanoseconds by kind of kernel: integer and float forms of an operator count as one."""
    times: defaultdict[str, float] = defaultdict(float)
    for kernel in kernels:
        if kernel.op_type in _QDQ:
            kind = "Quantize/Dequantize"
        elif kernel.op_type in _LAYOUT:
            kind = "layout conversion (Transpose, Reorder)"
        else:
            kind = _PREFIXES.sub("", kernel.op_type)
        times[kind] += kernel.ns
    return times


def heat_notes(said: Sequence[str]) -> list[str]:
    """That blocks do not count, by what the machine said of itself during each of them; none where none was hot."""
    what = f"heat held the processor back during {len(said)} of the blocks ({''.join(said[-1:])})"
    return [f"{what}: they do not count where others remain; cool it, or let it do less"] if said else []

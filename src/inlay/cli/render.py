"""Results as text and tables, from plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from inlay.cli.ceilings import peaks_line, verdict_lines
from inlay.cli.terminal import Table
from inlay.quant.tasks.task import broken
from inlay.run.compare import BenchRow
from inlay.run.instant.by_costs import ByCosts
from inlay.run.instant.calibrate_machine import Calibrated
from inlay.run.instant.quantize import Quantized
from inlay.run.result import AnchorResult, Best, TuneResult, why_kept
from inlay.run.select import Selected
from inlay.search.baselines import ORIGINAL
from inlay.search.cost_table import Fit
from inlay.search.prospect import said_left
from inlay.space.resolve import Decision
from inlay.targets.base import is_estimate, unit_of
from inlay.targets.listing import TargetRow
from inlay.targets.registry import heading_of, options_in
from inlay.trial import (
    UNTOLD,
    Accuracy,
    Failed,
    Infeasible,
    Interval,
    Measured,
    OutputError,
    counted,
    shown_latency,
    shown_ratio,
    shown_sqnr,
    together,
)


def verdict(result: TuneResult) -> Iterator[str | Table]:
    """The result of a run in a few lines."""
    best = result.best
    verdict_word = "Verdict (estimated)" if is_estimate(result.facts) else "Verdict"
    if not best.confirmed:
        verdict_word = "Verdict (NOT DECIDED)" if result.undecided else "Verdict (NOT CONFIRMED)"
    unit = unit_of(result.facts)
    if best.unproven:
        yield f"{best.unproven}."
    if result.not_measured:
        yield result.not_measured
    known = heading_of(result.target[0], result.facts)
    yield f"{result.model[0]} on {result.target[0]}{f' ({known})' if known else ''}"
    yield ""
    rows = [_anchor_row(a, a.outcome, unit) for a in result.anchors if not isinstance(a.outcome, Failed)]
    yield Table("<>>>", [("anchor", "latency", "speed-up", "accuracy over all samples"), *rows], indent=2)
    for anchor in result.anchors:
        if isinstance(anchor.outcome, Failed):
            yield f"  {anchor.name} failed in {anchor.outcome.stage}: {anchor.outcome.message}"
    yield ""
    if best.origin == ORIGINAL:
        why = why_kept(result.bound, result.undecided, bool(result.not_timed), best.confirmed)
        yield f"{verdict_word}: keep the model as it is ({result.baseline_ms:.3f} {unit}); {why}."
    else:
        what = "float, normalized" if best.is_float else _what(best)
        yield (
            f"{verdict_word}: {shown_ratio(best.speedup)} over the given model "
            f"({result.baseline_ms:.3f} {unit} -> {shown_latency(best.latency_ms, best.speedup, unit)}): {what}."
        )
        if not best.is_float:
            yield f"  Over the normalized float model: {shown_ratio(best.over_float)}."
    for each in best.shapes:
        said = ", ".join(f"{name} {'x'.join(map(str, sizes))}" for name, sizes in each.shapes.items())
        yield (
            f"  {each.weight:.0%} at {said}: {each.speedup:.2f}x ({each.baseline_ms:.3f} {unit} -> "
            f"{each.latency_ms:.3f} {unit})"
        )
    yield from _size(result)
    yield from verdict_lines(result.ceilings)
    judged, verified = best.verification or best.selection, best.verification is not None
    yield f"  Accuracy: {_accuracy(judged, verified)}; bound: {result.bound}."
    yield from _in_task(judged, _where(judged, verified))
    for what, stated in (("New samples", best.statement), ("Metric", best.metric_statement)):
        if stated is not None:
            yield f"  {what}: {stated}."
    if best.evaluation is not None:
        yield f"  Evaluation: {best.evaluation} (--evaluate {best.evaluation.evaluator})."
        yield from (f"  New samples: {s.statement}." for s in best.evaluation.scores if s.statement is not None)
    search = result.search
    yield (
        f"  {counted(search['measurements'], 'candidate')} timed, {search['compiles']} built, "
        f"{search['failed']} failed, {search['wall_s']:.0f} s; stopped because {search['stopped_because']}."
    )
    yield from (f"  {said_left(left)}." for left in filter(None, [search.get("left")]))
    yield from (f"  Note: {note}." for note in result.notes)
    if result.run_with:
        chosen = {} if result.precision is None else result.precision.options
        told = {**options_in(result.target[0], result.facts), **chosen}
        options = f" ({', '.join(f'{name} {value}' for name, value in told.items())})" if told else ""
        yield f"  To run it with exactly the measured options{options}, see run_with in result.json."
    yield f"  Wrote {result.model_path} (sha256 {best.output_sha256[:16]}…) and {result.folder / 'result.json'}."


_NOTABLE = 1 / 3  # of the given model's size: what differs by less is not why anybody quantizes


def _size(result: TuneResult) -> Iterator[str]:
    """How large the file is and what a session takes, where one of them differs notably from the given model's."""
    best, found, notable = result.best, [], False
    for what, now, before in (
        ("File", best.size_bytes, result.baseline_bytes),
        ("Memory of a session", best.memory_bytes, result.baseline_memory),
    ):
        if now is not None and before:
            found.append(f"{what}: {_beside(now, before)}")
            notable = notable or abs(now - before) > _NOTABLE * before
    if notable:
        yield f"  {'; '.join(found)}."


def _beside(size: int, given: int | None) -> str:
    return f"{size / 1e6:.3g} MB" + ("" if given is None else f" (the given model {given / 1e6:.3g} MB)")


def _what(best: Best) -> str:
    pairs = (
        f", {counted(best.qdq_pairs, 'Q/DQ pair')}" if best.qdq_pairs else ""
    )  # what is quantized at run time has none
    return f"{best.origin}{pairs}"


def _anchor_row(anchor: AnchorResult, outcome: Measured | Infeasible, unit: str) -> Sequence[str]:
    accuracy = outcome.accuracy
    metric = "" if accuracy.metric is None else f"{accuracy.metric:.4f}, "
    worst = f" {accuracy.worst}" if accuracy.worst else ""
    metric += f"{accuracy.figures[0].said}, " if accuracy.figures else ""
    shown = f"{metric}{shown_sqnr(accuracy.sqnr_db)}{worst}{'' if accuracy.feasible else ' (outside)'}"
    if not isinstance(outcome, Measured):
        return anchor.name, "not timed", "", shown
    latency = outcome.latency
    if not latency.speedup.is_told:
        return anchor.name, "-", UNTOLD, shown
    ms = shown_latency(latency.ns / 1e6, latency.speedup, unit)
    return anchor.name, ms, shown_ratio(latency.speedup), shown


def _in_task(accuracy: Accuracy, where: str) -> Iterator[str]:
    """What is kept in the terms of the model's task, and which outputs have another shape, where there is any."""
    if accuracy.in_task:
        yield f"  Task: {accuracy.in_task}, {where}."
    if broken(accuracy.figures):
        yield f"  WARNING: {broken(accuracy.figures)}."
    if accuracy.reshaped:
        yield f"  Lengths: {accuracy.reshaped}; only what both have is compared."


def _where(accuracy: Accuracy, verified: bool) -> str:
    return f"{together(accuracy.samples, 'unseen' * verified)}{' that the search saw' * (not verified)}"


def _accuracy(accuracy: Accuracy, verified: bool) -> str:
    where = _where(accuracy, verified)
    if accuracy.samples == 0:
        where = "on the given model itself"
    sqnr = (
        shown_sqnr(accuracy.sqnr_db)
        if shown_sqnr(accuracy.sqnr_db) == "exact"
        else f"SQNR {shown_sqnr(accuracy.sqnr_db)}"
    )
    if accuracy.worst:
        sqnr = f"{sqnr} in {accuracy.worst}, the worst of {len(accuracy.outputs)} outputs and parts of them,"
    if accuracy.metric is None:
        return f"{sqnr} {where}"
    drop = "" if accuracy.drop is None else f" ({-accuracy.drop:+.4f} against float)"
    return f"metric {accuracy.metric:.4f}{drop}, {sqnr} {where}"


def benched(rows: Sequence[BenchRow]) -> Iterator[str | Table]:
    """The comparison that ``inlay bench`` made, and which of the files changed meanwhile."""
    yield bench_table(rows)
    yield from (f"  WARNING: {row.changed}." for row in rows if row.changed)


def bench_table(rows: Sequence[BenchRow]) -> Table:
    """A row for each model."""
    head = ("model", "latency", "speed-up over the first, 95 % interval", "blocks")
    if any(r.estimated for r in rows):
        head = ("model", "latency, estimated", "speed-up over the first", "blocks")
    cells = [
        (str(r.path), shown_latency(r.latency_ms, r.speedup, r.unit), shown_ratio(r.speedup), str(r.blocks))
        for r in rows
    ]
    return Table("<>>>", [head, *cells])


def quantized(done: Quantized) -> Iterator[str]:
    """What ``inlay quantize`` did."""
    low, all_units = done.units
    what = f"{low} of {counted(all_units, 'operator')} in 8 bits" if done.ports else _without_pairs(done)
    yield f"Wrote {done.path}: {what}."
    if done.ports:
        yield f"  {counted(done.ports, 'quantized input')}; ranges by {done.ranges}; sha256 {done.sha256[:16]}…"
    yield from _by_costs(done)
    if done.accuracy is not None:
        judged = done.accuracy.samples
        some = f"over {judged} of the {done.samples} given samples together"
        which = together(judged, "given") if judged == done.samples else some
        against = " against the given model, with its own quantization" if done.given_quantized else ""
        ranges = "; ranges came from them, so expect less on others" if done.ports else ""
        found = shown_sqnr(done.accuracy.sqnr_db)
        worst = f", {done.accuracy.worst}," if done.accuracy.worst else ""
        yield f"  SQNR of the worst output{worst} {which}{against}: {found}{ranges}."
        yield from _lost(done.accuracy.lost)
        yield from _in_task(done.accuracy, which) if done.ports else ()
        if done.ports and done.accuracy.sqnr_db < done.asked_db:
            yield (
                f"  WARNING: this is below {done.asked_db:g} dB. inlay tune finds the fastest placement that keeps "
                f"it (--min-sqnr {done.asked_db:g}), and leaves what spoils the outputs in float."
            )
        elif done.own_precision and done.accuracy.sqnr_db < done.asked_db:
            yield (
                f"  WARNING: this is below {done.asked_db:g} dB even with nothing in 8 bits: the target computes "
                f"float32 operators {done.own_precision}."
            )
        if done.silent:
            yield f"  Not counted, because they are constant on these samples: {', '.join(done.silent)}."
        if done.robustness is not None:
            yield f"  Varied samples: {done.robustness}."
    else:
        yield "  NO SAMPLES WERE GIVEN: ranges come from random inputs, and are useless. Give --data."
    if done.random:
        yield f"  {done.random[0].upper()}{done.random[1:]}."
    for note in done.inputs:
        yield f"  {note[0].upper()}{note[1:]}."
    for reason, count in sorted(done.refusals.items(), key=lambda item: -item[1])[:6]:
        yield f"  {count} x float: {reason}"
    for reason, count in Counter(left.reason for left in done.leftovers).most_common(6):
        first = next(left.node for left in done.leftovers if left.reason == reason)
        others = f" and {count - 1} more" if count > 1 else ""
        yield f"  not taken apart: {first}{others}: {reason}"


def quantized_json(done: Quantized) -> dict[str, Any]:
    """The same with stable keys, for programs."""
    low, all_units = done.units
    return {
        "path": str(done.path),
        "sha256": done.sha256,
        "operators": {"low": low, "all": all_units},
        "quantized_inputs": done.ports,
        "ranges": done.ranges,
        "samples": done.samples,
        "sqnr_db": None if done.accuracy is None else done.accuracy.sqnr_db,
        "worst_output": "" if done.accuracy is None else done.accuracy.worst,
        "judged_samples": 0 if done.accuracy is None else done.accuracy.samples,
        "outputs": [] if done.accuracy is None else [asdict(o) for o in done.accuracy.outputs],
        **({} if done.accuracy is None else done.accuracy.task_json),
        "min_sqnr_db": done.asked_db,
        "silent_outputs": list(done.silent),
        "stress": None if done.robustness is None else done.robustness.as_json(),
        "by_costs": None if done.by_costs is None else asdict(done.by_costs),
        "warning": done.warning,
        "own_precision": done.own_precision,
        "frozen": done.frozen,
        "random": done.random,
        "inputs": list(done.inputs),
        "float": dict(done.refusals),
        "leftovers": [asdict(left) for left in done.leftovers],
        "decisions": [asdict(d) for d in done.decisions],
    }


def _without_pairs(done: Quantized) -> str:
    """What a file is that has nothing in low precision of ours."""
    return "the given model" if done.by_costs is not None and done.by_costs.unchanged else "the float model"


def _lost(outputs: Iterable[OutputError]) -> Iterator[str]:
    """That a written file loses these outputs."""
    for output in outputs:
        yield (
            f"  WARNING: output {output.name} is lost: it {output.lost}, whereas it varies in the float model. "
            "Do not deploy this file."
        )


def _by_costs(done: Quantized) -> Iterator[str]:
    """How the placement was chosen, where no recipe said it."""
    if done.warning:
        yield f"  Warning: {done.warning}."
    how = done.by_costs
    if how is None:
        return
    if how.speedup is None:
        yield f"  Nothing was measured or chosen; this is the target's usual recipe: {how.source}."
        return
    tries = counted(how.tries, "try", "tries")
    what = _without_pairs(done).upper()
    if how.failed:
        yield f"  THIS IS {what}: nothing in low precision ran in {tries}: {how.failed}."
    elif not how.kept:
        spread = (
            f" and a margin of {how.margin_db:.1f} dB for the spread between samples" if how.margin_db >= 0.05 else ""
        )
        yield (
            f"  THIS IS {what}: no placement kept {how.bound_db:.1f} dB{spread} in {tries}; inlay tune "
            "searches for one, and --min-sqnr lowers the bound."
        )
    elif not done.quantizable:
        own = "what it has in low precision stays as it is, and the target runs none of its other operators in 8 bits"
        yield f"  THIS IS {what}: {own if done.leftovers else 'the target runs none of its operators in 8 bits'}."
    elif not done.ports and how.rejected is None:
        timed = "nothing was timed. inlay tune measures" if how.in_float is None else "nothing else was built"
        fastest = "As it is, it" if how.unchanged and done.given_quantized else "Float"
        yield f"  {fastest} is expected to be the fastest; {timed}."
    yield from _timed(how)
    if how.timed is None and how.in_float is None and done.ports:
        yield f"  Predicted, not measured: {how.speedup:.2f}x over float; inlay bench or inlay tune measures it."
    source = f"Cost table: {how.source}" if how.priced else f"{how.source[0].upper()}{how.source[1:]}"
    yield f"  {how.models} {'model was' if how.models == 1 else 'models were'} built. {source}."


def _timed(how: ByCosts) -> Iterator[str]:
    """What was timed for a moment, and why float was chosen where something else was timed too."""
    timed = "Estimated" if how.estimated else "Timed briefly"
    if how.timed is not None:
        gain = (
            f": {shown_ratio(how.timed)} over the given model" if how.timed.is_told else f", with {UNTOLD} to say more"
        )
        yield f"  {timed}{gain}; inlay tune searches further, and confirms the result."
    elif how.in_float is not None:
        versions = {"over the given model in float": how.in_float, "in low precision at best": how.rejected}
        told = [f"{shown_ratio(r)} {what}" for what, r in versions.items() if r is not None and r.is_told]
        gains = f": {', '.join(told)}" if told else f", with {UNTOLD} to say more"
        yield f"  {timed}{gains}; inlay tune searches further."
        if how.why_float:
            yield f"  {'The given model' if how.unchanged else 'Float'} was chosen: {how.why_float}."


_FIT = ("kernel", "state", "us/call", "GMAC/s", "ns/elem", "error", "n")


def _fit_row(kind: str, state: str, fit: Fit) -> Sequence[str]:
    call, product, element, _ = fit.ns
    rate = f"{1.0 / product:.1f}" if product > 0.0 else "-"
    return kind, state, f"{call / 1e3:.2f}", rate, f"{element:.3f}", f"{fit.error:.0%}", str(fit.readings)


def calibrated(done: Calibrated, quiet: bool = False) -> Iterator[str | Table]:
    """What ``inlay calibrate-machine`` found: throughput and time per call of the kinds with products."""
    if not quiet:
        fits = [(*key, fit) for key, fit in sorted(done.table.fits.items()) if "value " not in key[0]]
        yield Table("<<>>>>>", [_FIT, *(_fit_row(*each) for each in fits)])
    measured, offered = done.models
    facts = ", ".join(f"{k} {v}" for k, v in done.fingerprint.facts.items())
    yield (
        f"Wrote {done.path}: {counted(len(done.table.fits), 'fit')} to {counted(done.readings, 'reading')} of "
        f"{counted(measured, 'model')} ({facts})."
    )
    yield from () if done.peaks is None else [f"  {peaks_line(done.peaks)}"]
    if measured < offered:
        yield f"  {offered - measured} of {offered} models were not measured: give more time (--budget)."
    for reason, count in done.failed.items():
        yield f"  {count} x failed: {reason}"


def decisions(rows: Sequence[Decision]) -> Table:
    """One row for each node: name, operator, precision, deciding rule, reason."""
    cells = [(r.node, r.op_type, r.precision, r.rule, r.reason) for r in rows]
    return Table("<<<<<", [("node", "operator", "precision", "rule", "reason"), *cells])


def selected(done: Selected) -> Iterator[str]:
    """What ``inlay select`` wrote."""
    metric = (f", {done.task}," if done.task else "") if done.metric is None else f", metric {done.metric:.4f}"
    yield f"Wrote {done.path} (sha256 {done.sha256[:16]}…): {done.origin}."
    gained = Interval(done.speedup, done.speedup_low, done.speedup_high)
    over = f"{shown_ratio(gained)} over the given model" if gained.is_told else f"{UNTOLD} for a speed-up"
    over += "" if done.unit == "ms" else f" in {done.unit}"
    over += " (estimated)" if done.estimated else ""
    found = f"{over}, {shown_sqnr(done.sqnr_db)}{metric} over its samples together"
    size = _beside(done.size_bytes, done.given_bytes)
    memory = (
        "" if done.memory_bytes is None else f"; memory of a session {_beside(done.memory_bytes, done.given_memory)}"
    )
    yield f"  In the search: {found}; file {size}{memory}."
    yield from _lost(done.lost)
    if done.unproven:
        yield f"  {done.unproven[0].upper()}{done.unproven[1:]}."


def targets_table(rows: Sequence[TargetRow]) -> Table:
    """The installed targets."""
    head = ("target", "what its measurements depend on", "options, with defaults")
    cells = []
    for row in rows:
        facts = row.problem or ", ".join(f"{k} {v}" for k, v in row.facts.items())
        cells.append((row.name, f"{facts}. {row.remark}" if row.remark else facts, ", ".join(row.options)))
    return Table("<<<", [head, *cells])

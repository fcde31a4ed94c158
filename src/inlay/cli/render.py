"""Results as text and tables, from plain values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from inlay.cli.speed import beside, peaks_line, size_lines, use_lines, verdict_lines
from inlay.cli.terminal import Table
from inlay.quant.tasks.task import broken
from inlay.run.compare import BenchRow
from inlay.run.inspection import DryRun, Inspection, Quantizable
from inlay.run.instant.calibrate_machine import Calibrated
from inlay.run.result import AnchorResult, TuneResult, why_kept
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
    shown_seconds,
    shown_size,
    shown_sqnr,
    together,
)


def verdict(result: TuneResult) -> Iterator[str | Table]:
    """The result of a run in a few lines."""
    best, search = result.best, result.search
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
        pairs = f", {counted(best.qdq_pairs, 'Q/DQ pair')}" if best.qdq_pairs else ""  # at run time there are none
        what = "float, normalized" if best.is_float else f"{best.origin}{pairs}"
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
    yield from use_lines(best, search["objective"])
    yield from size_lines(result)
    yield from verdict_lines(result.ceilings)
    judged, verified = best.verification or best.selection, best.verification is not None
    yield f"  Accuracy: {_accuracy(judged, verified)}; bound: {result.bound}."
    yield from task_lines(judged, _where(judged, verified))
    for what, stated in (("New samples", best.statement), ("Metric", best.metric_statement)):
        if stated is not None:
            yield f"  {what}: {stated}."
    if best.evaluation is not None:
        yield f"  Evaluation: {best.evaluation} (--evaluate {best.evaluation.evaluator})."
        yield from (f"  New samples: {s.statement}." for s in best.evaluation.scores if s.statement is not None)
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
    return anchor.name, shown_latency(latency.ns / 1e6, latency.speedup, unit), shown_ratio(latency.speedup), shown


def task_lines(accuracy: Accuracy, where: str) -> Iterator[str]:
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
    drop = "" if accuracy.drop is None else f" ({0.0 - accuracy.drop:+.4f} against float)"
    return f"metric {accuracy.metric:.4f}{drop}, {sqnr} {where}"


def benched(rows: Sequence[BenchRow]) -> Iterator[str | Table]:
    """The comparison that ``inlay bench`` made, and which of the files changed meanwhile."""
    yield bench_table(rows)
    yield from (f"  {row.path} answers {row.served}." for row in rows if row.served is not None)
    yield from (f"  WARNING: {row.changed}." for row in rows if row.changed)
    yield from (f"  {row.path}: {row.elsewhere}." for row in rows if row.elsewhere)


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


def lost_lines(outputs: Iterable[OutputError]) -> Iterator[str]:
    """That a written file loses these outputs."""
    for output in outputs:
        yield (
            f"  WARNING: output {output.name} is lost: it {output.lost}, whereas it varies in the float model. "
            "Do not deploy this file."
        )


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
    size = beside(done.size_bytes, done.given_bytes)
    memory = (
        "" if done.memory_bytes is None else f"; memory of a session {beside(done.memory_bytes, done.given_memory)}"
    )
    yield f"  In the search: {found}; file {size}{memory}."
    yield from lost_lines(done.lost)
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


def inspection(found: Inspection) -> Iterator[str]:
    """A model in a few lines."""
    yield f"{found.path}: {shown_size(found.size_bytes)}, sha256 {found.sha256[:16]}…"
    opsets = ", ".join(f"{domain} {version}" for domain, version in found.opsets.items())
    yield f"  opset: {opsets}"
    for spec in found.inputs:
        yield f"  input  {spec}"
    for output in found.outputs:
        yield f"  output {output}"
    yield f"  operators: {', '.join(f'{n} {op}' for op, n in found.operators.items())}"
    if found.is_quantized:
        yield "  It is quantized already: inlay explain says what runs in which precision."
    yield from (f"  Note: {note}" for note in found.notes)
    yield ""
    if found.quantizable is None:
        yield f"What can be quantized is not known: {found.trouble}"
    else:
        yield from quantizable(found.quantizable)
    yield ""
    yield "Samples for --data, as a program to fill in:"
    yield ""
    yield from (f"  {line}" for line in found.template.splitlines())


def quantizable(found: Quantizable) -> Iterator[str]:
    """What can run in low precision, and why the rest cannot."""
    able, every = (sum(pair[i] for pair in found.operators.values()) for i in (0, 1))
    yield f"{able} of {counted(every, 'operator')} can run in INT8 (after normalization; what is fused counts once):"
    listed = ", ".join(f"{n} of {total} {op}" for op, (n, total) in found.operators.items() if n)
    yield f"  {listed or 'none'}"
    if found.forms:
        yield f"  in other forms: {', '.join(f'{count} {form}' for form, count in found.forms.items())}"
    for reason, count in found.reasons.items():
        yield f"  {count} x float: {reason}"


def dry_run(found: DryRun) -> Iterator[str | Table]:
    """What a run would do."""
    yield from quantizable(found.quantizable)
    yield ""
    yield (
        f"One inference takes {found.inference_ms:.3f} ms, building a candidate {shown_seconds(found.build_s, 2)}, "
        f"judging it {shown_seconds(found.trial_s, 2)}."
    )
    calibration, selection, verification = found.samples
    unseen = f"{verification} for the verdict" if verification else "none held back: too few"
    yield f"Samples: {calibration} for ranges, {selection} for the search, {unseen}."
    yield f"Accuracy bound: {found.bound}."
    yield "Tried first:"
    yield Table("<><", [(name, str(sites), "quantized inputs") for name, sites in found.anchors.items()], indent=2)
    if math.isinf(found.budget_s) or found.trials is None:
        yield "Then the search goes on until nothing promising is left: there is no time limit."
    else:
        yield f"The budget of {found.budget_s:.0f} s:"
        yield Table("<>", [(name, f"{seconds:.1f} s") for name, seconds in found.shares.items()], indent=2)
        yield f"That is time for about {counted(found.trials, 'trial')}. Nothing was written."

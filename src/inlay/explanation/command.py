"""``inlay explain``: the command, and what it found as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any

from inlay.cli.options import options_of
from inlay.cli.progress import progress_of
from inlay.cli.speed import ceiling_lines
from inlay.cli.terminal import JSON, Table, answer
from inlay.explanation import api, policy
from inlay.explanation.explanation import Change, Explanation, Loss, Operator, Repair
from inlay.prepare.declare import Option
from inlay.targets.base import is_estimate, unit_of
from inlay.trial import SHOWN_AS_EXACT_DB, counted, shown_ratio, shown_sqnr, together

_ROWS = 12  # operators and conversions that are listed without --all
_NAMES = 3  # operators that are named for a reason that many share
_PROOFS = {
    "alone": "proven",
    "together": "proven with others",
    "table": "known",
    "predicted": "not tried",
    "refuted": "not proven",
}
_CHANGES = {
    "to-int8": "{} x {} from float to INT8",
    "to-float": "{} x {} from INT8 to float",
    "conversion-removed": "{} x conversion or reorder removed",
    "conversion-added": "{} x conversion or reorder added",
    "kernel": "{} x {} in another kernel or layout",
}
_KINDS = {
    "idle-pair": "needless Q/DQ",
    "enters-int8": "into INT8",
    "leaves-int8": "out of INT8",
    "requantized": "requantized",
    "layout": "reorder",
    "constant": "of a constant",
    "input": "of an input",
    "output": "of an output",
}


@options_of(api.explain)
def explain(
    *,
    as_json: Annotated[bool, JSON] = False,
    every: Annotated[
        bool, Option("List every operator and every conversion.", flags=("--all",), type=bool, before="target")
    ] = False,
    **options: Any,
) -> None:
    """Say why operators of a float or Q/DQ model do not run in INT8, and what misplaced Q/DQ nodes cost.

    Example:
        inlay explain quantized.onnx --repair repaired.onnx
    """
    with closing(progress_of(as_json)) as progress:
        found = api.explain(**options, progress=progress)
    answer(as_json, found, lambda: lines(found, every))


def lines(found: Explanation, every: bool = False) -> Iterator[str | Table]:
    """The explanation; all of it where ``every``."""
    yield from _head(found)
    if found.ceiling is not None:
        yield from ceiling_lines(found.ceiling)
    yield from _bound(found)
    yield from _slower(found, every)
    yield from _reasons(found, every)
    yield from _waste(found, every)
    yield from _losses(found)
    if every:
        yield from _operators(found)
    if found.repair is not None:
        yield from _repair(found.repair, found, every)
    for note in found.notes:
        yield f"  Note: {note}."


def _head(found: Explanation) -> Iterator[str]:
    estimated = ", estimated" if is_estimate(found.facts) else ""
    yield f"{found.model} on {found.target}: {found.latency_ms:.3f} {unit_of(found.facts)}{estimated}"
    if found.failed:
        yield f"  IT DOES NOT RUN: {found.failed}"
        yield "  What follows describes the model without that fault."
    ran = [o for o in found.operators if o.precision in ("int8", "float")]
    low = [o for o in ran if o.precision == "int8"]
    heavy = [o for o in ran if o.heavy]
    heavy_low = sum(o.precision == "int8" for o in heavy)
    every_ran = counted(len(ran), "operator")
    yield f"  {len(low)} of {every_ran} ran in INT8; of the {counted(len(heavy), 'heavy one')} {heavy_low}."
    if found.over_float is not None and found.over_float.value > 0:
        yield f"  Against the float model in it: {shown_ratio(found.over_float)}."
    if found.quantized and found.lost_ms > 0:
        unit, what = unit_of(found.facts), "Lost" if found.facts.get("unit") else "Time lost"
        of = f"{found.lost_ms:.3f} {unit} of {found.kernels_ms:.3f} {unit}"
        yield f"  {what} to placement, leaving accuracy aside: {of}."
    if found.chosen:
        yield "  By its metadata, Inlay placed these Q/DQ nodes: what is in float was left there by a choice that"
        yield "  weighed accuracy and the speed of the whole model. What follows says what kernels would save, not"
        yield "  whether accuracy allows it: inlay tune decides that."


def _bound(found: Explanation) -> Iterator[str]:
    if found.bound is None:
        return
    bound, unit = found.bound, unit_of(found.facts)
    best, whole = f"{bound.best_ms:.3f} {unit}", f"{bound.float_ms:.3f} {unit}"
    yield f"  INT8 brings at most {bound.at_most:.2f}x, leaving accuracy aside: {best} of {whole} in kernels,"
    yield "  with each operator in its faster precision, and conversions free."
    yield f"  All that can be in INT8: {bound.int8_ms:.3f} {unit}. What stands in the way:"
    for barrier in bound.barriers:
        yield f"    {barrier}"


def _reasons(found: Explanation, every: bool) -> Iterator[str | Table]:
    """Heavy operators in float, those with one reason together, the most expensive first."""
    unit = unit_of(found.facts)
    if not found.quantized and not every:
        gaining = sorted((o for o in found.operators if (o.gain_ms or 0.0) > 0.0), key=lambda o: -(o.gain_ms or 0.0))
        if gaining:
            yield ""
            total = sum(o.gain_ms or 0.0 for o in gaining)
            yield f"Operators that gain by INT8, leaving accuracy aside: {len(gaining)}, {total:.3f} {unit} in all"
        rows = [(f"{o.gain_ms or 0.0:.3f} of", f"{o.cost_ms:.3f} {unit}", o.op_type, o.name) for o in gaining[:_ROWS]]
        yield Table(">><<", rows, indent=2)
        return
    shown = [o for o in found.operators if o.reasons and (o.heavy or every)]
    if not shown:
        return
    yield ""
    yield "Why not INT8:" if every else "Why heavy operators did not run in INT8:"
    groups: defaultdict[tuple[str, ...], list[Operator]] = defaultdict(list)
    for operator in shown:
        key = tuple(r.code if r.code != "unsupported" else f"{r.code} {operator.op_type}" for r in operator.reasons)
        groups[key].append(operator)
    for members in sorted(groups.values(), key=lambda g: -sum(o.cost_ms for o in g)):
        members.sort(key=lambda o: -o.cost_ms)
        cost = sum(o.cost_ms for o in members)
        codes = " + ".join(r.code for r in members[0].reasons)
        types = list(dict.fromkeys(o.op_type for o in members))
        listed = ", ".join(types[:3]) + (" and others" if len(types) > 3 else "")
        gain = sum(o.gain_ms or 0.0 for o in members)
        less = f"; in INT8 {gain:.3f} {unit} less" if gain > 0 else ""
        yield f"  {codes}: {len(members)} x {listed}, {cost:.3f} {unit}{less}"
        for operator in members if every else members[:_NAMES]:
            yield f"    {operator.name} ({operator.kernel}, {operator.cost_ms:.3f} {unit})"
            for reason in operator.reasons:
                yield f"      {reason.text} [{_PROOFS[reason.proof]}]{reason.advice and f': {reason.advice}'}"
        if not every and len(members) > _NAMES:
            yield f"    and {len(members) - _NAMES} more"


def _slower(found: Explanation, every: bool) -> Iterator[str]:
    """Operators that take more on integers than in float, those in one kernel together, the dearest first."""
    slower, unit = [o for o in found.operators if o.lost_ms > 0.0], unit_of(found.facts)
    if sum(o.lost_ms for o in slower) < policy.SHOWN_SHARE * found.kernels_ms or not slower:
        return
    yield ""
    yield "Slower on integers than in float, with what makes floats of their sums:"
    groups: defaultdict[tuple[str, str], list[Operator]] = defaultdict(list)
    for operator in slower:
        groups[operator.op_type, operator.kernel].append(operator)
    for (op_type, kernel), members in sorted(groups.items(), key=lambda g: -sum(o.lost_ms for o in g[1])):
        cost, plain = sum(o.cost_ms for o in members), sum(o.float_ms or 0.0 for o in members)
        share = cost / max(found.kernels_ms, 1e-9)
        yield f"  {len(members)} x {op_type} as {kernel}: {cost:.3f} {unit}, {share:.1%}; in float {plain:.3f} {unit}"
        members.sort(key=lambda o: -o.lost_ms)
        for operator in members if every else members[:_NAMES]:
            yield f"    {operator.name}: {operator.cost_ms:.3f} {unit}; in float {operator.float_ms:.3f} {unit}"
        if not every and len(members) > _NAMES:
            yield f"    and {len(members) - _NAMES} more"
    yield "  Keep them in float, or quantize them in another form: --repair tries both."


def _waste(found: Explanation, every: bool) -> Iterator[str]:
    rows = [w for w in found.waste if every or w.share >= policy.SHOWN_SHARE]
    if not rows:
        return
    total, unit = sum(w.cost_ms for w in found.waste), unit_of(found.facts)
    yield ""
    yield f"Conversions that ran as kernels of their own: {len(found.waste)}, {total:.3f} {unit}"
    for row in rows if every else rows[:_ROWS]:
        yield f"  {row.cost_ms:8.3f} {unit} {row.share:6.1%}  {_KINDS[row.kind]:<17} {row.value}"
        if row.advice:
            yield f"{'':21}{row.advice}{'; timed without it' if row.timed else ''}"
    left = found.waste[len(rows if every else rows[:_ROWS]) :]
    if left:
        yield f"  {sum(w.cost_ms for w in left):8.3f} {unit}         {len(left)} more (--all lists them)"


def _losses(found: Explanation) -> Iterator[str]:
    if found.sqnr_db is None:
        return
    yield ""
    shown = shown_sqnr(found.sqnr_db)
    yield f"SQNR of the worst output against the float model in it, {together(found.judged)}: {shown}"
    costly = [(loss, db) for loss in found.losses if (db := loss.loss_db) is not None and db >= policy.SHOWN_DB]
    for loss, gained_db in costly:
        exact = found.sqnr_db + gained_db >= SHOWN_AS_EXACT_DB
        yield f"  {'exact' if exact else f'{gained_db:+.1f} dB':>9} without rounding the {_named(loss)}"
    for loss in [] if costly else sorted(found.losses, key=lambda loss: loss.alone_db)[: policy.SHOWN_ALONE]:
        yield f"  {shown_sqnr(loss.alone_db):>9} where only the {_named(loss)} are rounded"
    for several in found.together:
        if several.sqnr_db >= found.sqnr_db + policy.SHOWN_DB:
            shown = shown_sqnr(several.sqnr_db)
            yield f"  {shown:>9} without rounding the {several.sources} that are loudest on their own"


def _named(loss: Loss) -> str:
    return f"{'values' if loss.kind == 'activation' else 'weights of'} {loss.source}"


def _repair(done: Repair, found: Explanation, every: bool) -> Iterator[str]:
    unit = unit_of(found.facts)
    yield ""
    if not done.written:
        yield f"Nothing was written to {done.path}: {done.problem}."
        return
    gain = "it runs" if done.speedup is None else shown_ratio(done.speedup)
    yield f"Wrote {done.path} (sha256 {done.sha256[:16]}…): {gain}, {_decibels(done)}."
    groups: defaultdict[tuple[str, str], list[Change]] = defaultdict(list)
    for change in done.changes:
        groups[change.kind, change.op_type].append(change)
    hidden = list[Change]()
    for (kind, op_type), members in sorted(groups.items(), key=lambda g: -sum(c.gain_ms for c in g[1])):
        total = sum(c.gain_ms for c in members)
        if kind == "kernel" and abs(total) < policy.HEAVY_SHARE * found.kernels_ms and not every:
            hidden += members
            continue
        yield f"  {total:+9.3f} {unit} saved  {_CHANGES[kind].format(len(members), op_type)}"
        for change in members if every else members[:_NAMES]:
            yield f"    {change.gain_ms:+9.3f} {unit}  {change.name}"
        if not every and len(members) > _NAMES:
            yield f"    and {len(members) - _NAMES} more"
    if hidden:
        yield f"  {sum(c.gain_ms for c in hidden):+9.3f} {unit} saved  {len(hidden)} small changes (--all lists them)"


def _decibels(done: Repair) -> str:
    given = f"(the given model: {shown_sqnr(done.given_db)})"
    if done.repaired_db is None or done.repaired_db >= SHOWN_AS_EXACT_DB:
        return f"as float {given}"
    return f"{shown_sqnr(done.repaired_db)} {together(done.judged)} {given}"


def _operators(found: Explanation) -> Iterator[str | Table]:
    yield ""
    yield "Every operator:"
    unit = unit_of(found.facts)
    rows = [(f"{o.cost_ms:.3f} {unit}" if o.kernel else "", o.precision, o.op_type, o.name) for o in found.operators]
    yield Table("><<<", rows, indent=2)

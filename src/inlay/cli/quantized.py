"""What `inlay quantize` did, as text and for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from inlay.cli.render import lost_lines, task_lines
from inlay.run.instant.by_costs import ByCosts
from inlay.run.instant.quantize import Quantized
from inlay.trial import UNTOLD, counted, shown_ratio, shown_sqnr, together

_AS_LIKED = "as it is rewritten for it"  # said of the float model: it is often twice as fast as the given one


def quantized(done: Quantized) -> Iterator[str]:
    """What ``inlay quantize`` did."""
    low, all_units = done.units
    what = f"{low} of {counted(all_units, 'operator')} in 8 bits" if done.ports else _without_pairs(done)
    yield f"Wrote {done.path}: {what}."
    if done.ports:
        ranges = f"; ranges by {done.ranges}" if done.ranges else ""
        yield f"  {counted(done.ports, 'quantized input')}{ranges}; sha256 {done.sha256[:16]}…"
    yield from _by_costs(done)
    if done.accuracy is not None:
        judged = done.accuracy.samples
        some = f"over {judged} of the {done.samples} given samples together"
        which = together(judged, "given") if judged == done.samples else some
        against = " against the given model, with its own quantization" if done.given_quantized else ""
        ranges = "; ranges came from them, so expect less on others" if done.ranges else ""
        found = shown_sqnr(done.accuracy.sqnr_db)
        worst = f", {done.accuracy.worst}," if done.accuracy.worst else ""
        yield f"  SQNR of the worst output{worst} {which}{against}: {found}{ranges}."
        yield from lost_lines(done.accuracy.lost)
        yield from task_lines(done.accuracy, which) if done.ports else ()
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


def _by_costs(done: Quantized) -> Iterator[str]:
    """How the placement was chosen, where no recipe said it."""
    if done.warning:
        yield f"  Warning: {done.warning}."
    how = done.by_costs
    if how is None:
        return
    if how.elsewhere:
        is_many = "+" in how.elsewhere
        names, own = how.elsewhere.replace("+", " and "), "their" if is_many else "its"
        yield (
            f"  For {names}: {own} rules and costs decided, and {own} arithmetic judged; SPEED WAS NOT MEASURED HERE. "
            "inlay tune or inlay bench measures it there."
        )
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
    yield from _timed(how, done.quantizable)
    if how.several:
        found = ", ".join(
            f"on {name} {speedup:.2f}x over float {_AS_LIKED}, {100 * regret:.0f} % slower than the best for it alone"
            for name, (speedup, regret) in how.several.items()
        )
        yield f"  Predicted, not measured: {found}."
    elif how.timed is None and how.in_float is None and done.ports:
        measures = "" if how.elsewhere else "; inlay bench or inlay tune measures it"
        liked = f" {_AS_LIKED}" if how.elsewhere else ""
        yield f"  Predicted, not measured: {how.speedup:.2f}x over float{liked}{measures}."
    source = f"Cost table: {how.source}" if how.priced else f"{how.source[0].upper()}{how.source[1:]}"
    yield f"  {how.models} {'model was' if how.models == 1 else 'models were'} built. {source}."


def _timed(how: ByCosts, quantizable: bool) -> Iterator[str]:
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
        yield f"  {timed}{gains}{'; inlay tune searches further' if quantizable else ''}."
        if how.why_float:
            yield f"  {'The given model' if how.unchanged else 'Float'} was chosen: {how.why_float}."

"""What `inlay inspect` and `inlay tune --dry-run` found, as text."""

from __future__ import annotations

import math
from collections.abc import Iterator

from inlay.cli.terminal import Table
from inlay.run.inspection import DryRun, Inspection, Quantizable
from inlay.trial import counted


def inspection(found: Inspection) -> Iterator[str]:
    """A model in a few lines."""
    yield f"{found.path}: {found.size_bytes / 1e6:.3g} MB, sha256 {found.sha256[:16]}…"
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
    yield f"{able} of {counted(every, 'operator')} can run in INT8 (what is fused counts once):"
    listed = ", ".join(f"{n} of {total} {op}" for op, (n, total) in found.operators.items() if n)
    yield f"  {listed or 'none'}"
    for form, count in found.forms.items():
        yield f"  {form}: {count}"
    for reason, count in found.reasons.items():
        yield f"  {count} x float: {reason}"


def dry_run(found: DryRun) -> Iterator[str | Table]:
    """What a run would do."""
    yield from quantizable(found.quantizable)
    yield ""
    yield (
        f"One inference takes {found.inference_ms:.3g} ms, building a candidate {found.build_s:.2g} s, "
        f"judging it {found.trial_s:.2g} s."
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

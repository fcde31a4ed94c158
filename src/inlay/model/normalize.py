"""Bring a model into the form that the rest works on: one pass per quirk, each gated by a numeric check.

The passes run in order and the result is compared with the original on a real feed. Where the outputs differ beyond
float noise, the pass that changes them is found by bisection, left out and reported, until the outputs agree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from inlay.errors import Crashed, Late, TargetError, TimedOut
from inlay.model.flow import flatten, tag_new
from inlay.model.gc_pause import gc_paused
from inlay.model.metadata import cloned
from inlay.model.passes.affine import fold_affine
from inlay.model.passes.branches import decide_branches, fix_inputs, freeze_dimensions
from inlay.model.passes.carried import settle_carried
from inlay.model.passes.constants import (
    Evaluate,
    drop_dead,
    drop_initializer_inputs,
    fix_shapes,
    fold_constants,
    lift_constants,
)
from inlay.model.passes.half import has_halves, widen_halves
from inlay.model.passes.identity import remove_identities
from inlay.model.passes.layouts import settle_layouts
from inlay.model.passes.names import fix_names
from inlay.model.passes.opset import raise_opset
from inlay.model.passes.pads import fold_pad_nodes, write_out_pads
from inlay.model.passes.spelling import fold_gemm_factors, fold_sequences, replace_removed, split_sums

NOISE_DB = 60.0
"""Signal-to-difference ratio below which a pass counts as changing the model: float reordering stays above 100 dB."""
HALF_NOISE_DB = 35.0
"""The same for models in half precision: eleven bits (eight of bfloat16) round at about 66 (48) dB in each operator."""

RAISE_OPSET = "raise the opset"
"""What reports call the pass without which there are no Q/DQ nodes."""

Outputs = Mapping[str, np.ndarray]
Run = Callable[[ir.Model], Outputs]
"""Runs a model on the gate's feed; raises TargetError where it cannot."""

Pass = Callable[[ir.Model], tuple[ir.Model, int]]
"""Edits a model (in place, or a new one) and counts its edits."""

Observe = Callable[[ir.Model, Sequence[str]], Outputs]
"""Values of a model on the gate's feed, by name."""


@dataclass(frozen=True)
class FloatRewrite:
    """A pass for some targets only: the same function, written with operators that they have fast kernels for."""

    name: str  # what reports call it
    # the pass; one that observes takes an `Observe` as well, or None where nothing can be run
    apply: Callable[..., tuple[ir.Model, int]]
    reason: str  # for people: why it is faster there
    source: str  # where that is known from, and the figures
    observes: bool = False  # what it writes depends on values of the sample
    opset: int = 0  # to which it raises older models; 0 where it does not
    early: bool = False  # whether it looks for what exporters write: before Transposes are moved out of that


WIDENED = FloatRewrite(
    "compute halves in float32",
    widen_halves,
    "units and Q/DQ are on float32; what may be in half precision is written in it again",
    "a compiler for strongly typed networks takes the models that are written so",
)
"""For targets that have kernels for half precision."""


@dataclass(frozen=True)
class PassReport:
    """What one pass did: how many edits, or why it was rolled back."""

    name: str
    edits: int
    rolled_back: str = ""


@dataclass(frozen=True, eq=False)
class Normalized:
    """A normalized model, and the passes that changed it or were rolled back."""

    model: ir.Model
    reports: tuple[PassReport, ...]


def passes(
    evaluate: Evaluate,
    rewrites: Sequence[FloatRewrite] = (),
    run: Run | None = None,
    sizes: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
) -> Sequence[tuple[str, Pass]]:
    """Every pass by name, in the order in which they run.

    Args:
        evaluate: computes constants.
        rewrites: the float rewrites of the target, in order.
        run: for those that observe.
        sizes: of dynamic dimensions that are to be fixed, by symbol.
        values: of inputs that are fixed, by name.
    """
    observe = None if run is None else partial(_observed, run)
    early, late = (
        [(r.name, partial(r.apply, observe=observe) if r.observes else r.apply) for r in rewrites if r.early is first]
        for first in (True, False)
    )
    compute: tuple[str, Pass] = ("compute constants", partial(fold_constants, evaluate=evaluate))
    fold: tuple[str, Pass] = ("fold scales and shifts of channels", fold_affine)
    return (
        ("name nodes and values", fix_names),
        ("take initializers off the inputs", drop_initializer_inputs),
        ("turn Constant nodes into initializers", lift_constants),
        *([("fix the values of inputs", partial(fix_inputs, values=values))] if values else []),
        ("decide branches that are known", partial(decide_branches, evaluate=evaluate)),
        ("replace removed operators", replace_removed),
        (RAISE_OPSET, raise_opset),
        ("turn Constant nodes of the converter into initializers", lift_constants),
        *([("fix dynamic dimensions", partial(freeze_dimensions, sizes=sizes, evaluate=evaluate))] if sizes else []),
        ("read from outside what loops carry unchanged", settle_carried),
        ("take bodies into the graph", flatten),
        ("turn Constant nodes of bodies into initializers", lift_constants),
        ("remove what does nothing", remove_identities),
        ("remove what is not used", drop_dead),
        ("fix the shapes that the model fixes", fix_shapes),
        compute,
        ("turn sequences into Split and Concat", fold_sequences),
        ("turn Sum into Add", split_sums),
        *early,
        ("move Transposes", settle_layouts),
        ("write out automatic pads", write_out_pads),
        ("fold Pad into what reads it", fold_pad_nodes),
        ("fold the factors of Gemm", fold_gemm_factors),
        fold,
        *([*late, compute, fold] if rewrites else []),
        ("name what the passes made", fix_names),
        ("remove what is no longer used", drop_dead),
        ("say in which body operators are", tag_new),
    )


def normalize(
    model: ir.Model,
    evaluate: Evaluate,
    run: Run | None,
    expected: Outputs | None = None,
    rewrites: Sequence[FloatRewrite] = (),
    sizes: Mapping[str, int] | None = None,
    values: Mapping[str, np.ndarray] | None = None,
) -> Normalized:
    """Apply every pass that keeps the outputs.

    Args:
        model: is not changed.
        evaluate: runs a model without inputs (for constants).
        run: runs a model on a feed for the comparison; None accepts all passes unchecked (analysis without running).
        expected: outputs of ``model`` on that feed, when known.
        rewrites: the float rewrites of the target, in order.
        sizes: of dynamic dimensions that are to be fixed, by symbol.
        values: of inputs that are fixed, by name.

    Raises:
        TargetError: the original model itself does not run, or ends the process of a compiled function.
    """
    steps = passes(evaluate, rewrites, run, sizes, values)
    result, reports = _apply(model, steps)
    if run is None or not any(r.edits for r in reports):
        return Normalized(result, reports)
    expected = run(model) if expected is None else expected
    least_db = HALF_NOISE_DB if has_halves(model) else NOISE_DB
    left_out: dict[int, str] = {}
    while any(r.edits for r in reports):
        difference = _difference(expected, run, result, least_db)
        if not difference:
            break
        edited = [i for i, report in enumerate(reports) if report.edits]
        while len(edited) > 1:
            half = edited[: len(edited) // 2]
            later = dict.fromkeys(range(half[-1] + 1, len(steps)), "")
            found = _difference(expected, run, _apply(model, steps, {**later, **left_out})[0], least_db)
            edited, difference = (half, found) if found else (edited[len(half) :], difference)
        left_out[edited[0]] = difference
        result, reports = _apply(model, steps, left_out)
    return Normalized(result, reports)


def _apply(
    model: ir.Model, steps: Sequence[tuple[str, Pass]], left_out: Mapping[int, str] | None = None
) -> tuple[ir.Model, tuple[PassReport, ...]]:
    """All steps in turn on a copy, without those that are ``left_out``, for the reason given by their number.

    A step that fails is left out as well, and said so: it must never cost the user the run. A step that was done before
    is not done again unless the model has been edited since.
    """
    left_out = dict(left_out or {})
    while True:
        reports: list[PassReport] = []
        edited, done_at = 0, dict[Pass, int]()
        with gc_paused():
            current = cloned(model)
            for number, (name, step) in enumerate(steps):
                edits = 0
                if number not in left_out and done_at.get(step) != edited:
                    done_at[step] = edited
                    try:
                        current, edits = step(current)
                    except (Crashed, TimedOut):  # it would do the same in other passes, and cost as much time in each
                        raise
                    except Exception as error:  # it may have left its work half done: begin again without it
                        left_out[number] = f"{type(error).__name__}: {error}".splitlines()[0]
                        break
                    edited += edits > 0
                reports.append(PassReport(name, edits, left_out.get(number, "")))
            else:
                _keep_types(current, model)
                return current, tuple(reports)


def _keep_types(model: ir.Model, given: ir.Model) -> None:
    """Outputs must say of what type they are, also where they are computed by what says nothing: as in ``given``."""
    stated = {v.name: v for v in given.graph.outputs}
    for value in model.graph.outputs:
        was = stated.get(value.name)
        if value.type is None and was is not None:
            value.type, value.shape = was.type, was.shape if value.shape is None else value.shape


def _observed(run: Run, model: ir.Model, names: Sequence[str]) -> Outputs:
    wanted = set(names)
    values = [v for node in model.graph for v in node.outputs if v.name in wanted]
    values += [v for v in (*model.graph.inputs, *model.graph.initializers.values()) if v.name in wanted]
    part = ir.convenience.extract(model.graph, model.graph.inputs, values)
    return run(ir.Model(part, ir_version=model.ir_version, functions=list(model.functions.values())))


def _difference(expected: Outputs, run: Run, model: ir.Model, least_db: float = NOISE_DB) -> str:
    """How ``model``'s outputs differ from ``expected``; empty when they do not."""
    try:
        actual = run(model)
    except Late:
        raise
    except TargetError as error:
        return f"the model no longer runs: {error}"
    for name, want in expected.items():
        got = actual.get(name)
        if got is None or got.shape != want.shape or got.dtype != want.dtype:
            return f"output {name} is not the same tensor any more"
        if want.dtype.kind != "f":
            if not np.array_equal(want, got):
                return f"output {name} changed"
            continue
        same = np.isfinite(want) == np.isfinite(got)
        finite = np.isfinite(want) & np.isfinite(got)
        signal = float(np.sum(np.square(want[finite], dtype=np.float64)))
        noise = float(np.sum(np.square(want[finite].astype(np.float64) - got[finite])))
        if not same.all() or noise > signal * 10 ** (-least_db / 10) + 1e-12 * want.size:
            ratio = 10 * np.log10(signal / noise) if signal and noise else 0.0
            return f"output {name} changed to {ratio:.0f} dB of the original"
    return ""

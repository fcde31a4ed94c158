"""`inlay inspect` and `inlay tune --dry-run`: what a model is, what of it can be quantized, and what a run would do."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from inlay.data import InputSpec, input_specs, template
from inlay.errors import InlayError, ModelError
from inlay.files import scratch
from inlay.model.flow import is_start
from inlay.model.load import ModelFile
from inlay.model.onnx_library import check
from inlay.model.store import model_bytes
from inlay.prepare.model import PreparedModel, prepare
from inlay.prepare.strip_qdq import is_quantized_file
from inlay.run.call import Given
from inlay.run.given import run_given
from inlay.run.inputs import TuneRequest
from inlay.run.preparation import prepare_model
from inlay.run.schedule import CALIBRATING
from inlay.run.session import open_session
from inlay.search.baselines import anchor_placements
from inlay.space.units import rejection_counts
from inlay.targets.base import Capabilities

_RUN_FOLDER = "dry"


@dataclass(frozen=True)
class Quantizable:
    """What of a prepared model a target can run in low precision."""

    operators: Mapping[str, tuple[int, int]]  # by operator, how many units can have it, and how many there are
    forms: Mapping[str, int]  # by the name of each further precision, how many units have it
    reasons: Mapping[str, int]  # why the others stay float, and how many each

    @classmethod
    def of(cls, prepared: PreparedModel) -> Quantizable:
        """That of ``prepared``."""
        units = [u for u in prepared.units if not is_start(prepared.graph.node(u.name))]
        able = Counter(u.op_type for u in units if u.selectable)
        return cls(
            {op: (able[op], n) for op, n in Counter(u.op_type for u in units).most_common()},
            dict(Counter(form for u in units for form in u.forms)),
            dict(rejection_counts(units).most_common()),
        )

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        units = {op: {"quantizable": able, "units": every} for op, (able, every) in self.operators.items()}
        return {"operators": units, "forms": dict(self.forms), "reasons": dict(self.reasons)}


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a model is."""

    # path, sha256, size_bytes: of the file; the size with its weights
    path: Path
    sha256: str
    size_bytes: int
    opsets: Mapping[str, int]  # version by domain, `ai.onnx` for the default one
    inputs: tuple[InputSpec, ...]  # that samples must provide
    outputs: tuple[str, ...]  # each as name, type and shape in words
    operators: Mapping[str, int]  # how many of each the file holds
    is_quantized: bool  # it holds Q/DQ nodes, or operators on integers
    quantizable: Quantizable | None  # once normalized; None where the model could not be run
    trouble: str = ""  # why it could not be run; empty where it was
    notes: tuple[str, ...] = ()  # how the file was read, for people
    sizes: Mapping[str, int] = field(default_factory=dict)  # of dynamic dimensions, as the template has them, by symbol

    @property
    def template(self) -> str:
        """A Python program that writes samples for ``--data``, to be filled in; it says whether its sizes ran."""
        return template(self.inputs, self.sizes, _remark(self.sizes, self.quantizable is not None))

    def as_json(self) -> dict[str, Any]:
        """As plain data with stable keys."""
        return {
            "model": {"path": str(self.path), "sha256": self.sha256, "size_bytes": self.size_bytes},
            "opsets": dict(self.opsets),
            "inputs": [{"name": s.name, "dtype": s.dtype.name, "dims": s.dims} for s in self.inputs],
            "outputs": list(self.outputs),
            "operators": dict(self.operators),
            "is_quantized": self.is_quantized,
            "quantizable": None if self.quantizable is None else self.quantizable.as_json(),
            "trouble": self.trouble,
            "sizes": dict(self.sizes),
            "sizes_ran": self.quantizable is not None,
            "notes": list(self.notes),
        }


def inspected(tries: Iterable[tuple[Given, Mapping[str, int]]], target: Capabilities) -> Inspection:
    """What a model is, by the first sizes of its dynamic dimensions at which the runtime ran it.

    Args:
        tries: the model with sizes, and these; at least one, the likeliest first.
    """
    failed: Inspection | None = None
    for given, sizes in tries:
        if text := [str(spec) for spec in given.specs if spec.dtype.hasobject and spec.fixed is None]:
            said = "inlay tune MODEL --data SAMPLES --dry-run says it"
            return inspection(given.file, None, f"input {text[0]} takes text, of which none is made up: {said}")
        try:
            feed = given.samples_or_random(np.random.default_rng(0), 1).feeds[0]
            with scratch() as folder:
                quantizable = Quantizable.of(prepare(given.file, target, feed, folder))
            return inspection(given.file, quantizable, "", sizes)
        except InlayError as error:
            tried = f" (with {_listed(sizes)}; --bind gives others)" if sizes else ""
            failed = failed or inspection(given.file, None, f"{error}{tried}", sizes)
    assert failed is not None, "there is at least one"
    return failed


def _remark(sizes: Mapping[str, int], ran: bool) -> str:
    if not sizes:
        return ""
    told = _listed(sizes)
    return f"the runtime ran it once with {told}" if ran else f"it DID NOT RUN with {told}: give sizes that it takes"


def _listed(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def inspection(
    file: ModelFile, quantizable: Quantizable | None, trouble: str, sizes: Mapping[str, int] | None = None
) -> Inspection:
    """What ``file`` is; the other arguments as in :class:`Inspection`."""
    graph = file.model.graph
    return Inspection(
        path=file.path,
        sha256=file.sha256,
        size_bytes=model_bytes(file.path),
        opsets={domain or "ai.onnx": version for domain, version in file.model.opset_imports.items()},
        inputs=input_specs(file.model),
        outputs=tuple(_words(v) for v in graph.outputs),
        operators=dict(Counter(n.op_type for n in graph).most_common()),
        is_quantized=is_quantized_file(file),
        quantizable=quantizable,
        trouble=trouble,
        notes=(*file.notes, *_refused(file)),
        sizes=sizes or {},
    )


def _refused(file: ModelFile) -> Iterator[str]:
    """What ONNX's checker has against a file, if anything: runtimes take what it refuses, and written files keep it."""
    try:
        check(file.model)
    except ModelError as error:
        yield f"ONNX's checker refuses this model, and may refuse what is written from it: {str(error).splitlines()[0]}"


def _words(value: ir.Value) -> str:
    dtype = "?" if value.dtype is None else value.dtype.name.lower()
    shape = "any shape" if value.shape is None else "[" + ", ".join(str(d) for d in value.shape) + "]"
    return f"{value.name}: {dtype} {shape}"


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """What a run would do."""

    quantizable: Quantizable  # what there is to decide
    anchors: Mapping[str, int]  # by name, the Q/DQ sites of each placement that would be measured first
    # inference_ms, build_s, trial_s: of the given model, of a candidate, and of judging one, once measured
    inference_ms: float
    build_s: float
    trial_s: float
    samples: tuple[int, int, int]  # for ranges, for the search, and for the verdict
    budget_s: float  # of the whole command; infinite without a limit
    shares: Mapping[str, float]  # of the budget, in seconds: what is spent already, calibration, search, confirmation
    trials: int | None  # that the search has time for; None without a limit
    bound: str  # on the accuracy, in words


def dry_run(asked: TuneRequest) -> DryRun:
    """Run and prepare the model as a run would, and say what would follow. Nothing is written, also not to its folder.

    Raises:
        InlayError: what the run would end with.
    """
    with scratch() as folder:
        into_folder = replace(asked, out=folder / _RUN_FOLDER, restart=False)
        with open_session(into_folder) as session:
            run_given(session)
            prepared = prepare_model(session)
            costs, plan, parts = session.costs, session.plan, session.inputs.parts
            limited, left_s = plan.is_limited, plan.before_writing.left
            calibration_s = plan.preparing(CALIBRATING).left if limited else math.inf
            search_s = plan.search().left
            first = plan.protocol().first_blocks
            trial_s = costs.trial_s(len(parts.selection), first)
            effort = plan.efforts[0]
            shares = {
                "until now": session.seconds,
                "ranges, at most": calibration_s,
                "search": search_s - calibration_s,
                "confirmation": left_s - search_s if limited else effort.seconds(costs, effort.contenders),
            }
            placements = anchor_placements(prepared.graph, prepared.units, prepared.rules)
            return DryRun(
                quantizable=Quantizable.of(prepared),
                anchors={name: len(placement) for name, placement in placements},
                inference_ms=costs.inference_s * 1e3,
                build_s=costs.candidate_build_s,
                trial_s=trial_s,
                samples=(
                    len(parts.calibration),
                    len(parts.selection),
                    len(parts.verification) if parts.verified else 0,
                ),
                budget_s=plan.seconds,
                shares=shares if limited else {},
                trials=int(max(0.0, search_s - calibration_s) / max(trial_s, 1e-9)) if limited else None,
                bound=str(asked.config.bound),
            )

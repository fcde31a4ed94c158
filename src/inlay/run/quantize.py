"""Quantize a model in one shot, by a recipe: no search, one file."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from inlay.calibrate.choice import DEFAULT_S, Ticks, choose_calibration
from inlay.calibrate.tables import observe, sharing
from inlay.data import Samples, save_feed
from inlay.errors import CompileFailed, ModelError, RunFailed, UsageError
from inlay.measure.client import Worker
from inlay.model.load import ModelFile, file_sha256
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.model import prepare
from inlay.quant.accuracy import Bound, Judge
from inlay.quant.calibrator import halves
from inlay.quant.qparams import QParamsTable
from inlay.run.result import replacing
from inlay.space.recipe import Recipe
from inlay.space.resolve import Decision, resolve
from inlay.targets.base import Artifact, Capabilities, TargetSpec
from inlay.targets.registry import create
from inlay.trial import Accuracy
from inlay.types import Placement

_JUDGING = 16  # most samples, of their first half, that judge ranges


@dataclass(frozen=True)
class Quantized:
    """A model quantized in one shot.

    Attributes:
        path: where it was written.
        sha256: of the file.
        ports: consumer slots that read quantized values.
        units: operators in low precision, and operators in all.
        ranges: the method that chose the ranges, or how many values each one serves, and what that brought.
        accuracy: against float on the samples themselves; None for random inputs.
        refusals: how many operators stay float, by reason.
        decisions: precision, deciding rule and reason of every node.
    """

    path: Path
    sha256: str
    ports: int
    units: tuple[int, int]
    ranges: str
    accuracy: Accuracy | None
    refusals: Mapping[str, int]
    decisions: tuple[Decision, ...] = ()


def quantize(file: ModelFile, out: Path, spec: TargetSpec, samples: Samples, rules: Recipe) -> Quantized:
    """Quantize ``file`` by ``rules`` and write it to ``out``.

    Args:
        file: the model.
        out: the file to write.
        spec: the target.
        samples: real ones, or random ones, which choose no ranges and judge nothing.
        rules: which operators, in which types.

    Raises:
        UsageError: a rule matches nothing, or ``out`` has no folder.
        InlayError: the model or the samples cannot be used.
    """
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {out.parent}")
    real = samples.kind != "random"
    with tempfile.TemporaryDirectory() as folder, Worker(spec, Path(folder)) as worker:
        work = Path(folder)
        feeds = []
        for number, feed in enumerate(samples.feeds[: min(_JUDGING, len(halves(len(samples))[0]))]):
            feeds.append(work / f"{number}.npz")
            save_feed(feeds[-1], feed)
        try:
            reference = worker.run(Artifact(file.path.resolve(), file.sha256), feeds)
        except (CompileFailed, RunFailed) as error:
            raise ModelError(f"{file.path} does not run on {spec.name}: {error}") from error
        prepared = prepare(file, Capabilities.of(create(spec)), samples.feeds[0], work)
        resolved = resolve(rules, prepared.graph, prepared.units, prepared.rules)
        prepared, placement = replace(prepared, resolved=resolved), resolved.placement
        observed = observe(prepared, samples)
        judge = Judge(reference, samples.part(range(len(feeds))), Bound(), margin=False)
        accuracies: list[Accuracy] = []

        def score(table: QParamsTable, placement: Placement) -> float:
            artifact = CandidateWriter(prepared, table, "probe", "").write(placement)
            accuracies.append(judge.judge(worker.run(artifact, feeds)))
            worker.drop(artifact)
            return accuracies[-1].sqnr_db

        clock = Ticks.of(prepared) if worker.deterministic else time.monotonic
        known = samples.feeds if real else ()
        numbers = choose_calibration(prepared, observed, placement, known, score, DEFAULT_S, clock=clock)
        shared = {c.node: c.reason for c in sharing(prepared, observed, numbers.method)}
        table = numbers.table(prepared, observed)
        calibration = hashlib.sha256(f"{observed.digest} {numbers.identity}".encode()).hexdigest()[:16]
        final = CandidateWriter(prepared, table, calibration, worker.fingerprint.digest)
        if real:
            score(table, placement)
        artifact = final.deliver(placement, work / out.name)
        with replacing(out) as fresh:
            fresh.write_bytes(artifact.path.read_bytes())
        data_file = artifact.path.with_name(artifact.path.name + ".data")
        if data_file.exists():
            with replacing(out.with_name(data_file.name)) as fresh:
                fresh.write_bytes(data_file.read_bytes())
    low = {d.node for d in resolved.decisions if d.precision != "float"}
    selected = [u for u in prepared.selectable if u.name in low]
    accuracy = accuracies[-1] if real else None
    refusals: dict[str, int] = {}
    for unit in prepared.units:
        if unit.rejection:
            refusals[unit.rejection] = refusals.get(unit.rejection, 0) + 1
    return Quantized(
        out,
        file_sha256(out),
        len(placement),
        (len(selected), len(prepared.units)),
        str(numbers).removeprefix("ranges by "),
        accuracy,
        refusals,
        tuple(_with_sharing(d, shared) for d in resolved.decisions),
    )


def _with_sharing(decision: Decision, shared: Mapping[str, str]) -> Decision:
    if decision.precision == "float" or decision.node not in shared:
        return decision
    return replace(decision, reason=f"{decision.reason}; {shared[decision.node]}")

"""Quantize a model by a recipe: no search, one file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from inlay.calibrate import policy
from inlay.calibrate.choose import choose_calibration
from inlay.calibrate.scorer import OnTarget, TableScorer
from inlay.calibrate.tables import observe, sharing_of
from inlay.data import InputSpec, Samples, input_specs, save_feed
from inlay.errors import CompileFailed, ModelError, RunFailed, UsageError
from inlay.measure.client import Worker
from inlay.model.load import ModelFile, file_sha256
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.equalize import equalized, find_scales
from inlay.prepare.model import prepare
from inlay.prepare.take_apart import take_apart
from inlay.quant.accuracy import Bound, Judge
from inlay.quant.calibrator import halves
from inlay.quant.plain_graph import Leftover
from inlay.run.outputs import publish
from inlay.run.robustness import Robustness, StressTest, variations_of
from inlay.space.recipe import Recipe
from inlay.space.resolve import Decision, resolve
from inlay.space.units import rejection_counts
from inlay.targets.base import Artifact, Capabilities, TargetSpec
from inlay.targets.registry import create
from inlay.trial import Accuracy
from inlay.types import AUTO


@dataclass(frozen=True)
class Quantized:
    """A model quantized without a search.

    Attributes:
        path: where it was written.
        sha256: of the file.
        ports: consumer slots that read quantized values.
        units: operators in low precision, and operators in all.
        ranges: the method of calibration, or how many domains each method serves and what that gained, for people.
        accuracy: against float on the samples themselves; None for random inputs.
        refusals: how many operators stay float, by reason.
        decisions: precision, deciding rule and reason of every node.
        leftovers: quantized operators of the given model that could not be taken apart.
        robustness: what variations of the samples lose; None where none are made.
    """

    path: Path
    sha256: str
    ports: int
    units: tuple[int, int]
    ranges: str
    accuracy: Accuracy | None
    refusals: Mapping[str, int]
    decisions: tuple[Decision, ...] = ()
    leftovers: tuple[Leftover, ...] = ()
    robustness: Robustness | None = None


def quantize(
    file: ModelFile,
    out: Path,
    spec: TargetSpec,
    samples: Samples,
    rules: Recipe,
    quant_type: str = AUTO,
    specs: Sequence[InputSpec] = (),
    augment: str = "auto",
    seed: int = 0,
) -> Quantized:
    """Quantize ``file`` by ``rules`` and write it to ``out``.

    Args:
        file: the model.
        out: the file to write.
        spec: the target.
        samples: real ones, or random ones, which neither choose ranges nor measure accuracy.
        rules: which operators, in which types.
        quant_type: of activations, where the rules do not say.
        specs: of the inputs, with the sizes that dynamic dimensions have; by default as the model says.
        augment: how samples are varied, as in :func:`~inlay.data.stress_set`.
        seed: of the variations.

    Raises:
        UsageError: a rule matches nothing, or ``out`` has no folder.
        InlayError: the model or the samples cannot be used.
    """
    if not out.parent.is_dir():
        raise UsageError(f"--out {out}: there is no folder {out.parent}")
    real = samples.kind != "random"
    with tempfile.TemporaryDirectory() as folder, Worker(spec, Path(folder)) as worker:
        work = Path(folder)
        scored, feeds = _scoring_feeds(samples, work)
        given, specs = Artifact(file.path.resolve(), file.sha256), specs or input_specs(file.model)
        try:
            reference = worker.run(given, feeds)
            varied = variations_of(scored, specs, augment, seed, 1, policy.SCORED_VARIATIONS)
            test = StressTest.of(varied, scored, work / "varied", worker, given)
        except (CompileFailed, RunFailed) as error:
            raise ModelError(f"{file.path} does not run on {spec.name}: {error}") from error
        extraction = take_apart(file, samples.feeds, work)
        target = Capabilities.of(create(spec), quant_type)
        prepared = prepare(file, target, samples.feeds[0], work, extraction=extraction)
        if real and extraction is None:
            scales = find_scales(prepared, target, samples.feeds)
            prepared = equalized(prepared, scales, target, samples.feeds[0])
        resolved = resolve(rules, prepared.graph, prepared.units, prepared.rules)
        prepared, placement = replace(prepared, resolved=resolved), resolved.placement
        stress = variations_of(samples, specs, augment, seed, policy.VARIED_SAMPLES, policy.MOST_VARIATIONS)
        observed = observe(prepared, samples, stress=stress)
        scorer = TableScorer(Judge(reference, scored, Bound(), margin=False), OnTarget(prepared, worker, feeds).outputs)
        on_varied = TableScorer(test.judge, OnTarget(prepared, worker, test.feeds).outputs)
        graph = prepared.graph
        ranged = any(not t.dynamic and not graph.is_constant(graph.value_of(port)) for port, t in placement)
        known = samples.feeds if real and ranged else ()
        choice = choose_calibration(
            prepared,
            observed,
            placement,
            known,
            scorer.sqnr_db,
            policy.DEFAULT_SECONDS,
            stress_score=on_varied.sqnr_db if test.names else None,
        )
        shared = {d.node: d.reason for d in sharing_of(prepared, observed, choice.method)}
        table = choice.table(prepared, observed)
        final = CandidateWriter(prepared, table, choice.digest(observed), worker.fingerprint.digest)
        accuracy = scorer.accuracy(table, placement) if real else None
        loss = None
        if accuracy is not None and test.names:
            loss = test.robustness(on_varied.outputs(table, placement), accuracy.sqnr_db)
        publish(final.deliver(placement, work / out.name).path, out)
    low = {d.node for d in resolved.decisions if d.precision != "float"}
    return Quantized(
        out,
        file_sha256(out),
        len(placement),
        (sum(u.name in low for u in prepared.units), len(prepared.units)),
        str(choice).removeprefix("ranges by "),
        accuracy,
        rejection_counts(prepared.units),
        tuple(_with_sharing(d, shared) for d in resolved.decisions),
        () if extraction is None else extraction.leftovers,
        loss,
    )


def _scoring_feeds(samples: Samples, folder: Path) -> tuple[Samples, list[Path]]:
    """The samples that tables are scored on, and their files: the first half, since the second one makes the ranges."""
    paths = []
    numbers = halves(len(samples))[0][: policy.SCORING_SAMPLES_ONE_SHOT]
    for number in numbers:
        paths.append(folder / f"{number}.npz")
        save_feed(paths[-1], samples.feeds[number])
    return samples.part(numbers), paths


def _with_sharing(decision: Decision, shared: Mapping[str, str]) -> Decision:
    if decision.precision == "float" or decision.node not in shared:
        return decision
    return replace(decision, reason=f"{decision.reason}; {shared[decision.node]}")

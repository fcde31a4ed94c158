"""Quantize a model without measuring: by what is known of the processor, or by a recipe; one file."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from inlay.calibrate import policy
from inlay.calibrate.choose import choose_calibration
from inlay.calibrate.scorer import OnTarget, TableScorer, in_process
from inlay.calibrate.tables import observe, sharing_of
from inlay.data import NO_STRESS, InputSpec, Samples, evenly_spaced, input_specs, save_feed
from inlay.errors import CompileFailed, ModelError, RunFailed, UsageError
from inlay.measure.client import Worker
from inlay.model.load import ModelFile, file_sha256
from inlay.model.passes.freeze import METADATA
from inlay.prepare.candidate_writer import CandidateWriter, recipe_for
from inlay.prepare.equalize import equalized, find_scales
from inlay.prepare.model import PreparedModel, prepare
from inlay.prepare.options import DEFAULT_MIN_SQNR_DB
from inlay.prepare.take_apart import take_apart
from inlay.quant.accuracy import Bound, Judge, Outputs
from inlay.quant.calibrator import halves
from inlay.quant.observers import METHODS, Method
from inlay.quant.plain_graph import Leftover
from inlay.quant.qparams import QParamsTable
from inlay.run.instant import Instant
from inlay.run.machine_costs import read_costs
from inlay.run.outputs import publish
from inlay.run.robustness import Robustness, StressTest, variations_of
from inlay.search.baselines import FULL_INT8
from inlay.space.recipe import Recipe
from inlay.space.recipe_file import find_recipe
from inlay.space.resolve import Decision, resolve
from inlay.space.units import rejection_counts
from inlay.targets.base import Artifact, Capabilities, TargetSpec
from inlay.targets.registry import create
from inlay.trial import Accuracy
from inlay.types import AUTO, Placement


@dataclass(frozen=True)
class Quantized:
    """A model quantized without a search.

    Attributes:
        path: where it was written.
        sha256: of the file.
        ports: consumer slots that read quantized values.
        units: operators in low precision, and operators in all.
        ranges: the method of calibration, or how many domains each method serves and what that gained, for people.
        accuracy: against float on the given samples, or some of them; None for random inputs.
        refusals: how many operators stay float, by reason.
        decisions: precision, deciding rule and reason of every node.
        leftovers: quantized operators of the given model that could not be taken apart.
        by_costs: how the placement was chosen, where no recipe said it.
        warning: what is wrong with the processor's cost table, where it was left alone.
        frozen: the dynamic dimensions that were fixed, with their sizes, for people.
        robustness: what variations of the samples lose; None where none are made.
        samples: how many were given.
        asked_db: least SQNR that was asked for, or the default.
        silent: outputs that are the same number on all samples, and do not count.
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
    by_costs: ByCosts | None = None
    warning: str = ""
    frozen: str = ""
    robustness: Robustness | None = None
    samples: int = 0
    asked_db: float = DEFAULT_MIN_SQNR_DB
    silent: tuple[str, ...] = ()


@dataclass(frozen=True)
class ByCosts:
    """How a placement was chosen without a measurement.

    Attributes:
        source: of the cost table, for people; or why there is none, and the usual recipe was taken.
        speedup: predicted, over the float model; None without a table.
        bound_db: least SQNR that was asked for; None where no samples could tell.
        tries: placements that were built; 0 without a table.
        builds: models that the target built altogether.
        kept: the bound holds on the scoring samples; else the file is the float model, as no try kept it.
    """

    source: str
    speedup: float | None = None
    bound_db: float | None = None
    tries: int = 0
    builds: int = 0
    kept: bool = True


_TRIES = 2
"""Placements that are built: with the given model three builds."""
_QUICK_METHODS: tuple[Method, ...] = ("minmax", "percentile", "mse")
"""Of calibration there: one that clips nothing, one that clips little, and the one that is chosen most often."""
_QUICK_SAMPLES = 4
"""On which ranges are judged where the answer must be quick."""
_QUICK_SECONDS = 1.0
"""For choosing ranges of single values there, on a clock that does not depend on the machine."""
_MOST_JUDGED = 64
"""Samples that the written file is judged on: as many as the search and the verdict of a tuning together."""
_MARGIN_DB = 0.5
"""What a second try asks for beyond what the first one lacked."""


def quantize(
    file: ModelFile,
    out: Path,
    spec: TargetSpec,
    samples: Samples,
    rules: Recipe | None,
    quant_type: str = AUTO,
    bound_db: float | None = DEFAULT_MIN_SQNR_DB,
    sizes: Mapping[str, int] | None = None,
    specs: Sequence[InputSpec] = (),
    augment: str = "auto",
    seed: int = 0,
    max_opset: int | None = None,
) -> Quantized:
    """Quantize ``file`` and write it to ``out``.

    Args:
        file: the model.
        out: the file to write.
        spec: the target.
        samples: real ones, or random ones, which neither choose ranges nor measure accuracy.
        rules: which operators, in which types; None for the placement that the processor's cost table says is the
            fastest within ``bound_db``, and for the target's usual one where there is no table.
        quant_type: of activations, where the rules do not say.
        bound_db: least SQNR of the worst output; only where there are no rules, and real samples.
        sizes: of dynamic dimensions that are to be fixed, by symbol.
        specs: of the inputs, with the sizes that dynamic dimensions have; by default as the model says.
        augment: how samples are varied, as in :func:`~inlay.data.stress_set`.
        seed: of the variations.
        max_opset: the newest opset that the file may have.

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
        made = create(spec)
        target = Capabilities.of(made, quant_type, max_opset)
        known = None if rules is not None else read_costs(made, worker.fingerprint)
        prepared = prepare(file, target, samples.feeds[0], work, extraction=extraction, sizes=sizes)
        if real and extraction is None:
            scales = find_scales(prepared, target, samples.feeds, mask=samples.mask)
            prepared = equalized(prepared, scales, target, samples.feeds[0])
        resolved = resolve(rules or find_recipe(FULL_INT8), prepared.graph, prepared.units, prepared.rules)
        prepared, placement = replace(prepared, resolved=resolved), resolved.placement
        stress = variations_of(samples, specs, augment, seed, policy.VARIED_SAMPLES, policy.MOST_VARIATIONS)
        quick = known is not None and known.table is not None
        observed = observe(prepared, samples, stress=NO_STRESS if quick else stress)
        on_target = TableScorer(
            Judge(reference, scored, Bound(), margin=False), OnTarget(prepared, worker, feeds).outputs
        )
        scorer = _on_reference(prepared, reference, samples) if quick else on_target
        run_varied = (
            in_process(prepared, test.samples.feeds) if quick else OnTarget(prepared, worker, test.feeds).outputs
        )
        on_varied = TableScorer(test.judge, run_varied)
        graph = prepared.graph
        ranged = any(not t.dynamic and not graph.is_constant(graph.value_of(port)) for port, t in placement)
        choice = choose_calibration(
            prepared,
            observed,
            placement,
            samples.feeds if real and ranged else (),
            scorer.sqnr_db,
            _QUICK_SECONDS if quick else policy.DEFAULT_SECONDS,
            methods=_QUICK_METHODS if quick else METHODS,
            stress_score=on_varied.sqnr_db if test.names and not quick else None,
        )
        shared = {d.node: d.reason for d in sharing_of(prepared, observed, choice.method)}
        table = choice.table(prepared, observed)
        final = CandidateWriter(prepared, table, choice.digest(observed), worker.fingerprint.digest)
        by_costs = None if known is None else ByCosts(known.source, builds=worker.builds)
        accuracy = None
        if known is not None and known.table is not None:
            instant = Instant(prepared, known.table, table, samples.feeds if real else (), bound_db)
            placement, accuracy, by_costs = _fastest(
                instant, known.source, bound_db if real else None, on_target, table
            )
            by_costs = replace(by_costs, builds=worker.builds)
            resolved = resolve(recipe_for(prepared, placement), prepared.graph, prepared.units, prepared.rules)
        delivered = final.deliver(placement, work / out.name)
        if real and not quick:  # where the answer must be quick, on the few samples that have been judged
            accuracy = _on_all(worker, given, delivered, samples, work)
        elif real and accuracy is None:
            accuracy = scorer.accuracy(table, placement)
        silent = Judge(reference, scored, Bound(), margin=False).silent
        loss = None
        if accuracy is not None and test.names and len(placement):
            loss = test.robustness(on_varied.outputs(table, placement), accuracy.sqnr_db)
        publish(delivered.path, out)
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
        by_costs,
        "" if known is None else known.warning,
        prepared.normalized.model.metadata_props.get(METADATA, ""),
        loss,
        len(samples),
        DEFAULT_MIN_SQNR_DB if bound_db is None else bound_db,
        silent,
    )


def _fastest(
    instant: Instant, source: str, bound_db: float | None, scorer: TableScorer, table: QParamsTable
) -> tuple[Placement, Accuracy | None, ByCosts]:
    """The fastest placement by the cost table that keeps the bound on the target, with its accuracy; float if none."""
    for tried in range(1, _TRIES + 1):
        choice = instant.choose()
        said = ByCosts(source, choice.speedup, bound_db, tried)
        if bound_db is None or not len(choice.placement):
            return choice.placement, None, said
        accuracy = scorer.accuracy(table, choice.placement)
        if accuracy.sqnr_db >= bound_db:
            return choice.placement, accuracy, said
        instant.lacks(bound_db - accuracy.sqnr_db + _MARGIN_DB)
    return Placement(), None, replace(said, speedup=1.0, kept=False)


def _on_reference(prepared: PreparedModel, outputs: Sequence[Outputs], samples: Samples) -> TableScorer:
    """Scores tables by the numeric reference, so that a quick answer builds few models on the target."""
    numbers = halves(len(samples))[0][:_QUICK_SAMPLES]
    judge = Judge(outputs[: len(numbers)], samples.part(numbers), Bound(), margin=False)
    return TableScorer(judge, in_process(prepared, [samples.feeds[i] for i in numbers]))


def _on_all(worker: Worker, given: Artifact, made: Artifact, samples: Samples, folder: Path) -> Accuracy:
    """Accuracy of a file on all samples, or on as many of them as tune judges by, evenly spaced."""
    some = samples.part(evenly_spaced([*range(len(samples))], _MOST_JUDGED))
    paths = [folder / f"all-{number}.npz" for number in range(len(some))]
    for path, feed in zip(paths, some.feeds, strict=True):
        save_feed(path, feed)
    judge = Judge(worker.run(given, paths), some, Bound(), margin=False)
    return judge.judge(worker.run(made, paths))


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

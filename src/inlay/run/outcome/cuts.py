"""What a run did less thoroughly, because its budget did not allow for more: for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from inlay.calibrate import policy
from inlay.measure.journal import Journal
from inlay.run.facts import CALIBRATION_SAMPLES, CHOICE, OUTLIERS_LEFT, PRECISION, SAMPLES, VARIATIONS
from inlay.run.inputs import RunInputs


def cuts(
    inputs: RunInputs, journal: Journal, missing: Sequence[str], first_blocks: int, confirmation: str
) -> tuple[str, ...]:
    """One phrase for each phase that was cut short.

    Args:
        inputs: what the run worked with.
        journal: knows what was decided.
        missing: anchors that were not timed.
        first_blocks: of the races.
        confirmation: what was left out of it, if anything.
    """
    return tuple(_cuts(inputs, journal, missing, first_blocks, confirmation))


def _cuts(
    inputs: RunInputs, journal: Journal, missing: Sequence[str], first_blocks: int, confirmation: str
) -> Iterator[str]:
    parts, config = inputs.parts, inputs.config
    samples, choice = journal.fact(CALIBRATION_SAMPLES), journal.fact(CHOICE)
    precision = journal.fact(PRECISION)
    if precision is not None and precision.late:
        yield f"the given model timed in {precision.own}, not in float32"
    if samples is not None and samples < len(parts.calibration):
        yield f"ranges from {samples} of {len(parts.calibration)} samples"
    if journal.fact(OUTLIERS_LEFT):
        yield "outliers of activations not evened out"
    if choice is not None and choice.scores and len(choice.scores) < len(config.methods):
        yield f"{len(choice.scores)} of {len(config.methods)} ways to choose ranges tried"
    if choice is not None and choice.cut:
        yield choice.cut
    if journal.fact(SAMPLES) is not None:
        yield f"accuracy on {inputs.judged} samples in the search and {len(parts.verification)} after it"
    varied = journal.fact(VARIATIONS)
    if varied is not None and varied < policy.SCORED_VARIATIONS:
        yield f"{varied} of {policy.SCORED_VARIATIONS} variations of samples"
    if missing:
        yield f"not timed: {', '.join(missing)}"
    if first_blocks < config.protocol.first_blocks:
        yield f"races begin with {first_blocks} of {config.protocol.first_blocks} blocks"
    if confirmation:
        yield confirmation

"""The forms in which a target may run a model, made quickly: they show how fast it could become there, and no more."""

from __future__ import annotations

from pathlib import Path

from inlay.prepare.strip_qdq import strip_qdq
from inlay.run.ceiling.measure import writer_by_extremes
from inlay.run.inputs import RunInputs
from inlay.run.preparation import prepared_for, target_of
from inlay.search.baselines import Anchors
from inlay.targets.base import Artifact, Fingerprint, TargetSpec
from inlay.types import Placement

_SAMPLES = 2  # for ranges: kernels take the same time whatever these are
_LOW = 3  # forms in low precision: all of it, convolutions and products alone, and what is quantized at run time


def quick_forms(inputs: RunInputs, spec: TargetSpec, fingerprint: Fingerprint, work: Path) -> dict[str, Artifact]:
    """Files of the normalized model in float, and in the anchors in low precision that come first, by their digests.

    Nothing is known of their accuracy. Files go to the folder ``work``.

    Raises:
        InlayError: the model cannot be prepared for the target.
    """
    inputs, samples = inputs.on(spec), inputs.parts.calibration.evenly(_SAMPLES)
    target, extraction = target_of(inputs.config, fingerprint.facts), strip_qdq(inputs.file, samples.feeds, work)
    prepared = prepared_for(inputs, target, samples, extraction, work)
    writer = writer_by_extremes(prepared, samples, fingerprint.digest)
    low = Anchors(prepared.graph, prepared.units, prepared.rules).upcoming(_LOW)
    return {made.digest: made for made in map(writer.write, (Placement(), *low))}

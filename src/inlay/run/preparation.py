"""The prepared model of a run: taken apart where it is quantized, normalized, indexed, its outliers evened out."""

from __future__ import annotations

from inlay.data import evenly_spaced
from inlay.prepare.equalize import Scales, equalized, find_scales
from inlay.prepare.model import PreparedModel, prepare
from inlay.prepare.take_apart import take_apart
from inlay.run.facts import EQUALIZATION, SATURATIONS
from inlay.run.session import Session
from inlay.targets.base import Capabilities


def prepare_model(session: Session, target: Capabilities) -> PreparedModel:
    """Prepare the model of ``session``; what samples decide is decided once in a run.

    Scales are not looked for where Q/DQ models are imported: their qparams belong to the weights as they are.

    Raises:
        ModelError: the model does not run, or its Q/DQ nodes cannot be taken out without changing it.
        UsageError: a glob or a rule of the recipe matches no node.
    """
    inputs, config, journal = session.inputs, session.inputs.config, session.journal
    samples = inputs.parts.calibration
    extraction = take_apart(inputs.file, samples.feeds, session.work, journal.fact(SATURATIONS))
    if extraction is not None:
        journal.record_fact(SATURATIONS, {s.node: s.form for s in extraction.saturations})
    feed = samples.feeds[0]
    prepared = prepare(inputs.file, target, feed, session.work, config.nodes, config.recipe, extraction)

    def scales() -> Scales:
        barred = extraction is not None or inputs.qdq_baseline or samples.kind == "random"
        count = session.plan.samples(len(samples), session.costs)
        some = samples.part(evenly_spaced([*range(len(samples))], count))
        return (
            {}
            if barred
            else find_scales(prepared, target, some.feeds, session.plan.equalization(session.costs, config))
        )

    return equalized(prepared, journal.once(EQUALIZATION, scales), target, feed, config.nodes, config.recipe)

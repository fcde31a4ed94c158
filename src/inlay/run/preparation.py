"""The prepared model of a run: taken apart where it is quantized, normalized, indexed, its outliers evened out."""

from __future__ import annotations

from inlay.data import evenly_spaced
from inlay.prepare.equalize import Evened, Scales, equalized, find_scales
from inlay.prepare.model import PreparedModel, prepare
from inlay.prepare.take_apart import take_apart
from inlay.run.facts import EQUALIZATION, FROZEN, MAX_OPSET, OUTLIERS_LEFT, SATURATIONS
from inlay.run.session import Session
from inlay.targets.base import Capabilities


def prepare_model(session: Session, target: Capabilities) -> PreparedModel:
    """Prepare the model of ``session``; what samples decide is decided once in a run.

    Raises:
        ModelError: the model does not run, or its Q/DQ nodes cannot be taken out without changing it.
        UsageError: a glob or a rule of the recipe matches no node.
    """
    inputs, config, journal = session.inputs, session.inputs.config, session.journal
    samples = inputs.parts.calibration
    extraction = take_apart(inputs.file, samples.feeds, session.work, journal.fact(SATURATIONS))
    if extraction is not None:
        journal.record_fact(SATURATIONS, {s.node: s.form for s in extraction.saturations})
    if inputs.frozen:
        journal.record_fact(FROZEN, inputs.frozen)
    if config.max_opset is not None:
        journal.record_fact(MAX_OPSET, config.max_opset)
    feed, frozen = samples.feeds[0], inputs.frozen
    return prepare(inputs.file, target, feed, session.work, config.nodes, config.recipe, extraction, frozen)


def without_outliers(session: Session, target: Capabilities, prepared: PreparedModel) -> PreparedModel:
    """``prepared`` with the outliers of its activations in weights, as far as the samples show that it helps.

    Scales are not looked for where the model came quantized or qparams of a Q/DQ model are kept: both belong to the
    weights as they are.
    """
    inputs, config = session.inputs, session.inputs.config
    samples = inputs.parts.calibration

    evened = Evened()

    def scales() -> Scales:
        nonlocal evened
        kept = inputs.qdq_baseline is not None and config.keep_qparams
        barred = prepared.extraction is not None or kept or samples.kind == "random"
        count = session.plan.samples(len(samples), session.costs)
        some = samples.part(evenly_spaced([*range(len(samples))], count))
        if barred:
            return {}
        deadline = session.plan.equalization(session.costs, config)
        evened = find_scales(prepared, target, some.feeds, deadline, samples.mask, config.nodes, config.recipe)
        if not evened.in_time:
            session.journal.record_fact(OUTLIERS_LEFT, True)
        return evened.scales

    found = session.journal.once(EQUALIZATION, scales)
    return evened.model or equalized(prepared, found, target, samples.feeds[0], config.nodes, config.recipe)

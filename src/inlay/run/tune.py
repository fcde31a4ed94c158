"""Tune a model: from the model and samples to the fastest model that was measured and keeps the accuracy bound.

:func:`tune` passes frozen values from phase to phase: the given model on its target, the calibrated model, the search,
the confirmed winner, the result. :func:`search_until` is the loop.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from inlay.errors import InlayError, Late
from inlay.measure.lab import Ahead
from inlay.measure.race import Meter
from inlay.model.guard import limited
from inlay.model.heard import doing
from inlay.model.passes.branches import METADATA
from inlay.model.pinned import random_note
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.halves import told
from inlay.run.budget import Budget, SearchTime, TimeLimit
from inlay.run.confirm.contenders import contenders_of
from inlay.run.confirm.crossfit import CrossFit, cross_fitted
from inlay.run.confirm.decision import Confirmation
from inlay.run.confirm.delivered import Confirmed
from inlay.run.confirm.earlier import kept_or
from inlay.run.evaluate import Evaluator
from inlay.run.facts import DONE, PROFILE, SENSITIVITY, not_measured
from inlay.run.given import Given, evaluator_of
from inlay.run.inputs import TuneRequest, fixable_notes, freezable_notes, limit_notes
from inlay.run.outcome.assemble import Found, assemble, ceilings, cuts, given_alone, losses, measure_memory, one_story
from inlay.run.outcome.evidence import EVIDENCE, evidence_of
from inlay.run.outcome.notes import About, bar_notes, compare_profiles, heat_notes, notes_for
from inlay.run.outcome.uses import in_other_uses
from inlay.run.outputs import write_recipe
from inlay.run.preparation import Calibrated, make_ready
from inlay.run.progress import Progress
from inlay.run.result import TuneResult, write_json
from inlay.run.schedule import QUICK_CONTENDERS
from inlay.run.session import Session, open_session
from inlay.run.steering import steered
from inlay.run.strategies import Strategies, compose, guided_report
from inlay.search.base import Strategy
from inlay.search.baselines import FULL_INT8, ORIGINAL
from inlay.space.recipe import elsewhere
from inlay.targets.base import KernelTime
from inlay.trial import Proposal
from inlay.types import Placement

EXHAUSTED = "nothing promising is left"  # why a search ended that more time would not help
_RETREATS = 3
"""Searches for more accuracy after the winner failed on unseen samples: each look at these weakens what they prove."""
_SAFETY_DB = 1.0  # what such a search asks for beyond what the winner lacked


def tune(asked: TuneRequest) -> TuneResult:
    """Find the fastest placement of Q/DQ nodes that keeps the accuracy bound, and write it.

    Raises:
        InlayError: the model, the samples, the target or the folder cannot be used; nothing was written.
    """
    with open_session(asked) as session:
        given, model = make_ready(session)
        if isinstance(model, Late):
            return given_alone(session, given, model)
        given = steered(session, given, model)
        with session.building_ahead(model.candidates, given.feeds) as ahead:
            search = _set_up(session, given, model, ahead)
            ended = _search(session, model, search)
            crossfit = CrossFit(session, given, model.prepared, model.imported)
            confirmed, retreat_builds = _confirm(session, given, model, search, ended, crossfit)
        session.stage("judge the winner on further samples")
        confirmed = cross_fitted(session, crossfit, confirmed)
        confirmed = in_other_uses(session, confirmed, given.file, search.feed)
        session.stage("compare what was measured, and write the result")
        ended = replace(ended, builds=ended.builds + retreat_builds)
        result = _result(session, given, model, search, ended, confirmed)
        tuned_for = session.worker.fingerprint.named_facts
        write_recipe(asked.out / "recipe.yaml", model.prepared, confirmed.placement, tuned_for)
        confirmed.install(asked.out / "model.onnx")
        write_json(asked.out / "result.json", result.as_json())
        with contextlib.suppress(InlayError):  # nothing of the result depends on it
            _leave_evidence(session, model, search, confirmed)
        if ended.stopped_because == EXHAUSTED and search.strategies.guided.is_done:  # which a killed run is not
            session.journal.record_fact(DONE, asked.config.budget_s or math.inf)
        return result


def search_until(
    limits: TimeLimit,
    strategy: Strategy,
    evaluator: Evaluator,
    candidates: CandidateWriter,
    progress: Progress,
    ahead: Ahead,
) -> str:
    """The loop: judge what ``strategy`` proposes until it has nothing left, or ``limits`` are reached.

    Meanwhile builders, where there are any, are ``ahead`` with what it may propose next.

    Returns:
        Why it ended.

    Raises:
        Late: a call was not over by the time of its trial.
    """
    until = limits.time.least()  # of the latest trial, and of what is asked for behind it
    with limited(lambda: max(limits.left_s, until.left)):
        while (proposal := strategy.ask()) is not None:
            key = candidates.key(proposal.placement)
            turn = limits.turn(proposal, key, evaluator)
            if isinstance(turn, str):
                return turn
            until = turn.until
            ahead.begin(key, strategy.upcoming)
            doing(f"judge {proposal.origin}")
            # emit ▶ compile ▶ accuracy ▶ measure ▶ journal
            trial = evaluator.evaluate(proposal, key, partial(candidates.write, proposal.placement))
            limits.judged(turn)
            strategy.tell(trial)
            progress.trial(evaluator.step(trial, limits.left_s))
    return EXHAUSTED


# --- search --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class _SearchSetup:
    """What the search works with; ``feed`` is the file of the inputs that latency is measured on."""

    feed: Path
    ahead: Ahead
    meter: Meter
    evaluator: Evaluator
    budget: Budget
    time: SearchTime
    strategies: Strategies


@dataclass(frozen=True)
class _SearchEnd:
    """How the search ended: why, whether the user ended it, and how many models were built."""

    stopped_because: str
    interrupted: bool
    builds: int


def _set_up(session: Session, given: Given, model: Calibrated, ahead: Ahead) -> _SearchSetup:
    feed = session.inputs.workload.save(session.work / "latency")
    protocol = session.plan.protocol()
    evaluator, meter = evaluator_of(session, given, feed, protocol, lambda: time.end().left, ahead.take)
    time = SearchTime(
        session.plan,
        lambda: evaluator.judged,
        lambda: len(contenders_of(evaluator.judged, evaluator.incumbent, None, QUICK_CONTENDERS)),
        len(given.feeds),
        protocol.first_blocks,
    )
    budget = Budget(time, session.journal, session.worker)
    strategies = compose(session, model, evaluator, feed, budget)
    return _SearchSetup(
        feed=feed, ahead=ahead, meter=meter, evaluator=evaluator, budget=budget, time=time, strategies=strategies
    )


def _search(session: Session, model: Calibrated, search: _SearchSetup) -> _SearchEnd:
    evaluator, interrupted = search.evaluator, False
    session.stage("search", search.time.end)
    try:
        given = [(f"qdq-baseline: {file.path.name}", file) for file in model.imported.files]
        for name, file in [*given, *model.usual]:
            proposal = Proposal(Placement(), name, anchor=True)
            if not isinstance(search.budget.turn(proposal, file.digest, evaluator), str):
                evaluator.evaluate(proposal, file.digest, partial(replace, file), source=file.path)
        chain = search.strategies.chain
        stopped = search_until(search.budget, chain, evaluator, model.candidates, session.progress, search.ahead)
    except Late as late:
        stopped = str(late)
    except KeyboardInterrupt:
        stopped, interrupted = "interrupted", True
    builds = session.worker.builds
    for each in search.strategies.joined.values():
        each.leave(session.inputs.out, evaluator.judged)
    search.strategies.save_costs(session)
    return _SearchEnd(stopped, interrupted, builds)


# --- confirm -------------------------------------------------------------------------------------------------------


def _confirm(
    session: Session, given: Given, model: Calibrated, search: _SearchSetup, ended: _SearchEnd, crossfit: CrossFit
) -> tuple[Confirmed, int]:
    """Confirm the winner; where it fails on unseen or varied samples, or they do not show its bound, search again.

    Every retreat asks for more accuracy than the last, by what was missing, so that the unseen samples are looked at
    few times, in an order that does not depend on them otherwise.

    Returns:
        The decision, and the models that the retreats built.
    """
    config, evaluator, worker = session.inputs.config, search.evaluator, session.worker
    session.stage("confirm the winner in fresh processes")
    confirmation = Confirmation(
        session=session,
        given=given,
        judged=evaluator.judged,
        candidates=model.candidates,
        feed=search.feed,
        varied=model.test,
        weigh=crossfit.weigh,
        briefly=ended.interrupted,
    )
    confirmed = latest = confirmation.decide(evaluator.incumbent)
    rejected, measured, builds = confirmed.rejected, confirmed.rounds.measured, 0
    limit = TimeLimit(search.time, session.journal, worker, necessary=True)
    for _ in range(0 if ended.interrupted or config.strategy == "anchors" else _RETREATS):
        least_db = latest.least_db(config.searched.min_sqnr_db)
        if least_db is None or not search.time.least().fits(search.time.trial_s):
            break
        wanted_db = least_db + _SAFETY_DB
        trouble = "lose too much on varied ones" if latest.could_be_sturdier else "fail on unseen samples"
        trouble = "are not shown to keep the bound" if latest.is_unproven else trouble
        session.stage(f"look for a model of {wanted_db:.1f} dB: faster ones {trouble}", search.time.least)
        before = worker.builds
        retreat = search.strategies.guided.retreat(wanted_db)
        with contextlib.suppress(Late):
            search_until(limit, retreat, evaluator, model.candidates, session.progress, search.ahead)
        builds += worker.builds - before
        session.stage("confirm the winner in fresh processes")
        latest = confirmation.decide(evaluator.incumbent, least_db)
        rejected, measured = rejected + latest.rejected, {**measured, **latest.rounds.measured}
        confirmed = confirmed.or_better(latest)
    rounds = replace(confirmed.rounds, measured={**measured, **confirmed.rounds.measured})
    confirmed = replace(confirmed, rejected=rejected, rounds=rounds)
    return kept_or(confirmed, confirmation), builds


# --- result --------------------------------------------------------------------------------------------------------


def _result(
    session: Session, given: Given, model: Calibrated, search: _SearchSetup, ended: _SearchEnd, confirmed: Confirmed
) -> TuneResult:
    measure_memory(session, confirmed.rounds.finalists, search.feed)
    inputs, worker, anchors, write = session.inputs, session.worker, search.strategies.anchors, model.candidates.write
    trials = {
        name: replace(
            trial, outcome=one_story(model.candidates.key(trial.proposal.placement), trial.outcome, confirmed)
        )
        for name, trial in anchors.trials.items()
    }

    def why_slow() -> str:
        if not session.plan.before_writing.fits(session.costs.profile_s(2)):
            return ""
        full = anchors.trials[FULL_INT8].proposal.placement
        return compare_profiles(worker, partial(write, Placement()), partial(write, full), search.feed)

    lost = losses(session, confirmed, model.test, anchors.trials, write, given)
    found = Found(
        confirmed=confirmed,
        anchors=trials,
        losses=lost,
        not_timed=anchors.left_out,
        unsearched=_unsearched(search, ended, inputs.config.strategy),
    )
    cut_short = cuts(session, anchors.left_out, search.meter.protocol.first_blocks, confirmed.rounds)
    limits = limit_notes(inputs.file, model.prepared.normalized.model.metadata_props.get(METADATA, ""))
    about = About(
        units=model.prepared.units,
        reports=model.prepared.normalized.reports,
        rewrites=model.prepared.request.target.rewrites,
        lacks=worker.lacks,
        imported=model.imported,
        bound=inputs.config.bound,
        data_kind=inputs.samples.kind,
        verified=inputs.parts.verified,
        left_out=inputs.samples.left_out,
        kept_wide=told(model.prepared),
        inputs=[
            *(limits if confirmed.best.origin != ORIGINAL else ()),
            *fixable_notes(inputs.file, inputs.samples),
            *freezable_notes(model.prepared.graph, inputs.file, inputs.samples),
        ],
    )
    notes = notes_for(
        about,
        found,
        interrupted=ended.interrupted,
        why_slow=why_slow,
        own_precision=given.remark(inputs.config.bound, worker.spec.name),
        cuts=(*cut_short, *filter(None, [lost.cut])),
        remarks=[
            elsewhere(inputs.config.recipe, lambda: worker.fingerprint.named_facts),
            random_note(inputs.file.model),
        ],
        closing=[note for each in search.strategies.joined.values() for note in each.notes(trials)],
    )
    overhead = session.overhead(search.meter.waited_s, sum(search.strategies.probing_s))
    facts = {
        "builds": ended.builds,
        "wall_s": round(session.seconds, 3),
        "stopped_because": ended.stopped_because,
        "rejected": {r.candidate.placement.digest: r.reason for r in confirmed.rejected if r.candidate.placement},
        **({} if worker.deterministic else {"overhead": overhead, "machine": dict(worker.machine)}),
        **guided_report(search.strategies.guided, None if worker.deterministic else search.budget.trial_s),
        **({"imported": model.imported.as_json()} if model.imported.placements else {}),
        **{key: value for each in search.strategies.joined.values() for key, value in each.facts().items()},
    }
    known = ceilings(session, model, confirmed, lambda: _profiles(session, model, search, confirmed))
    return assemble(
        session,
        search.evaluator,
        found,
        search=facts,
        notes=(
            *inputs.changed,
            *filter(None, [not_measured(worker.fingerprint.facts)]),
            *heat_notes(session.throttled()),
            *notes,
            *([] if session.evaluation is None else session.evaluation.notes()),
            *bar_notes(search.strategies.guided.surrogate.bars.found),
            *known.remarks,
        ),
        interrupted=ended.interrupted,
        known=known,
    )


def _profiles(
    session: Session, model: Calibrated, search: _SearchSetup, confirmed: Confirmed
) -> Iterator[Sequence[KernelTime]]:
    """The kernels of the delivered and of the float model; none of one that there is no time to profile."""
    for placement in (confirmed.placement, Placement()):
        fits = session.plan.before_writing.fits(session.costs.profile_s(1))
        key = "" if placement is None else model.candidates.key(placement)
        known = session.journal.fact(PROFILE.of(key))
        if placement is None or not (fits or known):
            yield []
            continue
        write = partial(model.candidates.write, placement)
        yield search.evaluator.profile(key, write, search.feed, confirmed.best.latency_ms * 1e6)


def _unsearched(search: _SearchSetup, ended: _SearchEnd, strategy: str) -> str:
    """That nothing but the usual placements was tried, and why; empty where more was."""
    if any(c.placement and not c.trial.proposal.anchor for c in search.evaluator.judged[1:]):
        return ""
    if strategy == "anchors":
        return "no placement was searched, as --strategy anchors asks"
    if ended.stopped_because == EXHAUSTED:
        return "the search expected none to be faster"
    more = "give a larger --budget" if "budget" in ended.stopped_because else ended.stopped_because
    return f"no placement was searched: {more}"


def _leave_evidence(session: Session, model: Calibrated, search: _SearchSetup, confirmed: Confirmed) -> None:
    """Record what a report needs; what was delivered is profiled for it where there is time left."""
    writer, key, placement = model.candidates, model.candidates.key, confirmed.placement
    if placement is not None and session.plan.before_report.fits(session.costs.profile_s(1)):
        write = partial(writer.write, placement)
        doing("profile the delivered model")
        search.evaluator.profile(key(placement), write, search.feed, confirmed.best.latency_ms * 1e6)
    unseen = session.inputs.verification
    evidence = evidence_of(
        model.prepared,
        placement,
        search.strategies.guided.surrogate.cost_model,
        session.journal.fact(SENSITIVITY),
        {"delivered": "" if placement is None else key(placement), "float": key(Placement())},
        {name: key(trial.proposal.placement) for name, trial in search.strategies.anchors.trials.items()},
        [] if unseen is None else [(unseen.number(i), db) for i, db in enumerate(confirmed.on_others.each_db)],
        {key: nodes for each in search.strategies.joined.values() for key, nodes in each.regions().items()},
    )
    session.journal.record_fact(EVIDENCE, evidence)

"""Measure the contenders again, in fresh processes and in the form in which they would be delivered, and decide.

Two rounds. The first chooses the fastest of the contenders (the incumbent, the fastest feasible candidates, the most
accurate of those about as fast, the best anchors) among those that keep the bound on the verification samples, by its
own blocks and those of the search. Of equally fast ones it takes the most accurate. The second measures that one anew,
beside the given model, float and the best anchor. Only its blocks decide and are reported, so that no figure profits
from having been chosen for being good. An open case is measured on, and looked at once more. The chosen model is
delivered where it beats both the given model and float with an error of at most
:data:`~inlay.run.confirm.contenders.FALSE_ACCEPT`, and the best anchor is not clearly faster.

What is delivered is what can be stated: of the contenders that gain, the first one counts for which the samples show
the bound on new ones (:mod:`~inlay.run.confirm.evidence`); where they show it for none, the one nearest to it.

Of contenders that are hardly slower than the fastest, one that keeps most of the bound where samples are varied is
preferred (:data:`~inlay.run.confirm.evidence.STURDY_PRICE`): samples of another source differ like that.

Where all contenders fail on the verification samples, another anchor, or a candidate that is as much more accurate as
they would have had to be, takes their place: the fastest by the readings of the search.

A contender that fails in fresh processes is given up, and the next one takes its place. Where not even the given model
runs there, nothing can be confirmed: the readings of the search are the evidence, and the result says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from inlay.deadline import Deadline
from inlay.errors import TargetError
from inlay.measure.lab import no_others
from inlay.measure.policy import REPORTED_LEVEL
from inlay.model.heard import counting
from inlay.model.load import file_sha256
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.config import TuneConfig
from inlay.run.confirm.contenders import (
    TIE,
    Entry,
    Known,
    champion_of,
    contenders_of,
    fastest_of,
    gain,
    is_enough,
    is_hopeless,
    most_promising,
    open_cases,
    promise,
)
from inlay.run.confirm.delivered import (
    WAS_BUSY,
    Confirmed,
    Rounds,
    best_of,
    by_shape,
    lacking,
    least_of_sturdy,
    passed_over,
)
from inlay.run.confirm.evidence import most_credible
from inlay.run.confirm.fresh_readings import FreshReadings
from inlay.run.confirm.undecided import (
    by_search,
    contradicted,
    faster_than,
    left_open,
    likely_faster,
    open_words,
    over_float,
    said_blocks,
    told,
    too_few,
    unrefuted,
)
from inlay.run.confirm.verification import OnOthers, Unseen, Verifier, Weigh, least_db
from inlay.run.evaluate import Candidate
from inlay.run.given import Given
from inlay.run.result import Best
from inlay.run.robustness import StressTest
from inlay.run.schedule import QUICK_CONTENDERS, Effort, Schedule
from inlay.run.session import Session
from inlay.targets.base import Artifact
from inlay.trial import LEVEL, Interval
from inlay.types import Placement

_FALLBACKS = 3  # candidates that are judged where no contender keeps the bound: each look may pass one by luck


@dataclass(frozen=True, eq=False, kw_only=True)
class Confirmation:
    """What the candidates of one search are confirmed with."""

    session: Session  # the run
    given: Given  # the given model
    judged: Sequence[Candidate]  # every candidate, the given model first; grows while the search goes on
    candidates: CandidateWriter  # writes them in their final form
    feed: Path  # file of the inputs that latency is measured on
    varied: StressTest  # variations of the selection samples
    weigh: Weigh  # what all samples say of a contender on new ones
    briefly: bool = False  # in one fresh process: the user waits

    @cached_property
    def config(self) -> TuneConfig:
        """Settings of the confirmation."""
        config = self.session.inputs.config
        return replace(config, confirm_processes=1) if self.briefly else config

    @property
    def plan(self) -> Schedule:
        """How much time there is."""
        return replace(self.session.plan, config=self.config)

    @cached_property
    def unseen(self) -> Unseen | None:
        """The verification samples; None where there are too few."""
        inputs = self.session.inputs
        if inputs.verification is None:
            return None
        feeds = self.session.save_feeds("verification", inputs.verification)
        return Unseen(inputs.verification, feeds, inputs.metric, self.given)

    @property
    def _evaluated(self) -> Known | None:
        """What the user's own evaluation said of candidates already."""
        evaluation = self.session.evaluation
        return None if evaluation is None else lambda c: evaluation.known(c.trial.proposal.placement.digest)

    @property
    def original(self) -> Entry:
        """The given model."""
        return Entry(self.judged[0], self.given.file)

    def verifier(self) -> Verifier:
        """What judges contenders on samples that nothing has seen, each once."""
        session = self.session
        limits = self.config.bound, session.plan.deadline, self.varied, self.weigh
        return Verifier(session.worker, self.judged[0], self.unseen, *limits)

    def final(self, candidate: Candidate) -> Artifact:
        """A candidate in its final form."""
        if candidate.placement is None:
            assert candidate.source is not None, "it was given, or has a placement"
            return Artifact(candidate.source, file_sha256(candidate.source))
        own = self.session.work / f"final-{candidate.key}"
        own.mkdir(exist_ok=True)
        return self.candidates.deliver(candidate.placement, own / "model.onnx")

    def decide(self, incumbent: Candidate, least_db: float | None = None) -> Confirmed:
        """Measure and decide what to deliver.

        Args:
            incumbent: the best of the search.
            least_db: SQNR on the selection samples below which quantized models are left out, as an earlier look at
                the verification samples showed that these fail there; None for no limit.
        """
        session, plan = self.session, self.plan
        verifier = self.verifier()
        most = contenders_of(self.judged, incumbent, least_db, QUICK_CONTENDERS)
        effort = plan.confirmation(len(most))
        equal = no_others if session.worker.deterministic else session.lab.equal  # there, one reading is enough
        readings = plan.readings(effort, len(most))
        timed = (session.limit_s, self.feed, self.config, session.work, session.rng, readings, equal)
        fresh = FreshReadings(session.start_beside, *timed)
        chosen = contenders_of(self.judged, incumbent, least_db, effort.contenders)
        contenders = [Entry(c, self.final(c)) for c in counting(chosen, "write contender")]
        try:
            base, others, reported, measured = self._two_rounds(contenders, fresh, verifier, effort)
        except TargetError as error:
            return self._unconfirmed(contenders, fresh, verifier, effort, str(error), 0)
        full, blocks = plan.efforts[0], len(base.readings)
        if not base.readings.exact:
            effort = effort.done(fresh.counts[0], blocks)
        if others and too_few(base):
            why = f"{said_blocks(blocks, full)} are too few"
            return self._unconfirmed(contenders, fresh, verifier, effort, why, blocks)
        champion = champion_of(base, others)
        if likely := likely_faster(base, others, champion):
            why = f"{said_blocks(blocks, full)} agree, but show no gain by themselves"
            return self._unconfirmed(likely, fresh, verifier, effort, why, blocks)
        gained = gain(base, champion, reported)
        reference = next((e for e in others if e.is_float), None)
        best = best_of(
            base,
            champion,
            gained,
            gain(reference, champion, reported) if reference else over_float(gained, self.judged),
            verifier.accuracy(champion),
            by_shape(base, champion, session.inputs.workload),
        )
        origins = {e.key: e.candidate.origin for e in (*contenders, *others)}
        troubles = [f"{origins[key]} was given up: {why}" for key, why in fresh.given_up.items()]
        is_sturdy = champion.candidate.placement and verifier.lacks_db(champion, plan.before_writing) == 0.0
        if is_sturdy:  # else they lost for other reasons
            short = {key: db for key, db in verifier.lacking.items() if db > 0.0 and key in origins}
            troubles += [f"{origins[key]} was passed over: {lacking(db)}" for key, db in short.items()]
        troubles += passed_over(champion, contenders, verifier)
        troubles += [f"equal devices disagree about {origins[key]}: {how}" for key, how in fresh.disagreed.items()]
        troubles += [WAS_BUSY] if fresh.is_busy else []
        rounds = Rounds(
            effort=effort,
            measured={**measured, **told(base, others, reported)},
            given_up=frozenset(fresh.given_up),
            finalists={e.key: e.file for e in (champion, base, *others)},
            anchor_speedup=max([1.0, *(gain(base, e).value for e in others if e.is_anchor)]),
        )
        confirmed = self._confirmed(best, base, champion, verifier, rounds, troubles)
        undecided = ""
        if not champion.candidate.placement:
            lost = fresh.given_up, verifier.rejected, self.config.searched.min_sqnr_db, least_db
            found = contradicted(self.judged, rounds.measured, *lost) | left_open(base, others)
            undecided = self._open(faster_than(found, gained), blocks, effort, len(contenders))
        if undecided and champion is base:
            confirmed = replace(confirmed, best=replace(best, confirmed=False))
        return replace(
            confirmed,
            undecided=undecided,
            fell_back=champion.key not in {base.key, *(e.key for e in contenders)},
            on_others=verifier.on_others(champion, plan.before_writing),
        )

    def _confirmed(
        self, best: Best, base: Entry, champion: Entry, verifier: Verifier, rounds: Rounds, troubles: Sequence[str]
    ) -> Confirmed:
        return Confirmed(
            best=best,
            baseline_ms=base.readings.median_ns / 1e6,
            file=champion.file.path,
            placement=Placement() if best.is_float else champion.candidate.placement,
            rejected=verifier.rejected,
            rounds=rounds,
            troubles=(*troubles, *verifier.troubles),
            on_others=OnOthers(each_db=verifier.each_db(champion)),
            key=champion.key,
        )

    def _unconfirmed(
        self, entries: Sequence[Entry], fresh: FreshReadings, verifier: Verifier, effort: Effort, why: str, blocks: int
    ) -> Confirmed:
        """The decision by the readings of the search, as there are none, or too few, of fresh processes."""
        contenders = [e for e in entries if e.key not in fresh.given_up]
        base, champion, gained = by_search(self.original, contenders, self._preferred(verifier))
        best = best_of(base, champion, gained, over_float(gained, self.judged), verifier.accuracy(champion))
        best = replace(best, confirmed=False)
        said = [f"NOT CONFIRMED: {why}; the figures are those of the search", *([WAS_BUSY] if fresh.is_busy else [])]
        rounds = Rounds(effort=effort, given_up=frozenset(fresh.given_up))
        confirmed = self._confirmed(best, base, champion, verifier, rounds, said)
        if champion.candidate.placement:
            return confirmed
        lost = {r.candidate.key for r in verifier.rejected}
        return replace(confirmed, undecided=self._open(unrefuted(contenders, lost), blocks, effort, len(contenders)))

    def _preferred(self, verifier: Verifier) -> Callable[[Sequence[Entry]], Entry]:
        """Of the contenders that gain, the best first: what is delivered where there are no readings to decide by."""
        until = self.plan.before_writing

        def prefer(ranked: Sequence[Entry]) -> Entry:
            kept = [e for e in ranked if verifier.keeps(e)]
            found = most_credible(kept, lambda e: verifier.evidence(e, until), _speedup) if kept else self.original
            return found if verifier.keeps(found) else self.original  # what is said of new samples may reject it

        return prefer

    def _open(self, found: Mapping[str, Interval], blocks: int, effort: Effort, contenders: int) -> str:
        """What is left open after so many deciding blocks, and what it would take to know; empty where nothing is."""
        costs = self.session.costs
        full = self.plan.efforts[0]
        block_s = costs.block_s(effort.finalists(contenders))
        return open_words(found, self.session.plan, effort, full, blocks, block_s) if found else ""

    def _two_rounds(
        self, contenders: Sequence[Entry], fresh: FreshReadings, verifier: Verifier, effort: Effort
    ) -> tuple[Entry, list[Entry], float, dict[str, Interval]]:
        """The given model and the finalists with the readings that decide, and the level of intervals to report.

        Last, the speed-ups of contenders in the first round, as far as it tells any.

        Raises:
            TargetError: the given model does not run in fresh processes.
        """
        deciding = effort.second * effort.finalists(len(contenders))
        base, *entries = fresh.of([self.original, *contenders], effort.first, effort.blocks, deciding)
        first = told(base, entries, LEVEL)
        while True:
            until = self.plan.weighing(effort, len(contenders))
            finalists = self._finalists(base, entries, fresh.given_up, verifier, until)
            found, level = self._second_round([base, *finalists], fresh, effort)
            if len(found) == 1 + len(finalists):
                return found[0], found[1:], level, first

    def _finalists(
        self, base: Entry, contenders: Sequence[Entry], given_up: Collection[str], verifier: Verifier, until: Deadline
    ) -> list[Entry]:
        """Float, the most promising contender for which the bound is shown or nearest to it, and the best anchor."""
        entries = [e for e in contenders if e.key not in given_up]
        promises = {e.key: promise(base, e) for e in entries}
        tie = 0.0 if self.session.worker.deterministic else TIE
        quantized = most_promising([e for e in entries if not e.is_float], promises, tie)
        floats = [e for e in entries if e.is_float and verifier.keeps(e)]
        able = [e for e in quantized if not is_hopeless(base, e)]
        chosen = next((e for e in able if verifier.keeps(e)), None)
        if chosen is not None:
            least = math.log(least_of_sturdy(math.exp(promises[chosen.key])))
            as_fast = [e for e in quantized if e is not chosen and promises[e.key] >= least]
            chosen = self._sturdiest(chosen, as_fast, verifier, until)
        tried = {*given_up, *(e.key for e in contenders)}
        chosen = chosen or self._more_accurate(tried, verifier)
        if chosen is not None:
            slower = [e for e in able if e is not chosen and promises[e.key] > 0.0]
            chosen = self._most_credible(chosen, slower, tried, verifier, until)
            chosen = chosen if verifier.keeps(chosen) else None  # what is said of new samples may reject it
        anchor = next((e for e in quantized if e.is_anchor and e is not chosen), None)
        if anchor is not None and (chosen is None or not self._rivals(anchor, chosen, verifier, until)):
            anchor = None
        return [*floats, *(e for e in (chosen, anchor) if e is not None)]

    def _most_credible(
        self, chosen: Entry, others: Sequence[Entry], tried: Collection[str], verifier: Verifier, until: Deadline
    ) -> Entry:
        """``chosen`` or the first of the others, or of the search's candidates, for which the samples show the bound.

        Where they do for none, the nearest to it.
        """

        def offered() -> Iterator[Entry]:
            yield chosen
            found, left_out = verifier.evidence(chosen, until), {*tried, chosen.key}
            searched = chosen.candidate.trial.accuracy
            lacking = 0.0 if found is None or searched is None else found.lacks_db
            least = lacking + (0.0 if searched is None else searched.sqnr_db)
            known = self._evaluated if lacking else None  # what it would most likely reject, too, comes last
            vain = [e for e in others if known is not None and not is_enough(e.candidate, least, known)]
            yield from (e for e in others if e not in vain and verifier.keeps(e))
            for _ in range(_FALLBACKS if lacking else 0):
                candidate = fastest_of(self.judged, least, left_out, self._evaluated)
                if candidate is None or not verifier.may_judge(until):
                    break
                left_out.add(candidate.key)
                entry = Entry(candidate, self.final(candidate))
                if verifier.keeps(entry):
                    yield entry
            yield from (e for e in vain if verifier.keeps(e))

        return most_credible(offered(), lambda e: verifier.evidence(e, until), _speedup)

    def _rivals(self, anchor: Entry, chosen: Entry, verifier: Verifier, until: Deadline) -> bool:
        """Whether an anchor may be delivered in place of what was chosen: its bound is shown no less."""
        if not verifier.keeps(anchor):
            return False
        ours, its = verifier.evidence(chosen, until), verifier.evidence(anchor, until)
        return ours is None or its is None or its.shows or (not ours.shows and its.rank >= ours.rank)

    def _sturdiest(self, chosen: Entry, as_fast: Sequence[Entry], verifier: Verifier, until: Deadline) -> Entry:
        """``chosen``; where it loses too much on variations of the samples, the first of the others that does not.

        It is judged only where there are others: that takes time from the deciding blocks.
        """
        if not as_fast or verifier.lacks_db(chosen, until) == 0.0:
            return chosen
        return next((e for e in as_fast if verifier.keeps(e) and verifier.lacks_db(e, until) == 0.0), chosen)

    def _more_accurate(self, tried: Collection[str], verifier: Verifier) -> Entry | None:
        """Where contenders fail on unseen samples: the fastest other anchor, or candidate with what they lacked there.

        ``tried`` are keys of contenders, which lost for that or another reason.
        """
        left_out = set(tried)
        for _ in range(_FALLBACKS if verifier.rejected else 0):
            least = least_db(verifier.rejected, self.config.searched.min_sqnr_db)
            candidate = fastest_of(self.judged, math.inf if least is None else least, left_out, self._evaluated)
            if candidate is None:
                break
            entry = Entry(candidate, self.final(candidate))
            if verifier.keeps(entry):
                return entry
            left_out.add(candidate.key)
        return None

    def _second_round(
        self, finalists: Sequence[Entry], fresh: FreshReadings, effort: Effort
    ) -> tuple[list[Entry], float]:
        """The finalists that did not fail, with new readings only, and the level of the intervals to report."""
        found = fresh.of(finalists, effort.second, effort.blocks)
        base, *others = (e.readings for e in found)
        if base.exact or not open_cases(base, others):
            return found, LEVEL
        later = self.plan.later_look(len(found), effort)
        if not later:
            return found, LEVEL
        again = fresh.of(found, later, effort.blocks)
        first = {e.key: e.readings for e in found}
        found = [replace(e, readings=e.readings.behind(first[e.key])) for e in again]
        return found, REPORTED_LEVEL  # the readings decided to go on, as in a race


def _speedup(entry: Entry) -> float:
    return entry.candidate.speedup

"""Measure the contenders again, in fresh processes and in the form in which they would be delivered, and decide."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx

from inlay.data import Samples
from inlay.errors import TargetError
from inlay.measure.client import StartWorker, Worker
from inlay.measure.race import REPORTED
from inlay.measure.stats import LEVEL, speedup
from inlay.model.load import file_sha256, load
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.config import TuneConfig
from inlay.quant.accuracy import Judge, Metric, Outputs
from inlay.run.evaluate import Candidate
from inlay.run.result import Best, replacing
from inlay.targets.base import Artifact
from inlay.trial import Accuracy, Interval, Measured
from inlay.types import Placement

MOST_CONTENDERS = 5
QUICK_CONTENDERS, QUICK_NS = 8, 20e6
"""Where the given model takes less than so many nanoseconds, more contenders cost little. Of many readings of a search
the best are lucky ones: the more are looked at again, the more likely is a sound one among them."""
_QUICK_PROCESSES = 3  # of the first round, there
FALSE_ACCEPT = 0.002
"""Chance that a finalist which is no faster is delivered all the same; there are at most two besides float."""
LOOK_LEVEL = 1.0 - 2.0 * FALSE_ACCEPT / 2
"""Level at each of at most two looks: an open case is measured on, and looked at once more."""
LATER_LOOK = 3  # times the processes of the first look
_MATTERS = 1.002  # an open case whose estimate is below is not worth a second look
TIE = 0.005
"""Difference in speed, as a share, that the first round cannot tell and nobody would feel: accuracy decides."""
_HOPELESS = 0.9  # a contender this slow in the first round is not measured in the second


@dataclass(frozen=True, eq=False)
class Entry:
    """One contender in its final form; ``ns`` are its readings, shape (blocks,)."""

    candidate: Candidate
    file: Artifact
    ns: np.ndarray


@dataclass(frozen=True, eq=False)
class Rejected:
    """A contender that fell outside the bound on unseen samples: as it was searched, and its accuracy there."""

    candidate: Candidate
    unseen: Accuracy

    @property
    def origin(self) -> str:
        """Where it came from."""
        return self.candidate.trial.proposal.origin

    def least_db(self, bound_db: float | None) -> float:
        """SQNR on the selection samples below which a model would fail on unseen ones, too, by what this one lacked.

        Under a metric other than SQNR: half the noise of this one.
        """
        searched = self.candidate.trial.accuracy
        assert searched is not None, "only what was judged is a contender"
        return searched.sqnr_db + (3.0 if bound_db is None else max(0.1, bound_db - self.unseen.sqnr_db))


@dataclass(frozen=True, eq=False)
class Confirmed:
    """The decision.

    Attributes:
        best: what is delivered.
        baseline_ms: median of the given model in the same blocks.
        file: the delivered model, still in the scratch folder (or the given file).
        placement: what it quantizes; None for a given file with Q/DQ of its own.
        rejected: contenders that were faster but fell outside the bound on unseen samples.
    """

    best: Best
    baseline_ms: float
    file: Path
    placement: Placement | None
    rejected: tuple[Rejected, ...]

    def install(self, path: Path) -> None:
        """Copy the measured bytes to ``path`` atomically, external data beside it."""
        for data in load(self.file).external:
            beside = path.parent / data.relative_to(self.file.parent.resolve())
            if data.resolve() != beside.resolve():
                beside.parent.mkdir(parents=True, exist_ok=True)
                with replacing(beside) as fresh:
                    shutil.copyfile(data, fresh)
        with replacing(path) as fresh:
            shutil.copyfile(self.file, fresh)


def confirm(
    judged: Sequence[Candidate],
    incumbent: Candidate,
    candidates: CandidateWriter,
    baseline: Artifact,
    *,
    worker: Worker,
    feeds: Sequence[Path],
    latency_feed: Path,
    verification: Samples | None,
    metric: Metric | None,
    config: TuneConfig,
    folder: Path,
    rng: np.random.Generator,
    start: StartWorker = Worker,
    least_db: float = -np.inf,
) -> Confirmed:
    """Decide what to deliver, in two rounds of fresh processes.

    The first round chooses the fastest of the contenders (the incumbent, the fastest feasible candidates, the most
    accurate of those about as fast, the best anchors) among those that keep the bound on the verification samples, by
    its own blocks and those of the search. Of equally fast ones, within ``TIE`` where readings have noise, it takes the
    most accurate.
    The second measures that one anew, beside the given model, float and the best anchor; only its blocks decide and are
    reported, so that no figure profits from having been chosen for being good. An open case is measured on, and looked
    at once more. The chosen model is delivered where it beats both the given model and float with an error of at most
    ``FALSE_ACCEPT``, and the best anchor is not clearly faster. Quantized models below
    ``least_db`` on the selection samples are left out: an earlier look at the verification samples showed that these
    fail there.
    """
    given = judged[0].trial.outcome
    quick = isinstance(given, Measured) and given.latency.ns < QUICK_NS
    contenders = contenders_of(judged, incumbent, least_db, QUICK_CONTENDERS if quick else MOST_CONTENDERS)
    entries = [Entry(c, _final(c, candidates, folder), np.empty(0)) for c in contenders]
    measure = partial(_measure, feed=latency_feed, config=config, folder=folder, rng=rng, start=start)
    base = Entry(judged[0], baseline, np.empty(0))
    base, *entries = _timed([base, *entries], measure, _QUICK_PROCESSES if quick else 1)
    floats = [e for e in entries if e.candidate.placement == Placement()]
    promises = {e.candidate.key: _promise(base, e, worker) for e in entries}
    tie = 0.0 if worker.deterministic else TIE
    others = most_promising([e for e in entries if e not in floats], promises, tie)

    rejected: list[Rejected] = []
    checked: dict[str, Accuracy | None] = {base.candidate.key: _exact(base, verification)}
    reference: list[Outputs] | None = None

    def kept(entry: Entry) -> bool:
        nonlocal reference
        known = checked.get(entry.candidate.key)
        if known is not None:
            return known.feasible
        if verification is not None and reference is None:
            reference = list(worker.run(baseline, feeds))
        accuracy = _verify(entry, worker, feeds, reference, verification, metric, config)
        checked[entry.candidate.key] = accuracy
        if accuracy is not None and not accuracy.feasible:
            rejected.append(Rejected(entry.candidate, accuracy))
            return False
        return True

    floats = [e for e in floats if kept(e)]
    chosen = next((e for e in others if _gain(base, e, worker).value > _HOPELESS and kept(e)), None)
    anchor = next((e for e in others if e.candidate.trial.proposal.anchor and e is not chosen), None)
    if anchor is not None and (chosen is None or not kept(anchor)):
        anchor = None
    finalists = [base, *floats, *([chosen] if chosen else []), *([anchor] if anchor else [])]
    processes = max(1, config.confirm_processes)
    base, *finalists = _timed(finalists, measure, processes)
    reported = LEVEL
    if not worker.deterministic and open_cases(base.ns, [e.ns for e in finalists]):
        reported = REPORTED  # the readings decided to go on, as in a race
        again = _timed([base, *finalists], measure, LATER_LOOK * processes)
        pairs = zip([base, *finalists], again, strict=True)
        base, *finalists = [replace(e, ns=np.concatenate([e.ns, more.ns])) for e, more in pairs]
    champion = base
    for entry in finalists:
        plain = entry.candidate.placement == Placement() or entry.candidate.trial.proposal.anchor
        level = LEVEL if plain and champion is not base else LOOK_LEVEL
        if _gain(champion, entry, worker, level).shows_gain():
            champion = entry
    over_float = _gain(finalists[0] if floats else base, champion, worker, reported)
    best = _best(champion, _gain(base, champion, worker, reported), over_float, checked[champion.candidate.key])
    return Confirmed(
        best,
        float(np.median(base.ns)) / 1e6,
        champion.file.path,
        Placement() if best.is_float else champion.candidate.placement,
        tuple(rejected),
    )


def is_open(base_ns: np.ndarray, other_ns: np.ndarray) -> bool:
    """Whether readings leave open if the other model is faster, by an amount that matters."""
    found = speedup(base_ns, other_ns, LOOK_LEVEL)
    return found.low <= 1.0 < found.high and found.value >= _MATTERS


def open_cases(base_ns: np.ndarray, others_ns: Sequence[np.ndarray]) -> list[int]:
    """Which of the others are open, and not clearly slower than the fastest: what cannot win needs no second look."""
    if not len(others_ns):
        return []
    leader = others_ns[int(np.argmax([speedup(base_ns, ns).value for ns in others_ns]))]
    return [
        i
        for i, ns in enumerate(others_ns)
        if is_open(base_ns, ns) and (ns is leader or speedup(leader, ns, LOOK_LEVEL).high >= 1.0)
    ]


def _timed(entries: Sequence[Entry], measure: Callable[..., np.ndarray], processes: int) -> list[Entry]:
    """The same contenders with the readings of new blocks."""
    ns = measure([e.file for e in entries], processes=processes)
    return [replace(e, ns=ns[:, i]) for i, e in enumerate(entries)]


def _gain(base: Entry, other: Entry, worker: Worker, level: float = LEVEL) -> Interval:
    if worker.deterministic:
        ratio = float(base.ns[0] / other.ns[0])
        return Interval(ratio, ratio, ratio)
    return speedup(base.ns, other.ns, level)


def _promise(base: Entry, other: Entry, worker: Worker) -> float:
    """Logarithm of the speed-up before the deciding blocks: from the fresh ones, and from the search's own race.

    A few fresh blocks alone tell gains of a few percent apart hardly better than chance. Those of the search belong to
    another process, so they count for at most twice the fresh ones.
    """
    gain = _gain(base, other, worker).value
    outcome = other.candidate.trial.outcome
    if worker.deterministic or not isinstance(outcome, Measured):
        return float(np.log(gain))
    fresh, earlier = len(base.ns), min(outcome.latency.blocks, 2 * len(base.ns))
    return float(np.average(np.log([gain, outcome.latency.speedup.value]), weights=[fresh, earlier]))


def most_promising(entries: Sequence[Entry], promises: Mapping[str, float], tie: float = TIE) -> list[Entry]:
    """The best first: those within ``tie`` of the fastest by accuracy, then the others by speed."""
    by_speed = sorted(entries, key=lambda e: -promises[e.candidate.key])
    tied = [e for e in by_speed if promises[e.candidate.key] >= promises[by_speed[0].candidate.key] - tie]
    return [*sorted(tied, key=lambda e: -_sqnr(e.candidate)), *by_speed[len(tied) :]]


def contenders_of(
    judged: Sequence[Candidate], incumbent: Candidate, least_db: float, most: int = MOST_CONTENDERS
) -> list[Candidate]:
    """At most ``most``: float, incumbent, best anchor, the fastest, the most accurate of those as fast."""
    feasible = [c for c in judged[1:] if c.trial.feasible and _sqnr(c) >= least_db]
    # of models with one optimized graph, the first is enough: the others run alike
    fastest = sorted((c for c in feasible if not _equal(c)), key=lambda c: -c.speedup)
    anchors = [c for c in fastest if c.trial.proposal.anchor]
    floats = [c for c in judged[1:] if c.placement == Placement() and c.trial.feasible and not _equal(c)]
    tied = [c for c in fastest if c.speedup >= fastest[0].speedup * (1.0 - TIE)]
    safest = sorted(tied, key=lambda c: -_sqnr(c))[:1]
    kept = [incumbent] if _sqnr(incumbent) >= least_db else []
    wishes = [*floats, *kept, *anchors[:1], *fastest[:1], *safest, *fastest[1 : most - 2]]
    unique = {c.key: c for c in wishes if c.key != judged[0].key}
    return list(unique.values())[:most]


def _equal(candidate: Candidate) -> bool:
    outcome = candidate.trial.outcome
    return isinstance(outcome, Measured) and bool(outcome.equal_to)


def _sqnr(candidate: Candidate) -> float:
    accuracy = candidate.trial.accuracy
    return -np.inf if accuracy is None else accuracy.sqnr_db


def _final(candidate: Candidate, candidates: CandidateWriter, folder: Path) -> Artifact:
    if candidate.source is not None or candidate.placement is None:
        assert candidate.source is not None
        return Artifact(candidate.source, file_sha256(candidate.source))
    own = folder / f"final-{candidate.key}"
    own.mkdir(exist_ok=True)
    return candidates.deliver(candidate.placement, own / "model.onnx")


def _measure(
    artifacts: list[Artifact],
    processes: int,
    *,
    feed: Path,
    config: TuneConfig,
    folder: Path,
    rng: np.random.Generator,
    start: StartWorker,
) -> np.ndarray:
    """Readings of every process, stacked: shape (processes * blocks, models), ns."""
    readings = []
    for _ in range(processes):
        with start(config.target, folder, config.limit_s) as fresh:
            blocks = 1 if fresh.deterministic else config.confirm_blocks
            seed = int(rng.integers(2**31))
            readings.append(fresh.time(artifacts, feed, blocks, config.protocol.slot_ns, seed).ns)
            if fresh.deterministic:
                break
    return np.concatenate(readings)


def _verify(
    entry: Entry,
    worker: Worker,
    feeds: Sequence[Path],
    reference: list[Outputs] | None,
    verification: Samples | None,
    metric: Metric | None,
    config: TuneConfig,
) -> Accuracy | None:
    """Accuracy on samples that neither calibration nor search has seen; None where there are too few for that."""
    if verification is None or reference is None:
        return None
    judge = Judge(reference, verification, config.bound, metric, margin=False)
    try:
        outputs = worker.run(entry.file, feeds)
    except TargetError as error:
        return Accuracy(False, -300.0, reason=f"it failed on unseen samples: {error}")
    finally:
        worker.drop(entry.file)
    return judge.judge(outputs)


def _exact(base: Entry, verification: Samples | None) -> Accuracy | None:
    """The given model is its own reference."""
    outcome = base.candidate.trial.outcome
    return outcome.accuracy if verification is not None and isinstance(outcome, Measured) else None


def _best(champion: Entry, gain: Interval, over_float: Interval, verified: Accuracy | None) -> Best:
    outcome = champion.candidate.trial.outcome
    assert isinstance(outcome, Measured)
    proto = onnx.load(str(champion.file.path), load_external_data=False)
    types = [n.op_type for n in proto.graph.node]
    return Best(
        origin=champion.candidate.trial.proposal.origin,
        placement_digest=champion.candidate.trial.proposal.placement.digest,
        latency_ms=float(np.median(champion.ns)) / 1e6,
        speedup=gain,
        over_float=over_float,
        selection=outcome.accuracy,
        verification=verified,
        qdq_pairs=types.count("QuantizeLinear"),
        is_float=not {"QuantizeLinear", "DequantizeLinear"} & set(types),
        output_sha256=file_sha256(champion.file.path),
    )

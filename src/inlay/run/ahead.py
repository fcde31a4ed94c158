"""Candidates built and judged ahead: what a search will probably ask for next, while the device measures what it asked.

A search goes the same way with and without: it asks for one candidate after the other, and what was built ahead only
saves the device the work. So a wrong guess costs nothing but a builder's time, and a seed reproduces a run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NoAnswer  # the built-in one from Python 3.11 on
from pathlib import Path

from inlay.errors import InlayError
from inlay.measure.ahead import Builders, Built
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.run.session import Session
from inlay.targets.base import Artifact
from inlay.types import Placement

_LOOKED_AT = 3
"""Placements that a strategy is asked for, for each builder: some of them were built before."""
_WAITING = 1
"""Models that wait for a builder: one that is done would have nothing to do until the device is asked for the next."""


class Ahead:
    """What builders are at, by the keys of models.

    Args:
        builders: elsewhere; None where there are none.
        candidates: writes models.
        feeds: that they run on: the selection samples.
        patience_s: seconds that one under way is waited for: about what the device itself would take.
        judged: whether the model of a key was judged before, in this session or an earlier one.

    Attributes:
        used: models that the device did not have to build and run.
        begun: models that builders were asked for.
    """

    def __init__(
        self,
        builders: Builders | None,
        candidates: CandidateWriter,
        feeds: Sequence[Path],
        patience_s: Callable[[], float],
        judged: Callable[[str], bool] = lambda key: False,
    ) -> None:
        self._builders, self._candidates, self._feeds, self._patience_s = builders, candidates, feeds, patience_s
        self._judged = judged
        self._under_way: dict[str, tuple[Artifact, Future[Built]]] = {}
        self._asked: set[str] = set()
        self.used = self.begun = 0

    def begin(self, now: str, upcoming: Callable[[int], Sequence[Placement]]) -> None:
        """Have builders begin with what is likely next, as far as they have little to do.

        Args:
            now: key of the model that the device is about to build itself, or that is taken.
            upcoming: so many placements that a strategy will probably propose, the likeliest first.
        """
        if self._builders is None:
            return
        self._asked.add(now)
        wanted = self._builders.width + _WAITING
        likely = {self._candidates.key(p): p for p in upcoming(_LOOKED_AT * wanted)}
        self._forget({now, *likely})
        free = wanted - sum(not each.done() for _, each in self._under_way.values())
        for key in [k for k in likely if k not in self._asked and not self._judged(k)][: max(0, free)]:
            self._asked.add(key)
            with contextlib.suppress(InlayError, OSError, ValueError):  # the search will find out, should it ask for it
                artifact = self._candidates.write(likely[key])
                self._under_way[key] = artifact, self._builders.build(artifact, self._feeds)
                self.begun += 1

    def _forget(self, but: Collection[str]) -> None:
        """Let go what is not likely any more, and is built (outputs may be large) or waits."""
        for key, (artifact, built) in list(self._under_way.items()):
            if key not in but and (built.done() or built.cancel()):
                del self._under_way[key]
                artifact.path.unlink(missing_ok=True)

    def take(self, key: str) -> Built | None:
        """What a builder found out about a model; None where none did, or it takes too long."""
        self._asked.add(key)
        if key not in self._under_way:
            return None
        _, asked = self._under_way.pop(key)
        if asked.cancel():  # no builder has begun with it
            return None
        try:
            found = asked.result(self._patience_s())
        except (InlayError, OSError, NoAnswer, CancelledError):  # the device finds out
            asked.cancel()
            return None
        self.used += 1
        return found

    def __str__(self) -> str:
        return f"{self.used} of {self.begun} models that were built ahead were asked for"


@contextlib.contextmanager
def building_ahead(session: Session, candidates: CandidateWriter, feeds: Sequence[Path]) -> Iterator[Ahead]:
    """Builders, where the lab has some, while candidates are looked for; how many they spared the device is reported.

    Args:
        session: of the run.
        candidates: writes models.
        feeds: the selection samples.
    """
    folder = session.work / "ahead"
    folder.mkdir()
    with session.lab.builders(session.inputs.config.target, folder, session.limit_s) as builders:
        ahead = Ahead(
            builders,
            candidates,
            feeds,
            lambda: session.costs.judge_s(len(feeds)),
            lambda key: session.journal.trial(key) is not None,
        )
        yield ahead
        if ahead.begun:
            session.progress.stage(str(ahead))

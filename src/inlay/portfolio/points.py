"""Which measured model of each part of a pipeline: from the fastest of all to the given ones, noisy ones first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from inlay.trial import noise_of

Choice = tuple[int, ...]  # of each part, the number of its point


@dataclass(frozen=True)
class Point:
    """A measured model of one part."""

    origin: str  # what proposed it
    ms: float  # of one run
    sqnr_db: float  # of its worst output


def front(points: Sequence[Point]) -> tuple[Point, ...]:
    """Those that no other beats in both time and accuracy, the fastest first."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda p: (p.ms, -p.sqnr_db)):
        if not kept or point.sqnr_db > kept[-1].sqnr_db:
            kept.append(point)
    return tuple(kept)


def ladder(fronts: Sequence[Sequence[Point]], runs: Sequence[float]) -> list[Choice]:
    """Choices from the fastest points of all parts to the most accurate ones.

    From each rung to the next, one part goes on by one point: the one that loses most noise for the time that it gives
    up. ``runs`` says how often each part runs.
    """
    at = [0] * len(fronts)
    rungs = [tuple(at)]
    while left := [i for i, points in enumerate(fronts) if at[i] + 1 < len(points)]:

        def relief(part: int) -> float:
            now, then = fronts[part][at[part]], fronts[part][at[part] + 1]
            lost = noise_of(now.sqnr_db) - noise_of(then.sqnr_db)
            return lost / (runs[part] * max(then.ms - now.ms, 1e-12))

        at[max(left, key=relief)] += 1
        rungs.append(tuple(at))
    return rungs


def total_ms(fronts: Sequence[Sequence[Point]], runs: Sequence[float], choice: Choice) -> float:
    """Time of all runs of all parts."""
    return sum(times * points[at].ms for points, times, at in zip(fronts, runs, choice, strict=True))


def fastest_kept(fronts: Sequence[Sequence[Point]], runs: Sequence[float], keeps: Callable[[Choice], bool]) -> Choice:
    """The fastest choice that keeps the bound, by few questions: the last rung of the ladder keeps it unasked.

    Along the ladder it is looked for by bisection. What had to be given up there may have been innocent: then each part
    alone is tried at faster points again, the one that brings most first.
    """
    rungs, keeps = ladder(fronts, runs), cache(keeps)  # no question is asked twice
    if len(rungs) == 1 or keeps(rungs[0]):
        return rungs[0]
    low, high = 0, len(rungs) - 1  # outside the bound, within it
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if keeps(rungs[middle]) else (middle, high)
    found = rungs[high]

    def at(part: int, point: int) -> Choice:
        return (*found[:part], point, *found[part + 1 :])

    gains = [
        (total_ms(fronts, runs, found) - total_ms(fronts, runs, at(part, 0)), part)
        for part in range(len(fronts))
        if found[part] > 0
    ]
    for _, part in sorted(gains, reverse=True):
        for point in dict.fromkeys((0, found[part] // 2)):
            if point < found[part] and keeps(at(part, point)):
                found = at(part, point)
                break
    return found

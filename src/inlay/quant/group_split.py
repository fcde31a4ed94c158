"""Best-first splitting of groups: find the few members that matter among many, with few questions.

A group of neighbours is asked about as a whole. The most promising group is divided into parts, these are asked about
in turn, and so on down to single members. What is never divided matters little.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

PARTS = 4  # parts of a divided group: half the levels, and so fewer questions about large groups, than with halves

M = TypeVar("M")


@dataclass(frozen=True, order=True)
class Group(Generic[M]):
    """Neighbouring members that are asked about together."""

    key: tuple[Any, ...]  # the group with the least key is the most promising; the keys of one queue can be compared
    members: tuple[M, ...] = field(compare=False)  # at least one, in the order of the model
    # what was found out about the group as a whole, where that comes before its turn
    answer: Any = field(default=None, compare=False)

    def split(self) -> list[tuple[M, ...]]:
        """At most :data:`PARTS` runs of members, all of one length but the last; none of a single member."""
        if len(self.members) == 1:
            return []
        size = -(-len(self.members) // PARTS)
        return [self.members[i : i + size] for i in range(0, len(self.members), size)]


class GroupQueue(Generic[M]):
    """Groups by promise. Which of several groups with equal keys comes first depends only on the calls so far."""

    def __init__(self, groups: Sequence[Group[M]] = ()) -> None:
        self._heap = list(groups)
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Group[M]]:
        """The groups that wait, in no particular order."""
        return iter(tuple(self._heap))

    @property
    def first(self) -> Group[M]:
        """The most promising group. Raises IndexError where none waits."""
        return self._heap[0]

    def push(self, group: Group[M]) -> None:
        """Add a group."""
        heapq.heappush(self._heap, group)

    def pop(self) -> Group[M]:
        """Take out the most promising group. Raises IndexError where none waits."""
        return heapq.heappop(self._heap)

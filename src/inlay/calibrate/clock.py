"""A clock that does not depend on the machine, and samples that end with the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from inlay.calibrate import policy
from inlay.data import Feed
from inlay.deadline import Deadline
from inlay.errors import TimedOut
from inlay.model.products import RECURRENT, multiply_accumulates
from inlay.prepare.model import PreparedModel


class StepClock:
    """A clock that advances by a fixed step at every reading, and whoever asks a question reads it once for each.

    So the same decisions are made on a machine of any speed, and of any load. The ``step`` is in seconds.
    """

    def __init__(self, step: float = policy.STEP_SECONDS) -> None:
        self._now, self._step = 0.0, step

    @classmethod
    def for_model(cls, prepared: PreparedModel) -> StepClock:
        """A clock whose step is about what one question costs on this model: by its operators and their results."""
        graph = prepared.graph
        elements = sum(graph.size(v) or 0 for n in graph.nodes for v in n.outputs if v)
        by_size = policy.SECONDS_PER_ELEMENT * elements + policy.SECONDS_PER_NODE * len(graph.nodes)
        recurrent = sum(multiply_accumulates(graph, n) for n in graph.nodes if n.op_type in RECURRENT)
        return cls(max(policy.MIN_STEP_SECONDS, by_size + policy.SECONDS_PER_RECURRENT_PRODUCT * recurrent))

    def __call__(self) -> float:
        """Seconds."""
        self._now += self._step
        return self._now


class FeedsUntil(Sequence[Feed]):
    """Samples that can be had until a deadline; later, asking for one raises TimedOut.

    All that calibration computes in this process runs a model on one sample after the other, so this bounds it to
    within one inference.
    """

    def __init__(self, feeds: Sequence[Feed], deadline: Deadline) -> None:
        self._feeds, self._deadline = feeds, deadline

    def __len__(self) -> int:
        return len(self._feeds)

    @overload
    def __getitem__(self, index: int) -> Feed: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Feed]: ...

    def __getitem__(self, index: int | slice) -> Feed | Sequence[Feed]:
        if isinstance(index, slice):
            return FeedsUntil(self._feeds[index], self._deadline)
        feed = self._feeds[index]
        if not self._deadline.left:
            raise TimedOut("the time for calibration is spent")
        return feed

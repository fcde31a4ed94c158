"""A clock that does not depend on the machine."""

from __future__ import annotations

from inlay.calibrate import policy
from inlay.prepare.model import PreparedModel


class StepClock:
    """A clock that advances by a fixed step at every reading: the same decisions on a machine of any speed.

    Args:
        step: seconds.
    """

    def __init__(self, step: float = policy.STEP_SECONDS) -> None:
        self._now, self._step = 0.0, step

    @classmethod
    def for_model(cls, prepared: PreparedModel) -> StepClock:
        """A clock whose step is about what one question costs on this model, by the size of its activations."""
        graph = prepared.graph
        elements = sum(graph.size(v) or 0 for n in graph.nodes for v in n.outputs if v)
        return cls(max(policy.MIN_STEP_SECONDS, policy.SECONDS_PER_ELEMENT * elements))

    def __call__(self) -> float:
        """Seconds."""
        self._now += self._step
        return self._now

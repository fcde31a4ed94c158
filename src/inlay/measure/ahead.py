"""Models built and run elsewhere while a device measures: the device builds only those that it will time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from inlay.quant.accuracy import Outputs
from inlay.targets.base import Artifact


@dataclass(frozen=True, eq=False)
class Built:
    """What building and running a model elsewhere showed.

    Attributes:
        graph: digest of the runtime's optimized graph, as of :meth:`~inlay.measure.client.Worker.load`.
        outputs: for every feed.
    """

    graph: str
    outputs: Sequence[Outputs]


class Builders(Protocol):
    """Processes of the device's runtime, with the device's fingerprint, on machines that do not measure.

    Attributes:
        width: how many models they build at a time.
    """

    width: int

    def build(self, artifact: Artifact, feeds: Sequence[Path]) -> Future[Built]:
        """Build a model and run it on ``feeds``, some time.

        The future raises whatever went wrong, of any kind: then it is the device that finds out.
        """
        ...


Take = Callable[[str], Built | None]
"""What a builder found out about the model of a key; None where none did."""


def nothing_built(key: str) -> None:
    """Where there are no builders."""

"""Values between units, and what each of them costs depends on: the labels of its producer and of its consumers."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

FLOAT, LOW, FIRST_FORM = 0, 1, 2
"""Labels of a unit. A label from ``FIRST_FORM`` on stands for one of the graph's forms: further precisions, which read
and write float. What happens to values depends only on whether a unit is ``LOW``."""


class State(enum.IntEnum):
    """What happens to a value under a labeling."""

    FLOAT = 0  # float producer, float consumers
    QUANTIZE = 1  # float producer, some consumer in low precision
    DEQUANTIZE = 2  # low-precision producer, some consumer in float
    LOW = 3  # low precision throughout


@dataclass(frozen=True, kw_only=True)
class Edge:
    """One value between units."""

    value: str  # its name
    producer: int  # index of the unit that computes it, or -1 for a graph input
    consumers: tuple[int, ...]  # indices of the units that read it as an activation
    # some reader is always float (a graph output, a subgraph, an input slot that is never quantized)
    float_reader: bool
    kind: str  # operators of producer and consumers
    signature: str  # kind and shape; values with equal signatures have equal costs
    size: int  # number of elements


@dataclass(frozen=True, eq=False)
class EdgeArrays:
    """Producers and consumers of a sequence of values as arrays. Labels are small integers, shape (units,)."""

    producer: np.ndarray  # unit that produces each value, or -1; shape (edges,)
    float_reader: np.ndarray  # whether each value has a reader that is always float, shape (edges,)
    consumers: np.ndarray  # number of consumers of each value, shape (edges,)
    edge: np.ndarray  # value of each (value, consumer) pair, shape (pairs,)
    consumer: np.ndarray  # unit of each (value, consumer) pair, shape (pairs,)

    @classmethod
    def of(cls, edges: Sequence[tuple[int, tuple[int, ...], bool]]) -> EdgeArrays:
        """The arrays of values given as ``(producer, consumers, float_reader)``. Linear time."""
        return cls(
            np.array([producer for producer, _, _ in edges], np.int64),
            np.array([float_reader for _, _, float_reader in edges], bool),
            np.array([len(consumers) for _, consumers, _ in edges], np.int64),
            np.array([k for k, (_, consumers, _) in enumerate(edges) for _ in consumers], np.int64),
            np.array([c for _, consumers, _ in edges for c in consumers], np.int64),
        )

    def low_producer(self, labels: np.ndarray) -> np.ndarray:
        """Whether each value's producer is in low precision, shape (edges,)."""
        owned = self.producer >= 0
        return np.asarray(owned & (labels[self.producer] == LOW)) if len(labels) else owned

    def low_consumers(self, labels: np.ndarray) -> np.ndarray:
        """How many consumers of each value are in low precision, shape (edges,)."""
        return np.bincount(self.edge, labels[self.consumer] == LOW, len(self.producer)).astype(np.int64)

    def some_float(self, low_consumers: np.ndarray, at: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Whether the values ``at`` have a reader in float, given how many consumers are in low precision."""
        return np.asarray(self.float_reader[at] | (low_consumers < self.consumers[at]))

    def states(self, labels: np.ndarray) -> np.ndarray:
        """:class:`State` of each value, shape (edges,)."""
        low_consumers = self.low_consumers(labels)
        behind_low = np.where(self.some_float(low_consumers), int(State.DEQUANTIZE), int(State.LOW))
        behind_float = np.where(low_consumers > 0, int(State.QUANTIZE), int(State.FLOAT))
        return np.where(self.low_producer(labels), behind_low, behind_float)

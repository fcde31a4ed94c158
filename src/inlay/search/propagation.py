"""Which units run in low precision because of their neighbors' labels, although the placement does not name them.

Two things that runtimes do make one label follow from others:

1. *Fusion.* An operator whose inputs all come from DQ and whose output goes to Q is run in low precision, as if it had
   been labeled, provided that it has no weight.
2. *Moving Q and DQ.* The target moves a DQ down, or a Q up, through an operator that only rearranges elements. One
   side is enough then, unless other readers of the value on the other side disagree. A Q that was moved is no longer
   shared with other readers of the value, so nothing follows from it where there are several.

Labelings that lead to the same result run as the same model; :meth:`Propagation.propagate` returns the largest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from inlay.search.edges import Edge, EdgeArrays
from inlay.space.rules import Needs
from inlay.space.units import Unit


class Implication(NamedTuple):
    """Of the producer and a consumer of one value, ``implied`` is low whenever the other is and other readers agree."""

    producer: int
    consumer: int
    implied: int


class Fusion(NamedTuple):
    """A unit that runs in low precision whenever all of its ``neighbors`` do."""

    unit: int
    neighbors: tuple[int, ...]


class Propagation:
    """What follows from the labels of neighbors, by the target's rules.

    Only a *candidate* can follow: a selectable unit without a weight whose inputs are all values (a constant among them
    needs a Q of its own). Arguments are parts of a ``UnitGraph``.
    """

    def __init__(
        self,
        units: Sequence[Unit],
        selectable: np.ndarray,
        activations: Sequence[int],
        edges: Sequence[Edge],
        arrays: EdgeArrays,
    ) -> None:
        self._selectable, self._edges, self._arrays = selectable, edges, arrays
        self._reads: dict[int, list[int]] = {}
        self._writes: dict[int, list[int]] = {}
        for k, edge in enumerate(edges):
            self._writes.setdefault(edge.producer, []).append(k)
            for c in edge.consumers:
                self._reads.setdefault(c, []).append(k)
        found = [i for i in np.flatnonzero(selectable).tolist() if self._is_candidate(i, units[i], activations[i])]
        self._candidates = np.array(found, np.int64)
        rules = [units[i].rule for i in found]
        self._moves_qdq: np.ndarray = np.array([r is not None and r.propagates_qdq for r in rules], bool)
        self._may_output_float: np.ndarray = np.array(
            [_output(units[i]) is Needs.EITHER and not units[i].weights for i in found], bool
        )
        self._read_pairs = _pairs(found, self._reads)
        self._write_pairs = _pairs(found, self._writes)
        # by edge: a producer in low precision emits low precision, whoever reads it
        self._always_quantized: np.ndarray = np.array(
            [e.producer >= 0 and _output(units[e.producer]) is Needs.QUANTIZED for e in edges], bool
        )
        self._single_reader: np.ndarray = np.array([len(e.consumers) + e.float_reader == 1 for e in edges], bool)

    def _is_candidate(self, i: int, unit: Unit, activations: int) -> bool:
        all_values = len(self._reads.get(i, ())) == activations > 0
        return all_values and i in self._writes and not (unit.weights or unit.biases)

    def propagate(self, labels: np.ndarray) -> np.ndarray:
        """What runs in low precision when ``labels`` are stated: the labeled units and those that follow; (units,)."""
        if not self._candidates.size:
            return labels
        arrays, candidates = self._arrays, self._candidates
        labels, moved = labels.copy(), np.zeros(len(labels), bool)
        while True:
            low_consumers, low_producer = arrays.low_consumers(labels), arrays.low_producer(labels)
            some_low, some_float = low_consumers > 0, arrays.some_float(low_consumers)
            some_moved = arrays.low_consumers(moved) > 0
            single = self._single_reader
            from_dq = low_producer & (self._always_quantized | some_low) & (~moved[arrays.producer] | single)
            to_q = some_low & ~some_float & (~some_moved | single)
            inputs_from_dq = self._all(self._read_pairs, from_dq)
            outputs_to_q = self._all(self._write_pairs, to_q)
            no_other_reader_low = self._all(self._read_pairs, ~some_low)
            readers_agree = self._all(self._write_pairs, ~(some_low & some_float))
            fused = inputs_from_dq & (outputs_to_q | self._may_output_float)
            through = (inputs_from_dq & readers_agree) | (outputs_to_q & no_other_reader_low)
            new = (fused | (self._moves_qdq & through)) & ~labels[candidates]
            if not new.any():
                return labels
            if (fused & new).any():  # fusion follows from what is stated, so it comes before any moving
                new &= fused
            labels[candidates[new]] = True
            moved[candidates[new & ~fused]] = True

    def fixed_point(self, labels: np.ndarray) -> np.ndarray:
        """``labels`` with all that follows stated, and what follows from that in turn: it propagates to itself.

        More may follow from a Q that is stated than from one that the target moved, hence the repetition. Proposals are
        fixed points, so that a proposal runs exactly as its labels say.
        """
        while True:
            propagated = self.propagate(labels)
            if (propagated == labels).all():
                return labels
            labels = propagated

    @cached_property
    def implications(self) -> Sequence[Implication]:
        """Pairs of neighbors in which the label of one follows from that of the other."""
        moving = set(self._candidates[self._moves_qdq].tolist())
        found = []
        for k, edge in enumerate(self._edges):
            if edge.producer >= 0 and self._selectable[edge.producer]:
                if self._always_quantized[k]:
                    found += [Implication(edge.producer, c, c) for c in edge.consumers if c in moving]
                if edge.producer in moving and len(edge.consumers) == 1 and not edge.float_reader:
                    found.append(Implication(edge.producer, edge.consumers[0], edge.producer))
        return found

    @cached_property
    def fusions(self) -> Sequence[Fusion]:
        """Units whose label follows from those of all their neighbors together."""
        found = []
        for unit, may_output_float in zip(self._candidates.tolist(), self._may_output_float, strict=True):
            inputs = self._reads[unit]
            outputs = [] if may_output_float else [self._edges[k] for k in self._writes[unit]]
            neighbors = [self._edges[k].producer for k in inputs] + [c for edge in outputs for c in edge.consumers]
            certain = all(self._always_quantized[k] for k in inputs) and not any(
                edge.float_reader or not edge.consumers for edge in outputs
            )
            if certain and all(n >= 0 and self._selectable[n] for n in neighbors):
                found.append(Fusion(unit, tuple(dict.fromkeys(neighbors))))
        return found

    def _all(self, pairs: np.ndarray, holds: np.ndarray) -> np.ndarray:
        """For each candidate: whether something holds for all of its edges in ``pairs``; shape (candidates,)."""
        result = np.ones(self._candidates.size, bool)
        np.logical_and.at(result, pairs[:, 0], holds[pairs[:, 1]])
        return result


def _pairs(candidates: Sequence[int], edges: dict[int, list[int]]) -> np.ndarray:
    """(Position of a candidate, one of its edges), shape (pairs, 2)."""
    return np.array([(n, k) for n, i in enumerate(candidates) for k in edges[i]], np.int64).reshape(-1, 2)


def _output(unit: Unit) -> Needs | None:
    return None if unit.rule is None else unit.rule.output

"""How much low precision in a model's products disturbs its outputs, in each of the modes that products may have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

import numpy as np

from inlay.data import Feed
from inlay.model.pool import Stored, each
from inlay.model.reference import outputs_of
from inlay.prepare.model import PreparedModel
from inlay.prepare.smoothing_factors import ProductInput
from inlay.quant.accuracy import Judge, Outputs
from inlay.quant.emit import Emitter
from inlay.quant.observers import Range
from inlay.quant.qparams import QParamsTable
from inlay.types import Placement, Port, QType


class QuantMode(Enum):
    """What is in low precision."""

    STATIC = auto()
    DYNAMIC = auto()
    ACTIVATIONS = auto()  # static, and the weights in float, since rounding them well may leave little noise


@dataclass(frozen=True, eq=False)
class Variant:
    """One model whose products may be in low precision.

    Attributes:
        prepared: the model.
        ranges: of what its products read.
        factors: ports of the Mul nodes that divide activations, where these may be in low precision, too.
    """

    prepared: PreparedModel
    ranges: Mapping[str, Range]
    factors: Sequence[Port]


Question = tuple[Variant, QuantMode, bool]
"""A model, the mode of its products, and whether the Mul nodes that divide activations are in low precision as well:
their factors, of which the least are rounded to nothing, may cost more than smooth channels gain."""


@dataclass(frozen=True, eq=False)
class ProductNoise:
    """The disturbance of a model's outputs by its products.

    Attributes:
        prepared: the model.
        inputs: what the products read.
        arrays: samples of these values, channels last, whose ranges static products have.
        feeds: other samples, which judge.
        judge: compares with the float model on them.
    """

    prepared: PreparedModel
    inputs: Sequence[ProductInput]
    arrays: Mapping[str, Sequence[np.ndarray]]
    feeds: Sequence[Feed]
    judge: Judge

    @property
    def modes(self) -> tuple[QuantMode, ...]:
        """What the target's products may be."""
        return (QuantMode.STATIC, QuantMode.DYNAMIC) if is_dynamic(self.prepared) else (QuantMode.STATIC,)

    def of(self, changed: PreparedModel, scales: Mapping[str, Sequence[float]]) -> Variant:
        """The model with the channels of activations divided by ``scales``, by activation, or as it was."""
        selectable = {unit.name for unit in changed.selectable}
        low = [one for one in self.inputs if one.multiplier in selectable]
        ranges: dict[str, Range] = {}
        for one in self.inputs:
            ranges.update(dict.fromkeys(one.read_by(changed.graph), self._range(one.value, scales.get(one.value))))
        for one in low:
            factors = 1.0 / np.array(scales[one.value], np.float32)
            given, constant = (changed.graph.value_of(port) for port in one.multiplied)
            ranges[given] = self._range(one.value, None)
            ranges[constant] = Range(0.0, float(factors.max()))
        return Variant(changed, ranges, [port for one in low for port in one.multiplied])

    def each(self, questions: Iterable[Question]) -> Iterator[float]:
        """SQNR in dB of the worst output of several models in turn; where somebody helps, a few are made ahead.

        Raises:
            CompileFailed, RunFailed, Crashed, TimedOut: one does not run.
        """
        for outcome in each(outputs_of, ((self._model(*question), self.feeds, True) for question in questions)):
            yield self._db(outcome.result())

    def here(self, question: Question) -> float:
        """The same of one in this process, so that its time tells what the others take."""
        return self._db(outputs_of(self._model(*question), self.feeds, briefly=True))

    def _db(self, got: Sequence[Outputs]) -> float:
        return self.judge.judge(got).sqnr_db

    def _model(self, variant: Variant, mode: QuantMode, factors: bool) -> Stored:
        changed, rules = variant.prepared, self.prepared.rules
        activation = QType.DYNAMIC if mode is QuantMode.DYNAMIC else rules.activation
        products = [name for one in self.inputs for name in one.products]
        sites = [(Port(name, 0), activation) for name in products]
        if mode is not QuantMode.ACTIVATIONS:
            sites += [(Port(name, 1), rules.weight) for name in products]
        if factors:
            sites += [(port, rules.activation) for port in variant.factors]
        emitter = Emitter(changed.normalized.model, changed.graph, changed.store, base=changed.emitter.base)
        table = QParamsTable(changed.graph, changed.rules, variant.ranges)
        return Stored(emitter.emit(Placement(sites), table), changed.store)

    def _range(self, value: str, scales: Sequence[float] | None) -> Range:
        """Of all elements of an activation, once its channels are divided by ``scales``."""
        low, high = self._channels[value]
        divisors = np.array((1.0,) if scales is None else scales, np.float32)
        return Range(float((low / divisors).min()), float((high / divisors).max()))

    @cached_property
    def _channels(self) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
        """By activation, least and largest element of each channel."""
        found = {}
        for value, arrays in self.arrays.items():
            rows = [a.reshape(-1, a.shape[-1]) for a in arrays if a.size]
            found[value] = np.min([r.min(axis=0) for r in rows], axis=0), np.max([r.max(axis=0) for r in rows], axis=0)
        return found


def is_dynamic(prepared: PreparedModel) -> bool:
    """Whether the target has dynamic products."""
    return any(form.activation is QType.DYNAMIC for form in prepared.rules.forms)

"""How much low precision in a model's products disturbs its outputs, in each of the forms that products may have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cached_property

import numpy as np

from inlay.data import Feed
from inlay.model.hands import Stored, each
from inlay.model.reference import outputs_of
from inlay.prepare.model import PreparedModel
from inlay.prepare.product_inputs import ProductInput
from inlay.quant.accuracy import Judge, Outputs
from inlay.quant.emit import Emitter
from inlay.quant.observers import Range
from inlay.quant.qparams import QParamsTable
from inlay.types import Placement, Port, QType


class Form(Enum):
    """What is in low precision."""

    STATIC = auto()
    DYNAMIC = auto()
    ACTIVATIONS = auto()  # static, and the weights in float, since rounding them well may leave little noise


Question = tuple["Disturbed", Form, bool]
"""A model, the form of its products, and whether the Mul nodes that divide activations are in low precision as well:
their factors, of which the least are rounded to nothing, may cost more than evened channels gain."""


@dataclass(frozen=True, eq=False)
class FormNoise:
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
    def forms(self) -> tuple[Form, ...]:
        """What the target's products may be."""
        return (Form.STATIC, Form.DYNAMIC) if is_dynamic(self.prepared) else (Form.STATIC,)

    def of(self, changed: PreparedModel, scales: Mapping[str, Sequence[float]]) -> Disturbed:
        """That of the model with activations evened out, or as it was.

        Args:
            changed: the model.
            scales: by activation, what its channels are divided by.
        """
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
        return Disturbed(self, changed, ranges, [port for one in low for port in one.multiplied])

    def each(self, questions: Iterable[Question]) -> Iterator[float]:
        """SQNR in dB of the worst output of several models in turn; where somebody helps, a few are made ahead.

        Raises:
            CompileFailed, RunFailed, Crashed, TimedOut: one does not run.
        """
        calls = ((disturbed.model(form, factors), self.feeds, True) for disturbed, form, factors in questions)
        for outcome in each(outputs_of, calls):
            yield self._db(outcome.result())

    def here(self, question: Question) -> float:
        """The same of one in this process, so that its time tells what the others take."""
        disturbed, form, factors = question
        return self._db(outputs_of(disturbed.model(form, factors), self.feeds, briefly=True))

    def _db(self, got: Sequence[Outputs]) -> float:
        return self.judge.judge(got).sqnr_db

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


@dataclass(frozen=True, eq=False)
class Disturbed:
    """One model whose products may be in low precision.

    Attributes:
        noise: what judges it.
        changed: the model.
        ranges: of what its products read.
        factors: ports of the Mul nodes that divide activations, where these may be in low precision, too.
    """

    noise: FormNoise
    changed: PreparedModel
    ranges: Mapping[str, Range]
    factors: Sequence[Port]

    def model(self, form: Form, factors: bool) -> Stored:
        """The model with this in low precision."""
        changed = self.changed
        emitter = Emitter(changed.normalized.model, changed.graph, changed.store, base=changed.emitter.base)
        table = QParamsTable(changed.graph, changed.rules, self.ranges)
        return Stored(emitter.emit(self._placement(form, factors), table), changed.store)

    def _placement(self, form: Form, factors: bool) -> Placement:
        noise, rules = self.noise, self.noise.prepared.rules
        activation = QType.DYNAMIC if form is Form.DYNAMIC else rules.activation
        sites = [(Port(name, 0), activation) for one in noise.inputs for name in one.products]
        if form is not Form.ACTIVATIONS:
            sites += [(Port(name, 1), rules.weight) for one in noise.inputs for name in one.products]
        if factors:
            sites += [(port, rules.activation) for port in self.factors]
        return Placement(sites)


def is_dynamic(prepared: PreparedModel) -> bool:
    """Whether the target has dynamic products."""
    return any(form.activation is QType.DYNAMIC for form in prepared.rules.forms)

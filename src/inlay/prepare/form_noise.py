"""How much low precision in a model's products disturbs its outputs, in each of the forms that products may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import numpy as np

from inlay.data import Feed, Padding
from inlay.model.hands import Stored
from inlay.model.reference import outputs_of
from inlay.prepare.model import PreparedModel
from inlay.prepare.product_inputs import ProductInput
from inlay.quant.accuracy import Outputs, sqnr_db
from inlay.quant.emit import Emitter
from inlay.quant.observers import Range
from inlay.quant.qparams import QParamsTable
from inlay.types import Placement, Port, QType


class Form(Enum):
    """What is in low precision."""

    STATIC = auto()
    DYNAMIC = auto()
    ACTIVATIONS = auto()  # static, and the weights in float, since rounding them well may leave little noise


@dataclass(frozen=True, eq=False)
class FormNoise:
    """The disturbance of a model's outputs by its products.

    Attributes:
        prepared: the model.
        inputs: what the products read.
        arrays: samples of these values, whose ranges static products have.
        feeds: other samples, which judge.
        exact: by value, the outputs of the float model for each of them, with their padding.
        padding: of the same.
    """

    prepared: PreparedModel
    inputs: Sequence[ProductInput]
    arrays: Mapping[str, Sequence[np.ndarray]]
    feeds: Sequence[Feed]
    exact: Sequence[Outputs]
    padding: Padding

    @property
    def forms(self) -> tuple[Form, ...]:
        """Those that the target has, the most telling first."""
        return tuple(f for f in Form if f is not Form.DYNAMIC or is_dynamic(self.prepared))

    def db(self, changed: PreparedModel, scales: Mapping[str, Sequence[float]], forms: Sequence[Form]) -> np.ndarray:
        """SQNR in dB of the worst output for each of ``forms``, and for static with all in low precision.

        The last one has also the Mul nodes that divide activations in low precision: their factors, of which the least
        are rounded to nothing, may cost more than evened channels gain. Where there are none, it is the first.

        Args:
            changed: the model with its activations evened out, or as it was.
            scales: by activation, what its channels are divided by.
            forms: of the products.

        Raises:
            CompileFailed, RunFailed, Crashed, TimedOut: it does not run.
        """
        rules, graph = self.prepared.rules, changed.graph
        ranges: dict[str, Range] = {}
        for one in self.inputs:
            divisors = np.array(scales.get(one.value, (1.0,)), np.float32)
            ranges.update(dict.fromkeys(one.read_by(graph), _range([a / divisors for a in self.arrays[one.value]])))
        types = {
            Form.STATIC: (rules.activation, rules.weight),
            Form.DYNAMIC: (QType.DYNAMIC, rules.weight),
            Form.ACTIVATIONS: (rules.activation, None),
        }
        placements = [_products(self.inputs, *types[form]) for form in forms]
        selectable = {unit.name for unit in changed.selectable}
        low = [one for one in self.inputs if one.multiplier in selectable]
        for one in low:
            factors = np.array([0.0, *(1.0 / np.array(scales[one.value]))], np.float32)
            given, constant = (graph.value_of(port) for port in one.multiplied)
            ranges.update({given: _range(self.arrays[one.value]), constant: _range([factors])})
        ports = [(port, rules.activation) for one in low for port in one.multiplied]
        placements += [Placement([*placements[0], *ports])] if low else []
        # not by helpers: a few samples take less than the way of a large model there
        found = [
            self._worst_db(outputs_of(_emitted(changed, placement, ranges), self.feeds)) for placement in placements
        ]
        return np.array(found if low else [*found, found[0]])

    def _worst_db(self, got: Sequence[Outputs]) -> float:
        return worst_db(self.padding.without_each(self.exact), self.padding.without_each(got))


def is_dynamic(prepared: PreparedModel) -> bool:
    """Whether the target has dynamic products."""
    return any(form.activation is QType.DYNAMIC for form in prepared.rules.forms)


def worst_db(want: Sequence[Outputs], got: Sequence[Outputs]) -> float:
    """SQNR in dB over all samples of the worst output that ``want`` has; infinite where it has none."""
    found = []
    for name in want[0] if want else ():
        pairs = [(a[name].astype(np.float64), b[name]) for a, b in zip(want, got, strict=True)]
        noise = sum(float(np.square(a - b).sum()) for a, b in pairs)
        found.append(sqnr_db(sum(float(np.square(a).sum()) for a, _ in pairs), noise))
    return min(found, default=np.inf)


def _range(arrays: Sequence[np.ndarray]) -> Range:
    """Of all elements."""
    known = [a for a in arrays if a.size]
    return Range(min(float(a.min()) for a in known), max(float(a.max()) for a in known))


def _products(inputs: Sequence[ProductInput], form: QType, weight: QType | None = None) -> Placement:
    """All products, with their activations and weights in these types."""
    names = [name for i in inputs for name in i.products]
    weights = [] if weight is None else [(Port(name, 1), weight) for name in names]
    return Placement([*((Port(name, 0), form) for name in names), *weights])


def _emitted(prepared: PreparedModel, placement: Placement, ranges: Mapping[str, Range]) -> Stored:
    """The model with ``placement``."""
    table = QParamsTable(prepared.graph, prepared.rules, ranges)
    emitter = Emitter(prepared.normalized.model, prepared.graph, prepared.store, base=prepared.emitter.base)
    return Stored(emitter.emit(placement, table), prepared.store)

"""Which units may compute in half precision: by how much each loses on samples, and what all of them together lose.

Nothing is decided by an operator's name. Every unit is computed beside itself: with what it reads, and what it gives,
rounded to halves, from the exact values of the float model. One that overflows, or loses far more than rounding does,
stays in float32: exponentials, sums of squares and logits do where their numbers are large, and do not where they are
small. A mean is the quotient of a sum, which overflows sooner. At the end the whole model is run in half precision:
where its outputs are not well within the bound, the units that cost them too much stay in float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx
from onnx import TensorProto, helper

from inlay.data import AUTO_MASK
from inlay.deadline import NEVER, Deadline
from inlay.model.graph import Graph, Node
from inlay.model.passes.half import rounded_halves
from inlay.model.pool import Stored
from inlay.model.reference import Session, outputs_of
from inlay.model.store import tensor_proto
from inlay.prepare.model import PreparedModel
from inlay.quant.accuracy import EXACT_DB, Judge, sqnr_db
from inlay.quant.emit import ONNX_TYPE
from inlay.quant.qparams import QParamsTable
from inlay.space.halves import half_form_of
from inlay.space.units import Unit, able_in_half
from inlay.trial import counted, plain
from inlay.types import QType

SAMPLES = 6  # that units are measured on, evenly spaced
HEADROOM = 4.0  # by which numbers of samples to come may exceed those that were seen
LARGEST = {QType.FP16: 65504.0, QType.BF16: 3.3895e38}
ROUNDS_DB = {QType.FP16: 66.0, QType.BF16: 48.0}
"""What rounding the operands and the result of an operator leaves, roughly: eleven bits, and eight."""
MOST_PROBES = 24  # of the whole model
LOST_DB = 20.0  # below that, a unit loses by what it computes and not by being rounded
WITHIN_DB = 10.0  # by which the whole model must keep the bound, so that nine tenths of the noise are left to integers

Feed = Mapping[str, np.ndarray]
_PREFIX = "inlay.half"
_TOLD = 4  # units that a sentence names


@dataclass(frozen=True)
class Loss:
    """What a unit loses in half precision."""

    db: float  # signal over noise of its worst result
    largest: float  # magnitude of what it reads, gives, or adds up before it divides

    def reason(self, qtype: QType) -> str:
        """Why it stays in float32, for people; empty where it need not."""
        if not math.isfinite(self.largest) or self.largest * HEADROOM > LARGEST[qtype]:
            end = f"{qtype.value} ends at {plain(LARGEST[qtype], 5)}"
            return f"its numbers reach {plain(self.largest)} on the samples: {end}, and others may be larger"
        if self.db < ROUNDS_DB[qtype] - LOST_DB:
            return f"it keeps {self.db:.0f} dB in {qtype.value}, where rounding alone leaves {ROUNDS_DB[qtype]:.0f}"
        return ""


def keep_wide(prepared: PreparedModel, reasons: Mapping[str, str]) -> PreparedModel:
    """``prepared`` with the units that ``reasons`` names in float32 wherever they are not quantized."""
    base = prepared.rules.base
    if base is None:
        return prepared
    units = tuple(
        replace(u, forms={f: sites for f, sites in u.forms.items() if f != base.value}) if u.name in reasons else u
        for u in prepared.units
    )
    prepared.emitter.able = able_in_half(units, prepared.rules)
    return replace(prepared, units=units, kept_wide={**prepared.kept_wide, **reasons})


def told(prepared: PreparedModel) -> str:
    """What stays in float32 beside half precision, and why, for people; empty where nothing does."""
    base, kept = prepared.rules.base, prepared.kept_wide
    if base is None or not kept:
        return ""
    lines = [f"{name} ({prepared.graph.node(name).op_type}): {why}" for name, why in kept.items()]
    more = f"; and {len(lines) - _TOLD} more" if len(lines) > _TOLD else ""
    every = len(kept) + sum(base.value in u.forms for u in prepared.units)
    return f"{len(kept)} of {counted(every, 'unit')} stay in fp32 beside {base.value}: {'; '.join(lines[:_TOLD])}{more}"


def find_wide(
    prepared: PreparedModel,
    feeds: Sequence[Feed],
    bound_db: float,
    deadline: Deadline = NEVER,
    mask: str = AUTO_MASK,
) -> dict[str, str]:
    """The units that stay in float32 beside half precision, by name, each with the reason.

    Args:
        bound_db: SQNR that the outputs of a delivered model must keep.
        deadline: what is not decided by then stays in float32.
        mask: input that says which elements are padding, as of :class:`~inlay.data.Samples`.

    Raises:
        CompileFailed, RunFailed, Crashed, TimedOut: the model does not run.
    """
    base = prepared.rules.base
    if base is None:
        return {}
    some = [feeds[i] for i in sorted({round(k) for k in np.linspace(0, len(feeds) - 1, min(SAMPLES, len(feeds)))})]
    units = [u for u in prepared.units if base.value in u.forms]
    bodies = [u.name for u in units if prepared.graph.node(u.name).branch]
    inside = dict.fromkeys(bodies, "it is in a body, where no sample shows it by itself")
    losses = measure(prepared, [u for u in units if u.name not in inside], some, base)
    found = {**inside, **{name: reason for name, loss in losses.items() if (reason := loss.reason(base))}}
    whole = _Whole(keep_wide(prepared, found), some, mask)
    return {**found, **whole.refused([n for n in losses if n not in found], base, bound_db + WITHIN_DB, deadline)}


def measure(prepared: PreparedModel, units: Sequence[Unit], feeds: Sequence[Feed], qtype: QType) -> dict[str, Loss]:
    """What each of ``units`` loses in ``qtype`` on ``feeds``, by name. Raises as :func:`find_wide`."""
    if not units:
        return {}
    probe = _Probe(prepared.graph, prepared.emitter.base_for([qtype]), qtype)
    for unit in units:
        probe.add(unit)
    session = Session(probe.model, prepared.store, briefly=True)
    noise, signal, largest = (np.zeros(len(probe.of)) for _ in range(3))
    for feed in feeds:
        outputs = session.run(feed)
        rows = np.array([[float(outputs[f"{name}/{k}"]) for k in range(3)] for name in probe.of])
        noise, signal = noise + rows[:, 0], signal + rows[:, 1]
        largest = np.maximum(largest, np.where(np.isfinite(rows[:, 2]), rows[:, 2], math.inf))
    found: dict[str, Loss] = {}
    for number, name in enumerate(probe.of.values()):
        db = sqnr_db(float(signal[number]), float(noise[number]))
        known = found.get(name, Loss(EXACT_DB, 0.0))
        found[name] = Loss(min(db, known.db), max(float(largest[number]), known.largest))
    return found


class _Probe:
    """The float model, and beside it each unit in half precision, by itself."""

    def __init__(self, graph: Graph, base: onnx.ModelProto, qtype: QType) -> None:
        self._graph, self._qtype = graph, qtype
        self.model = onnx.ModelProto()
        self.model.CopyFrom(base)
        self._nodes = {n.name: n for n in base.graph.node}
        self._rounded: dict[str, str] = {}
        self.of: dict[str, str] = {}  # unit by result, as outputs are called
        del self.model.graph.output[:]

    def add(self, unit: Unit) -> None:
        """Let the model compute the loss of ``unit`` as well."""
        ports = {port for port, _ in unit.forms[self._qtype.value]}
        made: dict[str, str] = {}
        for name in unit.nodes:
            node, twin = self._graph.node(name), onnx.NodeProto()
            twin.CopyFrom(self._nodes[name])
            twin.name = f"{_PREFIX}/{name}"
            read = {port.slot: node.inputs[port.slot] for port in ports if port.node == name}
            for slot, value in read.items():
                twin.input[slot] = made.get(value) or self._round(value)
            form = half_form_of(self._graph, node, self._qtype)
            assert form is not None, "it has the form"
            halves = [v for k, v in enumerate(node.outputs) if v and form.gives(k) and self._graph.is_float(v)]
            for slot, value in enumerate(node.outputs):
                if value:
                    twin.output[slot] = f"{_PREFIX}/{name}/{value}"
            self.model.graph.node.append(twin)
            for value in halves:
                made[value] = self._cast_twice(f"{_PREFIX}/{name}/{value}")
            reads = [v for v in read.values() if v not in made]
            for value in [v for v in halves if v in unit.outputs or len(unit.nodes) > 1]:
                self._compare(unit.name, value, made[value], reads, added_up(self._graph, node))

    def _round(self, value: str) -> str:
        if value not in self._rounded:
            self._rounded[value] = self._cast_twice(value)
        return self._rounded[value]

    def _cast_twice(self, value: str) -> str:
        names = [f"{_PREFIX}/{value}/half", f"{_PREFIX}/{value}/rounded"]
        for source, made, to in zip((value, names[0]), names, (ONNX_TYPE[self._qtype], TensorProto.FLOAT), strict=True):
            self._node("Cast", [source], made, to=to)
        return names[1]

    def _compare(self, unit: str, value: str, got: str, reads: Sequence[str], factor: float) -> None:
        name = f"{_PREFIX}/of/{value}"
        self.of[name] = unit
        self._node("Sub", [value, got], f"{name}/difference")
        self._node("ReduceSumSquare", [f"{name}/difference"], f"{name}/0", keepdims=0)
        self._node("ReduceSumSquare", [value], f"{name}/1", keepdims=0)
        tops = []
        for each in dict.fromkeys([value, *reads]):
            top = f"{_PREFIX}/of/{each}/top"
            if top not in self._rounded:
                self._rounded[top] = top
                self._node("Abs", [each], f"{top}/all")
                self._node("ReduceMax", [f"{top}/all"], top, keepdims=0)
            tops.append(top)
        if factor != 1.0:
            constant = tensor_proto(f"{name}/factor", np.array(factor, np.float32), TensorProto.FLOAT)
            self.model.graph.initializer.append(constant)
            self._node("Mul", [tops[0], constant.name], f"{name}/sum")
            tops[0] = f"{name}/sum"
        self._node("Max", tops, f"{name}/2")
        for k in range(3):
            self.model.graph.output.append(helper.make_tensor_value_info(f"{name}/{k}", TensorProto.FLOAT, []))

    def _node(self, op_type: str, inputs: Sequence[str], output: str, **attributes: int) -> None:
        node = helper.make_node(op_type, inputs, [output], name=output)
        node.attribute.extend(helper.make_attribute(key, number) for key, number in attributes.items())
        self.model.graph.node.append(node)


_MEANS = frozenset({"ReduceMean", "GlobalAveragePool", "AveragePool"})


def added_up(graph: Graph, node: Node) -> float:
    """By how much what ``node`` adds up exceeds what it gives: a mean is a sum over so many elements."""
    if node.op_type not in _MEANS:
        return 1.0
    if node.op_type == "AveragePool":
        return float(math.prod(node.attributes.get("kernel_shape", (1,))))
    whole, left = graph.size(node.inputs[0]), graph.size(node.outputs[0])
    return whole / left if whole and left else 1.0


class _Whole:
    """The whole model with some units in half precision, against what it computes in float32."""

    def __init__(self, prepared: PreparedModel, feeds: Sequence[Feed], mask: str) -> None:
        self._prepared, self._feeds = prepared, feeds
        self._table = QParamsTable(prepared.graph, prepared.rules, {})
        self._judge = Judge.of_model(
            prepared.file.model, [dict(feed) for feed in feeds], self._outputs(prepared.emitter.base), mask
        )

    def refused(self, names: Sequence[str], base: QType, wanted_db: float, deadline: Deadline) -> dict[str, str]:
        """Those of ``names`` that the outputs do not bear in ``base``, with the reason: runs of them are halved.

        After :data:`MOST_PROBES`, or past ``deadline``, what is still undecided is refused as well.
        """
        waiting, taken, found = [list(names)] if names else [], list[str](), dict[str, str]()
        for _ in range(MOST_PROBES):
            if not waiting or (taken and not deadline.left):
                break
            run = waiting.pop(0)
            db = self.db([*taken, *run], base)
            if db >= wanted_db:
                taken += run
            elif len(run) == 1:
                found[run[0]] = f"with it in {base.value} the outputs keep {db:.0f} dB, and are to keep {wanted_db:.0f}"
            else:
                middle = len(run) // 2
                waiting[:0] = [run[:middle], run[middle:]]
        left = f"whether the outputs keep {wanted_db:.0f} dB with it in {base.value} was not found out in time"
        return {**found, **{name: left for run in waiting for name in run}}

    def db(self, names: Sequence[str], base: QType) -> float:
        """SQNR of the worst output, with these units in ``base``."""
        placement = self._prepared.label(dict.fromkeys(names, base.value))
        proto = rounded_halves(self._prepared.emitter.emit(placement, self._table))
        return self._judge.judge(self._outputs(proto)).sqnr_db

    def _outputs(self, proto: onnx.ModelProto) -> list[dict[str, np.ndarray]]:
        return outputs_of(Stored(proto, self._prepared.store), self._feeds, briefly=True)

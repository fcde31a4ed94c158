"""Many values of a large graph, computed piece by piece: runtimes take time by the square of a session's nodes.

A graph is cut along the order of its nodes. Each piece is a session of its own, whose inputs are what it reads of the
pieces before it. A graph of up to ``PIECE_NODES`` nodes is one piece.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx_ir as ir

from inlay.errors import CompileFailed
from inlay.model.gc_pause import gc_paused
from inlay.model.joins import joining_tails
from inlay.model.native import Values, gathered, looks, note_arrays, note_shapes, note_turns
from inlay.model.nesting import names_read, nested, values_of_bodies
from inlay.model.reference import Session, with_outputs
from inlay.model.store import WeightStore, externalize_weights

T = TypeVar("T")
_TYPES = {f"tensor({dtype.name.lower()})": dtype for dtype in ir.DataType}
_TURNS = re.compile(r"seq\((.*)\)")  # of what a loop computes

PIECE_NODES = 2048
"""Nodes of a piece: with all of their values as outputs a session of so many takes 1.1 times as long as with one."""

_QUICK_NODES = 768
"""Nodes of a piece that is built for one use: 100,000 nodes take a fifth less time than in pieces of 2048."""


class PiecewiseSession:
    """``values`` of a graph, whichever of its pieces computes them.

    Args:
        proto: the model, its nodes in topological order; its weights may be in ``store``.
        store: where external weights are read from.
        values: computed by nodes of the main graph.
        nodes: most nodes of a piece; graphs of no more are one.
        quick: build pieces without optimizations, for one use: in half the time, for what does not depend on the last
            digits.
        briefly: as of :class:`~inlay.model.reference.Session`; also where they are quick.

    Attributes:
        values: as above.
        types: type of each value computed so far, in the runtime's notation; those of loops are sequences.
        bodies: those of the values that are computed in bodies.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        store: WeightStore,
        values: Sequence[str],
        nodes: int = PIECE_NODES,
        quick: bool = False,
        briefly: bool = False,
    ) -> None:
        self.bodies = values_of_bodies(proto).intersection(values)
        proto = nested(proto, values)
        outside = {*_computed(proto), *(i.name for i in proto.graph.input), *(t.name for t in proto.graph.initializer)}
        self.values = [v for v in values if v in outside]
        self._proto, self._store, self._quick = proto, store, quick
        self._briefly = briefly or quick
        self._whole: Session | None = None
        self._sessions: dict[int, Session] = {}
        size = min(nodes, _QUICK_NODES) if quick else nodes
        self._pieces = _cut(proto.graph, set(values), size) if len(proto.graph.node) > nodes else []
        self.types: dict[str, str] = {}

    def run(self, feed: Values) -> dict[str, np.ndarray]:
        """The values by name, but for those of bodies that do not run. Of one that runs several times, see ``gather``.

        Raises:
            CompileFailed, RunFailed, Crashed, TimedOut: as of :meth:`gather`.
        """
        found = self.gather([feed], note_arrays, {})
        return {v: found[v] for v in self.values if v in found or v not in self.bodies}

    def gather(
        self,
        feeds: Sequence[Values],
        note: Callable[[dict[str, T], Values], None],
        found: Mapping[str, T],
        apart: bool = False,
    ) -> dict[str, T]:
        """What ``note`` makes of the values of each feed in turn, where they are computed: they need not travel.

        Args:
            feeds: inputs of the model.
            note: puts what it makes of some values into a dictionary, by value name; can be imported by its name.
            found: what it made before; is not changed.
            apart: note each turn of a loop by itself. Otherwise those of one inference are one array, if they can be:
                one after the other along the first axis, or along a new one where there are no two.

        Raises:
            CompileFailed, RunFailed: the runtime fails.
            Crashed, TimedOut: it ends its process, or takes too much time or memory.
        """
        note = partial(note_turns, self.bodies, apart, note) if self.bodies else note
        if self._pieces:
            noted = self._gather_pieces(feeds, note, found)
            if noted is not None:
                return noted
            self._pieces = []
        if self._whole is None:
            self._whole = Session(with_outputs(self._proto, self.values), self._store, briefly=self._briefly)
            self.types = self._whole.types
        return self._whole.inside(feeds, gathered, feeds, note, found, self.values, [])[0]

    def _gather_pieces(
        self, feeds: Sequence[Values], note: Callable[[dict[str, T], Values], None], found: Mapping[str, T]
    ) -> dict[str, T] | None:
        """The same piece by piece; None where pieces would have to hand on something else than arrays."""
        noted, held = dict(found), [dict(feed) for feed in feeds]
        for number, piece in enumerate(self._pieces):
            given = [{v: h[v] for v in piece.reads} for h in held]
            session = self._sessions.get(number) or self._session(piece, given[0])
            if not self._quick:  # what is used once is not kept in memory
                self._sessions[number] = session
            self.types.update(session.types)
            known = {v: noted[v] for v in piece.wanted if v in noted}
            carried = [v for v in piece.outputs if v in piece.still_read]
            fresh, made = session.inside(given, gathered, given, note, known, piece.wanted, carried)
            noted.update(fresh)
            pairs = [(*h.items(), *m.items()) for h, m in zip(held, made, strict=True)]
            held = [{v: a for v, a in pair if v in piece.still_read} for pair in pairs]
            if not all(isinstance(a, np.ndarray) for h in held for a in h.values()):
                return None
        return noted

    def _session(self, piece: _Piece, given: Mapping[str, np.ndarray]) -> Session:
        model = _part(self._proto, piece.nodes, piece.constants, piece.outputs, given)
        if self._quick:
            with contextlib.suppress(CompileFailed):  # optimizations remove some operators that have no kernel
                # a pool of threads takes long to make
                return Session(model, self._store, optimize=None, threads=1, briefly=True)
        return Session(model, self._store, briefly=self._briefly)


class Parts:
    """Parts of a model, each as a model of its own.

    Args:
        proto: the model, its nodes in topological order, and its branches in their Ifs.

    Attributes:
        makers: index of the node that computes each value of the main graph.
        nodes: of the main graph.
    """

    def __init__(self, proto: onnx.ModelProto) -> None:
        self.nodes = list(proto.graph.node)
        self.makers = {v: i for i, n in enumerate(self.nodes) for v in n.output if v}
        self._proto, self._constants = proto, {t.name: t for t in proto.graph.initializer}

    def needed(self, values: Iterable[str], known: Container[str]) -> tuple[list[int], set[str]]:
        """What computes ``values`` from ``known`` ones: indices of nodes, and all that they read from outside."""
        found, reads, left = set[int](), set[str](), list(values)
        while left:
            value = left.pop()
            index = None if value in known else self.makers.get(value)
            if index is None:
                reads.add(value)
            elif index not in found:
                found.add(index)
                left += names_read(self.nodes[index])
        return sorted(found), reads

    def model(self, values: Sequence[str], known: Mapping[str, np.ndarray]) -> onnx.ModelProto:
        """The part that computes ``values`` from ``known`` ones: its inputs are those of them that it reads."""
        indices, reads = self.needed(values, known)
        constants = [t for v, t in self._constants.items() if v in reads and v not in known]
        given = {v: known[v] for v in sorted(reads) if v in known}
        return _part(self._proto, [self.nodes[i] for i in indices], constants, values, given)


def _part(
    whole: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    constants: Sequence[onnx.TensorProto],
    outputs: Sequence[str],
    given: Mapping[str, np.ndarray],
) -> onnx.ModelProto:
    model = onnx.ModelProto(ir_version=whole.ir_version, opset_import=whole.opset_import, functions=whole.functions)
    model.graph.name = whole.graph.name
    model.graph.node.extend(nodes)
    model.graph.initializer.extend(constants)
    inputs = {i.name: i for i in whole.graph.input}
    for name, array in given.items():
        if name in inputs:
            model.graph.input.append(inputs[name])
        else:  # its sizes may differ from sample to sample
            dtype = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
            model.graph.input.append(onnx.helper.make_tensor_value_info(name, dtype, None))
    model.graph.output.extend(onnx.ValueInfoProto(name=v) for v in outputs)
    return model


class _Piece:
    """Consecutive nodes."""

    def __init__(self, nodes: Sequence[onnx.NodeProto]) -> None:
        self.nodes = nodes  # of the graph
        self.names = {v for n in nodes for v in names_read(n)}  # all that they and their bodies read
        self.reads: list[str] = []  # what they read of the graph's inputs and of the pieces before
        self.wanted: list[str] = []  # what they compute of what is wanted,
        self.outputs: list[str] = []  # and of what is wanted or read later
        self.constants: list[onnx.TensorProto] = []  # initializers that they read
        self.still_read: set[str] = set()  # what is read by later pieces


def run_model(model: ir.Model, store: WeightStore, feed: Values) -> dict[str, np.ndarray]:
    """Outputs of ``model`` on ``feed``. Raises CompileFailed, RunFailed, Crashed, TimedOut."""
    proto = externalize_weights(model, store)
    outputs = _outputs(proto)
    if len(proto.graph.node) <= PIECE_NODES or not {*outputs}.issubset(_computed(proto)):
        return Session(proto, store, briefly=True).run(feed)
    return PiecewiseSession(proto, store, outputs, quick=True).run(feed)


@dataclass(frozen=True, eq=False, kw_only=True)
class Inference:
    """What one inference shows of a model.

    This is exact where shape inference gives up: dynamic dimensions, data-dependent shapes, operators of other domains.
    """

    proto: onnx.ModelProto  # the model; its weights are in `store`
    store: WeightStore
    outputs: Mapping[str, np.ndarray]  # by name
    shapes: Mapping[str, tuple[int, ...]]  # of each array that an operator of the main graph computes, by name
    dtypes: Mapping[str, ir.DataType]  # element types of the same
    infinite: frozenset[str] = frozenset()  # names of those that hold infinity or NaN
    # the least and the greatest element of each that holds floats
    extremes: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    # arrays that hold what a Concat joined, on the way to an output, by name
    joined: Mapping[str, np.ndarray] = field(default_factory=dict)
    # how often values of loops were computed, by name; of those that were several times
    turns: Mapping[str, int] = field(default_factory=dict)


@gc_paused()
def run_visibly(model: ir.Model, store: WeightStore, feed: Values) -> Inference:
    """Run ``model`` on ``feed`` with all of its values in sight. Raises CompileFailed, RunFailed, Crashed, TimedOut."""
    proto = externalize_weights(model, store)
    values, outputs = _computed(proto), _outputs(proto)
    behind = {v.name for nodes in joining_tails(model).values() for n in nodes for v in n.outputs if v.name}
    session = PiecewiseSession(proto, store, values, quick=True)
    found = session.gather([feed], partial(note_shapes, {*outputs} | behind), dict[str, Any](), apart=True)
    whole = {v: found[v] for v in outputs if v in found}
    if not {*outputs}.issubset(values):  # one is an input or a constant
        whole = Session(proto, store, briefly=True).run(feed)
    noted = {v: looks(a) if isinstance(a, np.ndarray) else a for v, a in found.items()}
    shapes = {v: shape for v, (shape, *_) in noted.items()}
    same = {shape: shape for shape in shapes.values()}  # many values share few shapes
    shapes = {v: same[shape] for v, shape in shapes.items()}
    types = {v: _TURNS.sub(r"\1", t) if v in session.bodies else t for v, t in session.types.items()}
    dtypes = {v: _TYPES[t] for v, t in types.items() if t in _TYPES}
    infinite = frozenset(v for v, (_, finite, *_) in noted.items() if not finite)
    extremes = {v: ends for v, (_, _, ends, _) in noted.items() if dtypes.get(v) is ir.DataType.FLOAT}
    joined = {v: a for v, a in found.items() if v in behind and isinstance(a, np.ndarray)}
    return Inference(
        proto=proto,
        store=store,
        outputs=whole,
        shapes=shapes,
        dtypes=dtypes,
        infinite=infinite,
        extremes=extremes,
        joined=joined,
        turns={v: times for v, (*_, times) in noted.items() if times > 1},
    )


def _computed(proto: onnx.ModelProto) -> list[str]:
    return [v for n in proto.graph.node for v in n.output if v]


def _outputs(proto: onnx.ModelProto) -> list[str]:
    return list(dict.fromkeys(o.name for o in proto.graph.output))


def _cut(graph: onnx.GraphProto, wanted: set[str], size: int) -> list[_Piece]:
    nodes = list(graph.node)
    pieces = [_Piece(nodes[i : i + size]) for i in range(0, len(nodes), size)]
    constants = {t.name: t for t in graph.initializer}
    available = {i.name for i in graph.input} - constants.keys()
    for piece in pieces:
        piece.reads = sorted(piece.names & available)
        piece.constants = [constants[v] for v in sorted(piece.names & constants.keys())]
        available.update(v for n in piece.nodes for v in n.output if v)
    later: set[str] = set()
    for piece in reversed(pieces):
        piece.still_read = set(later)
        computed = [v for n in piece.nodes for v in n.output]
        piece.wanted = [v for v in computed if v in wanted]
        piece.outputs = [v for v in computed if v in later or v in wanted]
        later.difference_update(computed)
        later.update(piece.reads)
    return pieces

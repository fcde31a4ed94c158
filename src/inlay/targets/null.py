"""A target with known costs, for tests and CI: no clock is read, and the best placement is known beforehand.

Each node costs a number of nanoseconds that depends on its kind and precision only; each Q and DQ that no low-precision
kernel takes in costs one more. Outputs are computed for real, by ONNX Runtime without rewrites. Noise, where asked
for, is multiplicative, log-normal, and drawn from seeds, with bursts as on a busy machine.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from inlay.errors import CompileFailed, RunFailed
from inlay.model.external import holds_halves
from inlay.model.native import runtime_message
from inlay.targets.base import Artifact, Capabilities, Feed, Fingerprint, KernelTime, StatesCapabilities
from inlay.types import QType

_Q, _DQ = "QuantizeLinear", "DequantizeLinear"
_COST = 10_000.0  # nanoseconds of a compute node in float
_MOVE = 1_000.0
_BOUNDARY = 1_500.0
_CAST = 500.0
_PROFILE_STREAM = 1  # of the noise of profiles
_BUILD_S = 0.05  # seconds that building a model would take
_WEIGHTS: dict[str, int | None] = {
    **dict.fromkeys(("Conv", "ConvTranspose", "MatMul", "Gemm"), 1),
    **dict.fromkeys(("Add", "Mul", "Where", "Concat", "AveragePool", "GlobalAveragePool", "Sigmoid"), None),
    **dict.fromkeys(("LeakyRelu", "HardSigmoid", "Softmax"), None),
}
"""Operators that compute, with the slot of their weight, and those that only move elements: what ONNX Runtime's rules
say of them. A worker loads neither these nor the graph library behind them, which boards do not have."""
_MOVING = frozenset(
    (
        *("MaxPool", "ReduceMax", "ReduceMin", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand"),
        *("Tile", "Slice", "Gather", "Split", "DepthToSpace", "Resize"),
    )
)


class NullTarget(StatesCapabilities):
    """The cost model.

    Args:
        noise: standard deviation of the logarithm of each reading (0.03 is 3 %).
        burst: share of readings that are half as slow again.
        seed: of the noise.
        effect: 1.0 plants real differences between float and low precision; 0.0 makes every placement cost the same.
        scale: factor on every cost, for models of milliseconds.
        wide: 16-bit activations gain half of what 8-bit ones do, and a search tries both.
        half: it has kernels for half precision, which take about six tenths of the time.
        advance_clock: called with the seconds that building, running or timing would have taken.
    """

    name = "null"

    def __init__(
        self,
        noise: float = 0.0,
        burst: float = 0.0,
        seed: int = 0,
        effect: float = 1.0,
        scale: float = 1.0,
        advance_clock: Callable[[float], None] | None = None,
        wide: bool = False,
        half: bool = False,
    ) -> None:
        self.wide, self.half = wide, half
        self.noise, self.burst, self.seed, self.effect, self.scale = noise, burst, seed, effect, scale
        self.advance_clock: Callable[[float], None] = advance_clock or (lambda seconds: None)
        self.deterministic = noise == 0.0 and burst == 0.0

    def fingerprint(self) -> Fingerprint:
        """All of its parameters."""
        facts = {k: str(getattr(self, k)) for k in ("noise", "burst", "seed", "effect", "scale")}
        facts.update({name: "True" for name in ("wide", "half") if getattr(self, name)})
        return Fingerprint(self.name, facts)

    def capabilities(self) -> Capabilities:
        """The operators of ONNX Runtime on x86, so that placements look alike; every form costs what its nodes cost."""
        from inlay.space.recipe import WEIGHTED
        from inlay.space.rules import Rules
        from inlay.targets.onnxruntime.rules import OPS

        fast = {QType.UINT16: frozenset(WEIGHTED)} if self.wide else {}
        halves = frozenset({QType.FP16, QType.BF16}) if self.half else frozenset[QType]()
        return Capabilities(Rules(activation=QType.UINT8, ops=OPS, fast=fast, halves=halves))

    def compile(self, model: Artifact) -> NullExecutable:
        """Price the model. Raises CompileFailed when it is not a valid model."""
        self.advance_clock(_BUILD_S)
        return NullExecutable(model, self)


class NullExecutable:
    """A priced model."""

    def __init__(self, model: Artifact, target: NullTarget) -> None:
        self._target = target
        self._path = model.path
        try:
            onnx.checker.check_model(str(model.path))
            proto = onnx.load(str(model.path), load_external_data=False)
        except Exception as error:  # the checker and protobuf raise several types
            raise CompileFailed(f"{model.path.name} is not valid: {runtime_message(error)}") from error
        self._kernels = [replace(k, ns=k.ns * target.scale) for k in price(proto, target.effect)]
        self._ns = sum(k.ns for k in self._kernels)
        self._has_halves = holds_halves(proto.graph)
        self._own = [target.seed, *hashlib.sha256(model.digest.encode()).digest()]
        self._rng = np.random.default_rng(self._own)
        self._session: ort.InferenceSession | None = None
        self._closed = False

    def reseed(self, seed: int) -> None:
        """Draw the noise of the readings to come from ``seed`` (and from the target's own and the model's digest)."""
        self._rng = np.random.default_rng([*self._own, seed])

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name, computed by ONNX Runtime. Raises RunFailed."""
        if self._closed:
            raise RunFailed("the model was closed")
        self._target.advance_clock(self._ns * 1e-9)
        try:
            self._session = self._session or _session(self._path, self._has_halves)
            outputs = self._session.run(None, dict(feed))
        except Exception as error:  # the binding raises bare exceptions of several types
            raise RunFailed(runtime_message(error)) from error
        return dict(zip((o.name for o in self._session.get_outputs()), outputs, strict=True))

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """The price, with noise, ``repeats`` times; int64 nanoseconds."""
        if self._closed:
            raise RunFailed("the model was closed")
        readings = np.asarray(np.rint(self._ns * self._factors(repeats, self._rng)), np.int64)
        self._target.advance_clock(float(readings.sum()) * 1e-9)
        return readings

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """The price of each node: with noise, the median of ``repeats`` readings. Raises RunFailed."""
        if self._closed:
            raise RunFailed("the model was closed")
        self._target.advance_clock(self._ns * repeats * 1e-9)
        if self._target.deterministic:
            return list(self._kernels)
        rng = np.random.default_rng([*self._own, _PROFILE_STREAM])  # whatever was timed before
        return [replace(k, ns=k.ns * float(np.median(self._factors(repeats, rng)))) for k in self._kernels]

    def close(self) -> None:
        """No more calls."""
        self._closed = True
        self._session = None

    def _factors(self, repeats: int, rng: np.random.Generator) -> np.ndarray:
        factor = np.exp(rng.normal(0.0, self._target.noise, repeats))
        return np.where(rng.random(repeats) < self._target.burst, factor * 1.5, factor)


def _session(path: Path, has_halves: bool) -> ort.InferenceSession:
    if has_halves:
        from inlay.model.passes.half import rounded_file

        path = rounded_file(path)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # the models are small, and threads of many sessions cost more than they do
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def price(proto: onnx.ModelProto, effect: float = 1.0) -> list[KernelTime]:
    """The cost of every node of a model: a pure function of its structure and names.

    A compute node that reads a DQ and whose every reader is a Q (perhaps behind a Relu or Clip) runs in low precision;
    its cost changes by a factor in [0.3, 1.3] drawn from its name, so that some nodes are better left in float. A Q is
    free behind a low-precision node, a DQ before low-precision nodes only; elsewhere each costs 1.5 us. What reads 16
    bits has half the change. What reads halves takes 0.45 to 0.75 of the time, by its name, and a Cast to or from them
    0.5 us.
    """
    graph = proto.graph
    producer = {v: n for n in graph.node for v in n.output}
    readers: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for value in node.input:
            readers[value].append(node)

    def after(node: onnx.NodeProto) -> list[onnx.NodeProto]:
        found = [n for v in node.output for n in readers[v]]
        return [m for n in found for m in (after(n) if n.op_type in ("Relu", "Clip") else [n])]

    def reads_dq(node: onnx.NodeProto) -> bool:
        source = producer.get(node.input[0]) if node.input else None
        return source is not None and source.op_type == _DQ

    types = {t.name: t.data_type for t in graph.initializer}

    def change(node: onnx.NodeProto) -> float:
        kinds = {types.get(zero) for zero in producer[node.input[0]].input[2:]}
        wide = bool(kinds & {onnx.TensorProto.INT16, onnx.TensorProto.UINT16})
        return ((0.3 + hashlib.sha256(node.name.encode()).digest()[0] / 255.0) - 1.0) * (0.5 if wide else 1.0)

    def float_weight(node: onnx.NodeProto) -> bool:
        slot = _WEIGHTS.get(node.op_type)
        return slot is not None and len(node.input) > slot and node.input[slot] not in producer

    low = {
        n.name
        for n in graph.node
        if (n.op_type in _WEIGHTS or n.op_type in _MOVING)
        and reads_dq(n)
        and not float_weight(n)
        and after(n)
        and all(r.op_type == _Q for r in after(n))
    }

    def cost(node: onnx.NodeProto) -> float:
        if node.op_type == _Q:
            source = producer.get(node.input[0])
            while source is not None and source.op_type in ("Relu", "Clip"):
                source = producer.get(source.input[0])
            return 0.0 if source is not None and source.name in low else _BOUNDARY * effect
        if node.op_type == _DQ:
            free = node.input[0] not in producer or all(r.name in low for r in after(node))
            return 0.0 if free else _BOUNDARY * effect
        if node.op_type == "Cast" and halves & {*node.input, *node.output}:
            return _CAST * effect
        ns = _COST if node.op_type in _WEIGHTS else _MOVE
        if node.name in low:
            return ns * (1.0 + effect * change(node))
        draw = hashlib.sha256(node.name.encode()).digest()[1] / 255.0
        return ns * (1.0 - effect * (0.55 - 0.3 * draw)) if is_half(node) else ns

    halves = _halves(graph)

    def is_half(node: onnx.NodeProto) -> bool:
        return node.op_type not in ("Cast", _Q, _DQ) and not halves.isdisjoint(node.input)

    def precision(node: onnx.NodeProto) -> str:
        return "uint8" if node.name in low else "float16" if is_half(node) else "float32"

    return [KernelTime(n.name, n.op_type, cost(n), precision(n), (n.name,)) for n in graph.node]


def _halves(graph: onnx.GraphProto) -> set[str]:
    """Values that are halves, by what makes them; results of operators that read one are, roughly, too."""
    kinds = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    found = {t.name for t in graph.initializer if t.data_type in kinds}
    found |= {v.name for v in graph.input if v.type.tensor_type.elem_type in kinds}
    for node in graph.node:
        if node.op_type == "Cast":
            half = any(a.name == "to" and a.i in kinds for a in node.attribute)
        else:
            half = not found.isdisjoint(node.input) and node.op_type not in (_Q, "Shape", "Size", "ArgMax")
        found.update(node.output if half else ())
    return found

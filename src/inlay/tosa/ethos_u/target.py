"""Ethos-U as a target: time is an estimate (Vela, a stated host model, the cost of crossing), results are exact."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import astuple
from functools import partial

import numpy as np
import onnx

from inlay.errors import CompileFailed, InlayError, RunFailed, TargetError
from inlay.model.normalize import FloatRewrite
from inlay.model.passes.half import widen_halves
from inlay.targets.base import Artifact, Capabilities, Feed, Fingerprint, KernelTime, StatesCapabilities
from inlay.targets.passes.gathered import gather_hardswish
from inlay.tosa.ethos_u import host_cost, vela
from inlay.tosa.ethos_u.partitions import Cost, compile_partitions
from inlay.tosa.ethos_u.rules import rules_for
from inlay.tosa.ethos_u.vela import Accelerator
from inlay.tosa.extras import require
from inlay.tosa.lowering import Lowered
from inlay.tosa.reference import LoweredRunner

CHECK_EVERY = 100
"""Runs of a model between two comparisons with the TOSA reference model, which is ten times as slow as numpy."""

FLOAT_REWRITES = (
    FloatRewrite("compute halves in float32", widen_halves, "Q/DQ on halves is not lowered", "inlay.tosa"),
    FloatRewrite(
        "gather HardSwish",
        gather_hardswish,
        "one table in place of a sum, two bounds, a product and a quotient, each requantized",
        "inlay.tosa: HardSwish is a TABLE",
    ),
)


class EthosUTarget(StatesCapabilities):
    """An Ethos-U NPU with a microcontroller-class host.

    All times are estimates, deterministic within one version of Vela: Vela's cycles for what runs on the NPU, the
    model of :mod:`.host_cost` for the rest and for crossing between the two.

    Args:
        accelerator: one of ``ethos-u55-{32,64,128,256}``, ``ethos-u65-{256,512}`` and
            ``ethos-u85-{128,256,512,1024,2048}``.
        system_config, memory_mode: sections of Vela's ``Arm/vela.ini``; empty for the family's usual ones.
    """

    deterministic = True
    heading = ("vela", "system_config", "memory_mode")

    def __init__(self, accelerator: str = "ethos-u55-128", system_config: str = "", memory_mode: str = "") -> None:
        self.accelerator = Accelerator.of(accelerator, system_config, memory_mode)
        self.name = accelerator

    def fingerprint(self) -> Fingerprint:
        """Vela's and TOSA tools' versions, configuration, memory mode, and the cycles of the host model.

        Raises:
            UsageError: the extra ``arm`` is not installed.
        """
        require("tosa_serializer")
        return Fingerprint(
            self.name,
            {
                "kind": "estimate",
                "results": f"numpy; TOSA reference model on every {CHECK_EVERY}th run of a model, from the first on",
                "vela": vela.version(),
                "tosa-tools": importlib.metadata.version("tosa-tools"),
                "system_config": self.accelerator.system_config,
                "memory_mode": self.accelerator.memory_mode,
                "host_model": " ".join(str(cycles) for cycles in astuple(host_cost.HOST)),
            },
        )

    def capabilities(self) -> Capabilities:
        """What becomes integer operators, with this accelerator's prices; the lowering chooses the form of each."""
        _, macs, cores = vela.ACCELERATORS[self.name]
        return Capabilities(rules_for(self.name, macs * cores), FLOAT_REWRITES)

    def compile(self, model: Artifact) -> EthosUExecutable:
        """Lower, partition and compile through Vela. Raises CompileFailed."""
        try:
            onnx.checker.check_model(str(model.path))
            proto = onnx.load(str(model.path))
        except Exception as error:  # the checker, protobuf and the file system raise several types
            message = " ".join(str(error).split())
            raise CompileFailed(f"{model.path.name} is not a valid model: {message}") from error
        return EthosUExecutable(proto, self.accelerator)


class CompiledModel:
    """A model lowered and costed for one set of input shapes.

    Attributes:
        lowered: the integer graph and its partitions.
        cost: what they cost.
        fast: runs them in numpy.
        exact: runs them on the TOSA reference model; None where nothing became TOSA.
        runs: how often they ran.
    """

    def __init__(self, lowered: Lowered, cost: Cost) -> None:
        self.lowered, self.cost = lowered, cost
        self.fast = LoweredRunner(lowered, in_numpy=True)
        self.exact = LoweredRunner(lowered) if lowered.tosa else None
        self.runs = 0

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name. Raises InlayError."""
        outputs = self.lowered.graph.outputs
        values = self.fast.run(feed)
        if self.exact is not None and self.runs % CHECK_EVERY == 0:
            for interface, ours, theirs in zip(outputs, values, self.exact.run(feed), strict=True):
                if not np.array_equal(ours, theirs, equal_nan=ours.dtype.kind == "f"):
                    raise RunFailed(f"output {interface.name!r} differs between numpy and the TOSA reference model")
        self.runs += 1
        return {i.name: v for i, v in zip(outputs, values, strict=True)}


def compile_model(proto: onnx.ModelProto, accelerator: Accelerator) -> CompiledModel:
    """Lower, partition and compile a model with static shapes. Raises CompileFailed."""
    try:
        return CompiledModel(*compile_partitions(proto, accelerator))
    except TargetError as error:
        raise CompileFailed(str(error)) from error
    except InlayError as error:
        if error.exit_code == 2:
            raise  # the extra is missing: not the model's fault
        raise CompileFailed(str(error)) from error


class EthosUExecutable:
    """A lowered and costed model; runs bit for bit as the NPU would.

    The integer arithmetic is computed in numpy (:mod:`inlay.tosa.oracle`), ten times as fast as by the TOSA reference
    model. The reference model computes the first and then every :data:`CHECK_EVERY`-th run as well: a result that
    differs by a single bit is an error, not a result.

    A model with dynamic dimensions is compiled for the sizes of its first inputs, and again for other sizes: an NPU
    program has static shapes.

    Raises:
        CompileFailed: a model of static shapes cannot be compiled.
    """

    def __init__(self, proto: onnx.ModelProto, accelerator: Accelerator) -> None:
        self._proto: onnx.ModelProto | None = proto
        self._accelerator, self._dynamic = accelerator, _dynamic_inputs(proto)
        self._by_shapes: dict[tuple[tuple[str, tuple[int, ...]], ...], CompiledModel] = {}
        if not self._dynamic:
            self._by_shapes[()] = compile_model(proto, accelerator)

    @property
    def lowered(self) -> Lowered:
        """The lowered model, where its shapes are static or one set of them has been seen. Raises RunFailed."""
        return self._compiled({}).lowered

    def _compiled(self, feed: Feed) -> CompiledModel:
        if self._proto is None:
            raise RunFailed("the model was closed")
        if not feed and self._by_shapes:
            return next(iter(self._by_shapes.values()))
        shapes = tuple(sorted((name, np.asarray(feed[name]).shape) for name in self._dynamic if name in feed))
        if shapes not in self._by_shapes:
            try:
                self._by_shapes[shapes] = compile_model(_with_shapes(self._proto, dict(shapes)), self._accelerator)
            except InlayError as error:
                raise RunFailed(str(error)) from error
        return self._by_shapes[shapes]

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name, from the real integer arithmetic. Raises RunFailed."""
        try:
            return self._compiled(feed).run(feed)
        except RunFailed:
            raise
        except InlayError as error:
            raise RunFailed(str(error)) from error

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """The estimate in nanoseconds, ``repeats`` times: shape (repeats,), int64."""
        return np.full(repeats, round(self._compiled(feed).cost.ns), np.int64)

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """Estimated time of every NPU layer, host operator and NPU call; they add up to :meth:`time`."""
        return list(self._compiled(feed).cost.kernels)

    def close(self) -> None:
        """Drop the model and the host partitions' sessions."""
        self._proto = None
        self._by_shapes.clear()


def _inputs(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    constants = {t.name for t in proto.graph.initializer}
    return [v for v in proto.graph.input if v.name not in constants]


def _dynamic_inputs(proto: onnx.ModelProto) -> list[str]:
    """Names of the inputs with dimensions that are not known."""
    return [v.name for v in _inputs(proto) if any(d.dim_value <= 0 for d in v.type.tensor_type.shape.dim)]


def _with_shapes(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """A copy with the dynamic dimensions of its inputs as in ``shapes``; given sizes are left as they are."""
    bound = onnx.ModelProto()
    bound.CopyFrom(proto)
    for value in _inputs(bound):
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            if not dim.HasField("dim_value") or dim.dim_value <= 0:
                dim.dim_value = size  # replaces the name: they are one field
    return bound


TARGETS = {name: partial(EthosUTarget, name) for name in vela.ACCELERATORS}  # A constructor for each accelerator


def __getattr__(name: str) -> partial[EthosUTarget]:
    """``ethos_u55_128`` and so on: the constructors by names that are identifiers, as entry points need them."""
    found = TARGETS.get(name.replace("_", "-"))
    if found is None:
        raise AttributeError(name)
    return found

"""OpenVINO's CPU plugin as a target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from inlay.errors import CompileFailed, RunFailed, UsageError
from inlay.targets.base import Artifact, Capabilities, Feed, Fingerprint, KernelTime, OwnPrecision, StatesCapabilities
from inlay.targets.machine import cpu_facts, cpu_flags, is_x86, processor_of, require_streams, require_threads, timed
from inlay.targets.openvino.profile import Attribution, executed_graph, typical
from inlay.targets.openvino.runtime import core, message, openvino

_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16", "asimddp")
_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "avx_ne_convert"})
"""With one of these the runtime computes floats in bfloat16 by itself on x86."""
IR = ".xml"
"""Suffix of the runtime's own format, which it reads besides ONNX."""
_WARM_UP = 1
_MOST_SHAPES = 4
"""Sets of input shapes that a model with dynamic dimensions stays compiled for."""

_SNIPPET = """\
import openvino as ov

options = {options}
model = ov.Core().compile_model("model.onnx", "CPU", options)
results = model(feed)  # feed: an array for each input, by name
outputs = [results[output] for output in model.outputs]
"""

PRECISIONS = ("default", "f32", "bf16")
"""Types in which the runtime computes what is float; ``default`` is its own choice for the processor."""


def capabilities(machine: str | None = None, flags: frozenset[str] | None = None) -> Capabilities:
    """What the runtime runs on a CPU, and its rewrites; arguments as of ``rules_for`` in :mod:`.rules`."""
    # A worker never asks: it starts without these, and without the graph library behind them.
    from inlay.targets.openvino.float_rewrites import float_rewrites_for
    from inlay.targets.openvino.rewrites import GATES, IdlePairs, QuantizedStates
    from inlay.targets.openvino.rules import OPS, rules_for

    moving = frozenset({"Concat", *(o for o, row in OPS.items() if row.moves_data)})
    rules, passes = rules_for(machine, flags), float_rewrites_for(cpu_flags() if flags is None else flags)
    recurrent = (QuantizedStates(),) if not GATES.keys().isdisjoint(rules.ops) else ()
    return Capabilities(rules, passes, (*recurrent, IdlePairs(moving)))


class OpenVinoCpuTarget(StatesCapabilities):
    """OpenVINO on this machine's CPU.

    Args:
        threads: of inference; 0 lets the runtime choose.
        streams: inferences side by side, which share the threads. With several, times are those of a batch of one
            inference on each, divided by their number.
        precision: ``f32``, ``bf16``, or ``default``, which is bfloat16 where the processor has it.

    Raises:
        UsageError: an option has no such value.
    """

    name = "openvino-cpu"
    heading = ("openvino", "cpu", "threads", "streams", "precision")
    deterministic = False

    def __init__(self, threads: int = 1, streams: int = 1, precision: str = "default") -> None:
        require_threads(threads)
        require_streams(streams)
        if precision not in PRECISIONS:
            raise UsageError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision}")
        self.threads, self.streams, self.precision = threads, streams, precision
        self._facts: Mapping[str, str] | None = None  # of another machine

    def on_device(self, facts: Mapping[str, str]) -> OpenVinoCpuTarget:
        """The same target on the machine whose fingerprint has these facts."""
        there = OpenVinoCpuTarget(self.threads, self.streams, self.precision)
        there._facts = facts if facts.get("cpu") != cpu_facts()["cpu"] else None
        return there

    @property
    def own_precision(self) -> OwnPrecision | None:
        """None with ``precision=f32``, and by default on an x86 processor that has no products in bfloat16."""
        exact = self.precision == "f32" or (self.precision == "default" and not _may_round(self._facts))
        return None if exact else OwnPrecision("bfloat16", {"precision": "f32"})

    def fingerprint(self) -> Fingerprint:
        """Runtime version, CPU, the ISA flags that its kernels choose by, and all options.

        Raises:
            UsageError: the extra ``openvino`` is not installed.
        """
        if self._facts is not None:
            return Fingerprint(self.name, self._facts)
        facts = {"openvino": openvino().get_version(), **cpu_facts(_FLAGS), "threads": str(self.threads)}
        return Fingerprint(self.name, {**facts, "streams": str(self.streams), "precision": self.precision})

    def capabilities(self) -> Capabilities:
        """What its CPU runs in 8 bits; few groups are joined, states quantized like data, idle pairs left out."""
        return capabilities(*processor_of(self._facts))

    def run_with(self) -> str:
        """The lines that run a model with the options that it is measured with."""
        return _SNIPPET.format(options=self._options())

    def compile(self, model: Artifact) -> OpenVinoExecutable:
        """Read and compile a model. Raises CompileFailed."""
        return OpenVinoExecutable(model, self._options())

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "PERFORMANCE_HINT": "LATENCY" if self.streams == 1 else "THROUGHPUT",
            "NUM_STREAMS": self.streams,
            "INFERENCE_NUM_THREADS": self.threads,
            "ENABLE_CPU_PINNING": False,  # models that are measured side by side would share one core
        }
        return options if self.precision == "default" else {**options, "INFERENCE_PRECISION_HINT": self.precision}


class _Compiled:
    """A model compiled for one set of shapes, with a request for each stream."""

    def __init__(self, model: Any, options: Mapping[str, Any], outputs: tuple[str, ...]) -> None:
        self.model = core().compile_model(model, "CPU", dict(options))
        self._outputs = outputs
        self._requests = [self.model.create_infer_request() for _ in range(int(options["NUM_STREAMS"]))]

    def set_inputs(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Copy the inputs of the inferences to come, for every stream."""
        for request in self._requests:
            for name, array in arrays.items():
                request.set_tensor(name, openvino().Tensor(np.array(array, order="C")))

    def infer(self) -> None:
        """One inference in every stream.

        A single one runs in the calling thread. Handed to a thread of the runtime's, it waits for that one to wake up:
        4 % of 1.6 ms on an idle machine, which looks like other processes at work (:mod:`inlay.measure.preemption`).
        """
        if len(self._requests) == 1:
            self._requests[0].infer(share_outputs=True)
            return
        for request in self._requests:
            request.start_async()
        for request in self._requests:
            request.wait()

    def outputs(self) -> dict[str, np.ndarray]:
        """Of the last inference, copied."""
        request = self._requests[0]
        return {name: np.array(request.get_output_tensor(i).data) for i, name in enumerate(self._outputs)}

    @property
    def streams(self) -> int:
        """Number of streams."""
        return len(self._requests)


class OpenVinoExecutable:
    """A compiled model.

    A model with dynamic dimensions is compiled for the sizes of its first inputs, and again for other sizes: with fixed
    ones the runtime is faster, and its documentation recommends them.

    Raises:
        CompileFailed: the runtime cannot read the model, or cannot compile it for its fixed sizes.
    """

    def __init__(self, artifact: Artifact, options: Mapping[str, Any]) -> None:
        self._artifact, self._options = artifact, options
        self._by_shapes: dict[tuple[tuple[int, ...], ...], _Compiled] = {}
        try:
            self._model: Any = core().read_model(str(artifact.path))
            self._inputs, self._outputs = _names(artifact.path, self._model)
            if not self._model.is_dynamic():
                shapes = tuple(tuple(i.shape) for i in self._model.inputs)
                self._by_shapes[shapes] = _Compiled(self._model, options, self._outputs)
        except UsageError:
            raise
        except Exception as error:  # the binding raises bare exceptions of several types
            raise CompileFailed(f"OpenVINO cannot build {artifact.path.name}: {message(error)}") from error

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name. Raises RunFailed."""
        compiled = self._ready(feed)
        self._infer(compiled)
        return compiled.outputs()

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """Nanoseconds of each inference, shape (repeats,). Raises RunFailed."""
        compiled = self._ready(feed)
        return timed(lambda: self._infer(compiled), repeats) // compiled.streams

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """Typical time of every kernel, by the runtime's own counters in a model compiled for that.

        Raises:
            RunFailed: the runtime does, or the model was closed.
        """
        arrays = self._checked(feed)
        compiled = self._compile(arrays, {**self._options, "PERF_COUNT": True})
        compiled.set_inputs(arrays)
        averages = []
        for _ in range(_WARM_UP + repeats):
            self._infer(compiled)
            averages.append([k.ns for k in executed_graph(compiled.model)])
        given = self._artifact.path
        model = onnx.ModelProto() if given.suffix == IR else onnx.load(given, load_external_data=False)
        graph = executed_graph(compiled.model)
        return Attribution(model).kernels(graph, typical(averages))

    def close(self) -> None:
        """Drop everything that was compiled."""
        self._model = None
        self._by_shapes.clear()

    def _ready(self, feed: Feed) -> _Compiled:
        """The model compiled for the shapes of ``feed``, with these inputs set."""
        arrays = self._checked(feed)
        shapes = tuple(a.shape for a in arrays.values())
        compiled = self._by_shapes.get(shapes)
        if compiled is None:
            if len(self._by_shapes) >= _MOST_SHAPES:
                del self._by_shapes[next(iter(self._by_shapes))]
            compiled = self._by_shapes[shapes] = self._compile(arrays, self._options)
        compiled.set_inputs(arrays)
        return compiled

    def _compile(self, arrays: Mapping[str, np.ndarray], options: Mapping[str, Any]) -> _Compiled:
        try:
            model = self._model.clone()
            model.reshape({i: openvino().PartialShape(list(a.shape)) for i, a in enumerate(arrays.values())})
            return _Compiled(model, options, self._outputs)
        except Exception as error:  # as in __init__
            raise RunFailed(f"OpenVINO cannot build {self._artifact.path.name}: {message(error)}") from error

    def _checked(self, feed: Feed) -> dict[str, np.ndarray]:
        """The model's inputs in its order: the runtime would take what is missing from an earlier inference."""
        if self._model is None:
            raise RunFailed("the model was closed")
        arrays: dict[str, np.ndarray] = {}
        for name, port in zip(self._inputs, self._model.inputs, strict=True):
            if name not in feed:
                raise RunFailed(f"input {name} is missing")
            array, dtype = np.asarray(feed[name]), port.get_element_type().to_dtype()
            if array.dtype != dtype:
                raise RunFailed(f"input {name} is {array.dtype}, the model takes {dtype}")
            if not port.get_partial_shape().compatible(openvino().PartialShape(list(array.shape))):
                raise RunFailed(f"input {name} has shape {array.shape}, the model takes {port.get_partial_shape()}")
            arrays[name] = array
        return arrays

    @staticmethod
    def _infer(compiled: _Compiled) -> None:
        try:
            compiled.infer()
        except Exception as error:  # as in __init__
            raise RunFailed(f"OpenVINO cannot run the model: {message(error)}") from error


def _may_round(facts: Mapping[str, str] | None) -> bool:
    """Whether the runtime may compute floats in fewer bits by itself, as far as is known of the processor."""
    machine, flags = processor_of(facts)
    return not flags or not is_x86(machine) or bool(flags & _BFLOAT16)


def _names(path: Path, model: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the inputs and of the outputs; the runtime may know a value by several, of which ONNX tells the one."""
    if path.suffix == IR:
        return tuple(p.get_any_name() for p in model.inputs), tuple(p.get_any_name() for p in model.outputs)
    graph = onnx.load(path, load_external_data=False).graph
    constants = {t.name for t in graph.initializer}
    return tuple(v.name for v in graph.input if v.name not in constants), tuple(v.name for v in graph.output)

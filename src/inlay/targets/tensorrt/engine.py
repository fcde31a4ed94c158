"""Engines of TensorRT: built from a Q/DQ model for one set of shapes, run, timed and profiled."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inlay.errors import CompileFailed, InlayError, RunFailed
from inlay.files import replacing
from inlay.targets.base import Feed
from inlay.targets.model_file import Shapes
from inlay.targets.tensorrt.bindings import (
    Buffer,
    Library,
    SizedByData,
    call,
    cuda,
    error_of,
    load,
    logger,
    timing_profiler,
)
from inlay.targets.tensorrt.reports import Clock


def load_plugins(library: Library, files: Sequence[Path]) -> None:
    """Register the plugins of TensorRT and of ``files``. Raises CompileFailed where one does not load."""
    trt = load(library)
    trt.init_libnvinfer_plugins(logger(library), "")
    for file in files:
        if not file.exists():
            raise CompileFailed(f"there is no plugin library {file}")
        if trt.get_plugin_registry().load_library(str(file.resolve())) is None:
            raise CompileFailed(f"the plugin library {file} does not load: {error_of(library)}")


@dataclass(frozen=True)
class Plan:
    """A built engine.

    Attributes:
        serialized: its bytes.
        layers: what it consists of, as the builder's log lists it; empty where that does not.
        activations: bytes that these take on the device, as the log states; 0 where it does not.
    """

    serialized: Any
    layers: str
    activations: int


def build(library: Library, model: Path, shapes: Shapes, cache: Path | None, capability: str = "") -> Plan:
    """An engine: strongly typed, for ``shapes`` alone.

    Args:
        library: that builds it.
        model: the file.
        shapes: of its inputs, where they are not fixed.
        cache: what earlier builds have left, and this one adds to.
        capability: of the GPU that it is for (``SM89``), which need not be there; empty for the one of this machine.

    Raises:
        CompileFailed: the model cannot be parsed or built.
    """
    trt, log = load(library), logger(library)
    log.error, log.layers, log.activations = "", "", 0
    builder = trt.Builder(log)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(model)):
        raise CompileFailed(f"{model.name}: {_refused(parser) or error_of(library)}")
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # layers are then listed, with their ONNX nodes
    if capability:
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, capability), 0)
    if shapes:
        profile = builder.create_optimization_profile()
        for name, shape in shapes:
            profile.set_shape(name, shape, shape, shape)
        config.add_optimization_profile(profile)
    known = None
    if cache is not None:
        known = config.create_timing_cache(cache.read_bytes() if cache.exists() else b"")
        config.set_timing_cache(known, False)
    serialized = builder.build_serialized_network(network, config)
    if serialized is None:
        raise CompileFailed(f"{model.name}: {error_of(library)}")
    if cache is not None and known is not None:
        with contextlib.suppress(OSError, InlayError), replacing(cache) as fresh:  # it saves time; nothing else
            fresh.write_bytes(bytes(known.serialize()))
    return Plan(serialized, str(log.layers), int(log.activations))


def _refused(parser: Any) -> str:
    """The parser's first error, with the node that it is about."""
    if not parser.num_errors:
        return ""
    error = parser.get_error(0)
    words = [line.strip() for line in str(error.desc()).splitlines() if "[checkMacros.cpp::" not in line]
    node = f"{error.node_operator()} {error.node_name()}".strip()
    said = " ".join(filter(None, words))
    return f"{node}: {said}" if node and node not in said else said


class Engine:
    """An engine with a context, a stream, and memory for its inputs and outputs.

    Raises:
        RunFailed: the device refuses it.
    """

    def __init__(self, library: Library, plan: Plan, shapes: Shapes) -> None:
        trt = load(library)
        self._library = library
        self._runtime = trt.Runtime(logger(library))
        self._engine = self._runtime.deserialize_cuda_engine(plan.serialized)
        self._context: Any = None if self._engine is None else self._engine.create_execution_context()
        if self._context is None:
            raise RunFailed(f"the engine cannot be loaded: {error_of(library)}")
        self._stream = call("cudaStreamCreate")
        self._events = [call("cudaEventCreate"), call("cudaEventCreate")]
        for name, shape in shapes:
            self._context.set_input_shape(name, shape)
        self._inputs: dict[str, Buffer] = {}
        self._outputs: dict[str, Buffer | SizedByData] = {}
        for i in range(self._engine.num_io_tensors):
            self._give_memory(self._engine.get_tensor_name(i))

    def _give_memory(self, name: str) -> None:
        trt, shape = load(self._library), tuple(self._context.get_tensor_shape(name))
        dtype = np.dtype(trt.nptype(self._engine.get_tensor_dtype(name)))
        if min(shape, default=0) < 0:  # an output of NonZero and the like
            sized = self._outputs[name] = SizedByData(self._library, dtype)
            self._context.set_output_allocator(name, sized.allocator)
            return
        buffer = Buffer(shape, dtype)
        is_input = self._engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT
        (self._inputs if is_input else self._outputs)[name] = buffer
        self._context.set_tensor_address(name, buffer.address)

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name. Raises RunFailed."""
        self._fill(feed)
        self._transfer_and_execute()
        return {name: buffer.host.copy() for name, buffer in self._outputs.items()}

    def time(self, feed: Feed, repeats: int, clock: Clock) -> np.ndarray:
        """Nanoseconds of each inference: of the kernels by events, or with the transfers by the host's clock."""
        self._fill(feed)
        ns = np.empty(repeats, np.int64)
        for i in range(repeats):
            begun = time.perf_counter_ns()
            device_ms = self._transfer_and_execute()
            ns[i] = time.perf_counter_ns() - begun if clock == "host" else round(device_ms * 1e6)
        return ns

    def profile(self, feed: Feed, repeats: int, warm_up: int) -> dict[str, float]:
        """Median milliseconds of each layer by name, after ``warm_up`` inferences."""
        self._fill(feed)
        profiler = timing_profiler(self._library)
        self._context.profiler = profiler
        try:
            for _ in range(warm_up + repeats):
                self._transfer_and_execute()
        finally:
            self._context.profiler = None
        return {name: float(np.median(ms[-repeats:])) for name, ms in profiler.times.items()}

    def describe(self) -> str:
        """The engine's layers as JSON."""
        inspector = self._engine.create_engine_inspector()
        return str(inspector.get_engine_information(load(self._library).LayerInformationFormat.JSON))

    def close(self) -> None:
        """Give everything back to the device."""
        self._context = self._engine = None
        for buffer in (*self._inputs.values(), *self._outputs.values()):
            buffer.free()
        self._inputs, self._outputs = {}, {}
        for event in self._events:
            call("cudaEventDestroy", event)
        call("cudaStreamDestroy", self._stream)

    def _fill(self, feed: Feed) -> None:
        for name, buffer in self._inputs.items():
            np.copyto(buffer.host, feed[name], casting="same_kind")

    def _transfer_and_execute(self) -> float:
        """One inference; milliseconds between the events around its kernels."""
        before, after = self._events
        for buffer in self._inputs.values():
            buffer.send(self._stream)
        call("cudaEventRecord", before, self._stream)
        if not self._context.execute_async_v3(int(self._stream)):
            raise RunFailed(f"TensorRT cannot run the model: {error_of(self._library)}")
        call("cudaEventRecord", after, self._stream)
        for found in self._outputs.values():
            found.fetch(self._stream)
        call("cudaStreamSynchronize", self._stream)
        return float(call("cudaEventElapsedTime", before, after))


def device_name(index: int) -> str:
    """The name of a GPU. Raises RunFailed where there is none."""
    name = call("cudaGetDeviceProperties", index).name
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def compute_capability(index: int) -> str:
    """Of a GPU, as the library names it: ``SM89``. Raises RunFailed where there is none."""
    found = call("cudaGetDeviceProperties", index)
    return f"SM{found.major}{found.minor}"


def driver_version() -> str:
    """Of CUDA, as the driver tells."""
    major, rest = divmod(int(call("cudaDriverGetVersion")), 1000)
    return f"{major}.{rest // 10}"


def choose_device(index: int) -> None:
    """Use a GPU in this thread. Raises RunFailed where there is none."""
    cuda()
    call("cudaSetDevice", index)

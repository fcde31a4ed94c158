"""Engines of TensorRT: built from a Q/DQ model for one set of shapes, run, timed and profiled."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inlay.errors import CompileFailed, InlayError, RunFailed
from inlay.files import replacing
from inlay.targets.base import Feed
from inlay.targets.model_file import Shapes
from inlay.targets.tensorrt.bindings import Buffer, call, cuda, last_error, logger, tensorrt, timing_profiler
from inlay.targets.tensorrt.reports import Clock

_WARM_UP = 2  # inferences before a profile


def load_plugins(libraries: Sequence[Path]) -> None:
    """Register the plugins of TensorRT and of ``libraries``. Raises CompileFailed where one does not load."""
    trt = tensorrt()
    trt.init_libnvinfer_plugins(logger(), "")
    for library in libraries:
        if not library.exists():
            raise CompileFailed(f"there is no plugin library {library}")
        if trt.get_plugin_registry().load_library(str(library.resolve())) is None:
            raise CompileFailed(f"the plugin library {library} does not load: {last_error()}")


def build(model: Path, shapes: Shapes, cache: Path) -> Any:
    """The engine's bytes: strongly typed, for ``shapes`` alone, with what earlier builds left in ``cache``.

    Raises:
        CompileFailed: the model cannot be parsed or built.
    """
    trt = tensorrt()
    builder = trt.Builder(logger())
    network = builder.create_network(0)  # strongly typed: there is no other kind since version 11
    parser = trt.OnnxParser(network, logger())
    if not parser.parse_from_file(str(model)):
        errors = [parser.get_error(i).desc() for i in range(parser.num_errors)]
        raise CompileFailed(f"{model.name}: {errors[0] if errors else last_error()}")
    config = builder.create_builder_config()
    config.profiling_verbosity = trt.ProfilingVerbosity.DETAILED  # the inspector then names the ONNX nodes
    if shapes:
        profile = builder.create_optimization_profile()
        for name, shape in shapes:
            profile.set_shape(name, shape, shape, shape)
        config.add_optimization_profile(profile)
    known = config.create_timing_cache(cache.read_bytes() if cache.exists() else b"")
    config.set_timing_cache(known, False)
    serialized = builder.build_serialized_network(network, config)
    if serialized is None:
        raise CompileFailed(f"{model.name}: {last_error()}")
    with contextlib.suppress(OSError, InlayError), replacing(cache) as fresh:  # it saves time; nothing depends on it
        fresh.write_bytes(bytes(known.serialize()))
    return serialized


class Engine:
    """An engine with a context, a stream, and memory for its inputs and outputs.

    Raises:
        RunFailed: the device refuses it.
    """

    def __init__(self, serialized: Any, shapes: Shapes) -> None:
        trt = tensorrt()
        self._runtime = trt.Runtime(logger())
        self._engine = self._runtime.deserialize_cuda_engine(serialized)
        self._context: Any = None if self._engine is None else self._engine.create_execution_context()
        if self._context is None:
            raise RunFailed(f"the engine cannot be loaded: {last_error()}")
        self._stream = call("cudaStreamCreate")
        self._events = [call("cudaEventCreate"), call("cudaEventCreate")]
        for name, shape in shapes:
            self._context.set_input_shape(name, shape)
        self._inputs: dict[str, Buffer] = {}
        self._outputs: dict[str, Buffer] = {}
        for i in range(self._engine.num_io_tensors):
            name = self._engine.get_tensor_name(i)
            dtype = np.dtype(trt.nptype(self._engine.get_tensor_dtype(name)))
            buffer = Buffer(tuple(self._context.get_tensor_shape(name)), dtype)
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

    def profile(self, feed: Feed, repeats: int) -> dict[str, float]:
        """Median milliseconds of each layer by name."""
        self._fill(feed)
        profiler = timing_profiler()
        self._context.profiler = profiler
        try:
            for _ in range(_WARM_UP + repeats):
                self._transfer_and_execute()
        finally:
            self._context.profiler = None
        return {name: float(np.median(ms[-repeats:])) for name, ms in profiler.times.items()}

    def describe(self) -> str:
        """The engine's layers as JSON."""
        inspector = self._engine.create_engine_inspector()
        return str(inspector.get_engine_information(tensorrt().LayerInformationFormat.JSON))

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
            raise RunFailed(f"TensorRT cannot run the model: {last_error()}")
        call("cudaEventRecord", after, self._stream)
        for buffer in self._outputs.values():
            buffer.fetch(self._stream)
        call("cudaStreamSynchronize", self._stream)
        return float(call("cudaEventElapsedTime", before, after))


def device_name(index: int) -> str:
    """The name of a GPU. Raises RunFailed where there is none."""
    name = call("cudaGetDeviceProperties", index).name
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def driver_version() -> str:
    """Of CUDA, as the driver tells."""
    major, rest = divmod(int(call("cudaDriverGetVersion")), 1000)
    return f"{major}.{rest // 10}"


def choose_device(index: int) -> None:
    """Use a GPU in this thread. Raises RunFailed where there is none."""
    cuda()
    call("cudaSetDevice", index)

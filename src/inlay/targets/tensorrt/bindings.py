"""TensorRT's and CUDA's Python bindings, imported when they are first needed, and memory on the device."""

from __future__ import annotations

import ctypes
import importlib
from functools import lru_cache
from typing import Any

import numpy as np

from inlay.errors import RunFailed, UsageError

_LEAST = 11  # major version: networks of earlier ones are weakly typed, and would quantize by themselves
_INSTALL = "pip install tensorrt cuda-python, on a machine with an NVIDIA GPU and its driver"


@lru_cache(maxsize=1)
def tensorrt() -> Any:
    """The package of TensorRT 11 or later. Raises UsageError, which names what to install."""
    found = _import("tensorrt")
    version = str(getattr(found, "__version__", "0"))
    if int(version.partition(".")[0]) < _LEAST:
        raise UsageError(
            f"target tensorrt needs TensorRT {_LEAST} or later, installed is {version}: pip install -U tensorrt"
        )
    return found


@lru_cache(maxsize=1)
def cuda() -> Any:
    """CUDA's runtime API. Raises UsageError, which names what to install."""
    return _import("cuda.bindings.runtime")


def _import(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:  # a library that lacks another one is an OSError
        raise UsageError(f"target tensorrt needs {name}: {_INSTALL} ({error})") from error


def call(name: str, *arguments: Any) -> Any:
    """What a function of CUDA's runtime returns besides its status. Raises RunFailed where that is an error."""
    status, *values = getattr(cuda(), name)(*arguments)
    if int(status) != 0:
        raise RunFailed(f"CUDA: {name} failed: {getattr(status, 'name', status)}")
    return values[0] if values else None


@lru_cache(maxsize=1)
def logger() -> Any:
    """A logger that keeps the last error: the API returns nothing where it fails."""
    trt = tensorrt()

    def start(self: Any) -> None:
        trt.ILogger.__init__(self)
        self.error = ""

    def log(self: Any, severity: Any, message: str) -> None:
        if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
            self.error = " ".join(message.split())

    return type("Logger", (trt.ILogger,), {"__init__": start, "log": log})()


def last_error() -> str:
    """Of TensorRT, in one line; it is forgotten."""
    found = str(logger().error) or "TensorRT gave no reason"
    logger().error = ""
    return found


def timing_profiler() -> Any:
    """A profiler that keeps the milliseconds of each layer, in ``times`` by name."""
    trt = tensorrt()

    def start(self: Any) -> None:
        trt.IProfiler.__init__(self)
        self.times = {}

    def report(self: Any, layer_name: str, ms: float) -> None:
        self.times.setdefault(layer_name, []).append(float(ms))

    return type("Profiler", (trt.IProfiler,), {"__init__": start, "report_layer_time": report})()


class Buffer:
    """A tensor on the device, with an array on the host."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.host = np.zeros(shape, dtype)
        self.address = int(call("cudaMalloc", max(1, self.host.nbytes)))

    def send(self, stream: Any) -> None:
        """Copy to the device."""
        self._copy(self.address, self._pointer, "cudaMemcpyHostToDevice", stream)

    def fetch(self, stream: Any) -> None:
        """Copy from the device."""
        self._copy(self._pointer, self.address, "cudaMemcpyDeviceToHost", stream)

    def free(self) -> None:
        """Give the device's memory back."""
        call("cudaFree", self.address)

    @property
    def _pointer(self) -> int:
        return int(self.host.ctypes.data_as(ctypes.c_void_p).value or 0)

    def _copy(self, target: int, source: int, kind: str, stream: Any) -> None:
        call("cudaMemcpyAsync", target, source, self.host.nbytes, getattr(cuda().cudaMemcpyKind, kind), stream)

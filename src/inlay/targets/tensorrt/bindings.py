"""TensorRT's and CUDA's Python bindings, imported when they are first needed, and memory on the device."""

from __future__ import annotations

import ctypes
import importlib
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from inlay.errors import RunFailed, UsageError


@dataclass(frozen=True)
class Library:
    """One of the libraries that have TensorRT's API.

    Attributes:
        target: that needs it.
        modules: that it may be installed as; the first that is there is taken.
        least: its oldest major version.
        install: how to have it.
    """

    target: str
    modules: tuple[str, ...]
    least: int
    install: str


TENSORRT = Library(
    "tensorrt",
    ("tensorrt",),
    11,  # networks of earlier ones are weakly typed, and would quantize by themselves
    "pip install tensorrt cuda-python, on a machine with an NVIDIA GPU and its driver",
)
RTX = Library("tensorrt-rtx", ("tensorrt_rtx", "tensorrt_rtx_bindings"), 1, "pip install 'inlay[tensorrt-rtx]'")


@lru_cache(maxsize=2)
def load(library: Library) -> Any:
    """The package. Raises UsageError, which names what to install."""
    found = _import(library, library.modules)
    version = str(getattr(found, "__version__", "0"))
    if int(version.partition(".")[0]) < library.least:
        raise UsageError(
            f"target {library.target} needs version {library.least} or later of {library.modules[0]}, "
            f"installed is {version}: {library.install}"
        )
    return found


@lru_cache(maxsize=1)
def cuda() -> Any:
    """CUDA's runtime API. Raises UsageError, which names what to install."""
    return _import(TENSORRT, ("cuda.bindings.runtime",))


def _import(library: Library, names: tuple[str, ...]) -> Any:
    for name in names:
        try:
            return importlib.import_module(name)
        except (ImportError, OSError) as error:  # a library that lacks another one is an OSError
            why = error
    raise UsageError(f"target {library.target} needs {names[0]}: {library.install} ({why})") from why


def call(name: str, *arguments: Any) -> Any:
    """What a function of CUDA's runtime returns besides its status. Raises RunFailed where that is an error."""
    status, *values = getattr(cuda(), name)(*arguments)
    if int(status) != 0:
        raise RunFailed(f"CUDA: {name} failed: {getattr(status, 'name', status)}")
    return values[0] if values else None


@lru_cache(maxsize=2)
def logger(library: Library) -> Any:
    """A logger that keeps the first error, and what the last builder tells of an engine.

    The API returns nothing where it fails, and of an engine that no device has loaded the log alone tells the layers.
    """
    trt = load(library)

    def start(self: Any) -> None:
        trt.ILogger.__init__(self)
        self.error, self.layers, self.activations = "", "", 0

    def log(self: Any, severity: Any, message: str) -> None:
        if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
            self.error = self.error or _without_driver(message)
        elif message.startswith(_LAYERS):
            self.layers = message
        elif message.startswith(_ACTIVATIONS):
            self.activations = int(message.removeprefix(_ACTIVATIONS).split()[0])

    return type("Logger", (trt.ILogger,), {"__init__": start, "log": log})()


_LAYERS, _ACTIVATIONS = "Layers:\n", "Total Activation Memory: "
_NO_DRIVER = re.compile(r"^\[checkMacros\.cpp::catchCudaError.*$", re.MULTILINE)
"""What the library adds to every error on a machine without a GPU."""


def _without_driver(message: str) -> str:
    return " ".join(_NO_DRIVER.sub("", message).split())


def error_of(library: Library) -> str:
    """The first error since this was last asked, in one line."""
    found = str(logger(library).error) or f"{library.modules[0].replace('_', ' ')} gave no reason"
    logger(library).error = ""
    return found


def timing_profiler(library: Library) -> Any:
    """A profiler that keeps the milliseconds of each layer, in ``times`` by name."""
    trt = load(library)

    def start(self: Any) -> None:
        trt.IProfiler.__init__(self)
        self.times = {}

    def report(self: Any, layer_name: str, ms: float) -> None:
        self.times.setdefault(layer_name, []).append(float(ms))

    return type("Profiler", (trt.IProfiler,), {"__init__": start, "report_layer_time": report})()


def output_allocator(library: Library) -> Any:
    """What gives memory to an output whose size the data decide (NonZero, NonMaxSuppression): ``address``, ``shape``.

    ``free`` gives the memory back.
    """
    trt = load(library)

    def start(self: Any) -> None:
        trt.IOutputAllocator.__init__(self)
        self.address = self.size = 0
        self.shape = ()

    def allocate(self: Any, tensor_name: str, memory: int, size: int, alignment: int, stream: int = 0) -> int:
        if size > self.size or not self.address:
            free(self)
            self.address, self.size = int(call("cudaMalloc", max(1, size))), size
        return int(self.address)

    def notify(self: Any, tensor_name: str, shape: Any) -> None:
        self.shape = tuple(int(size) for size in shape)

    def free(self: Any) -> None:
        if self.address:
            call("cudaFree", self.address)
        self.address = self.size = 0

    own = {"reallocate_output": allocate, "reallocate_output_async": allocate, "notify_shape": notify, "free": free}
    return type("Allocator", (trt.IOutputAllocator,), {"__init__": start, **own})()


class Buffer:
    """A tensor on the device, with an array on the host."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self.host = np.zeros(shape, dtype)
        self.address = int(call("cudaMalloc", max(1, self.host.nbytes)))

    def send(self, stream: Any) -> None:
        """Copy to the device."""
        _copy(self.address, _pointer(self.host), self.host.nbytes, "cudaMemcpyHostToDevice", stream)

    def fetch(self, stream: Any) -> None:
        """Copy from the device."""
        _copy(_pointer(self.host), self.address, self.host.nbytes, "cudaMemcpyDeviceToHost", stream)

    def free(self) -> None:
        """Give the device's memory back."""
        call("cudaFree", self.address)


class SizedByData:
    """An output of the device whose shape is known once the model has run, as a :class:`Buffer`."""

    def __init__(self, library: Library, dtype: np.dtype) -> None:
        self.allocator, self.host = output_allocator(library), np.empty(0, dtype)

    def fetch(self, stream: Any) -> None:
        """Copy from the device."""
        self.host = np.empty(self.allocator.shape, self.host.dtype)
        if self.host.nbytes:
            found, kind = _pointer(self.host), "cudaMemcpyDeviceToHost"
            _copy(found, self.allocator.address, self.host.nbytes, kind, stream)

    def free(self) -> None:
        """Give the device's memory back."""
        self.allocator.free()


def _pointer(array: np.ndarray) -> int:
    return int(array.ctypes.data_as(ctypes.c_void_p).value or 0)


def _copy(target: int, source: int, size: int, kind: str, stream: Any) -> None:
    call("cudaMemcpyAsync", target, source, size, getattr(cuda().cudaMemcpyKind, kind), stream)

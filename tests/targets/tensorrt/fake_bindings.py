"""Stand-ins for the modules ``tensorrt`` and ``cuda.bindings.runtime`` that compute with ONNX Runtime.

They have the names, arguments and results of the documented Python API of TensorRT 11 and of cuda-python as far as the
target uses them. They were written after that documentation; ``test_api`` compares it with the bindings themselves.
"""

from __future__ import annotations

import ctypes
import json
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

SUCCESS = 0


class ILogger:
    ERROR, INTERNAL_ERROR, WARNING = "error", "internal error", "warning"


class IProfiler:
    pass


class IOutputAllocator:
    pass


class Network:
    def __init__(self) -> None:
        self.model: onnx.ModelProto | None = None


class OnnxParser:
    def __init__(self, network: Network, logger: Any) -> None:
        self._network, self._errors = network, list[str]()

    def parse_from_file(self, path: str) -> bool:
        self._network.model = onnx.load(path)
        unknown = [n for n in self._network.model.graph.node if n.op_type == "NonMaxSuppression"]
        self._errors = [f"In node {n.name}: no importer registered for op: {n.op_type}" for n in unknown]
        return not unknown

    @property
    def num_errors(self) -> int:
        return len(self._errors)

    def get_error(self, index: int) -> Any:
        return SimpleNamespace(
            desc=lambda: self._errors[index], node_operator=lambda: "NonMaxSuppression", node_name=lambda: "nms"
        )


class TimingCache:
    def __init__(self, blob: bytes) -> None:
        self.blob = blob

    def serialize(self) -> memoryview:
        return memoryview(self.blob)


class Config:
    def __init__(self) -> None:
        self.profiling_verbosity: Any = None
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.cache = TimingCache(b"")

    def create_timing_cache(self, blob: bytes) -> TimingCache:
        return TimingCache(blob)

    def set_timing_cache(self, cache: TimingCache, ignore_mismatch: bool) -> bool:
        self.cache = cache
        return True

    def add_optimization_profile(self, profile: Any) -> int:
        self.shapes = profile.shapes
        return 0


class OptimizationProfile:
    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}

    def set_shape(self, name: str, least: tuple[int, ...], opt: tuple[int, ...], most: tuple[int, ...]) -> None:
        assert least == opt == most, "the shapes are not locked"
        self.shapes[name] = opt


class Builder:
    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def create_network(self, flags: int) -> Network:
        assert flags == 1, "strongly typed"
        return Network()

    def create_builder_config(self) -> Config:
        return Config()

    def create_optimization_profile(self) -> OptimizationProfile:
        return OptimizationProfile()

    def build_serialized_network(self, network: Network, config: Config) -> bytes | None:
        assert network.model is not None
        assert config.profiling_verbosity == "detailed"
        for value in network.model.graph.input:
            for dim, size in zip(value.type.tensor_type.shape.dim, config.shapes.get(value.name, ()), strict=False):
                dim.Clear()
                dim.dim_value = size
        data = network.model.SerializeToString()
        config.cache.blob += b"."
        try:
            session(data)
        except Exception as error:
            self._logger.log(ILogger.ERROR, str(error))
            return None
        return data


class Runtime:
    def __init__(self, logger: Any) -> None:
        pass

    def deserialize_cuda_engine(self, data: bytes) -> Engine:
        return Engine(data)


class Engine:
    def __init__(self, data: bytes) -> None:
        self.session = session(data)
        self.graph = onnx.load_from_string(data).graph
        self.values = [*self.session.get_inputs(), *self.session.get_outputs()]
        self.num_io_tensors = len(self.values)

    def create_execution_context(self) -> Context:
        return Context(self)

    def create_engine_inspector(self) -> Any:
        layers = [
            {"Name": f"myl_{i}", "LayerType": n.op_type, "Metadata": f"[ONNX Layer: {n.name}]"}
            for i, n in enumerate(self.graph.node)
        ]
        return SimpleNamespace(get_engine_information=lambda form: json.dumps({"Layers": layers, "I/O Tensors": []}))

    def get_tensor_name(self, index: int) -> str:
        return str(self.values[index].name)

    def get_tensor_mode(self, name: str) -> str:
        return "input" if name in [v.name for v in self.session.get_inputs()] else "output"

    def get_tensor_dtype(self, name: str) -> Any:
        (kind,) = [v.type for v in self.values if v.name == name]
        return {"tensor(float)": np.float32, "tensor(int64)": np.int64}[kind]


class Context:
    def __init__(self, engine: Engine) -> None:
        self._engine, self._addresses, self._allocators = engine, dict[str, int](), dict[str, Any]()
        self.profiler: Any = None

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        (value,) = [v for v in self._engine.values if v.name == name]
        return tuple(size if isinstance(size, int) else -1 for size in value.shape)

    def set_output_allocator(self, name: str, allocator: Any) -> bool:
        self._allocators[name] = allocator
        return True

    def set_tensor_address(self, name: str, address: int) -> None:
        self._addresses[name] = address

    def execute_async_v3(self, stream: int) -> bool:
        session, feed = self._engine.session, {}
        for value in session.get_inputs():
            feed[value.name] = self._array(value.name)
        for value, array in zip(session.get_outputs(), session.run(None, feed), strict=True):
            if value.name in self._allocators:
                allocator = self._allocators[value.name]
                address = allocator.reallocate_output_async(value.name, 0, array.nbytes, 256, stream)
                ctypes.memmove(address, np.ascontiguousarray(array).ctypes.data, array.nbytes)
                allocator.notify_shape(value.name, array.shape)
            else:
                self._array(value.name)[...] = array
        if self.profiler is not None:
            for i, _ in enumerate(self._engine.graph.node):
                self.profiler.report_layer_time(f"myl_{i}", 0.25)
        return True

    def _array(self, name: str) -> np.ndarray:
        shape, dtype = self.get_tensor_shape(name), np.dtype(self._engine.get_tensor_dtype(name))
        size = int(np.prod(shape)) * dtype.itemsize
        memory = (ctypes.c_char * size).from_address(self._addresses[name])
        return np.frombuffer(memory, dtype).reshape(shape)


def session(data: bytes) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


TENSORRT = SimpleNamespace(
    __version__="11.3.0",
    ILogger=ILogger,
    IProfiler=IProfiler,
    Builder=Builder,
    OnnxParser=OnnxParser,
    Runtime=Runtime,
    IOutputAllocator=IOutputAllocator,
    NetworkDefinitionCreationFlag=SimpleNamespace(STRONGLY_TYPED=0),
    ProfilingVerbosity=SimpleNamespace(DETAILED="detailed"),
    LayerInformationFormat=SimpleNamespace(JSON="json"),
    TensorIOMode=SimpleNamespace(INPUT="input", OUTPUT="output"),
    nptype=lambda dtype: dtype,
    init_libnvinfer_plugins=lambda logger, namespace: True,
    get_plugin_registry=lambda: SimpleNamespace(load_library=lambda path: None if "broken" in path else object()),
)


class Cuda:
    """Memory is this process's own; events are readings of its clock."""

    cudaMemcpyKind = SimpleNamespace(cudaMemcpyHostToDevice=1, cudaMemcpyDeviceToHost=2)  # noqa: N815

    def __init__(self) -> None:
        self.memory: dict[int, Any] = {}
        self.events: dict[int, float] = {}
        self.transfer_s, self.kernel_ms = 0.0, 0.0

    def cudaSetDevice(self, index: int) -> tuple[int]:
        return (SUCCESS if index == 0 else 101,)

    def cudaGetDeviceProperties(self, index: int) -> tuple[int, Any]:
        return (SUCCESS if index == 0 else 101), SimpleNamespace(name=b"a stand-in")

    def cudaDriverGetVersion(self) -> tuple[int, int]:
        return SUCCESS, 13020

    def cudaMalloc(self, size: int) -> tuple[int, int]:
        block = ctypes.create_string_buffer(size)
        address = ctypes.addressof(block)
        self.memory[address] = block
        return SUCCESS, address

    def cudaFree(self, address: int) -> tuple[int]:
        del self.memory[address]
        return (SUCCESS,)

    def cudaMemcpyAsync(self, target: int, source: int, size: int, kind: int, stream: int) -> tuple[int]:
        time.sleep(self.transfer_s)
        ctypes.memmove(target, source, size)
        return (SUCCESS,)

    def cudaStreamCreate(self) -> tuple[int, int]:
        return SUCCESS, 7

    def cudaStreamSynchronize(self, stream: int) -> tuple[int]:
        return (SUCCESS,)

    def cudaStreamDestroy(self, stream: int) -> tuple[int]:
        return (SUCCESS,)

    def cudaEventCreate(self) -> tuple[int, int]:
        self.events[len(self.events)] = 0.0
        return SUCCESS, len(self.events) - 1

    def cudaEventRecord(self, event: int, stream: int) -> tuple[int]:
        self.events[event] = time.perf_counter()
        return (SUCCESS,)

    def cudaEventElapsedTime(self, before: int, after: int) -> tuple[int, float]:
        return SUCCESS, self.kernel_ms or (self.events[after] - self.events[before]) * 1e3

    def cudaEventDestroy(self, event: int) -> tuple[int]:
        return (SUCCESS,)

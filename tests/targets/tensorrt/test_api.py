"""The API of TensorRT 11, read off its own bindings: every name, enum and argument that the code uses is there.

The bindings are a wheel of their own, without the libraries that they call. An empty stand-in of each, with the symbols
that they ask for, lets Python load them in another process: nothing can be built, but signatures can be read.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_SYMBOLS = (
    "createInferBuilder_INTERNAL", "createInferRefitter_INTERNAL", "createInferRuntime_INTERNAL",
    "createNvOnnxParserRefitter_INTERNAL", "createNvOnnxParser_INTERNAL", "getBuilderPluginRegistry",
    "getNvOnnxParserVersion", "getPluginRegistry", "initLibNvInferPlugins",
)  # fmt: skip
_READ = """
import json, sys
import tensorrt_bindings as trt
told = {}
for path in json.loads(sys.argv[1]):
    found = trt
    for name in path.split("."):
        found = getattr(found, name, None)
    told[path] = None if found is None else str(getattr(found, "__doc__", "") or "a value")
told["version"] = trt.__version__
print(json.dumps(told))
"""
_CALLS = {  # what the code calls, with the arguments that it gives, in their order
    "Builder.create_network": ("flags",),
    "Builder.create_builder_config": (),
    "Builder.create_optimization_profile": (),
    "Builder.build_serialized_network": ("network", "config"),
    "OnnxParser.parse_from_file": ("model",),
    "OnnxParser.get_error": ("index",),
    "ParserError.desc": (),
    "ParserError.node_name": (),
    "ParserError.node_operator": (),
    "IOptimizationProfile.set_shape": ("input", "min", "opt", "max"),
    "IBuilderConfig.add_optimization_profile": ("profile",),
    "IBuilderConfig.create_timing_cache": ("serialized_timing_cache",),
    "IBuilderConfig.set_timing_cache": ("cache", "ignore_mismatch"),
    "ITimingCache.serialize": (),
    "Runtime.deserialize_cuda_engine": ("serialized_engine",),
    "ICudaEngine.create_execution_context": (),
    "ICudaEngine.create_engine_inspector": (),
    "ICudaEngine.get_tensor_name": ("index",),
    "ICudaEngine.get_tensor_mode": ("name",),
    "ICudaEngine.get_tensor_dtype": ("name",),
    "EngineInspector.get_engine_information": ("format",),
    "IExecutionContext.set_input_shape": ("name", "shape"),
    "IExecutionContext.get_tensor_shape": ("name",),
    "IExecutionContext.set_tensor_address": ("name", "memory"),
    "IExecutionContext.set_output_allocator": ("name", "output_allocator"),
    "IExecutionContext.execute_async_v3": ("stream_handle",),
    "IPluginRegistry.load_library": ("plugin_path",),
    "init_libnvinfer_plugins": ("logger", "namespace"),
}
_NAMES = (
    "ILogger.ERROR", "ILogger.INTERNAL_ERROR", "NetworkDefinitionCreationFlag.STRONGLY_TYPED",
    "ProfilingVerbosity.DETAILED", "LayerInformationFormat.JSON", "TensorIOMode.INPUT", "OnnxParser.num_errors",
    "ICudaEngine.num_io_tensors", "IExecutionContext.profiler", "IBuilderConfig.profiling_verbosity", "nptype",
    "get_plugin_registry",
)  # fmt: skip
_OVERRIDDEN = {  # what TensorRT calls of the classes that the code derives
    "IProfiler": ("report_layer_time(self, layer_name, ms)",),
    "ILogger": ("log(self, severity, msg)",),
    "IOutputAllocator": (
        "reallocate_output(self, tensor_name, memory, size, alignment)",
        "reallocate_output_async(self, tensor_name, memory, size, alignment, stream)",
        "notify_shape(self, tensor_name, shape)",
    ),
}


@pytest.mark.skipif(
    importlib.util.find_spec("tensorrt_bindings") is None or shutil.which("cc") is None,
    reason="TensorRT's bindings or a C compiler are not installed: make engines",
)
def test_the_api_is_that_of_the_bindings(tmp_path: Path) -> None:
    for library in ("libnvinfer", "libnvinfer_plugin", "libnvonnxparser"):
        source = "int " + ", ".join(_SYMBOLS) + ";"
        file = tmp_path / f"{library}.so.11"
        command = ["cc", "-shared", "-x", "c", "-", f"-Wl,-soname,{file.name}", "-o", str(file)]
        subprocess.run(command, input=source, text=True, check=True)
    wanted = [*_CALLS, *_NAMES, *_OVERRIDDEN]
    run = subprocess.run(
        [sys.executable, "-c", _READ, json.dumps(wanted)],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(run.stdout)
    assert told.pop("version").startswith("11.")
    assert [name for name, doc in told.items() if doc is None] == []
    for name, arguments in _CALLS.items():
        signatures = [re.findall(r"(\w+):", line) for line in re.findall(r"\((.*)\) ->", told[name])]
        given = [[a for a in signature if a != "self"][: len(arguments)] for signature in signatures]
        assert list(arguments) in given, f"{name} has the arguments {signatures}"
    for name, methods in _OVERRIDDEN.items():
        for method in methods:
            assert f"def {method}" in told[name]


@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="cuda-bindings is not installed: make engines")
def test_cudas_functions_are_there() -> None:
    runtime = importlib.import_module("cuda.bindings.runtime")
    folder = Path(str(importlib.util.find_spec("inlay.targets.tensorrt.engine").origin)).parent  # type: ignore[union-attr]
    called = {n for file in folder.glob("*.py") for n in re.findall(r"call\(\s*\"(\w+)\"", file.read_text("utf8"))}
    assert len(called) > 8
    assert [name for name in sorted(called) if not hasattr(runtime, name)] == []
    for kind in ("cudaMemcpyHostToDevice", "cudaMemcpyDeviceToHost"):
        assert hasattr(runtime.cudaMemcpyKind, kind)
    assert {"name", "major", "minor"} <= set(dir(runtime.cudaDeviceProp))

"""A stand-in for ``trtexec`` that computes with ONNX Runtime: the options and the files are those of the documentation.

It was written after the documentation of TensorRT 11 and has not been compared with the tool itself. An "engine" is the
ONNX model with the shapes that it was locked to. What it is given is appended to the file ``FAKE_TRTEXEC_CALLS``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import NoReturn

import numpy as np
import onnx
import onnxruntime as ort

KNOWN = {
    "onnx", "saveEngine", "loadEngine", "skipInference", "timingCacheFile", "profilingVerbosity", "exportLayerInfo",
    "minShapes", "optShapes", "maxShapes", "iterations", "warmUp", "duration", "avgRuns", "loadInputs", "exportTimes",
    "exportOutput", "exportProfile", "staticPlugins", "safe", "useCudaGraph", "device", "remoteAutoTuningConfig",
}  # fmt: skip
TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


def fail(message: str) -> NoReturn:
    print(f"[11/22/2026-10:00:00] [E] Error[9]: {message}")
    print(f"&&&& FAILED TensorRT.trtexec [TensorRT v110300] [b90] # {' '.join(sys.argv)}")
    sys.exit(1)


def session(path: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    try:
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        fail(" ".join(str(error).split()))


def build(given: dict[str, str]) -> None:
    model = onnx.load(given["onnx"])
    modes = {mode: given.get(f"{mode}Shapes", "") for mode in ("min", "opt", "max")}
    for entry in filter(None, modes["opt"].split(",")):
        name, _, sizes = entry.rpartition(":")
        (value,) = [v for v in model.graph.input if v.name == name]
        for dim, size in zip(value.type.tensor_type.shape.dim, sizes.split("x"), strict=True):
            dim.Clear()
            dim.dim_value = int(size)
    if len(set(modes.values())) > 1:
        fail("the shapes are not locked")
    onnx.save(model, given["saveEngine"])
    session(given["saveEngine"])
    cache = Path(given["timingCacheFile"])
    cache.write_bytes((cache.read_bytes() if cache.exists() else b"") + b".")
    if "exportLayerInfo" in given:
        layers = [
            {
                "Name": f"myl_{i}_{n.op_type}",
                "LayerType": "Reformat" if "Quantize" in n.op_type else n.op_type,
                "Inputs": [{"Name": v, "DataType": "Int8" if "quantized" in v else "Float"} for v in n.input if v],
                "Outputs": [{"Name": v, "DataType": "Float"} for v in n.output],
                "Metadata": f"[ONNX Layer: {n.name}]\x1e",
            }
            for i, n in enumerate(model.graph.node)
        ]
        Path(given["exportLayerInfo"]).write_text(json.dumps({"Layers": layers, "I/O Tensors": []}))


def infer(given: dict[str, str]) -> None:
    run = session(given["loadEngine"])
    files = dict(entry.split(":", 1) for entry in given.get("loadInputs", "").split(",") if entry)
    feed = {}
    for value in run.get_inputs():
        shape = [d if isinstance(d, int) else 1 for d in value.shape]
        dtype = TYPES[value.type]
        feed[value.name] = (
            np.fromfile(files[value.name], dtype).reshape(shape) if value.name in files else np.zeros(shape, dtype)
        )
    trace, outputs = [], []
    for _ in range(2 + int(given["iterations"])):  # two warm up
        start = time.perf_counter()
        outputs = run.run(None, feed)
        ms = (time.perf_counter() - start) * 1e3
        trace.append({"startEnqMs": 0.0, "h2dMs": 0.5, "computeMs": ms, "d2hMs": 0.25, "latencyMs": ms + 0.75})
        if "safe" in given:
            print(f"[11/22/2026-10:00:00] [I] Average over 1 runs - GPU latency: {ms} ms")
    if "exportTimes" in given:
        Path(given["exportTimes"]).write_text(json.dumps(trace))
    if "exportOutput" in given:
        rows = [
            f'{{ "name" : "{o.name}"\n  , "dimensions" : "{"x".join(map(str, a.shape))}"\n  , "values" : ['
            + ", ".join(str(x) for x in a.ravel().tolist())
            + "]\n  }"
            for o, a in zip(run.get_outputs(), outputs, strict=True)
        ]
        Path(given["exportOutput"]).write_text("[\n  " + "\n, ".join(rows) + "\n]\n")
    if "exportProfile" in given:
        nodes = onnx.load(given["loadEngine"]).graph.node
        layers = [
            {"name": f"myl_{i}_{n.op_type}", "timeMs": 3.0, "averageMs": 1.0, "medianMs": 0.5, "percentage": 1.0}
            for i, n in enumerate(nodes)
        ]
        Path(given["exportProfile"]).write_text(json.dumps([{"count": int(given["iterations"])}, *layers]))


def main() -> None:
    print("&&&& RUNNING TensorRT.trtexec [TensorRT v110300] [b90] # trtexec")
    if os.environ.get("FAKE_TRTEXEC_CALLS"):
        with open(os.environ["FAKE_TRTEXEC_CALLS"], "a", encoding="utf8") as file:
            file.write(json.dumps(sys.argv[1:]) + "\n")
    if sys.argv[1:] == ["--help"]:
        return
    given = {}
    for argument in sys.argv[1:]:
        name, _, value = argument.removeprefix("--").partition("=")
        if name not in KNOWN:
            fail(f"Unknown option: --{name} {value}")
        given[name] = value
    if "saveEngine" in given:
        build(given)
    if "loadEngine" in given and "skipInference" not in given:
        infer(given)
    print("&&&& PASSED TensorRT.trtexec [TensorRT v110300] [b90]")


main()

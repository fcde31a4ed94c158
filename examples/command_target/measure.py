"""ONNX Runtime behind the command protocol: latencies, outputs and times of kernels, without a line of Inlay."""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort


def session(path, **settings):
    """A session with one thread; ``settings`` are attributes of its options."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    for name, value in settings.items():
        setattr(options, name, value)
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


class Model:
    """Stays built between requests."""

    def __init__(self, path):
        self.path, self.session, self.read, self.feed = path, session(path), None, {}

    def inputs(self, request):
        """The arrays that a request names; they are read again when the files have changed."""
        stamps = [(i["npy"], Path(i["npy"]).stat().st_mtime_ns) for i in request["inputs"]]
        if self.read != stamps:
            self.read, self.feed = stamps, {i["name"]: np.load(i["npy"]) for i in request["inputs"]}
        return self.feed

    def time(self, request):
        """Milliseconds of each inference."""
        feed, found = self.inputs(request), []
        for number in range(-request["warm_up"], request["readings"]):
            start = time.perf_counter_ns()
            self.session.run(None, feed)
            found += [(time.perf_counter_ns() - start) / 1e6] if number >= 0 else []
        return {"latencies_ms": found}

    def run(self, request):
        """The outputs, each in a file."""
        rows = []
        for number, (output, array) in enumerate(
            zip(self.session.get_outputs(), self.session.run(None, self.inputs(request)), strict=True)
        ):
            np.save(Path(request["folder"], f"output{number}.npy"), array)
            rows.append({"name": output.name, "npy": f"output{number}.npy"})
        return {"outputs": rows}

    def profile(self, request):
        """The median time of each kernel; the runtime keeps the model's names, with suffixes."""
        with tempfile.TemporaryDirectory() as folder:
            optimized, prefix = f"{folder}/optimized.onnx", f"{folder}/profile"
            profiled = session(
                self.path, optimized_model_filepath=optimized, enable_profiling=True, profile_file_prefix=prefix
            )
            for _ in range(request["warm_up"] + request["readings"]):
                profiled.run(None, self.inputs(request))
            events = json.loads(Path(profiled.end_profiling()).read_text(encoding="utf8"))
            graph = {n.name: n for n in onnx.load(optimized, load_external_data=False).graph.node}
        times, types = {}, {}
        for event in events:
            if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
                key = event["name"].removesuffix("_kernel_time"), event["args"]["op_name"]
                times.setdefault(key, []).append(event["dur"] / 1000)
                shapes = event["args"].get("input_type_shape", [])
                types[key] = {t for entry in shapes for t in entry}
        own = {n.name for n in onnx.load(self.path, load_external_data=False).graph.node}
        return {"layers": [layer(*key, graph.get(key[0]), own, types[key], ms) for key, ms in times.items()]}


def layer(name, op_type, node, own, types, ms):
    """One kernel. Those that the runtime inserts between layouts serve the value that they read."""
    found = {"name": name, "op_type": op_type, "ms": float(np.median(ms))}
    integer = op_type.startswith(("QLinear", "QGemm", "MatMulInteger"))
    found["precision"] = next((t for t in ("uint8", "int8") if integer and t in types), "float32")
    inserted = op_type == "Transpose" and name.partition("_token_")[0] not in own
    if node is not None and (inserted or op_type in ("ReorderInput", "ReorderOutput")):
        found |= {"kind": "layout", "values": [*node.input[:1], *node.output[:1]]}
    return found


def main():
    """Answer one request after the other."""
    model = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if request["do"] == "describe":
                answer = {"inlay": 1, "gives": ["build", "latency", "outputs", "profile"], "resident": True}
                answer["facts"] = {"onnxruntime": ort.__version__, "threads": "1"}
            else:
                model = model or Model(request["model"])
                answer = {} if request["do"] == "build" else getattr(model, request["do"])(request)
        except Exception as error:  # the runtime raises many types
            answer = {"error": " ".join(str(error).split()) or type(error).__name__}
        print(json.dumps(answer), flush=True)


main()

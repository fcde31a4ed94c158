"""What TensorRT's tools write: times, profiles, layers and outputs as JSON, and lines of logs.

The formats are those of ``trtexec`` in TensorRT 11 and of ``IEngineInspector``, as documented. The 10.x forms of the
inspector (``Bindings``, ``Format/Datatype``) are read as well.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from inlay.errors import BadReading, RunFailed, UsageError
from inlay.targets.attribution import Names
from inlay.targets.base import KernelTime

Clock = Literal["device", "host"]
_FIELD: Mapping[str, str] = {"device": "computeMs", "host": "latencyMs"}
_SAFE = re.compile(r"Average over (\d+) runs - GPU latency: ([\d.eE+-]+) ms")
_VERSION = re.compile(r"\[TensorRT v(\d+)\]")
_ERROR = re.compile(r"\[E\]\s*(?:Error\[\d+\]:\s*)?(.*)")
_ALWAYS = re.compile(r"&&&&|(\[[^\]]*\] )?\[[IV]\]|=== ")  # its banner, information, headings
_NOT_FINITE = re.compile(r"([\[,:]\s*)(-?)(nan|inf)(?=\s*[,\]}])", re.IGNORECASE)
_WORDS = 300  # characters of an error


def clock_of(text: str) -> Clock:
    """A clock by its name. Raises UsageError."""
    if text not in _FIELD:
        raise UsageError(f"--target-option clock={text}: give {' or '.join(_FIELD)}")
    return "host" if text == "host" else "device"


def timing_cache(given: str) -> Path:
    """The file that the user names, or one in the folder of temporary files, which in a worker is that of the run.

    Raises:
        UsageError: its folder does not exist.
    """
    if given and not Path(given).resolve().parent.is_dir():
        raise UsageError(f"--target-option timing_cache={given}: there is no folder {Path(given).resolve().parent}")
    return Path(given) if given else Path(tempfile.gettempdir()) / "inlay-timing.cache"


@dataclass(frozen=True)
class Tensor:
    """What a layer reads or writes."""

    name: str
    type: str = ""  # of its elements, in lower case
    shape: tuple[int, ...] = ()  # with what the layout adds, as far as it is told


@dataclass(frozen=True)
class Layer:
    """A layer of an engine."""

    name: str  # also in profiles
    kind: str  # TensorRT's type of layer (`CaskConvolution`, `Reformat`, `kgen`, …)
    nodes: tuple[str, ...] = ()  # names of the ONNX nodes that it was made of, as the parser noted them
    inputs: tuple[Tensor, ...] = ()
    constants: tuple[Tensor, ...] = ()
    outputs: tuple[Tensor, ...] = ()
    runs: int = 1  # in one inference: more in loops


def read_times(path: Path, clock: Clock, count: int) -> np.ndarray:
    """Nanoseconds of the last ``count`` inferences of ``--exportTimes``: those before them warmed the device up.

    Args:
        clock: ``device`` for the time of the kernels, ``host`` for that and the transfers.

    Raises:
        BadReading: the file does not hold as many.
    """
    rows = _read(path)
    try:
        ms = [float(row[_FIELD[clock]]) for row in rows]
    except (TypeError, LookupError, ValueError) as error:
        raise BadReading(f"the exported times hold no {_FIELD[clock]}: {error!r}") from error
    if len(ms) < count:
        raise BadReading(f"trtexec exported {len(ms)} times of {count}")
    return _nanoseconds(ms[-count:])


def read_safe_times(text: str, count: int) -> np.ndarray:
    """Nanoseconds that a safe runtime prints: with one run for each average, they are single readings.

    Raises:
        BadReading: there are fewer.
    """
    ms = [float(value) for runs, value in _SAFE.findall(text) if int(runs) == 1]
    if len(ms) < count:
        raise BadReading(f"the safe runtime printed {len(ms)} times of {count}")
    return _nanoseconds(ms[-count:])


def _nanoseconds(ms: Sequence[float]) -> np.ndarray:
    """Whole nanoseconds; as they are where they are not finite, for their reader to refuse."""
    ns = np.asarray(ms, np.float64) * 1e6
    return ns.round().astype(np.int64) if np.isfinite(ns).all() else ns


def read_profile(path: Path) -> dict[str, float]:
    """Milliseconds of each layer by name, from ``--exportProfile``: medians, or averages where it has no medians.

    Raises:
        BadReading: it holds no layers.
    """
    rows = [row for row in _read(path) if isinstance(row, dict) and "name" in row]
    try:
        found = {str(r["name"]): float(r["medianMs"] if "medianMs" in r else r["averageMs"]) for r in rows}
    except (TypeError, LookupError, ValueError) as error:
        raise BadReading(f"the exported profile holds a layer without a time: {error!r}") from error
    if not found:
        raise BadReading("the exported profile holds no layers")
    return found


def read_layers(text: str) -> list[Layer]:
    """The layers of ``--exportLayerInfo``, or of the engine inspector; engines without details have names only.

    Raises:
        RunFailed: it is something else.
    """
    try:
        rows = json.loads(text)["Layers"]
        return [Layer(row, "") if isinstance(row, str) else _layer(row) for row in rows]
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise RunFailed(f"the engine's description has another form than expected: {error!r}") from error


def _layer(row: Mapping[str, Any]) -> Layer:
    inputs, constants, outputs = (
        tuple(Tensor(str(t["Name"]), _type(t), tuple(map(int, t.get("Dimensions", ())))) for t in row.get(key, []))
        for key in ("Inputs", "Constants", "Outputs")
    )
    nodes = tuple(_NODE.findall(str(row.get("Metadata", ""))))
    return Layer(str(row["Name"]), str(row.get("LayerType", "")), nodes, inputs, constants, outputs)


_NODE = re.compile(r"\[ONNX Layer: ([^\]]*)\]")
_TYPES = (
    ("int8", "int8"), ("fp8", "float8"), ("int4", "int4"), ("fp4", "float4"), ("bf16", "bfloat16"), ("half", "float16"),
    ("fp16", "float16"), ("int32", "int32"), ("int64", "int64"), ("bool", "bool"),
)  # fmt: skip


def _type(tensor: Mapping[str, Any]) -> str:
    text = str(tensor.get("DataType", tensor.get("Datatype", tensor.get("Format/Datatype", "")))).lower()
    return next((name for word, name in _TYPES if word in text), "float32" if text else "")


_LINE = re.compile(
    r"^Name: (?P<name>.*?), LayerType: (?P<kind>\w*), Inputs: \[(?P<Inputs>.*?)\], Constants: \[(?P<Constants>.*?)\], "
    r"Outputs: \[(?P<Outputs>.*?)\], TacticName: .*?, StreamId: \d+(?:, JumpTargetThen: (?P<jump>[^,]*))?.*?, "
    r"Metadata: (?P<nodes>.*)$"
)
_TENSOR = re.compile(r"\{ Name: (.*?), Dimensions: \[([\d,]*)\], .*?Datatype: (\w*), Format: ")


def layers_in_log(text: str) -> list[Layer]:
    """The layers that a builder's log lists when the engine is made, which no device need have loaded.

    What only orders the others (``signal``, ``wait``, jumps and their counters) is left out. The form is that of
    TensorRT for RTX 1.7.
    """
    rows = [match for match in map(_LINE.match, text.splitlines()) if match is not None]
    layers = [_listed(row) for row in rows]
    names = [layer.name for layer in layers]
    runs = [1] * len(rows)
    for end, row in enumerate(rows):
        begin = names.index(row["jump"]) if row["jump"] in names else end
        for i in range(begin, end):
            runs[i] *= _trips(layers[begin : end + 1])
    computing = (replace(layer, runs=n) for layer, n in zip(layers, runs, strict=True))
    return [layer for layer in computing if layer.nodes or layer.kind not in _ORDERING]


_ORDERING = {"signal", "wait", "cjmp", "memset", "add"}
_SCALAR = re.compile(r"__d\^(\d+)i\d+_")  # how the compiler names whole numbers


def _listed(row: re.Match[str]) -> Layer:
    inputs, constants, outputs = (
        tuple(
            Tensor(name, _type({"Datatype": kind}), tuple(int(n) for n in sizes.split(",") if n))
            for name, sizes, kind in _TENSOR.findall(row[key])
        )
        for key in ("Inputs", "Constants", "Outputs")
    )
    return Layer(row["name"], row["kind"], tuple(_NODE.findall(row["nodes"])), inputs, constants, outputs)


def _trips(loop: Sequence[Layer]) -> int:
    """How often a loop runs that ends with a jump while a counter is below a bound; 1 where that is not told."""
    counter, bound = [t.name for t in loop[-1].inputs[:2]] if len(loop[-1].inputs) > 1 else ("", "")
    steps = [t.name for layer in loop if counter in [t.name for t in layer.outputs] for t in layer.inputs]
    step = next(filter(None, map(_SCALAR.match, steps)), None)
    most = _SCALAR.match(bound)
    return max(1, -(-int(most[1]) // int(step[1]))) if most and step and int(step[1]) else 1


def read_outputs(path: Path, types: Mapping[str, np.dtype]) -> dict[str, np.ndarray]:
    """Outputs of ``--exportOutput`` by name.

    Raises:
        RunFailed: an output is missing, or has another form.
    """
    rows = {str(row.get("name")): row for row in _read(path) if isinstance(row, dict)}
    found = {}
    for name, dtype in types.items():
        try:
            shape = [int(size) for size in str(rows[name]["dimensions"]).split("x") if size.strip()]
            values = np.asarray(rows[name]["values"], np.int64 if dtype.kind in "iub" else np.float64)
            found[name] = values.reshape(shape).astype(dtype)
        except (LookupError, ValueError, TypeError) as error:
            raise RunFailed(f"trtexec exported no output {name} of the model's shape: {error!r}") from error
    return found


def version_in(text: str) -> str:
    """The version that ``trtexec`` prints in its first line, with dots; empty where there is none."""
    found = _VERSION.search(text)
    if found is None:
        return ""
    number = int(found.group(1))  # 110300 and 11.3.0; until version 9 8601 and 8.6.1
    major, rest = divmod(number, 10000 if number >= 100000 else 1000)
    minor, patch = divmod(rest, 100)
    return f"{major}.{minor}.{patch}"


def error_in(text: str, code: int) -> str:
    """Why ``trtexec`` failed, in one line: its first error that says more than that there was one.

    Without one it is the last line that is neither its banner nor what it always tells.
    """
    found = [m.strip() for m in _ERROR.findall(text)]
    lines = [line.strip() for line in text.splitlines() if line.strip() and not _ALWAYS.match(line.strip())]
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    words = next((m for m in found if m), lines[-1] if lines else "it gave no reason")
    return f"{words[:_WORDS]} ({how})"


def _as_json(found: re.Match[str]) -> str:
    return found[1] + ("NaN" if found[3].lower() == "nan" else f"{found[2]}Infinity")


def _read(path: Path) -> list[Any]:
    try:
        text = path.read_text(encoding="utf8", errors="replace")
        data = json.loads(_NOT_FINITE.sub(_as_json, text))
    except (OSError, ValueError, RecursionError) as error:
        raise RunFailed(f"{path.name}, which trtexec was to write, cannot be read: {error}") from error
    if not isinstance(data, Sequence):
        raise RunFailed(f"{path.name}, which trtexec was to write, holds no list")
    return list(data)


PRODUCTS = ("correlation", "gemm", "deconv")  # kinds of layers that multiply by a matrix, in engines for RTX
_REFORMATS = ("Reformat", "NoOp")  # kinds of layers that change the layout or the type of one tensor
_COPIES = "Reformatting CopyNode"  # how the names of such layers begin


def kernels_of(profile: Mapping[str, float], layers: Sequence[Layer], names: Names) -> list[KernelTime]:
    """Kernels: by the ONNX nodes that the parser noted for a layer, else by its name, else by its tensors.

    Args:
        layers: of the engine; without details, names are all there is.
    """
    known = {layer.name: layer for layer in layers}
    products = {node for layer in layers if layer.kind in PRODUCTS for node in layer.nodes}
    for layer in layers:  # kernels of the compiler of RTX requantize what a product has written, and name that as well
        others = tuple(node for node in layer.nodes if node not in products or layer.kind in PRODUCTS)
        known[layer.name] = replace(layer, nodes=others or layer.nodes)
    return [_kernel(name, ms * 1e6, known.get(name, Layer(name, "")), names) for name, ms in profile.items()]


def _kernel(name: str, ns: float, layer: Layer, names: Names) -> KernelTime:
    kind, types = layer.kind or "layer", [t.type for t in layer.inputs]
    precision = "int8" if "int8" in types else next(iter(types), "")
    if layer.kind in _REFORMATS or name.startswith(_COPIES):
        values = names.known([t.name for t in (*layer.inputs, *layer.outputs)])
        return KernelTime(name, kind, ns, precision, values=values, kind="layout")
    joined = " + ".join(layer.nodes) if layer.nodes else name
    found = names.layer(joined, kind, ns, precision)
    if not found.attributed:
        found = names.layer(" + ".join(t.name for t in layer.outputs), kind, ns, precision)
    values = names.boundaries(layer.nodes) if found.kind == "compute" else found.values
    return replace(found, name=name, op_type=kind, values=values)

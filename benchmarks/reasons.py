"""Does ``inlay explain`` know why? Heavy operators of quantized models that are not in INT8, by reason.

Each model is quantized by ONNX Runtime's own quantizer in four ways, and by NNCF and ModelOpt where there is a Python
that has them, and explained on ONNX Runtime. What counts is the
reason, not the time: a reason is specific where it names a precondition or an operator that has no kernel on integers,
and proven where the runtime itself has shown it.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.version_converter
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import inlay
from benchmarks import modelopt_peer, nncf_peer, peer
from benchmarks.subjects import Subject
from inlay.errors import ModelError
from inlay.explanation.explanation import Explanation, Operator

OPSET = 17
Write = Callable[[Subject, Path], str]
"""Quantizes a model into a file; says why there is none, or nothing."""
SAMPLES = 4  # reasons do not depend on ranges, and prices hardly
BUDGET_S = 30.0
ONE_ELEMENT = "scales of shape [1]"
WAYS: Mapping[str, Mapping[str, Any]] = {
    "all operators": {},
    "products only": {"op_types_to_quantize": ["Conv", "MatMul", "Gemm"]},
    "S8S8": {"activation_type": QuantType.QInt8},
    ONE_ELEMENT: {},
}
UNSPECIFIC = {"", "unknown"}
"""Codes that name no cause."""


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, path: Path, model: onnx.ModelProto) -> None:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {k: archive[k] for k in archive.files}
        ranks = {i.name: len(i.type.tensor_type.shape.dim) for i in model.graph.input}
        arrays = {k: a if a.ndim > ranks[k] else a[:, None] for k, a in arrays.items()}
        count = min(SAMPLES, *(len(a) for a in arrays.values()))
        self._feeds = iter([{k: a[i] for k, a in arrays.items()} for i in range(count)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def quantized(subject: Subject, options: Mapping[str, Any], out: Path) -> Path:
    """The model of ``subject`` by ``quantize_static`` with ``options``; with a scale per channel where it can.

    Raises what the quantizer raises.
    """
    try:
        return _quantized(subject, options, out, True)
    except Exception:  # of whatever type
        return _quantized(subject, options, out, False)


def _quantized(subject: Subject, options: Mapping[str, Any], out: Path, per_channel: bool) -> Path:
    given: Any = out.with_suffix(".given.onnx")
    prepared: Any = out.with_suffix(".prepared.onnx")
    model = at_opset(onnx.load(subject.model))
    onnx.save(model, given)
    try:
        with peer.scratch_folder():
            quant_pre_process(str(given.resolve()), str(prepared.resolve()))
    except Exception:  # of whatever type: then without
        prepared = given
    quantize_static(
        str(prepared),
        str(out),
        _Reader(subject.samples, model),
        **{
            "quant_format": QuantFormat.QDQ,
            "activation_type": QuantType.QUInt8,
            "weight_type": QuantType.QInt8,
            "per_channel": per_channel,
            **options,
        },
    )
    return out


def with_scales_of_one_element(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` with the scalar scales and zero points of its Q and DQ nodes as tensors of shape ``[1]``."""
    wanted = {i for n in model.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear") for i in n.input[1:]}
    for tensor in model.graph.initializer:
        if tensor.name in wanted and not tensor.dims:
            tensor.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(tensor).reshape(1), tensor.name))
    return model


def specific(operator: Operator) -> bool:
    """Whether what is said of it names a cause."""
    return any(r.code not in UNSPECIFIC and r.proof != "refuted" for r in operator.reasons)


def counted(found: Explanation) -> dict[str, Any]:
    """The heavy operators of an explanation, and the reasons of those that are not in INT8."""
    heavy = [o for o in found.operators if o.heavy and o.precision in ("int8", "float")]
    slow = [o for o in heavy if o.precision == "float"]
    return {
        "heavy": len(heavy),
        "float": len(slow),
        "specific": sum(map(specific, slow)),
        "proven": sum(any(r.certain for r in o.reasons) for o in slow),
        "reasons": dict(Counter(r.code for o in slow for r in o.reasons)),
        "without": [
            {"name": o.name, "op_type": o.op_type, "said": [r.text for r in o.reasons]} for o in slow if not specific(o)
        ],
    }


def at_opset(model: onnx.ModelProto) -> onnx.ModelProto:
    """``model`` at an opset that has Q/DQ nodes with a scale per channel."""
    old = next(o.version for o in model.opset_import if o.domain in ("", "ai.onnx")) < OPSET
    return onnx.version_converter.convert_version(model, OPSET) if old else model


def first(samples: Path) -> Any:  # arrays by input, which the API takes beside feeds
    """One sample, for its shapes."""
    with np.load(samples, allow_pickle=False) as archive:
        return {name: archive[name][:1] for name in archive.files}


def of_others(nncf: str | None, modelopt: str | None) -> dict[str, Write]:
    """Other quantizers of ONNX models, by name, where a Python that has them is given."""
    found: dict[str, Write] = {}
    if nncf is not None:
        found["NNCF"] = lambda s, out: nncf_peer.quantize(nncf, s.model, s.samples, out, nncf_peer.PRESETS[0])
    if modelopt is not None:
        found["ModelOpt"] = lambda s, out: modelopt_peer.quantize(modelopt, s.model, s.samples, out)
    return found


def _writer(way: str) -> Write:
    def write(subject: Subject, out: Path) -> str:
        quantized(subject, WAYS[way], out)
        if way == ONE_ELEMENT:
            onnx.save(with_scales_of_one_element(onnx.load(out)), out)
        return ""

    return write


def row(subject: Subject, nncf: str | None = None, modelopt: str | None = None) -> dict[str, Any]:
    """The counts of one model in each way, or why there are none."""
    found: dict[str, Any] = {}
    for way, write in {**{way: _writer(way) for way in WAYS}, **of_others(nncf, modelopt)}.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "quantized.onnx"
            try:
                note = write(subject, path)
            except Exception as error:  # of whatever type
                note = f"fails: {error}"
            if note:
                found[way] = {"error": f"no file: {' '.join(note.split())[:200]}"}
                continue
            try:
                found[way] = counted(inlay.explain(path, data=first(subject.samples), budget=BUDGET_S))
            except ModelError as error:
                found[way] = {"error": f"the quantized model does not run: {' '.join(str(error).split())[-200:]}"}
    return {"model": subject.name, "reasons_by_way": found}


def line(row: Mapping[str, Any]) -> str:
    """A row in a few words."""
    cells = [c for c in row["reasons_by_way"].values() if "error" not in c]
    slow, known = (sum(c[key] for c in cells) for key in ("float", "specific"))
    return f"{known} of {slow} heavy operators in float have a reason"


def markdown(table: Mapping[str, Any]) -> str:
    """The table for people."""
    return "\n".join(_lines(table["rows"])) + "\n"


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "# Why heavy operators of quantized models are not in INT8"
    yield ""
    yield "What `inlay explain` says of models by ONNX Runtime's own quantizer and others, on ONNX Runtime. Heavy are"
    yield "products, and what takes 1 % of the time. A reason is specific where it names a precondition, or an operator"
    yield "that has no kernel on integers; it is proven where the runtime itself has shown it. Nothing is timed."
    yield ""
    yield "| model | quantized | heavy | not INT8 | with a specific reason | of them proven | reasons |"
    yield "|---|---|--:|--:|--:|--:|---|"
    total: Counter[str] = Counter()
    for row in rows:
        for way, cell in row["reasons_by_way"].items():
            if "error" in cell:
                yield f"| {row['model']} | {way} | | | | | {cell['error'].replace('|', ' ')} |"
                continue
            total.update({k: cell[k] for k in ("heavy", "float", "specific", "proven")})
            codes = ", ".join(f"{code} {n}" for code, n in sorted(cell["reasons"].items(), key=lambda c: -c[1]))
            figures = " | ".join(str(cell[k]) for k in ("heavy", "float", "specific", "proven"))
            yield f"| {row['model']} | {way} | {figures} | {codes} |"
    share = f" ({total['specific'] / total['float']:.1%})" if total["float"] else ""
    yield f"| all | | {total['heavy']} | {total['float']} | {total['specific']}{share} | {total['proven']} | |"

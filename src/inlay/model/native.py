"""What runs in the guarded process: sessions of the runtime, and compiled functions of the ``onnx`` package.

Every command waits for that process to start, so this file imports next to nothing: ``onnx_ir`` alone, with the algebra
package that it brings, would take twice as long as all the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from inlay.errors import CompileFailed, RunFailed
from inlay.model.guard import answer_calls

if TYPE_CHECKING:
    import onnx

T = TypeVar("T")
Values = Mapping[str, np.ndarray]


def main() -> None:
    """The program of the guarded process."""
    import onnxruntime  # noqa: F401  (loading it takes longer than a small model does)

    answer_calls()


def runtime_message(error: BaseException) -> str:
    """A runtime's error message in one line, without its error-code prefix."""
    text = " ".join(str(error).split())
    return text.split(" : ", 2)[-1] if text.startswith("[ONNXRuntimeError]") else text


_BESIDE_WIDENING = (
    "AttentionFusion",
    "BiasDropoutFusion",
    "BiasGeluFusion",
    "BiasSkipLayerNormFusion",
    "BiasSoftmaxFusion",
    "ConvActivationFusion",
    "DynamicQuantizeMatMulFusion",
    "EmbedLayerNormFusion",
    "FastGeluFusion",
    "GatherSliceToSplitFusion",
    "GatherToSliceFusion",
    "GeluFusionL2",
    "GemmActivationFusion",
    "GroupQueryAttentionFusion",
    "GroupQueryAttentionPreNormFusion",
    "LayerNormFusionL2",
    "Level2_RuleBasedTransformer",
    "MatMulActivationFusion",
    "MatMulIntegerToFloatFusion",
    "MatMulNBitsFusion",
    "MatMulScaleFusion",
    "MatmulTransposeFusion",
    "QDQFinalCleanupTransformer",
    "QuickGeluFusion",
    "SimplifiedLayerNormFusion",
    "SkipLayerNormFusion",
    "TransposeOptimizer_CPUExecutionProvider",
)
"""What the runtime does at the level at which it writes int8 weights as uint8: its kernels add up products of uint8
exactly on every processor. Its log of level 0 names them; names that a version does not know do no harm."""

_INTEGER = ("QLinear", "QGemm", "QAttention", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM")
"""Beginnings of the names of operators that multiply integers, beside those with ``Integer`` in theirs."""


class NativeSession:
    """One session of the runtime, in the process that calls it.

    Args:
        model: a file, or a model that holds its weights itself.
        optimize, fuse_qdq: as of :class:`Session`.
        threads: of one inference; 0 for as many as the runtime likes.
        integers: the model has operators on integers.
        briefly: as of :class:`Session`.

    Attributes:
        outputs: names of the outputs.
        types: type of each output in ONNX Runtime's notation, by name.
    """

    def __init__(
        self,
        model: str | bytes,
        optimize: bool | None,
        fuse_qdq: bool,
        threads: int,
        integers: bool = False,
        briefly: bool = False,
    ) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        if not fuse_qdq:
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        if briefly:
            options.add_session_config_entry("session.disable_prepacking", "1")
        levels = ort.GraphOptimizationLevel
        level = {None: levels.ORT_DISABLE_ALL, False: levels.ORT_ENABLE_BASIC, True: levels.ORT_ENABLE_ALL}
        options.graph_optimization_level = level[optimize]
        built: ort.InferenceSession | None = None
        providers = ["CPUExecutionProvider"]
        if integers and optimize is False:
            # x86 without VNNI adds up products of uint8 and int8 in 16 bits, which saturate: what the numeric reference
            # computes must not depend on the processor
            options.add_session_config_entry("session.x64quantprecision", "1")
            options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED
        try:
            if options.graph_optimization_level == levels.ORT_ENABLE_EXTENDED:
                with contextlib.suppress(*_refusals()):  # where activations are int8, no kernel takes such weights
                    built = ort.InferenceSession(model, options, providers, disabled_optimizers=list(_BESIDE_WIDENING))
                options.graph_optimization_level = level[optimize]
            self._session: ort.InferenceSession = built or ort.InferenceSession(model, options, providers)
        except Exception as error:  # the binding raises several unrelated types
            raise CompileFailed(f"ONNX Runtime cannot build the model: {runtime_message(error)}") from error
        self.outputs = [o.name for o in self._session.get_outputs()]
        self.types = {o.name: o.type for o in self._session.get_outputs()}

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name. Raises RunFailed if the runtime fails."""
        try:
            return dict(zip(self.outputs, self._session.run(None, dict(feed)), strict=True))
        except Exception as error:  # as above
            raise RunFailed(f"ONNX Runtime cannot run the model: {runtime_message(error)}") from error


def _refusals() -> tuple[type[BaseException], ...]:
    """What the runtime raises where it cannot build a model: the binding's own classes have no common base."""
    from onnxruntime.capi import onnxruntime_pybind11_state as binding

    return (binding.Fail, binding.InvalidGraph, binding.NotImplemented, binding.RuntimeException, RuntimeError)


def multiplies_integers(graph: onnx.GraphProto) -> bool:
    """Whether a graph has operators that multiply integers."""
    return any(node.op_type.startswith(_INTEGER) or "Integer" in node.op_type for node in graph.node)


def signature(session: NativeSession) -> tuple[list[str], dict[str, str]]:
    """Names of the outputs, and their types."""
    return session.outputs, session.types


def gathered(
    session: NativeSession,
    feeds: Sequence[Values],
    note: Callable[[dict[str, T], Values], None],
    found: dict[str, T],
    wanted: Sequence[str],
    carried: Sequence[str],
) -> tuple[dict[str, T], list[dict[str, np.ndarray]]]:
    """``found`` with what ``note`` makes of the ``wanted`` values, and the ``carried`` values of each feed."""
    held = []
    for feed in feeds:
        outputs = session.run(feed)
        note(found, {v: outputs[v] for v in wanted})
        held.append({v: outputs[v] for v in carried})
    return found, held


def note_turns(
    bodies: Collection[str],
    apart: bool,
    note: Callable[[dict[str, T], Values], None],
    found: dict[str, T],
    values: Mapping[str, Any],
) -> None:
    """``note``, of the values in ``bodies`` each turn of a loop, and none of a branch not taken: it is empty."""
    turns: dict[str, list[Any]] = {}
    for value, given in values.items():
        of = given if isinstance(given, list) and value in bodies else [given]
        of = [a for a in of if value not in bodies or getattr(a, "shape", None) != (0,)]
        turns[value] = of if apart or len(of) < 2 else _joined(of)
    for number in range(max(map(len, turns.values()), default=0)):
        note(found, {v: of[number] for v, of in turns.items() if number < len(of)})


def _joined(turns: list[np.ndarray]) -> list[np.ndarray]:
    """One array of several turns, where their shapes fit."""
    if len({a.shape[1:] for a in turns}) > 1 or len({a.ndim for a in turns}) > 1:
        return turns
    if turns[0].ndim > 1:
        return [np.concatenate(turns)]
    return [np.stack(turns)] if len({a.shape for a in turns}) == 1 else turns


def note_arrays(found: dict[str, np.ndarray], values: Values) -> None:
    """Keep values themselves."""
    found.update(values)


def note_shapes(whole: Collection[str], found: dict[str, Any], values: Values) -> None:
    """Keep of those that are arrays what :func:`looks` says of them, and the ``whole`` values themselves."""
    arrays = {v: a for v, a in values.items() if isinstance(a, np.ndarray)}
    found.update((v, a if v in whole else looks(a, found.get(v))) for v, a in arrays.items())


Looks = tuple[tuple[int, ...], bool, tuple[float, float], int]
"""The shape of an array, whether it holds neither infinity nor NaN, its least and greatest float (zeros without any),
and how often it was seen."""


def looks(array: np.ndarray, before: Looks | None = None) -> Looks:
    """What an array looks like; together with that of ``before``, in earlier turns of a loop."""
    finite, ends, times = True, (0.0, 0.0), 1
    if array.dtype.kind == "f" and array.size:
        finite, ends = bool(np.isfinite(array).all()), (float(array.min()), float(array.max()))
    if before is not None:
        finite, times = finite and before[1], times + before[3]
        ends = min(ends[0], before[2][0]), max(ends[1], before[2][1])
    return tuple(array.shape), finite, ends, times


def run_whole(data: bytes, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of a serialized model."""
    return NativeSession(data, optimize=True, fuse_qdq=True, threads=1).run(feed)


def convert(data: bytes, version: int) -> bytes:
    """A serialized model in another opset."""
    import onnx
    from onnx import version_converter

    converted: onnx.ModelProto = version_converter.convert_version(onnx.ModelProto.FromString(data), version)
    return converted.SerializeToString()


def inline(data: bytes) -> bytes:
    """A serialized model with its local functions inlined."""
    import onnx
    from onnx import inliner

    return inliner.inline_local_functions(onnx.ModelProto.FromString(data)).SerializeToString()


def check(data: bytes) -> None:
    """Raises where a serialized model breaks a rule of ONNX, also those of its operators on types and shapes.

    What the model states of the shapes of computed values is not believed: runtimes only warn where it is false.
    """
    import onnx

    model = onnx.ModelProto.FromString(data)
    onnx.checker.check_model(model)
    del model.graph.value_info[:]
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


def infer(data: bytes, strict: bool) -> list[bytes]:
    """The types and shapes that ONNX's rules give; ``strict``: every operator keeps them.

    For the main graph and each body in it, depth first, a serialized graph that holds nothing else.
    """
    import onnx

    inferred = onnx.shape_inference.infer_shapes(data, check_type=strict, strict_mode=strict, data_prop=True)
    return [
        onnx.GraphProto(input=g.input, output=g.output, value_info=g.value_info).SerializeToString()
        for g in _with_bodies(inferred.graph)
    ]


def _with_bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
                yield from _with_bodies(body)

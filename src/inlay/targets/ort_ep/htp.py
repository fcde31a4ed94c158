"""Qualcomm's Hexagon Tensor Processor (HTP), through ONNX Runtime's QNN provider: on Linux x86-64 an emulator."""

from __future__ import annotations

import importlib
import platform
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from inlay.errors import CompileFailed, RunFailed, UsageError
from inlay.files import scratch
from inlay.targets.base import Artifact, Capabilities, Feed, Fingerprint, KernelTime, StatesCapabilities
from inlay.targets.model_file import BuiltByShapes, ModelFile, Shapes
from inlay.targets.onnxruntime.session import infer
from inlay.targets.ort_ep.offload import MEASURES, UNIT, Offload, offload
from inlay.targets.ort_ep.providers import CPU, Provider, parse_options

_PROVIDER = "QNNExecutionProvider"
_ENTRIES = {"session.record_ep_graph_assignment_info": "1"}
_EMULATED = platform.machine().lower() in ("x86_64", "amd64")
_OPTIONS = {"offload_graph_io_quantization": "0"}
"""The conversions of inputs and outputs belong to the model, and run on the NPU as well."""
_EMULATOR_OPTIONS = {"htp_graph_finalization_optimization_mode": "1", "soc_model": "43"}
"""Of the emulator, which stands for a Snapdragon 8 Gen 2 unless told otherwise.

Left to itself it stands for no product, one without half precision, whatever ``htp_arch`` says: it takes operators in
float and cannot finalize some of them (``QNN_COMMON_ERROR_MEM_ALLOC``), so that with one Gather in float between
integers the whole model is lost. The provider's own tests name this model, too.

It takes the quickest way to finalize a graph: what that leaves slow is not measured, and in the usual way a detector of
352x352 with 16-bit activations took more than three minutes, where this takes half a second.
"""


@lru_cache(maxsize=1)
def qnn() -> Any:
    """The package of the provider. Raises UsageError."""
    try:
        return importlib.import_module("onnxruntime_qnn")
    except ImportError as error:
        raise UsageError(
            "target qnn-htp needs ONNX Runtime's QNN provider: pip install 'inlay[qnn]' "
            f"(Python 3.11 or later, Linux x86-64 or Windows; {error})"
        ) from error


class QnnHtpTarget(StatesCapabilities):
    """An HTP: what it computes is emulated or real, and no times are told, since emulated cycles vary by half.

    The objective is how much stays on the NPU (:mod:`.offload`): operators and bytes on the host or in float,
    partitions, and bytes on the NPU itself.

    Args:
        options: of the provider, as ``NAME=VALUE,NAME=VALUE``: ``htp_arch=73,soc_model=60``.
    """

    name = "qnn-htp"
    heading = ("qnn", "results")
    deterministic = True
    remark = "Speed is not measured: the cost is how much stays on the NPU"

    def __init__(self, options: str = "") -> None:
        self._options = _OPTIONS | (_EMULATOR_OPTIONS if _EMULATED else {}) | parse_options(options)

    def fingerprint(self) -> Fingerprint:
        """Versions of the runtime and the provider, what computes, and all options.

        Raises:
            UsageError: the extra ``qnn`` is not installed.
        """
        package = qnn()
        return Fingerprint(
            self.name,
            {
                "kind": "offload",
                "unit": UNIT,
                "measures": MEASURES,
                "onnxruntime": ort.__version__,
                "qnn": str(package.__version__),
                "results": "of the emulator" if _EMULATED else "of the device",
                "options": ",".join(f"{k}={v}" for k, v in sorted(self._options.items())),
            },
        )

    def capabilities(self) -> Capabilities:
        """What it runs in 8 bits, and operators that stay on the NPU as a whole."""
        from inlay.targets.ort_ep.htp_rules import FLOAT_REWRITES, RULES

        return Capabilities(RULES, FLOAT_REWRITES)

    def compile(self, model: Artifact) -> QnnHtpExecutable:
        """Partition and build a model. Raises CompileFailed."""
        package = qnn()
        options = {"backend_path": package.get_qnn_htp_path(), **self._options}
        return QnnHtpExecutable(Provider.find(_PROVIDER, package.get_library_path(), options), model)


class _Program:
    """A model of fixed shapes, partitioned between HTP and host."""

    def __init__(self, provider: Provider, artifact: Artifact, is_float: bool) -> None:
        if is_float:
            provider = Provider.find(CPU)
        self.session: Any = provider.session(artifact, 1, _ENTRIES)
        host, partitions = set[str](), 0
        for part in self.session.get_provider_graph_assignment_info():
            if part.ep_name == CPU:
                host.update(node.name for node in part.get_nodes())
            else:
                partitions += 1
        proto = onnx.load(str(artifact.path), load_external_data=False)
        self.offload: Offload = offload(proto, host, partitions)


class QnnHtpExecutable(BuiltByShapes[_Program]):
    """A model partitioned between HTP and host.

    What holds no Q/DQ nodes runs on the host: it counts as the host's either way, and the emulator would take minutes.

    A program of the HTP has fixed shapes: a model with dynamic dimensions is built for the sizes of its first inputs,
    and again for other sizes.

    Raises:
        CompileFailed: it is no valid model, or one of fixed shapes cannot be built.
    """

    is_profiled = True

    def __init__(self, provider: Provider, artifact: Artifact) -> None:
        self._provider, self._artifact = provider, artifact
        file = ModelFile(artifact.path)
        nodes = onnx.load(str(artifact.path), load_external_data=False).graph.node
        self._is_float = all(n.op_type != "DequantizeLinear" for n in nodes)
        super().__init__(file)

    @property
    def offload(self) -> Offload:
        """Where its operators run, for the first shapes. Raises RunFailed where none have been seen."""
        if not self._built:
            raise RunFailed("the model was closed, or has not run yet")
        return next(iter(self._built.values())).offload

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name, with the NPU's arithmetic. Raises RunFailed."""
        return dict(zip(self.file.outputs, infer(self._ready(feed).session, feed), strict=True))

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """The model's points, which are no time, ``repeats`` times: shape (repeats,), int64. Raises RunFailed."""
        return np.full(repeats, self._ready(feed).offload.points, np.int64)

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """The points of every operator, conversion and partition; they add up to :meth:`time`. Raises RunFailed."""
        return list(self._ready(feed).offload.kernels)

    def _build(self, shapes: Shapes) -> _Program:
        if not shapes:
            return _Program(self._provider, self._artifact, self._is_float)
        with scratch() as folder:
            path = folder / self._artifact.path.name
            try:
                onnx.save(_with_shapes(onnx.load(str(self._artifact.path)), dict(shapes)), path)
                return _Program(self._provider, Artifact(path, self._artifact.digest), self._is_float)
            except (CompileFailed, OSError, ValueError) as error:
                raise CompileFailed(f"it cannot be built for the shapes of these inputs: {error}") from error


def _with_shapes(proto: onnx.ModelProto, shapes: Mapping[str, tuple[int, ...]]) -> onnx.ModelProto:
    """The model with fixed inputs; what it states of other values may hold dimensions that are fixed now."""
    for value in proto.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            dim.dim_value = size  # replaces a name: they are one field
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        value.type.tensor_type.ClearField("shape")
    return proto

"""The passes themselves: what Olive gives one becomes a call of ``inlay.tune`` or ``inlay.quantize``.

Their parameters are the options of those calls, of the same names, with ``data_config`` in the place of ``data`` and
``metrics``, as an evaluator lists them, in that of ``evaluate``. Written against olive-ai 0.13.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Union

import onnx
from olive.common.config_utils import validate_config
from olive.data.config import DataConfig
from olive.evaluator.metric import MetricType
from olive.evaluator.metric_result import joint_metric_key
from olive.evaluator.olive_evaluator import OliveEvaluatorConfig
from olive.exception import OlivePassError
from olive.hardware import Device
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.passes import Pass
from olive.passes.pass_config import PassConfigParam

from inlay.api import quantize, tune
from inlay.errors import InlayError
from inlay.model.external import external_locations
from inlay.prepare.declare import declared, option_in
from inlay.run.options import QuantizeOptions, TuneOptions
from inlay.run.outputs import install
from inlay.targets.registry import DEFAULT_TARGET

_PLAIN = Union[bool, int, float, str, list, dict]  # noqa: UP007  # what JSON holds, as pydantic is told of it
_NOT_HERE = frozenset({"out", "data", "images", "progress", "before_s", "restart"})
_TARGETS: Mapping[str, str] = {
    "QNNExecutionProvider": "qnn-htp",
    "TensorrtExecutionProvider": "tensorrt",
    "NvTensorRTRTXExecutionProvider": "tensorrt-rtx",
}
"""What measures for an execution provider; others are measured on the CPU."""
_log = logging.getLogger("olive.inlay")


class _InlayPass(Pass):  # type: ignore[misc]
    """What both have in common."""

    _options: ClassVar[type[TuneOptions] | type[QuantizeOptions]]

    @staticmethod
    def is_accelerator_agnostic(accelerator_spec: Any) -> bool:
        """It is not: what is found is for one processor."""
        return False

    @classmethod
    def _default_config(cls, accelerator_spec: Any) -> dict[str, Any]:
        found = {
            "data_config": PassConfigParam(
                type_=Union[DataConfig, dict],  # noqa: UP007
                description="Samples, of which the accuracy speaks. Without them they are random, and it says so.",
            )
        }
        for name, parameter in declared(cls._options).items():
            option, default = option_in(parameter.annotation), parameter.default
            if option is None or name in _NOT_HERE or option.type is None:
                continue
            if name == "target":
                default = _TARGETS.get(str(accelerator_spec.execution_provider), DEFAULT_TARGET)
            kept = list(default) if isinstance(default, tuple) else default
            found[name] = PassConfigParam(type_=_PLAIN, default_value=kept, description=option.documentation)
        return found

    def _run_for_config(self, model: Any, config: Any, output_model_path: str) -> Any:
        if not isinstance(model, ONNXModelHandler):
            raise OlivePassError(f"{type(self).__name__} takes ONNX models: let OnnxConversion run before it")
        asked = {k: v for k, v in config.model_dump().items() if k in declared(self._options) and v is not None}
        path = Path(resolve_onnx_path(output_model_path, Path(model.model_path).name))
        if config.data_config:
            container = validate_config(config.data_config, DataConfig).to_data_container()
            asked["data"] = container.create_calibration_dataloader(model.model_path, model.io_config)
        try:
            self._made(model, asked, config, path)
        except InlayError as error:
            raise OlivePassError(f"{type(self).__name__}: {error}") from error
        beside = bool(external_locations(onnx.load(path, load_external_data=False)))
        return ONNXModelHandler(
            model_path=str(path.parent if beside else path),
            onnx_file_name=path.name if beside else None,
            inference_settings=model.inference_settings,
            model_attributes=model.model_attributes,
        )

    def _made(self, model: Any, asked: dict[str, Any], config: Any, path: Path) -> None:
        raise NotImplementedError


class InlayQuantize(_InlayPass):
    """Quantize where a table of costs says that it pays: an answer in seconds."""

    _options = QuantizeOptions

    def _made(self, model: Any, asked: dict[str, Any], config: Any, path: Path) -> None:
        quantize(model.model_path, path, **asked)


class InlayTune(_InlayPass):
    """Quantize where measurements say that it pays, within what the metrics may lose."""

    _options = TuneOptions

    @classmethod
    def _default_config(cls, accelerator_spec: Any) -> dict[str, Any]:
        found = super()._default_config(accelerator_spec)
        found["metrics"] = PassConfigParam(
            type_=list[dict],
            description="Metrics as an evaluator lists them; their goals bound what is delivered. Latency is left out.",
        )
        return found

    def _made(self, model: Any, asked: dict[str, Any], config: Any, path: Path) -> None:
        if config.metrics:
            judge = _Judge(config.metrics)
            asked |= {"evaluate": judge, **judge.bounds(model.model_path)}
        folder = path.parent / "inlay"
        result = tune(model.model_path, out=folder, **asked)
        install(result.model_path, path)
        _log.info("%s (evidence: %s)", result.summary(), folder)
        for note in (*result.notes, *([result.best.unproven] if result.best.unproven else [])):
            _log.warning("%s", note)


class _Judge:
    """Olive's evaluator of the metrics that say how good a model is."""

    __name__ = "olive"  # what Inlay calls it

    def __init__(self, metrics: Sequence[Mapping[str, Any]]) -> None:
        whole = OliveEvaluatorConfig(metrics=list(metrics))
        kinds = MetricType.ACCURACY, MetricType.CUSTOM
        self._metrics = [metric for metric in whole.metrics if metric.type in kinds]
        if not self._metrics:
            raise OlivePassError("InlayTune: metrics name no accuracy and no custom metric")
        self._config = OliveEvaluatorConfig(metrics=self._metrics)

    def __call__(self, path: str) -> dict[str, dict[str, Any]]:
        """The scores of the model at ``path``, as Olive's evaluator gives them on the CPU."""
        model = ONNXModelHandler(model_path=path)
        found = self._config.create_evaluator(model).evaluate(
            model, self._metrics, device=Device.CPU, execution_providers=["CPUExecutionProvider"]
        )
        return {
            name: {"value": float(score.value), "higher_is_better": bool(score.higher_is_better)}
            for name, score in found.root.items()
        }

    def bounds(self, given: str) -> dict[str, dict[str, float]]:
        """The least and the most that scores may be, by the goals of the metrics and the scores of the given model."""
        least, most = dict[str, float](), dict[str, float]()
        goals = {
            joint_metric_key(metric.name, part.name): (part.goal, part.higher_is_better)
            for metric in self._metrics
            for part in metric.sub_types
            if part.goal is not None
        }
        scores = self(given) if goals else {}
        for name, (goal, higher) in goals.items():
            sign, base = (-1.0 if higher else 1.0), scores[name]["value"]
            if goal.type == "threshold":
                limit = goal.value
            elif goal.type == "max-degradation":
                limit = base + sign * goal.value
            elif goal.type == "percent-max-degradation":
                limit = base + sign * abs(base) * goal.value / 100.0
            else:  # quantization improves no metric
                continue
            (least if higher else most)[name] = limit
        return {key: value for key, value in (("at_least", least), ("at_most", most)) if value}

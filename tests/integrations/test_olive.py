"""Inlay's passes in a workflow of the released Olive: its data, its metrics, its command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest

from inlay.errors import InlayError
from inlay.integrations.olive.package import package_config
from tests.test_programs import DIGITS

_SCRIPT = """
import numpy as np
from olive.data.registry import Registry

@Registry.register_dataset()
def digits(data, labels, rows):
    images, answers = np.load(data)["image"][:rows], np.load(labels)[:rows]
    return [({"image": image}, answer) for image, answer in zip(images, answers)]

@Registry.register_post_process()
def best(output):
    return output.argmax(-1)
"""


def workflow(folder: Path, passes: dict[str, Any], rows: int = 24) -> Path:
    """The digits example, as a user of Olive describes it."""
    (folder / "script.py").write_text(_SCRIPT, encoding="utf8")
    params = {"data": str(DIGITS / "data.npz"), "labels": str(DIGITS / "labels.npy"), "rows": rows}
    accuracy = {
        "name": "accuracy",
        "type": "accuracy",
        "data_config": "digits",
        "sub_types": [
            {
                "name": "accuracy_score",
                "priority": 1,
                "metric_config": {"task": "multiclass", "num_classes": 10},
                "goal": {"type": "max-degradation", "value": 0.05},
            }
        ],
    }
    data = {
        "name": "digits",
        "type": "DataContainer",
        "user_script": str(folder / "script.py"),
        "load_dataset_config": {"type": "digits", "params": params},
        "post_process_data_config": {"type": "best"},
    }
    for each in passes.values():
        if each["type"] == "InlayTune":
            each["metrics"] = [json.loads(json.dumps(accuracy))]
    config = {
        "input_model": {"type": "ONNXModel", "model_path": str(DIGITS / "digits.onnx")},
        "data_configs": [data],
        "evaluators": {"judge": {"type": "ONNX", "metrics": [accuracy]}},  # pydantic 2.14 fails where it is left out
        "evaluator": "judge",
        "passes": passes,
        "cache_dir": str(folder / "cache"),
        "output_dir": str(folder / "out"),
    }
    path = folder / "workflow.json"
    path.write_text(json.dumps(config), encoding="utf8")
    return path


def olive(folder: Path, *words: str) -> str:
    """What ``olive`` says; it reports to nobody here."""
    quiet = {"OLIVE_DISABLE_TELEMETRY": "1", "CI": "1", "OLIVE_TELEMETRY_CACHE_DIR": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, env={**os.environ, **quiet}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("kind", "options"),
    [("InlayTune", {"budget": "none", "max_measurements": 4, "accept_unproven": True}), ("InlayQuantize", {})],
)
def test_a_workflow_of_olive_quantizes_with_its_data_and_its_metrics(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("olive", reason="olive-ai is not installed")
    passes = {"inlay": {"type": kind, "data_config": "digits", "target": "null", **options}}
    if kind == "InlayQuantize":
        passes["inlay"]["recipe"] = "full-int8"
    config = workflow(tmp_path, passes)
    olive(tmp_path, "inlay.integrations.olive.package", "package.json")
    olive(tmp_path, "olive", "run", "--config", str(config), "--package-config", "package.json")
    (made,) = (tmp_path / "out").rglob("*.onnx")
    assert any(n.op_type == "QuantizeLinear" for n in onnx.load(made).graph.node)
    (said,) = (tmp_path / "out").rglob("metrics.json")
    assert json.loads(said.read_text())["accuracy-accuracy_score"]["value"] > 0.9, "as Olive's evaluator says"
    if kind == "InlayTune":
        (found,) = (tmp_path / "cache").rglob("result.json")
        result = json.loads(found.read_text())
        assert result["data"]["samples"] == 24
        assert "accuracy-accuracy_score" in json.dumps(result["best"]), "the bound is that of the metric's goal"


def test_the_package_configuration_keeps_olives_own_passes() -> None:
    pytest.importorskip("olive", reason="olive-ai is not installed")
    from olive.package_config import OlivePackageConfig

    merged = OlivePackageConfig.model_validate(package_config())
    own = OlivePackageConfig.load_default_config()
    assert set(merged.passes) == set(own.passes) | {"inlaytune", "inlayquantize"}
    assert merged.extra_dependencies == own.extra_dependencies
    assert merged.get_pass_module_config("InlayTune").module_path == "inlay.integrations.olive.passes.InlayTune"


def test_without_olive_it_is_one_line() -> None:
    try:
        import olive  # noqa: F401
    except ImportError:
        with pytest.raises(InlayError, match=r"needs olive: pip install 'inlay\[olive\]'"):
            package_config()

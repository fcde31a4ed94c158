"""Several models of one program on ``null``: recorded, tuned under one budget, delivered and timed together."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import yaml

import inlay
from inlay import api
from inlay.cli.terminal import laid_out
from inlay.errors import InlayError, ModelError, UsageError
from inlay.model.load import file_sha256
from inlay.portfolio.command import verdict
from inlay.portfolio.parts import placed
from inlay.portfolio.pipeline_result import PipelineResult
from inlay.run.progress import Silent
from inlay.testing import random_feed, residual_model, small_model
from tests.cli.conftest import run as run
from tests.support.command_line import RunCommand

pytestmark = pytest.mark.usefixtures("null_in_process")
OPTIONS: dict[str, Any] = {"target": "null", "strategy": "anchors", "max_measurements": 4, "progress": Silent()}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two models, of which a program was recorded, in which the test works."""
    monkeypatch.chdir(tmp_path)
    onnx.save(residual_model(), "encoder.onnx")
    onnx.save(small_model(), "decoder.onnx")
    sessions = {name: ort.InferenceSession(f"{name}.onnx") for name in ("encoder", "decoder")}
    with inlay.record("recorded"):
        for task in range(6):
            sessions["encoder"].run(None, dict(random_feed(residual_model(), task)))
            for step in range(3):
                sessions["decoder"].run(None, dict(random_feed(small_model(), 10 * task + step)))
    return tmp_path


def tuned(out: str = "out", **options: Any) -> PipelineResult:
    found = inlay.tune("recorded/pipeline.yaml", out=out, **{**OPTIONS, "budget": None, "min_sqnr": 5, **options})
    assert isinstance(found, PipelineResult)
    return found


def changed(**values: Any) -> Path:
    """The pipeline with other values for its second model."""
    found = yaml.safe_load(Path("recorded/pipeline.yaml").read_text())
    found["models"][1] |= values
    Path("recorded/other.yaml").write_text(yaml.safe_dump(found))
    return Path("recorded/other.yaml")


def test_what_is_delivered_is_what_its_runs_found_and_was_timed_together() -> None:
    found = tuned()
    assert [part.runs for part in found.parts] == [6, 18]
    assert found.exit_code in (0, 3)
    before = after = 0.0
    for part in found.parts:
        own = json.loads((found.folder / str(part.folder) / "result.json").read_text())
        assert part.ms == pytest.approx(own["baseline"]["latency_ms"])
        assert part.speedup is not None
        assert part.speedup.value == pytest.approx(own["best"]["speedup"])
        assert part.output_sha256 == file_sha256(found.files / f"{part.name}.onnx") == own["best"]["output_sha256"]
        assert part.ms is not None
        before += part.runs * part.ms
        after += part.runs * part.ms / part.speedup.value
    assert any(part.origin != "original" for part in found.parts)
    assert (found.ms, found.speedup.value) == pytest.approx((before, before / after)), "null has no noise"
    assert [p.share for p in found.parts] == pytest.approx([p.runs * (p.ms or 0) / before for p in found.parts])
    text = [*laid_out(verdict(found))]
    assert any(line.startswith(f"Verdict: {found.speedup.value:.2f}x over the given models together") for line in text)
    data = json.loads((found.folder / "result.json").read_text())
    assert data["best"]["speedup"] == found.speedup.value
    assert [model["name"] for model in data["models"]] == ["encoder", "decoder"]
    again = tuned()
    assert [p.output_sha256 for p in again.parts] == [p.output_sha256 for p in found.parts], "it is not tuned again"


@pytest.mark.exhaustive
def test_the_evaluation_of_the_whole_decides_which_models_go_back() -> None:
    """It is given a folder of all models, and rejects a decoder with Q/DQ: the innocent encoder keeps its gain."""
    asked = list[set[str]]()

    def evaluation(folder: str) -> dict[str, float]:
        models = {path.stem: onnx.load(path) for path in Path(folder).glob("*.onnx")}
        asked.append({name for name, m in models.items() if any(n.op_type == "QuantizeLinear" for n in m.graph.node)})
        assert set(models) == {"encoder", "decoder"}
        return {"accuracy": 0.5 if "decoder" in asked[-1] else 0.9}

    found = tuned(evaluate=evaluation, max_drop=0.1)
    assert asked[0] == asked[1] == set(), "the given models, twice"
    assert {"encoder", "decoder"} in asked, "the control: both had gained"
    assert [part.origin == "original" for part in found.parts] == [False, True]
    assert asked[-1] == {"encoder"}
    assert (found.exit_code, str(found.doubt)) == (0, "")
    assert found.scores is not None
    assert found.scores["scores"][0]["value"] == 0.9
    assert "accuracy" in found.said
    free = tuned("free", evaluate=evaluation, max_drop=0.4)
    assert [part.origin == "original" for part in free.parts] == [False, False], "within the bound, nothing goes back"


@pytest.mark.exhaustive
def test_files_by_name_are_what_was_recorded_of_them(run: RunCommand) -> None:
    """The short form of ``pipeline.yaml``: the same models, samples, and numbers of runs."""
    words = (
        "tune encoder.onnx decoder.onnx --data recorded -o short --target null --strategy anchors --min-sqnr 5 --json"
    )
    code, out, err = run(*words.split(), "--max-measurements", "4", "--budget", "none")
    found, whole = json.loads(out), tuned()
    assert code == whole.exit_code, err
    assert [part["runs"] for part in found["models"]] == [6, 18]
    assert [part["output_sha256"] for part in found["models"]] == [part.output_sha256 for part in whole.parts]
    Path("mine").mkdir()
    for name in ("encoder", "decoder"):
        Path(f"recorded/{name}.npz").rename(f"mine/{name}.npz")
    own = inlay.tune([Path("encoder.onnx"), "decoder.onnx"], data="mine", out="own", min_sqnr=5, budget=None, **OPTIONS)
    assert [part.runs for part in own.parts] == [1, 1], "nobody says how often"


@pytest.mark.parametrize(
    ("models", "data", "said"),
    [
        (["encoder.onnx", "decoder.onnx"], None, "several models: give --data FOLDER with the samples of each"),
        (["encoder.onnx", "decoder.onnx"], "recorded/encoder.npz", "several models: give --data FOLDER"),
        (["encoder.onnx", "other/encoder.onnx"], "recorded", "recorded: two models have the name encoder"),
        (["encoder.onnx", "gone.onnx"], "recorded", "recorded, model gone: gone.onnx: no such file"),
        (["encoder.onnx", "third.onnx"], "recorded", "recorded, model third: it has no data"),
    ],
)
def test_several_files_that_do_not_fit_together(models: list[str], data: str | None, said: str) -> None:
    onnx.save(small_model(), "third.onnx")
    with pytest.raises(InlayError) as caught:
        inlay.tune(models, data=data, out="out", budget=None, **OPTIONS)
    assert said in str(caught.value)
    with pytest.raises(UsageError, match="a dry run looks at one model"):
        api.dry_run(models)


def test_a_model_that_takes_next_to_no_time_is_left_as_given() -> None:
    changed(seconds=1e-9)
    found = inlay.tune("recorded/other.yaml", out="out", **OPTIONS, budget=None, min_sqnr=5)
    assert found.parts[1].origin == "original"
    assert found.parts[1].folder is None
    assert any("decoder: left as given" in note for note in found.notes)
    assert Path("out/pipeline/decoder.onnx").read_bytes() == Path("decoder.onnx").read_bytes()


def test_weights_beside_models_get_files_of_their_own() -> None:
    """Two models whose weights lie in files of one name go into one folder."""
    feed = {"x": np.ones((1, 32), np.float32)}
    for factor, name in enumerate(("a", "b"), 1):
        Path(name).mkdir()
        weight = onnx.numpy_helper.from_array(np.full((32, 32), factor, np.float32), "w")
        x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 32]) for n in "xy")
        graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, f"{name}/m.onnx", save_as_external_data=True, location="w.data", size_threshold=0)
        placed(Path(f"{name}/m.onnx"), Path(f"all/{name}.onnx"))
    assert sorted(p.name for p in Path("all").iterdir()) == ["a.onnx", "a.onnx.data", "b.onnx", "b.onnx.data"]
    for factor, name in enumerate(("a", "b"), 1):
        assert (ort.InferenceSession(f"all/{name}.onnx").run(None, feed)[0] == 32 * factor).all()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model": "gone.onnx"}, "model decoder: recorded/gone.onnx: no such file"),
        ({"data": None}, "give its data as text"),
        ({"data": "gone.npz"}, "recorded/gone.npz: no such file"),
        ({"name": "pipeline"}, "a model cannot have the name pipeline"),
    ],
)
def test_what_is_missing_is_one_line(values: dict[str, Any], said: str, run: RunCommand) -> None:
    code, out, err = run("tune", changed(**values), "-o", "out", "--target", "null")
    assert (code in (1, 2), out, err.count("\n")) == (True, "", 1)
    assert said in err
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"data": "x.npz"}, "--data: recorded/pipeline.yaml has several models"),
        ({"bind": ["n=3"]}, "--bind: recorded/pipeline.yaml has several models"),
        ({"target": ["null", "ort-cpu"]}, "give one target for a pipeline"),
        ({"budget": "1s"}, "encoder: the budget left no time for it"),
    ],
)
def test_options_that_mean_nothing_here(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InlayError) as caught:
        tuned(**options)
    assert said in str(caught.value)
    assert isinstance(caught.value, UsageError | ModelError)

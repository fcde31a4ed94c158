"""What a model is, and what a run would do, before there is one; and the events of a run, for programs."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import onnx
import pytest

import inlay
from inlay.data import input_specs, read_samples
from inlay.model.load import load
from inlay.testing.models import residual_model, small_model
from tests.support.command_line import FAST, RunCommand, failed
from tests.support.fixtures import SaveModel


def test_a_model_is_shown_within_80_columns(run: RunCommand, save: SaveModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run("inspect", save(residual_model()), "--target", "null")
    assert code == 0, err
    assert "input " in out
    assert "Conv" in out
    assert "np.savez" in out
    assert max(map(len, out.splitlines()[1:])) <= 80


def test_it_says_the_same_as_json(run: RunCommand, save: SaveModel) -> None:
    code, out, err = run("inspect", save(residual_model()), "--target", "null", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert sum(n["units"] for n in found["quantizable"]["operators"].values()) <= sum(found["operators"].values())
    assert any(n["quantizable"] for n in found["quantizable"]["operators"].values())
    assert found["trouble"] == ""


@pytest.mark.parametrize("type_of_inputs", [onnx.TensorProto.FLOAT, onnx.TensorProto.STRING])
@pytest.mark.parametrize("first", [1, 2, "batch"])
def test_the_template_writes_samples_that_fit(
    save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, type_of_inputs: int, first: int | str
) -> None:
    """Also for an input whose first axis has a size of its own, as the state of a recurrent net has."""
    model = small_model()
    x, state = model.graph.input[0].type.tensor_type, model.graph.input.add(name="state")
    x.elem_type = type_of_inputs
    shape = (first, "b", 4)
    state.type.CopyFrom(onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, shape))
    path = save(model)
    program = tmp_path / "samples.py"
    program.write_text(inlay.inspect(path, target="null").template)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(program))
    samples = read_samples(tmp_path / "samples.npz", input_specs(load(path).model))
    assert len(samples) == 16
    assert all(array.size for array in samples.feeds[0].values())


def test_a_model_that_does_not_run_is_shown_with_the_reason(run: RunCommand, save: SaveModel) -> None:
    model = small_model()
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    code, out, err = run("inspect", save(model), "--target", "null")
    assert code == 0, err
    assert "can run in INT8" in out, "of any height, a plausible one is tried"
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.STRING
    code, out, err = run("inspect", save(model), "--target", "null")
    assert code == 0, err
    said = " ".join(out.split())
    assert "takes text, of which none is made up: inlay tune MODEL --data SAMPLES --dry-run says it" in said
    assert "DID NOT RUN" not in said, "sizes are not to blame"
    failed(run("inspect", save(model).with_name("none.onnx")), 1, "none.onnx")


@pytest.mark.exhaustive
def test_a_dry_run_says_what_would_be_tried_and_writes_nothing(
    run: RunCommand, save: SaveModel, tmp_path: Path
) -> None:
    path, out = save(residual_model()), tmp_path / "out"
    code, text, err = run("tune", path, "-o", out, *FAST, "--dry-run", "--budget", "60s")
    assert code == 0, err
    assert not out.exists()
    assert {p.name for p in tmp_path.iterdir()} == {path.name}
    assert "The budget of 60 s" in text
    code, _, err = run("tune", path, "-o", out, *FAST)
    assert code == 0, err
    tried = {a["name"] for a in json.loads((out / "result.json").read_text())["anchors"]} - {"original"}
    assert tried
    assert all(f"  {name} " in text for name in tried)


@pytest.mark.exhaustive
def test_each_event_is_a_line_of_json(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    path, log = save(residual_model()), tmp_path / "log.jsonl"
    code, _, err = run("tune", path, "-o", tmp_path / "out", *FAST, "--json-log", log)
    assert code == 0, err
    events = [json.loads(line) for line in log.read_text(encoding="utf8").splitlines()]
    assert [e["s"] for e in events] == sorted(e["s"] for e in events)
    assert {e["event"] for e in events} == {"stage", "trial", "result"}
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert events[-1]["event"] == "result"
    assert events[-1]["result"]["best"] == result["best"]
    timed = [e for e in events if e["event"] == "trial" and e["outcome"] == "measured"]
    assert timed
    assert all(e["speedup"] > 0 and e["latency_ms"] > 0 for e in timed)


@pytest.mark.parametrize(
    ("command", "option", "place"),
    [
        ("tune", "-o", "o/recipe.yaml"),
        ("tune", "--json-log", "o.yaml"),
        ("quantize", "-o", "o.yaml"),
        ("quantize", "-o", "o.onnx.data"),
        ("export", "--to", "o.yaml"),
        ("select", "--to", "o.yaml"),
    ],
)
def test_no_output_is_the_file_of_options(
    run: RunCommand, save: SaveModel, tmp_path: Path, command: str, option: str, place: str
) -> None:
    config = tmp_path / place
    config.parent.mkdir(exist_ok=True)
    config.write_text("{}\n", encoding="utf8")
    output = config.parent if place.startswith("o/") else config.with_suffix("") if config.suffix == ".data" else config
    required = {"tune": FAST, "export": ("--as", "csv"), "select": ("--fastest",)}.get(command, ())
    more = ("-o", tmp_path / "run") if option == "--json-log" else ()
    result = run(command, save(residual_model()), *required, *more, option, output, "--config", config)
    failed(result, 2, "would overwrite")
    assert config.read_text(encoding="utf8") == "{}\n"


def test_a_log_does_not_overwrite_the_model(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    path = save(residual_model())
    before = path.read_bytes()
    failed(run("tune", path, "-o", tmp_path / "out", *FAST, "--json-log", path), 2, "would overwrite")
    assert path.read_bytes() == before

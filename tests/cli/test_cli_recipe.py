"""Recipes on the command line: quantize --recipe --explain, tune --recipe, and the recipe that tune writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml

from inlay.model.load import load
from inlay.quant.extract import extract
from inlay.space.recipe_file import load_recipe
from inlay.testing import Builder
from tests.support.branches import branches
from tests.support.command_line import RunCommand, failed
from tests.support.fixtures import SaveModel

HEAD = "inlay-recipe: 1\nrules:\n"


@pytest.fixture
def model(save: SaveModel) -> Path:
    return save(branches())


def ports(path: Path) -> set[str]:
    return {str(p) for p, _ in extract(load(path).model).placement}


def test_quantize_explains_every_node(model: Path, tmp_path: Path, run: RunCommand) -> None:
    (tmp_path / "r.yaml").write_text(HEAD + "- {global: int}\n- {name: 'left*', config: float}\n")
    options = ("--recipe", tmp_path / "r.yaml", "--explain")
    code, out, _ = run("quantize", model, "-o", tmp_path / "q.onnx", *options)
    assert code == 0
    assert all(node.name in out for node in onnx.load(model).graph.node)
    assert "set_name('left*', float)" in out
    assert "the recipe keeps it float" in out
    assert "left[0]" not in ports(tmp_path / "q.onnx") or "left[1]" not in ports(tmp_path / "q.onnx")
    assert "right[1]" in ports(tmp_path / "q.onnx")


@pytest.mark.parametrize("name", ["full-int8", "conv-matmul"])
def test_builtin_names(model: Path, tmp_path: Path, name: str, run: RunCommand) -> None:
    assert run("quantize", model, "-o", tmp_path / "q.onnx", "--recipe", name).code == 0
    assert ("pool[0]" in ports(tmp_path / "q.onnx")) == (name == "full-int8")


def test_mistakes_are_one_line(model: Path, tmp_path: Path, run: RunCommand) -> None:
    (tmp_path / "r.yaml").write_text(HEAD + "- {name: lefd, config: float}\n")
    quantize = ("quantize", model, "-o", tmp_path / "q.onnx", "--recipe")
    failed(run(*quantize, tmp_path / "r.yaml"), 2, "did you mean left")
    failed(run(*quantize, "full-int9"), 2, "full-int8, conv-matmul")


@pytest.mark.exhaustive
def test_tune_keeps_to_the_recipe_and_writes_one(model: Path, tmp_path: Path, run: RunCommand) -> None:
    (tmp_path / "r.yaml").write_text(HEAD + "- {name: 'left*', config: float}\n")
    options = ("--target", "null", "--no-bound", "--max-measurements", "6", "-q")
    assert run("tune", model, "-o", tmp_path / "out", "--recipe", tmp_path / "r.yaml", *options).code == 0
    best = json.loads((tmp_path / "out" / "result.json").read_text())["best"]
    written = tmp_path / "out" / "recipe.yaml"
    assert load_recipe(written).rules
    delivered = ports(tmp_path / "out" / "model.onnx")
    assert "left[1]" not in delivered
    assert best["is_float"] == (not delivered)
    again = ("--target", "null", "--recipe", written)
    assert run("quantize", model, "-o", tmp_path / "again.onnx", *again).code == 0
    assert ports(tmp_path / "again.onnx") == delivered


def test_an_operator_that_is_quantized_at_run_time_is_counted(save: SaveModel, tmp_path: Path, run: RunCommand) -> None:
    """It has no row in the table of static operators, so it must not be counted as refused either."""
    b = Builder()
    shapes = {"w": (1, 32, 6), "r": (1, 32, 8), "b": (1, 64)}
    weights = [b.constant(n, b.rng.normal(0, 0.2, s).astype(np.float32)) for n, s in shapes.items()]
    b.output(b.node("cell", "LSTM", [b.input("x", (5, 1, 6)), *weights], hidden_size=8))
    options = ("--recipe", "dynamic", "--target", "ort-cpu")
    code, out, _ = run("quantize", save(b.model()), "-o", tmp_path / "q.onnx", *options)
    assert code == 0
    assert "1 of 1 operator in" in out
    assert "has no low-precision form" not in out


@pytest.mark.exhaustive
def test_a_recipe_that_was_tuned_elsewhere_is_told(model: Path, tmp_path: Path, run: RunCommand) -> None:
    """Nothing where all is equal; with another processor and another number of threads, both, and what to do."""
    out, written = tmp_path / "out", tmp_path / "q.onnx"
    tuned = ("tune", model, "--budget", "20s", "--strategy", "anchors", "--no-bound", "--target", "null")
    assert run(*tuned, "--out", out).code == 0
    recipe = out / "recipe.yaml"
    data = yaml.safe_load(recipe.read_text())
    assert data["tuned-for"]["target"] == "null"

    def said(*more: object) -> tuple[str, str]:
        options = ("quantize", model, "-o", written, "--target", "null", "--recipe", recipe, *more)
        shown, listed = run(*options), run(*options, "--json")
        assert (shown.code, listed.code) == (0, 0)
        return shown.out, json.loads(listed.out)["warning"]

    text, warning = said()
    assert warning == ""
    assert "tuned for" not in text
    recipe.write_text(yaml.safe_dump({**data, "tuned-for": {**data["tuned-for"], "cpu": "Z80", "threads": 7}}))
    text, warning = said()
    assert "the recipe is tuned for cpu Z80, threads 7; this is cpu unknown, threads unknown: " in warning
    assert "inlay bench" in warning
    assert warning in " ".join(text.split())
    assert "tuned for cpu Z80, threads 7" in run(*tuned, "--out", tmp_path / "again", "--recipe", recipe).out
    recipe.write_text(yaml.safe_dump({**data, "tuned-for": {"target": "other", "cpu": "Z80"}}))
    assert "tuned for target other; this is target null: " in said()[1]


def test_a_recipe_by_hand_says_nothing_of_machines(model: Path, tmp_path: Path, run: RunCommand) -> None:
    (tmp_path / "r.yaml").write_text(HEAD + "- {global: int}\n")
    found = run("quantize", model, "-o", tmp_path / "q.onnx", "--recipe", tmp_path / "r.yaml", "--json")
    assert found.code == 0
    told = json.loads(found.out)
    assert told["warning"] == ""
    assert {d["node"] for d in told["decisions"]} == {n.name for n in onnx.load(model).graph.node}
    (tmp_path / "r.yaml").write_text(HEAD + "- {global: int}\ntuned-for: here\n")
    failed(run("quantize", model, "-o", tmp_path / "q.onnx", "--recipe", tmp_path / "r.yaml"), 2, "tuned-for is 'here'")

"""Recipes on the command line: quantize --recipe --explain, tune --recipe, and the recipe that tune writes."""

from __future__ import annotations

import json

import onnx
import pytest

from inlay.cli import commands as cli
from inlay.quant.extract import extract
from inlay.space.recipe_file import load_recipe
from tests.support.branches import branches

HEAD = "inlay-recipe: 1\nrules:\n"


def inlay(*words):
    return cli.run(lambda: cli.app([str(w) for w in words], standalone_mode=False))


@pytest.fixture
def model(tmp_path):
    onnx.save(branches(), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def ports(path):
    from inlay.model.load import load

    return {str(p) for p, _ in extract(load(path).model).placement}


def test_quantize_explains_every_node(model, tmp_path, capsys) -> None:
    (tmp_path / "r.yaml").write_text(HEAD + "- {global: int}\n- {name: 'left*', config: float}\n")
    assert inlay("quantize", model, "-o", tmp_path / "q.onnx", "--recipe", tmp_path / "r.yaml", "--explain") == 0
    text = capsys.readouterr().out
    rows = {line.split()[0]: line for line in text.splitlines() if line.strip()}
    for node in onnx.load(model).graph.node:
        assert node.name in rows
    assert "set_name('left*', float)" in rows["left"]
    assert "the recipe keeps it float" in rows["left"]
    assert "left[0]" not in ports(tmp_path / "q.onnx") or "left[1]" not in ports(tmp_path / "q.onnx")
    assert "right[1]" in ports(tmp_path / "q.onnx")


@pytest.mark.parametrize("name", ["full-int8", "conv-matmul"])
def test_builtin_names(model, tmp_path, name) -> None:
    assert inlay("quantize", model, "-o", tmp_path / "q.onnx", "--recipe", name) == 0
    assert ("pool[0]" in ports(tmp_path / "q.onnx")) == (name == "full-int8")


def test_mistakes_are_one_line(model, tmp_path, capsys) -> None:
    (tmp_path / "r.yaml").write_text(HEAD + "- {name: lefd, config: float}\n")
    assert inlay("quantize", model, "-o", tmp_path / "q.onnx", "--recipe", tmp_path / "r.yaml") == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "did you mean left" in error
    assert inlay("quantize", model, "-o", tmp_path / "q.onnx", "--recipe", "full-int9") == 2
    assert "full-int8, conv-matmul" in capsys.readouterr().err


def test_tune_keeps_to_the_recipe_and_writes_one(model, tmp_path) -> None:
    (tmp_path / "r.yaml").write_text(HEAD + "- {name: 'left*', config: float}\n")
    options = ("--target", "null", "--no-bound", "--max-measurements", "6", "-q")
    assert inlay("tune", model, "-o", tmp_path / "out", "--recipe", tmp_path / "r.yaml", *options) == 0
    best = json.loads((tmp_path / "out" / "result.json").read_text())["best"]
    written = tmp_path / "out" / "recipe.yaml"
    assert load_recipe(written).rules
    delivered = ports(tmp_path / "out" / "model.onnx")
    assert "left[1]" not in delivered
    assert best["is_float"] == (not delivered)
    again = ("--target", "null", "--recipe", written)
    assert inlay("quantize", model, "-o", tmp_path / "again.onnx", *again) == 0
    assert ports(tmp_path / "again.onnx") == delivered

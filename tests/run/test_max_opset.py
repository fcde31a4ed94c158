"""Models for runtimes that know no newer opset: what needs one is left out, and who asks for it is told."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

import inlay
from inlay.errors import UsageError
from inlay.model.load import file_sha256
from inlay.types import QType
from tests.support.fixtures import SaveModel
from tests.support.texts import encoder, texts

LENGTH = 12


@pytest.fixture
def given(save: SaveModel) -> Path:
    return save(encoder(1, LENGTH))


def opset_and_operators(path: Path) -> tuple[int, set[str]]:
    model = onnx.load(path, load_external_data=False)
    return next(o.version for o in model.opset_import if o.domain == ""), {n.op_type for n in model.graph.node}


@pytest.mark.exhaustive
def test_quantize_keeps_the_opset(given: Path, tmp_path: Path) -> None:
    samples = texts([LENGTH] * 3)
    inlay.quantize(given, tmp_path / "any.onnx", data=samples, recipe="dynamic")
    opset, operators = opset_and_operators(tmp_path / "any.onnx")
    assert opset > 17, "the control"
    assert "Attention" in operators
    inlay.quantize(given, tmp_path / "old.onnx", data=samples, recipe="dynamic", max_opset=17)
    opset, operators = opset_and_operators(tmp_path / "old.onnx")
    assert opset == 17
    assert "Attention" not in operators
    assert "Softmax" in operators


@pytest.mark.exhaustive
def test_a_run_and_what_is_selected_from_it_keep_the_opset(given: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = inlay.tune(
        given, out=out, data=texts([LENGTH] * 6), strategy="anchors", budget=30, max_opset=17, cost_db=False
    )
    assert not any("/" in anchor.name for anchor in result.anchors), "no weights in blocks"
    assert "--max-opset 17" in result.command
    fast = inlay.select(out, to=tmp_path / "fast.onnx", fastest=True)
    assert opset_and_operators(tmp_path / "fast.onnx")[0] == 17
    assert opset_and_operators(out / "model.onnx")[0] == 17
    if fast.origin == result.best.origin:
        assert file_sha256(tmp_path / "fast.onnx") == result.best.output_sha256


@pytest.mark.parametrize("name", ["int4", "int8"])
def test_a_recipe_that_needs_more_is_refused_in_one_line(name: str, given: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "rules.yaml"
    rule = f"{{op_type: MatMul, config: {{weight: {name}, block: 32}}}}"
    recipe.write_text(f"inlay-recipe: 1\nrules:\n  - {rule}\n", encoding="utf8")
    with pytest.raises(UsageError, match=rf"weight-only {name}/32 needs opset 21, and --max-opset is 17"):
        inlay.quantize(given, tmp_path / "o.onnx", data=texts([LENGTH]), recipe=recipe, max_opset=17)
    assert not (tmp_path / "o.onnx").exists()


def test_a_type_that_needs_more_is_refused(given: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--quant-type uint16: uint16 needs opset 21, and --max-opset is 17"):
        inlay.quantize(given, tmp_path / "o.onnx", data=texts([LENGTH]), quant_type="uint16", max_opset=17)
    assert QType.UINT16.opset == 21


def test_no_opset_is_lowered(given: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--max-opset 15: .* is in opset 17, and no opset is lowered"):
        inlay.quantize(given, tmp_path / "o.onnx", data=texts([LENGTH]), max_opset=15)
    with pytest.raises(UsageError, match="13"):
        inlay.quantize(given, tmp_path / "o.onnx", data=texts([LENGTH]), max_opset=12)

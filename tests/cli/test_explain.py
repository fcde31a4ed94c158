"""What ``inlay explain`` prints: 80 columns for people, stable keys for programs, one line for what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inlay.testing import Builder, residual_model
from tests.support.command_line import RunCommand, failed
from tests.support.fixtures import SaveModel
from tests.support.hand_written_qdq import insert_qdq_everywhere

NULL = ("--target", "null")


def test_text_fits_80_columns_without_colour_and_names_what_is_wrong(
    run: RunCommand, save: SaveModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    b = Builder()
    y = b.conv("a_convolution_with_a_name_that_is_longer_than_a_line_of_text_should_be", b.input("x", (1, 3, 8, 8)), 4)
    b.output(b.node("tanh", "Tanh", [y]))
    b.output(y)
    done = run("explain", save(insert_qdq_everywhere(b.model())), *NULL, "--all")
    assert done.code == 0, done.err
    assert all(len(t) <= 80 or len(t.split()) == 1 for t in done.out.splitlines()), "but for names"
    assert "\x1b" not in done.out
    assert "Tanh has no low-precision form" in " ".join(done.out.split())


def test_json_has_stable_keys(run: RunCommand, save: SaveModel) -> None:
    model = save(insert_qdq_everywhere(residual_model()))
    found = json.loads(run("explain", model, *NULL, "--json").out)
    assert {"target", "latency_ms", "lost_ms", "operators", "waste", "accuracy", "bound", "notes"} <= found.keys()
    for operator in found["operators"]:
        assert {"name", "op_type", "precision", "kernel", "reason", "reasons", "cost_ms"} <= operator.keys()
    for row in found["waste"]:
        assert {"kind", "value", "nodes", "cost_ms"} <= row.keys()
    assert found["kernels_ms"] > 0


def test_mistakes_are_one_line(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    model = save(residual_model())
    failed(run("explain", model, "--target", "nothing"), 2, "installed are")
    failed(run("explain", model, *NULL, "--budget", "soon"), 2, "--budget soon")
    text = tmp_path / "text.onnx"
    text.write_text("no model")
    failed(run("explain", text, *NULL), 1, "text.onnx")


def test_functions_keep_their_names_beside_rooms_that_are_called_alike() -> None:
    import inlay.autotune
    import inlay.explanation.policy
    import inlay.patterns.tree

    assert callable(inlay.explain)
    assert callable(inlay.autotune.regions)

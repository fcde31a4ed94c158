"""The card: figures as in the result, no markup out of a model, no folder of whoever made it, nobody's README lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inlay
from inlay.errors import JournalError, UsageError
from inlay.report.card import _unplaced
from tests.report.conftest import HOSTILE


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def renamed(run: Path, path: str) -> None:
    """Have the run be one of a model at another path."""
    result = json.loads((run / "result.json").read_text())
    result["model"]["path"] = path
    result["notes"] = [f"{path} is odd", *HOSTILE]
    (run / "result.json").write_text(json.dumps(result))


def parsed(card: Path) -> list[Any]:
    markdown = pytest.importorskip("markdown_it", reason="markdown-it-py is not installed (extra docs)")
    _, metadata, body = card.read_text().split("---\n", 2)
    assert "quantized" in metadata
    tokens = markdown.MarkdownIt("commonmark").enable("table").parse(body)
    return [token for each in tokens for token in (each, *(each.children or ()))]


def test_it_says_what_the_result_says(run: Path) -> None:
    result, found = json.loads((run / "result.json").read_text()), json.loads(inlay.card(run, form="json").read_text())
    best = result["best"]
    assert found["file"]["sha256"] == best["output_sha256"]
    assert found["latency"]["speedup_low"] == best["speedup_low"]
    assert np.isclose(found["given"]["latency_ms"] / found["latency"]["ms"], best["speedup"])
    assert found["accuracy"]["bound"] == result["bound"]
    assert not any("estimates" in each for each in found["not_measured"])
    shown = inlay.card(run).read_text()
    assert best["output_sha256"] in shown
    assert f"| Q/DQ pairs | {best['qdq_pairs']} |" in shown


def test_what_was_not_measured_is_said(run: Path) -> None:
    """An estimate, too few samples and a figure that is missing, each by itself."""
    changes: list[tuple[tuple[str, ...], Any, Any, str]] = [
        (("target", "facts", "kind"), None, "estimate", "the figures are estimates"),
        (("best", "confirmed"), True, False, "again in fresh processes"),
        (("data", "kind"), "npz", "random", "there were none"),
        (("best", "bound_note"), "", "9 more samples would show it", "9 more samples"),
        (("not_timed",), [], ["full-int8"], "the usual recipes full-int8"),
        (("best", "memory_bytes"), 9, None, "the memory"),
    ]
    kept = (run / "result.json").read_text()
    for keys, otherwise, value, words in changes:
        result = json.loads(kept)
        place = result
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = otherwise
        (run / "result.json").write_text(json.dumps(result))
        assert words not in str(json.loads(inlay.card(run, form="json").read_text())["not_measured"])
        place[keys[-1]] = value
        (run / "result.json").write_text(json.dumps(result))
        assert words in str(json.loads(inlay.card(run, form="json").read_text())["not_measured"])


def test_nothing_in_it_is_markup_of_a_stranger_or_a_folder_of_its_maker(run: Path) -> None:
    renamed(run, "/home/somebody/secret/a|b](x)<b>_m_.onnx")
    tokens = parsed(inlay.card(run))
    kinds = [token.type for token in tokens]
    assert [token.content for token in tokens if token.type == "html_block"] == ["<!-- written by inlay card -->\n"]
    assert not {"html_inline", "link_open", "image", "em_open"} & set(kinds)
    assert any("a|b](x)<b>_m_" in token.content for token in tokens if token.type == "text"), "it is shown as it is"
    for form in ("markdown", "json"):
        assert "somebody" not in inlay.card(run, form=form).read_text()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("/home/a/b.onnx is odd", "b.onnx is odd"),
        ("~/x/c.npz: no", "c.npz: no"),
        (r"C:\Users\me\d.onnx", "d.onnx"),
        ("12 GMAC/s and 3.5 n/a", "12 GMAC/s and 3.5 n/a"),
        ("100.0 % (135 of 135)", "100.0 % (135 of 135)"),
    ],
)
def test_paths_give_way_to_names(text: str, said: str) -> None:
    assert _unplaced(text) == said


def test_a_file_that_was_not_measured_gets_no_card(run: Path) -> None:
    with (run / "model.onnx").open("ab") as file:
        file.write(b"\0")
    for form in ("markdown", "json"):
        with pytest.raises(JournalError, match="not the file that was measured"):
            inlay.card(run, form=form)
    assert not (run / "README.md").exists()


def test_a_readme_of_somebody_is_kept_and_a_card_is_replaced(run: Path) -> None:
    assert inlay.card(run).read_text() == inlay.card(run).read_text()
    (run / "README.md").write_text("# mine")
    with pytest.raises(UsageError, match="was not written by inlay card"):
        inlay.card(run)
    assert (run / "README.md").read_text() == "# mine"


def test_another_format_is_refused(run: Path) -> None:
    with pytest.raises(UsageError, match=r"--format html: give markdown or json"):
        inlay.card(run, form="html")

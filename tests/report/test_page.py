"""The page of a finished run: what stands in it, that nothing of it is taken for markup, and that it loses no run."""

from __future__ import annotations

import html.parser
import itertools
import json
import shlex
import shutil
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import inlay
from inlay.cli import commands
from inlay.errors import JournalError, UsageError
from inlay.prepare.declare import command_line, declared
from inlay.report.drawing import layers_of, positions
from inlay.report.folder import read_run
from inlay.report.kernels import scale, unit_rows
from inlay.report.page import bars
from inlay.report.points import front, select_lines
from tests.report.conftest import HOSTILE, chain_model, feeds

HALF = '{"best": {"speedup": 1}, "model": {"path": 3}, "baseline": {"latency_ms": "x"}}'
"""A result.json of which the greater part is missing."""


class Page(html.parser.HTMLParser):
    """Elements with their attributes, and the text of each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open:
            self.text.setdefault(self._open[-1], []).append(data)


@pytest.fixture(scope="module")
def page(finished: Path) -> Page:
    return Page((finished / "report.html").read_text(encoding="utf8"))


def data_of(page: Page, name: str) -> Any:
    texts = iter(page.text["script"])
    scripts = [attrs for tag, attrs in page.elements if tag == "script"]
    return next(json.loads(text) for attrs, text in zip(scripts, texts, strict=True) if attrs.get("id") == name)


def test_a_run_ends_with_its_report(page: Page) -> None:
    sections = {str(attrs["id"]) for tag, attrs in page.elements if tag == "section"}
    assert sections == {"verdict", "front", "graph", "kernels", "units", "search", "accuracy", "again"}
    (verdict,) = (attrs for _, attrs in page.elements if attrs.get("class") == "verdict")
    assert verdict is not None


def test_kernel_times_add_up_to_the_measured_latency_however_slow_a_profile_was(finished: Path) -> None:
    """A profile is of one moment: beside the latencies it would tell another story. The null target's is exact."""
    run = read_run(finished)
    assert run.evidence is not None
    slow = {key: [replace(k, ns=3.0 * k.ns) for k in kernels] for key, kernels in run.profiles.items()}
    usual, found = bars(run, run.evidence), bars(replace(run, profiles=slow), run.evidence)
    latency = {a["name"]: a["latency_ms"] for a in run.result["anchors"]}
    assert len(found) >= 2
    for before, bar in zip(usual, found, strict=True):
        assert bar.measured
        assert bar.total == pytest.approx(before.total)
        assert sum(bar.parts.values()) == pytest.approx(bar.total)
        assert bar.profiled == pytest.approx(3.0 * before.profiled), "what the profile said stands beside"
        if bar.name in latency:
            assert bar.total == pytest.approx(latency[bar.name] * 1e6)
    assert found[-1].total == pytest.approx(run.result["best"]["latency_ms"] * 1e6)
    rows, scaled = unit_rows(run, run.evidence), unit_rows(replace(run, profiles=slow), run.evidence)
    assert [r.ns for r in scaled] == pytest.approx([r.ns for r in rows])
    assert scale(run, "unknown") is None, "negative control: there is nothing to scale by"


def test_nothing_is_loaded_from_elsewhere(page: Page) -> None:
    for tag, attrs in page.elements:
        for key in ("src", "href", "action", "data", "poster", "srcset"):
            value = attrs.get(key)
            assert value is None or value.startswith(("#", "data:")), (tag, key, value)
    assert "@import" not in "".join(page.text["style"])
    assert "url(" not in "".join(page.text["style"])


def test_names_of_a_model_are_text(page: Page) -> None:
    own = {"alert", "img"}
    assert not [tag for tag, _ in page.elements if tag in own]
    assert not [a for _, attrs in page.elements for a in attrs if a.startswith("on")]
    names = {row[0] for row in data_of(page, "graph-data")["nodes"]}
    assert set(HOSTILE) <= names, "they are shown as they are, not left out"
    assert set(HOSTILE) <= set(page.text["th"])


def test_the_graph_is_the_models(page: Page) -> None:
    graph = data_of(page, "graph-data")
    assert [n[1] for n in graph["nodes"]].count("Conv") == 6
    layer = [n[2] for n in graph["nodes"]]
    assert graph["edges"], "it has edges"
    assert all(layer[a] < layer[b] for a, b, *_ in graph["edges"])
    regions = {r[0] for r in graph["regions"]}
    assert {n[-1] for n in graph["nodes"]} - {-1} <= regions


def test_every_select_line_writes_the_model_it_stands_at(finished: Path, tmp_path: Path) -> None:
    run = read_run(finished)
    lines = select_lines(run)
    assert len(lines) > 1, "there is something to choose"
    digests = {t.candidate: t.placement_digest for t in run.trials}
    for key, line in lines.items():
        words = shlex.split(line)
        assert words[:3] == ["inlay", "select", str(finished)]
        done = inlay.select(
            finished, to=tmp_path / "selected.onnx", min_sqnr=float(words[words.index("--min-sqnr") + 1])
        )
        assert done.placement_digest == digests[key]


def test_what_cannot_be_selected_has_no_line(finished: Path) -> None:
    chart = front(read_run(finished))
    dominated = [m for m in chart.marks if not m.command]
    assert dominated
    assert {m.shape for m in chart.marks} >= {"best", "anchor"}


def test_a_report_is_made_again_of_the_folder_alone(finished: Path, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    shutil.copytree(finished, moved)
    (moved / "report.html").unlink()
    assert inlay.write_report(moved) == moved / "report.html"
    text = (moved / "report.html").read_text(encoding="utf8")
    assert text.replace(str(moved), str(finished)) == (finished / "report.html").read_text(encoding="utf8")


def test_an_older_run_has_a_report_without_a_graph(finished: Path, tmp_path: Path) -> None:
    moved = tmp_path / "old"
    shutil.copytree(finished, moved)
    with sqlite3.connect(moved / "run.sqlite") as db:
        db.execute("DELETE FROM facts WHERE key = 'evidence'")
    db.close()
    result = json.loads((moved / "result.json").read_text())
    del result["command"]
    (moved / "result.json").write_text(json.dumps(result))
    inlay.write_report(moved)
    assert "has no graph" in (moved / "report.html").read_text(encoding="utf8")


@pytest.mark.parametrize(
    "damage",
    [
        lambda out: (out / "result.json").unlink(),
        lambda out: (out / "result.json").write_text("[]"),
        lambda out: (out / "result.json").write_text(HALF),
        lambda out: (out / "run.sqlite").unlink(),
        lambda out: (out / "run.sqlite").write_bytes(b"nothing"),
    ],
)
def test_a_damaged_folder_is_one_error(finished: Path, tmp_path: Path, damage: Any) -> None:
    moved = tmp_path / "damaged"
    shutil.copytree(finished, moved)
    damage(moved)
    with pytest.raises(JournalError):
        inlay.write_report(moved)


@pytest.mark.exhaustive
def test_a_report_that_cannot_be_written_is_a_note(tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "report.html").mkdir(parents=True)
    model = chain_model(tmp_path / "m.onnx", count=2)
    result = inlay.tune(model, out=out, target="null", data=feeds(6), max_measurements=1, cost_db=False)
    assert (out / "model.onnx").is_file()
    assert any("there is no report.html" in note for note in result.notes)


def test_the_command_says_what_was_asked(finished: Path) -> None:
    command = json.loads((finished / "result.json").read_text())["command"]
    words = shlex.split(command)
    assert words[:2] == ["inlay", "tune"]
    assert "--min-sqnr 20" in command
    assert "--no-cost-db" in words
    assert "--seed" not in words, "defaults are left out"


def test_a_command_line_quotes_and_repeats() -> None:
    values = {name: p.default for name, p in declared(inlay.tune).items()}
    values |= {"model": Path("my model.onnx"), "bind": {"n": 2}, "nodes": ("a*", "b"), "data": [np.zeros(1)]}
    line = command_line(inlay.tune, values)
    assert line == "inlay tune 'my model.onnx' --data <list> --bind n=2 --nodes 'a*' --nodes b"


def test_the_command_writes_a_report(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands.app(["report", str(finished)], standalone_mode=False)
    assert str(finished / "report.html") in capsys.readouterr().out


# --- the drawing -----------------------------------------------------------------------------------------------------


def test_layers_go_down_along_edges_and_nodes_of_a_layer_keep_apart() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        count = int(rng.integers(2, 60))
        pairs = [tuple(sorted(rng.choice(count, 2, replace=False).tolist())) for _ in range(2 * count)]
        edges = [(a, b) for a, b in pairs]
        layer = layers_of(count, edges)
        assert all(layer[a] < layer[b] for a, b in edges)
        x = positions(layer, edges)
        assert min(x) == 0.0
        for at in set(layer):
            row = sorted(x[i] for i in range(count) if layer[i] == at)
            assert all(b - a > 0.98 for a, b in itertools.pairwise(row))


def test_a_chain_is_a_straight_line() -> None:
    edges = [(i, i + 1) for i in range(9)]
    layer = layers_of(10, edges)
    assert layer == list(range(10))
    assert set(positions(layer, edges)) == {0.0}


def test_a_wish_that_no_line_names_is_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        inlay.select(finished, to=tmp_path / "x.onnx", min_sqnr=250.0, max_size=1)


def test_of_points_that_cover_each_other_the_delivered_one_lies_on_top(finished: Path) -> None:
    """A point below another cannot be chosen with a pointer: what is drawn later lies on top."""
    marks = front(read_run(finished)).marks
    assert [m.shape for m in marks].index("best") == len(marks) - 1
    selectable = [bool(m.command) for m in marks[:-1]]
    assert selectable == sorted(selectable)

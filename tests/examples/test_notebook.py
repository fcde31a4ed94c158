"""The notebook of the examples: its cells run as they stand, and what it shows is of the run."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from inlay.run.notebook import InNotebook, drawn, shown, usual
from inlay.run.progress import Logged
from tests.conftest import ROOT
from tests.report.conftest import HOSTILE

NOTEBOOK = ROOT / "examples" / "notebook" / "tune.ipynb"


def cells() -> list[str]:
    found = json.loads(NOTEBOOK.read_text(encoding="utf8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def value_of(code: str, names: dict[str, Any]) -> Any:
    """Run a cell; the value of its last line, as a notebook shows it."""
    *before, last = code.rstrip().split("\n")
    try:
        shows = compile(last, "cell", "eval")
    except SyntaxError:
        exec(code, names)
        return None
    exec("\n".join(before), names)
    return eval(shows, names)


def test_every_cell_is_a_program_and_none_holds_an_error() -> None:
    found = json.loads(NOTEBOOK.read_text(encoding="utf8"))
    assert found["nbformat"] == 4
    for code in cells():
        compile(code, "cell", "exec")
    kinds = [output["output_type"] for cell in found["cells"] for output in cell.get("outputs", ())]
    assert "error" not in kinds
    assert "execute_result" in kinds, "it was executed"


@pytest.mark.exhaustive
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "examples" / "digits", tmp_path / "digits")
    (tmp_path / "notebook").mkdir()
    monkeypatch.chdir(tmp_path / "notebook")
    names: dict[str, Any] = {}
    values = []
    with contextlib.redirect_stdout(io.StringIO()):
        for code in cells():
            values.append(value_of(code.replace('"60s"', '"25s"'), names))
    page = values[1]._repr_html_()
    assert page.startswith("<p><b>")
    assert "full-int8" in page
    assert len(values[2]) == len(names["result"].pareto)
    count, _, of = str(values[3]).partition(" of ")
    assert int(count) >= 0.97 * int(of.split()[0]) > 0


def test_names_of_strangers_are_no_markup() -> None:
    front = [{"origin": name, "speedup": 1.0 + i, "sqnr_db": 30.0 - i} for i, name in enumerate(HOSTILE)]
    page = shown(HOSTILE[0], [HOSTILE], front, HOSTILE)
    assert "<script" not in page
    assert "<img" not in page
    assert page.count("<circle") == len(HOSTILE)


def test_a_front_of_one_is_not_drawn_and_its_ends_are_told() -> None:
    one = {"origin": "a", "speedup": 1.0, "sqnr_db": 300.0}
    assert drawn([one]) == ""
    page = drawn([{"origin": "b", "speedup": 2.5, "sqnr_db": 20.0}, one])
    assert all(text in page for text in ("1.00x", "2.50x", "20.0 dB", "exact"))
    across = [float(part.split('"')[1]) for part in page.split("<circle cx=")[1:]]
    assert across[0] > across[1], "the faster one stands further to the right"


class Line:
    def __init__(self) -> None:
        self.said: list[str] = []

    def update(self, data: dict[str, str], raw: bool) -> None:
        assert raw
        self.said.append(data["text/html"])


def test_progress_is_a_line_in_a_notebook_and_goes_to_the_log_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert type(usual()) is Logged
    line, times = Line(), iter([0.0, 0.0, 0.1, 0.2, 5.0, 5.1])
    python, display = ModuleType("IPython"), ModuleType("IPython.display")
    python.get_ipython = lambda: SimpleNamespace(kernel=None)  # type: ignore[attr-defined]
    display.display = lambda *_, **__: line  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    assert type(usual()) is Logged, "a terminal of IPython has no cells"
    python.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    assert isinstance(usual(), InNotebook)
    told = InNotebook(lambda: next(times, 6.0))
    for text in ("a <b>", "c"):
        told.stage(text)
    for text in ("d", "e", "f"):
        told.doing(text)
    assert line.said[0].startswith("<code>a &lt;b&gt;")
    assert len(line.said) < 5, "it is not redrawn all the time"

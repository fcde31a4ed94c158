"""Wings join through entry points: a run imports none by itself, and goes without those that are not installed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import inlay
from inlay import installed
from inlay.errors import UsageError
from inlay.measure import lab
from tests.support import core, house

JOINING_A_RUN = {"patterns", "report"}
"""Wings that take part in every ``tune``: a strategy, and what is made of a finished run."""


def wings_of(found: list[str]) -> set[str]:
    return {house.wing(path) for path in found} - {""}


@pytest.mark.exhaustive  # that a run goes without them is shown below in every run of the tests
def test_a_run_imports_only_the_wings_that_joined_it(tmp_path: Path) -> None:
    words = core.commands(tmp_path)
    assert wings_of(core.imported_by(words["tune"])) == JOINING_A_RUN
    assert wings_of(core.imported_by(words["quantize"])) == set()
    integers = str(tmp_path / "integers.onnx")  # by costs, float may be what is written
    core.imported_by((*words["quantize"][:2], "-o", integers, "--recipe", "full-int8"))
    assert wings_of(core.imported_by(("explain", integers))) == {"explanation"} | {
        f"targets/{name}" for name in ("command", "openvino", "ort_ep", "ort_web", "tensorrt")
    } | {"tosa"}, "a Q/DQ file may be of any target: without that the two above would prove nothing"


@pytest.mark.exhaustive
def test_a_run_goes_without_wings(tmp_path: Path) -> None:
    """A copy of the package without their folders, and without their entry points."""
    root = tmp_path / "packages" / "inlay"
    absent = {core.ROOT / wing for wing in house.WINGS}
    shutil.copytree(
        core.ROOT,
        root,
        ignore=lambda folder, names: [n for n in names if Path(folder, n) in absent or n == "__pycache__"],
    )
    kept = [
        e
        for e in _own_entry_points()
        if not house.wing(e[2].partition(":")[0].removeprefix("inlay.").replace(".", "/") + "/")
    ]
    assert {name for group, name, _ in kept} == {"null", "ort-cpu"}
    described = tmp_path / "packages" / "inlay-0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: inlay\nVersion: 0\n")
    (described / "entry_points.txt").write_text(
        "[inlay.targets]\n" + "".join(f"{name} = {value}\n" for _, name, value in kept)
    )
    environment = {**os.environ, "PYTHONPATH": str(root.parent)}
    words = core.commands(tmp_path)
    for name in ("tune", "quantize"):
        found = core.imported_by(words[name], root, environment)
        assert "api.py" in found, "it is the copy that ran"
        assert "patterns/joined.py" not in found
    assert (tmp_path / "out" / "model.onnx").is_file()
    assert (tmp_path / "out" / "result.json").is_file()
    assert not (tmp_path / "out" / "report.html").exists()
    assert (tmp_path / "q.onnx").is_file()


def test_every_name_that_a_wing_offers_is_an_entry_point() -> None:
    names = set(inlay.__all__)
    assert set(installed.joined(installed.NAMES)) <= names
    for name in names:
        assert getattr(inlay, name) is not None
    assert names <= set(dir(inlay))


def test_a_name_of_a_wing_that_is_not_installed_is_an_attribute_error(monkeypatch: pytest.MonkeyPatch) -> None:
    nothing: Mapping[str, object] = {}
    monkeypatch.setattr(installed, "joined", lambda group: nothing)
    with pytest.raises(AttributeError, match=r"inlay.explain joins through an entry point that is not installed"):
        _ = inlay.explain
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = inlay.no_such_name


def test_an_executor_that_is_not_installed_is_wrong_usage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "joined", lambda group: {})
    with pytest.raises(UsageError, match="--ray auto: this part of Inlay is not installed"):
        lab.measuring("auto", (), print)


def test_packages_do_not_take_the_names_of_functions() -> None:
    assert not [n for n in inlay.__all__ if (core.ROOT / n).is_dir() or (core.ROOT / f"{n}.py").is_file()]


def _path(value: str) -> str:
    return value.partition(":")[0].removeprefix("inlay.").replace(".", "/") + "/"


def _own_entry_points() -> list[tuple[str, str, str]]:
    groups = (
        installed.TARGETS,
        installed.STRATEGIES,
        installed.EXECUTORS,
        installed.SEVERAL_TARGETS,
        installed.COMMANDS,
        installed.AFTER_TUNE,
        installed.MODELS,
    )
    found = [(g, e.name, e.value) for g in groups for e in entry_points(group=g) if e.value.startswith("inlay.")]
    assert len(found) > 20
    return found

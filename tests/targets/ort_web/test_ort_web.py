"""ONNX Runtime Web in Node: what is missing is one line that names the command, and results are those of the CPU's."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.errors import CompileFailed, TargetError, UsageError
from inlay.model.load import file_sha256
from inlay.targets.base import Artifact
from inlay.targets.onnxruntime.rules import precedes
from inlay.targets.ort_web.install import install, packages, version
from inlay.targets.ort_web.target import OrtWebTarget
from inlay.testing import random_feed, run_reference, small_model, sqnr


def test_missing_packages_name_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_CACHE_DIR", str(tmp_path))
    with pytest.raises(UsageError, match="inlay targets --install ort-web"):
        packages()


def test_missing_node_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INLAY_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'inlay\[web\]'"):
        OrtWebTarget().fingerprint()
    with pytest.raises(UsageError, match=r"pip install 'inlay\[web\]'"):
        install()
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_failing_npm_is_one_line_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without a network."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in {"node": "exit 0", "npm": "echo 'npm error network unreachable' >&2; exit 1"}.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.setenv("INLAY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(TargetError, match="npm ci failed: network unreachable") as found:
        install()
    assert "\n" not in str(found.value)
    assert list((tmp_path / "cache").iterdir()) == []


def test_threads_are_checked() -> None:
    with pytest.raises(UsageError, match="threads"):
        OrtWebTarget(threads=0)
    assert version().count(".") == 2


def test_rules_are_those_of_the_version_that_the_lock_file_pins(monkeypatch: pytest.MonkeyPatch) -> None:
    """1.28 brought DepthToSpace of int8, and 1.25 further forms of weights."""
    old = OrtWebTarget().capabilities().rules
    assert precedes(version(), 25), "else this test needs another version"
    assert "DepthToSpace" not in old.ops
    monkeypatch.setattr("inlay.targets.ort_web.target.version", lambda: "1.28.0")
    new = OrtWebTarget().capabilities().rules
    assert "DepthToSpace" in new.ops
    assert len(old.forms) < len(new.forms)


@pytest.mark.parametrize("threads", [1, 2])
def test_results_and_times_come_from_webassembly(threads: int, tmp_path: Path) -> None:
    try:
        packages()
    except UsageError as error:
        pytest.skip(str(error))
    model, path = small_model(), tmp_path / "model.onnx"
    onnx.save(model, path)
    target = OrtWebTarget(threads)
    assert target.fingerprint().facts["onnxruntime-web"] == version()
    found = target.compile(Artifact(path, file_sha256(path)))
    feed = random_feed(model)
    for name, array in run_reference(model, feed).items():
        got = found.run(feed)[name]
        assert got.shape == array.shape
        assert sqnr(array, got) > 60.0
    assert (found.time(feed, 3) > 0).all()
    assert np.size(found.time(feed, 3)) == 3
    found.close()
    path.write_bytes(b"garbage")
    with pytest.raises(CompileFailed) as failure:
        target.compile(Artifact(path, "other"))
    assert "\n" not in str(failure.value)

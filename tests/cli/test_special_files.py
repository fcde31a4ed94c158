"""Every option that takes a file, given what is none: one line, and no command waits or reads without end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.testing import random_feed, small_model

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="special files as Linux has them")

TUNE = ("tune", "m.onnx", "--data", "s.npz", "-o", "out", "--target", "null", "--max-measurements", "1", "-q")
READ = {
    "model": ("inspect", "@"),
    "data": ("tune", "m.onnx", "--data", "@.npz", *TUNE[4:]),
    "data folder": ("tune", "m.onnx", "--data", "samples", *TUNE[4:]),
    "images": ("tune", "m.onnx", "--data", "images", *TUNE[4:]),
    "labels": (*TUNE, "--labels", "@", "--metric", "top1"),
    "config": (*TUNE, "--config", "@"),
    "recipe": (*TUNE, "--recipe", "@.yaml"),
    "pattern cache": (*TUNE, "--pattern-cache", "@"),
    "baseline": (*TUNE, "--qdq-baseline", "@"),
    "fleet": ("fleet", "@", "-o", "out"),
    "cache": ("cache", "show", "@"),
    "rules": (*TUNE[:6], "--target", "command", "--target-option", "program=true", "--target-option", "rules=@.yaml"),
    "program": (*TUNE[:6], "--target", "command", "--target-option", "program=@", "--target-option", "rules=ort-cpu"),
    "result": ("report", "finished"),
}
WRITTEN = {
    "json log": (*TUNE, "--json-log", "@"),
    "quantized": ("quantize", "m.onnx", "-o", "@", "--target", "null"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    model = small_model()
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "s.npz", **random_feed(model))
    for name in ("samples", "images", "finished"):
        (tmp_path / name).mkdir()
    return tmp_path


def run(words: tuple[str, ...], folder: Path) -> subprocess.CompletedProcess[str]:
    """The command, which is ended after a while that no refusal takes."""
    return subprocess.run(
        [sys.executable, "-m", "inlay", *words], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("kind", ["pipe", "zero"])
@pytest.mark.parametrize("option", READ)
@pytest.mark.matrix
def test_what_is_read_is_a_regular_file(option: str, kind: str, folder: Path) -> None:
    places = [folder / name for name in ("special", "special.npz", "special.yaml")]
    places += [folder / "samples" / "a.npz", folder / "images" / "a.png", folder / "finished" / "result.json"]
    for place in places:
        if kind == "pipe":
            os.mkfifo(place)
        else:
            place.symlink_to("/dev/zero")
    done = run(tuple(word.replace("@", "special") for word in READ[option]), folder)
    assert done.returncode in (1, 2)
    (line,) = done.stderr.splitlines()
    assert line.startswith("inlay: ")
    assert option == "result" or any(word in line for word in ("special", "samples", "images", "a.npz", "a.png"))


@pytest.mark.parametrize("option", WRITTEN)
@pytest.mark.exhaustive
def test_a_pipe_that_nobody_reads_is_no_output(option: str, folder: Path) -> None:
    os.mkfifo(folder / "special")
    done = run(tuple(word.replace("@", "special") for word in WRITTEN[option]), folder)
    assert done.returncode in (1, 2)
    (line,) = done.stderr.splitlines()
    assert "special" in line
    assert (folder / "special").is_fifo()


def test_a_log_that_is_full_is_said_with_its_name(folder: Path) -> None:
    done = run((*TUNE, "--json-log", "/dev/full"), folder)
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["inlay: --json-log /dev/full cannot be written: No space left on device"]


ODD = {"read": ("inspect", "@"), "folder": (*TUNE[:4], "-o", "@", *TUNE[6:]), "file": ("quantize", "m.onnx", "-o", "@")}


@pytest.mark.matrix
@pytest.mark.parametrize("words", ODD.values(), ids=ODD)
def test_a_name_that_is_not_text_is_one_line(words: tuple[str, ...], folder: Path) -> None:
    name = os.fsdecode(b"m\xff.onnx")
    onnx.save(small_model(), folder / "m.onnx")
    if words[0] == "inspect":
        os.link(folder / "m.onnx", folder / name)
    done = run(tuple(word.replace("@", name) for word in words), folder)
    assert done.returncode in (1, 2)
    (line,) = done.stderr.splitlines()
    assert "is not UTF-8" in line

"""Nothing is reported to anybody: no command leaves a file where it was not told to, or looks for another machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.errors import UNPROVEN
from inlay.testing import small_model
from tests.support.fixtures import SaveModel

VARIABLE = "ORT_DISABLE_TELEMETRY"
_SPY = """
import os, sys
class Spy:
    def find_spec(self, name, path=None, target=None):
        if name in ("onnxruntime", "openvino", "openvino_telemetry"):
            with open(os.environ["INLAY_SPIED"], "a", encoding="utf8") as file:
                print(os.getpid(), repr(os.environ.get("%s")) if name == "onnxruntime" else name, file=file)
sys.meta_path.insert(0, Spy())
def heard(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        where = arguments[-1] if event in ("socket.connect", "socket.sendto") else arguments[0]
        if isinstance(where, tuple) or event.startswith("socket.get"):  # else it is a path: a socket of this machine
            with open(os.environ["INLAY_SPIED"] + ".calls", "a", encoding="utf8") as file:
                print(event, where, file=file)
sys.addaudithook(heard)
"""
"""As ``sitecustomize``: every process that imports the runtime writes down what it finds in its environment."""

COMMANDS = {
    "inspect": ("inspect", "m.onnx"),
    "targets": ("targets",),
    "bench": ("bench", "m.onnx", "m.onnx", "--blocks", "1", "--processes", "1"),
    "quantize": ("quantize", "m.onnx", "--data", "s.npz", "-o", "out/q.onnx"),
    "explain": ("explain", "m.onnx", "--data", "s.npz"),
    "openvino": ("bench", "m.onnx", "m.onnx", "--target", "openvino-cpu", "--blocks", "1", "--processes", "1"),
    "tune": ("tune", "m.onnx", "--data", "s.npz", "-o", "out/run", "--target", "null", "--max-measurements", "1"),
}
FUNCTIONS = "import inlay; print(inlay.bench(['m.onnx', 'm.onnx'], blocks=1, processes=1)[0].path)"


@pytest.fixture
def folder(tmp_path: Path, save: SaveModel) -> Path:
    """The working directory with a model and samples; beside it an empty home and an empty temporary folder."""
    model = small_model()
    save(model, "work/m.onnx")
    (info,) = model.graph.input
    shape = [d.dim_value for d in info.type.tensor_type.shape.dim]
    assert info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    np.savez(tmp_path / "work" / "s.npz", **{info.name: np.random.default_rng(0).normal(size=shape).astype(np.float32)})
    for name in ("home", "tmp", "cache", "spy", "work/out"):
        (tmp_path / name).mkdir()
    (tmp_path / "spy" / "sitecustomize.py").write_text(_SPY % VARIABLE, encoding="utf8")
    return tmp_path


def run(folder: Path, words: list[str], **more: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in (VARIABLE, "XDG_CACHE_HOME")}
    environment |= {
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "INLAY_CACHE_DIR": str(folder / "cache"),
        "PYTHONPATH": str(folder / "spy"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "INLAY_SPIED": str(folder / "spied"),
        **more,
    }
    done = subprocess.run(words, cwd=folder / "work", env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, UNPROVEN), done.stderr  # 1: nothing was gained; three samples prove no bound
    assert not [line for line in done.stderr.splitlines() if "onnxruntime" in line.lower()], done.stderr


def spied(folder: Path) -> set[str]:
    """What processes that imported the runtime found."""
    lines = (folder / "spied").read_text(encoding="utf8").splitlines()
    return {line.split(" ", 1)[1] for line in lines}


def called(words: tuple[str, ...]) -> list[str]:
    return [sys.executable, "-m", "inlay", *words]


@pytest.mark.parametrize("name", [*COMMANDS, "python"])
@pytest.mark.exhaustive
def test_no_process_lets_the_runtime_report_or_leaves_a_file(name: str, folder: Path) -> None:
    if name == "openvino":
        pytest.importorskip("openvino_telemetry", reason="OpenVINO and its reporting are not installed")
    run(folder, [sys.executable, "-c", FUNCTIONS] if name == "python" else called(COMMANDS[name]))
    if name == "openvino":
        assert "openvino" in spied(folder)
        assert "openvino_telemetry" not in spied(folder), "the package by which it reports is not looked for"
    elif name != "targets":
        assert spied(folder) - {"openvino"} == {"'1'"}, "a process imported the runtime without it, or none did"
    assert not (folder / "spied.calls").exists(), (folder / "spied.calls").read_text(encoding="utf8")
    left = [path.relative_to(folder) for each in ("home", "tmp") for path in (folder / each).rglob("*")]
    assert left == []


def test_a_call_of_the_network_would_be_seen(folder: Path) -> None:
    """The control. What native code calls, only strace sees."""
    probe = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('127.0.0.1', 9))"
    run(folder, [sys.executable, "-c", probe])
    assert (folder / "spied.calls").read_text(encoding="utf8") == "socket.connect ('127.0.0.1', 9)\n"


def test_what_a_user_has_set_stays(folder: Path) -> None:
    run(folder, called(COMMANDS["bench"]), **{VARIABLE: "0"})
    assert spied(folder) == {"'0'"}


@pytest.mark.matrix
@pytest.mark.skipif(shutil.which("strace") is None, reason="connections are watched by strace, which is not installed")
@pytest.mark.parametrize("name", ["bench", "quantize"])
def test_no_process_looks_for_another_machine(name: str, folder: Path) -> None:
    trace = folder / "trace"
    watched = ["strace", "-f", "-qq", "-e", "trace=connect,sendto", "-o", str(trace)]
    probe = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('127.0.0.1', 9))"
    if subprocess.run([*watched, sys.executable, "-c", probe], check=False).returncode:
        pytest.skip("strace may not trace processes here")
    assert "AF_INET" in trace.read_text(encoding="utf8"), "the control: what is looked for would be seen"
    run(folder, [*watched, *called(COMMANDS[name])])
    assert "AF_INET" not in trace.read_text(encoding="utf8")

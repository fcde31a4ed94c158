"""A board over SSH answers as this machine does; one that is wrong is told of in one line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inlay.cli import commands
from inlay.data import save_feed
from inlay.errors import NoDevice, RunFailed, UsageError
from inlay.measure import policy
from inlay.measure.client import Worker
from inlay.measure.lab import measuring, targets_on
from inlay.measure.ssh import connection
from inlay.measure.ssh.address import address_of
from inlay.measure.ssh.archive import archive_for
from inlay.measure.ssh.held import SshDevice
from inlay.targets.base import Artifact, KernelTime, TargetSpec
from inlay.testing import random_feed, small_model
from tests.support.command_line import Outcome, failed
from tests.support.fixtures import SaveModel
from tests.support.ssh_server import Board

SPEC = TargetSpec("ort-cpu", {"threads": 1})


@pytest.fixture
def artifact(save: SaveModel) -> Artifact:
    return Artifact(save(small_model()), "0123")


@pytest.fixture
def feed(tmp_path: Path) -> Path:
    save_feed(tmp_path / "feed.npz", random_feed(small_model(), 0))
    return tmp_path / "feed.npz"


def causes(kernels: list[KernelTime]) -> set[tuple[object, ...]]:
    """All but times, order, and the numbers that the runtime draws for names of its own."""
    return {(k.name.partition("_token_")[0], k.op_type, k.precision, k.nodes, k.values, k.kind) for k in kernels}


def test_a_board_answers_as_a_worker_does_and_nothing_stays_there(
    bare: Board, artifact: Artifact, feed: Path, tmp_path: Path
) -> None:
    with measuring(None, [SPEC], print, bare.url()) as lab:
        far = lab.start(SPEC, tmp_path, lambda: 600.0)
        with Worker(SPEC, tmp_path) as near:
            assert (far.fingerprint, far.deterministic, far.lacks) == (near.fingerprint, False, near.lacks)
            for worker in (near, far):
                assert worker.load(artifact, identify=True)
            ours, theirs = near.run(artifact, [feed, feed]), far.run(artifact, [feed, feed])
            assert len(theirs) == 2
            assert all(np.array_equal(a[name], b[name]) for a, b in zip(ours, theirs, strict=True) for name in a)
            assert causes(far.profile(artifact, feed, 2)) == causes(near.profile(artifact, feed, 2))
        assert far.time([artifact], feed, blocks=2, slot_ns=1000, seed=0).ns.shape == (2, 1)
        bare.cut_connections()  # what was sent is there still, and the model is built again
        (again,) = far.run(artifact, [feed])
        assert all(np.array_equal(again[name], ours[0][name]) for name in again)
        far.close()
    assert not bare.runs()
    for _ in range(200):
        if not bare.workers():
            break
        time.sleep(0.05)
    assert not bare.workers()


@pytest.mark.exhaustive
def test_what_was_sent_is_not_sent_again(
    bare: Board, artifact: Artifact, feed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither after a loss nor for another process; only where the board started anew in between."""
    asked = list[str]()
    ask = connection.Connection.ask

    def noted(self: connection.Connection, method: str, arguments: Sequence[Any], limit_s: float) -> Any:
        asked.append(method)
        return ask(self, method, arguments, limit_s)

    monkeypatch.setattr(connection.Connection, "ask", noted)
    with measuring(None, [SPEC], print, bare.url()) as lab, lab.start(SPEC, tmp_path, lambda: 600.0) as worker:
        worker.run(artifact, [feed])
        assert asked.count("put") == 2
        bare.cut_workers()
        worker.run(artifact, [feed])
        assert (asked.count("put"), asked.count("hello")) == (2, 2)
        (run,) = bare.runs()
        kept = run / "kept"
        kept.write_text("\n".join(["another boot", *kept.read_text().splitlines()[1:]]) + "\n")
        bare.cut_connections()
        worker.run(artifact, [feed])
        assert (asked.count("put"), asked.count("hello")) == (4, 3)


@pytest.mark.exhaustive
@pytest.mark.parametrize("way", ["cut_connections", "cut_workers"])
def test_who_is_to_blame_for_what_is_lost_again_and_again(
    way: str, bare: Board, artifact: Artifact, feed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board that outlived its connection had no trouble with the model; one whose process died at it had."""
    request = SshDevice._request

    def lost(self: SshDevice, method: str, arguments: Sequence[Any], limit_s: float) -> Any:
        if method == "ask":
            getattr(bare, way)()
        return request(self, method, arguments, limit_s)

    with measuring(None, [SPEC], print, bare.url()) as lab, lab.start(SPEC, tmp_path, lambda: 60.0) as worker:
        monkeypatch.setattr(SshDevice, "_request", lost)
        if way == "cut_connections":
            with pytest.raises(NoDevice, match=r"was lost 3 times in one call: .*; no model was at work each time"):
                worker.load(artifact)
        else:
            with pytest.raises(RunFailed, match="was lost 3 times in one call") as failed:
                worker.load(artifact)
            assert failed.value.culprit == artifact.digest
        monkeypatch.setattr(SshDevice, "_request", request)
        assert worker.run(artifact, [feed])


def test_another_run_waits_for_the_board(bare: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a busy machine takes for either: the other run is told, and then answered."""
    monkeypatch.setattr(policy, "UNSEEN_S", 0.0)
    lines, told = list[str](), threading.Event()

    def tell(line: str) -> None:
        lines.append(line)
        told.set()

    other = SshDevice(address_of(bare.url()), archive_for(("ort-cpu",)), tell, wait_s=600.0)
    with ThreadPoolExecutor(1) as helper:
        with measuring(None, [SPEC], print, bare.url()) as lab, lab.start(SPEC, tmp_path, lambda: 600.0):
            answer = helper.submit(other.call, "hello", limit_s=1.0)
            assert told.wait(300.0)
            assert not answer.done()
        assert answer.result()["pid"]
    other.close()
    assert "wait for device" in lines[0]
    assert "another run has it" in lines[0]
    assert "answers after" in lines[-1]


PROGRAM = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    told = {"describe": {"inlay": 1, "gives": ["latency"], "facts": {"board": "b1"}, "deterministic": True}}
    print(json.dumps(told.get(asked["do"], {"latencies_ms": [2.5] * asked.get("readings", 1)})), flush=True)
"""


@pytest.mark.exhaustive
def test_a_program_on_the_board_measures_by_rules_that_are_here(
    bare: Board, artifact: Artifact, feed: Path, tmp_path: Path
) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    rules = tmp_path / "rules.yaml"
    rules.write_text("inlay-rules: 1\nactivation: int8\noperators: {Conv: {weight: 1}}\n")
    program = f"{os.path.realpath(sys.executable)} -S {tmp_path / 'program.py'}"
    spec = TargetSpec("command", {"program": program, "rules": str(rules)})
    with measuring(None, [spec], print, bare.url()) as lab, lab.start(spec, tmp_path, lambda: 600.0) as far:
        with Worker(spec, tmp_path) as near:
            assert far.fingerprint == near.fingerprint
        assert far.time([artifact], feed, 1, 1000, 0).ns.tolist() == [[pytest.approx(2_500_000.0)]]
        (outputs,) = far.run(artifact, [feed])
        assert outputs, "of the numeric reference, as the program gives none"


@pytest.mark.exhaustive
def test_what_is_on_a_board_is_listed(bare: Board, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row.name: row for row in targets_on(bare.url(), print)}
    assert rows["ort-cpu"].facts["onnxruntime"]
    assert not rows["ort-cpu"].problem
    assert "program" in rows["command"].problem
    assert "ethos-u85-256" not in rows, "it needs the graph library"
    if "openvino-cpu" in rows:
        assert "openvino" in rows["openvino-cpu"].problem


# --- boards that are wrong -------------------------------------------------------------------------------------------


def _fake(folder: Path, text: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def _refused(board: Board, tmp_path: Path, **changes: str) -> str:
    with pytest.raises((NoDevice, UsageError)) as raised, measuring(None, [SPEC], print, board.url(**changes)) as lab:
        lab.start(SPEC, tmp_path, lambda: 600.0)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo inlay-board 3.8.10", "is Python 3.8.10, and 3.9 or later is needed: name another one with ?python="),
        ("exit 3", "ended there without an answer"),
        ("yes", "prints without end"),
    ],
)
def test_a_python_that_is_none(bare: Board, script: str, said: str, tmp_path: Path) -> None:
    assert said in _refused(bare, tmp_path, python=_fake(tmp_path, script))


@pytest.mark.exhaustive
def test_no_python_and_no_packages(bare: Board, tmp_path: Path) -> None:
    assert "install Python 3.9 or later there, or name it with ?python=" in _refused(bare, tmp_path, python="pythonx")
    plain = f"{os.path.realpath(sys.executable)} -S"
    nothing = f"env PYTHONPATH= {plain}"
    assert f"no numpy: there, run: {nothing} -m pip install numpy" in _refused(bare, tmp_path, python=nothing)
    half = tmp_path / "half"
    half.mkdir()
    for name in ("numpy", "numpy.libs"):
        if (found := Path(np.__file__).parent.parent / name).exists():
            (half / name).symlink_to(found)
    without = f"env PYTHONPATH={half} {plain}"
    told = _refused(bare, tmp_path, python=without)
    assert "cannot be loaded" in told
    assert "-m pip install onnxruntime" in told
    (half / "onnxruntime").mkdir()
    (half / "onnxruntime" / "__init__.py").write_text('raise ImportError("x.so: wrong ELF class: ELFCLASS32")\n')
    anew = f"{without} -m pip install --force-reinstall"
    assert _refused(bare, tmp_path, python=without).endswith(
        f"wrong ELF class: ELFCLASS32: there, run: {anew} onnxruntime"
    )
    (half / "onnxruntime" / "__init__.py").write_text("from onnxruntime.capi import onnxruntime_pybind11_state\n")
    assert _refused(bare, tmp_path, python=without).endswith(f"{anew} onnxruntime"), "it is of another architecture"
    broken = tmp_path / "broken" / "numpy"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text('raise ImportError("\\n\\nIMPORTANT: PLEASE READ THIS\\n\\nfor advice")\n')
    other = f"env PYTHONPATH={broken.parent} {plain}"
    told = _refused(bare, tmp_path, python=other)
    assert f"there, run: {other} -m pip install --force-reinstall numpy: IMPORTANT" in told


@pytest.mark.skipif(shutil.which("ssh") is None, reason="there is no ssh")
def test_nothing_is_forwarded_and_nobody_is_asked_whatever_the_configuration_says(tmp_path: Path) -> None:
    """As ``ssh`` itself understands both; the control is that without our options it would forward."""
    config = tmp_path / "config"
    wish = "ForwardAgent yes", "ForwardX11 yes", "LocalForward 8080 localhost:80", "BatchMode no", "ControlMaster auto"
    config.write_text("\n  ".join(["Host *", *wish]) + "\n")
    ours = connection._command(address_of(f"ssh://pi@board?config={config}"))
    told = {}
    for name, command in (("ours", ours), ("plain", ["ssh", "-F", str(config), "pi@board"])):
        said = subprocess.run([command[0], "-G", *command[1:]], capture_output=True, text=True, check=True).stdout
        told[name] = {line.partition(" ")[0]: line.partition(" ")[2] for line in said.splitlines()}
    plain = told["plain"]
    assert (plain["forwardagent"], plain["forwardx11"], plain["batchmode"]) == ("yes", "yes", "no")
    assert (plain["localforward"], plain["clearallforwardings"]) == ("8080 [localhost]:80", "no")
    asked = {"forwardagent": "no", "forwardx11": "no", "batchmode": "yes", "clearallforwardings": "yes"}
    assert asked.items() <= told["ours"].items()
    assert told["ours"]["preferredauthentications"] == "publickey"


def test_a_login_that_talks_does_no_harm(bare: Board, tmp_path: Path) -> None:
    talks = _fake(tmp_path, f'echo welcome; echo; exec {bare.python} "$@"')
    with measuring(None, [SPEC], print, bare.url(python=talks)) as lab, lab.start(SPEC, tmp_path, lambda: 600.0) as far:
        assert far.fingerprint.target == "ort-cpu"


def test_keys_that_are_not_known(bare: Board, tmp_path: Path) -> None:
    known, config = tmp_path / "known", tmp_path / "config"
    text = bare.config.read_text().replace(str(bare.known), str(known))
    config.write_text(text)
    known.write_text("")
    assert "its host key is not known here: run once: ssh" in _refused(bare, tmp_path, config=str(config))
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    known.write_text(f"[127.0.0.1]:{bare.port} {other.with_suffix('.pub').read_text()}")
    assert "run: ssh-keygen -R" in _refused(bare, tmp_path, config=str(config))
    config.write_text(bare.config.read_text().replace(f"IdentityFile {bare.folder / 'user'}", f"IdentityFile {other}"))
    assert "ssh-copy-id" in _refused(bare, tmp_path, config=str(config))


def test_a_folder_that_cannot_be_written(bare: Board, tmp_path: Path) -> None:
    assert "?folder=" in _refused(bare, tmp_path, folder="/proc/nowhere")


@pytest.fixture
def tiny(tmp_path: Path) -> Iterator[Path]:
    """A disk of a few hundred kilobytes."""
    place = tmp_path / "tiny"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=320k", "none", str(place)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no small disk can be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.exhaustive
def test_a_disk_that_is_full(bare: Board, tiny: Path, artifact: Artifact, feed: Path, tmp_path: Path) -> None:
    """At the start, or once a run is under way: no model is to blame."""
    filler, url = tiny / "filler", bare.url(folder=str(tiny))
    with measuring(None, [SPEC], print, url) as lab, lab.start(SPEC, tmp_path, lambda: 600.0) as worker:
        filler.write_bytes(bytes(shutil.disk_usage(tiny).free))
        with pytest.raises(NoDevice, match=r"No space left on device: free some there, or name another folder"):
            worker.run(artifact, [feed])
    filler.write_bytes(bytes(filler.stat().st_size + shutil.disk_usage(tiny).free))
    assert "free some there" in _refused(bare, tmp_path, folder=str(tiny))


@pytest.mark.exhaustive
def test_a_board_that_is_away_ends_the_run(bare: Board) -> None:
    address = address_of(f"ssh://{bare.user}@127.0.0.1:1?config={bare.config}")
    device = SshDevice(address, archive_for(("ort-cpu",)), print, wait_s=2.0)
    with pytest.raises(NoDevice, match=r"did not answer within 2 s: .*refused.*give the same command"):
        device.call("hello", limit_s=1.0)


def test_the_command_says_it_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    code = commands.run(lambda: commands.app(["targets", "--device", "nowhere"], standalone_mode=False))
    failed(Outcome(code, *capfd.readouterr()), 2, "devices.yaml")

"""The worker: a target that hangs, crashes, prints or raises costs one answer, and the next model runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from inlay.errors import BadReading, CompileFailed, Ended, RunFailed, TargetError, TimedOut
from inlay.measure import policy
from inlay.measure.client import Worker
from inlay.measure.process import Process
from inlay.measure.worker import PROTOCOL, Service
from inlay.model.child import Child
from inlay.model.load import file_sha256
from inlay.targets.base import Artifact, TargetSpec
from inlay.targets.registry import available, create
from inlay.testing import concat_model, random_feed, residual_model, run_reference

FAKE = '''
import os, signal, sys, time
import numpy as np
from inlay.errors import RunFailed
from inlay.targets.null import NullExecutable, NullTarget


class FakeTarget(NullTarget):
    """null, but models whose file name holds a word misbehave."""

    name = "fake"

    def __init__(self, at_start=""):
        super().__init__(noise=0.01)
        if at_start == "raise":
            raise ValueError("no such device")
        if at_start == "exit":
            os._exit(7)

    def compile(self, model):
        word = model.path.stem
        if word == "hang":
            time.sleep(3600)
        if word == "raise":
            raise ValueError("an error\\nof two lines")
        if word == "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        return FakeExecutable(model, self)


class FakeExecutable(NullExecutable):
    def run(self, feed):
        word = self._path.stem
        if word == "loud":
            os.write(1, b"{\\"not\\": \\"an answer\\"}\\n")
            print("noise on standard output")
        if word == "die":
            print("the device is on fire", file=sys.stderr)
            os._exit(3)
        if word == "sleepy":
            time.sleep(3600)
        if word == "dies-at-first" and self._count() == 1:
            os.abort()
        outputs = super().run(feed)
        if word == "object":
            return {name: array.astype(object) for name, array in outputs.items()}
        return list(outputs) if word == "list" else outputs

    def time(self, feed, repeats):
        word = self._path.stem
        if word == "slow-death":
            os.abort()
        if word == "dies-at-third" and self._count() == 3:
            os.abort()
        if word == "wears-out" and self._count() > 9:
            raise RunFailed("worn out")
        odd = {"zero": 0, "negative": -5, "nan": np.nan, "inf": np.inf}
        if word in odd:
            return np.full(repeats, odd[word])
        ns = super().time(feed, repeats)
        return {"short": np.empty(0), "object": ns.astype(object), "list": ns.tolist()}.get(word, ns)

    def _count(self):
        """Which call this is, over all processes."""
        with open(self._path.with_suffix(".calls"), "a+") as file:
            file.write(".")
            return file.tell()

    def close(self):
        if self._path.stem == "stuck":
            raise ValueError("the model is in use")
        if self._path.stem == "never-closes":
            time.sleep(3600)
        super().close()
'''


@pytest.fixture(autouse=True)
def fake_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs a target the way a third party would: a module and an entry point, in another folder."""
    site = tmp_path / "site"
    info = site / "fake_target-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "fake_target.py").write_text(FAKE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fake-target\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[inlay.targets]\nfake = fake_target:FakeTarget\nbroken = no_such_module:Target\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    monkeypatch.syspath_prepend(str(site))


@pytest.fixture
def feed(tmp_path: Path) -> Path:
    path = tmp_path / "feed.npz"
    np.savez(path, **random_feed(residual_model()))
    return path


@pytest.fixture
def artifact(tmp_path: Path) -> Callable[..., Artifact]:
    def write(name: str, model: onnx.ModelProto | None = None) -> Artifact:
        path = tmp_path / f"{name}.onnx"
        path.write_bytes((model or residual_model()).SerializeToString())
        return Artifact(path, f"{file_sha256(path)}-{name}")

    return write


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    with Worker(TargetSpec("fake"), tmp_path, lambda: 20.0) as made:
        yield made


def impatient(tmp_path: Path) -> Worker:
    """One that waits long enough to start, and then no longer."""
    made = Worker(TargetSpec("fake"), tmp_path, lambda: 60.0)
    made._limit = lambda: 0.5
    return made


def test_it_runs_and_times(worker: Worker, artifact: Callable[..., Artifact], feed: Path) -> None:
    model = artifact("good")
    (outputs,) = worker.run(model, [feed])
    want = run_reference(residual_model(), random_feed(residual_model()))
    assert {k: v.tolist() for k, v in outputs.items()} == {k: v.tolist() for k, v in want.items()}
    timing = worker.time([model, artifact("other")], feed, blocks=3, slot_ns=1000, seed=0)
    assert timing.ns.shape == (3, 2)
    assert timing.drift.shape == (3,)
    assert (timing.ns > 0).all()
    assert worker.profile(model, feed, 2)


def test_third_party_targets_are_found(worker: Worker) -> None:
    assert "fake" in available()
    assert worker.fingerprint.target == "fake"
    with pytest.raises(TargetError, match="cannot be loaded"):
        create(TargetSpec("broken"))


def test_a_crash_is_a_value_and_the_worker_recovers(
    worker: Worker, artifact: Callable[..., Artifact], feed: Path
) -> None:
    good = artifact("good")
    before = worker.run(good, [feed])
    with pytest.raises(RunFailed, match=r"died in run \(exit code 3\): the device is on fire"):
        worker.run(artifact("die"), [feed])
    after = worker.run(good, [feed])
    assert all(np.array_equal(before[0][k], after[0][k]) for k in before[0])
    with pytest.raises(RunFailed, match=r"died in load \(signal SIGSEGV\)"):
        worker.load(artifact("segfault"))
    with pytest.raises(RunFailed, match=r"died in time \(signal SIGABRT\)"):
        worker.time([good, artifact("slow-death")], feed, 1, 1000, 0)
    assert worker.time([good], feed, 2, 1000, 0).ns.shape == (2, 1)


@pytest.mark.exhaustive
def test_a_runtime_that_hangs_in_freeing_a_model_is_not_asked_again(
    tmp_path: Path, artifact: Callable[..., Artifact], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    send = Process._answer

    def noted(self: Process, child: Child, do: str, arguments: dict[str, Any], limit_s: float) -> dict[str, Any]:
        asked.append(do)
        return send(self, child, do, arguments, limit_s)

    monkeypatch.setattr(Process, "_answer", noted)
    with impatient(tmp_path) as worker:
        for _ in range(3):
            worker._limit = lambda: 60.0
            worker.load(artifact("never-closes"))
            worker._limit = lambda: 0.5
            worker.drop(artifact("never-closes"))
    assert asked.count("unload") == 1
    assert asked.count("target") == 3


@pytest.mark.exhaustive
def test_a_model_that_ends_every_process_is_refused_without_another(
    worker: Worker, artifact: Callable[..., Artifact], feed: Path
) -> None:
    deadly = artifact("segfault")
    for _ in range(3):
        with pytest.raises(Ended, match=r"died in load \(signal SIGSEGV\)"):
            worker.run(deadly, [feed])
    assert worker.builds == policy.MOST_DEATHS
    assert worker.run(artifact("good"), [feed])


@pytest.mark.exhaustive
def test_a_hang_is_ended(tmp_path: Path, artifact: Callable[..., Artifact], feed: Path) -> None:
    with impatient(tmp_path) as worker:
        child = worker._process.child
        assert child is not None
        with pytest.raises(TimedOut, match="did not finish load"):
            worker.load(artifact("hang"))
        assert not child.alive, "the process is gone"
        worker._limit = lambda: 0.01
        with pytest.raises(TimedOut, match=r"the runtime did not start within .* give a larger --budget"):
            worker.load(artifact("good"))
        worker._limit = lambda: 60.0
        assert worker.run(artifact("good"), [feed])
        worker._limit = lambda: 0.5
        with pytest.raises(TimedOut, match="did not finish run"):
            worker.run(artifact("sleepy"), [feed])
        worker._limit = lambda: 60.0
        assert worker.run(artifact("good"), [feed])
    assert not list(tmp_path.glob("outputs-*"))


@pytest.mark.exhaustive
def test_whatever_a_target_raises_is_an_answer(worker: Worker, artifact: Callable[..., Artifact], feed: Path) -> None:
    with pytest.raises(TargetError, match="ValueError: an error of two lines"):
        worker.load(artifact("raise"))
    child = worker._process.child
    broken = artifact("broken", concat_model())
    broken.path.write_bytes(b"junk")
    with pytest.raises(CompileFailed, match=r"broken.onnx is not valid"):
        worker.load(broken)
    assert worker._process.child is child, "a refusal is an answer, and the process is as good as before"
    wrong = feed.with_name("wrong.npz")
    np.savez(wrong, nothing=np.zeros(3))
    with pytest.raises(RunFailed):
        worker.run(artifact("good"), [wrong])


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("zero", "took 0 ns"),
        ("negative", "took -5 ns"),
        ("nan", "took nan ns"),
        ("inf", "took inf ns"),
        ("short", r"gave float64\[0\] instead of"),
        ("object", r"gave object\[\d\] instead of"),
        ("list", "gave list instead of"),
    ],
)
@pytest.mark.matrix
def test_times_that_no_inference_can_take_are_failures(
    word: str, message: str, worker: Worker, artifact: Callable[..., Artifact], feed: Path
) -> None:
    good, bad = artifact("good"), artifact(word)
    with pytest.raises(BadReading, match=message) as caught:
        worker.time([good, bad], feed, 2, 1000, 0)
    assert caught.value.culprit == bad.digest
    assert worker.time([good], feed, 2, 1000, 0).ns.shape == (2, 1)


@pytest.mark.exhaustive
def test_outputs_that_are_no_arrays_are_failures(worker: Worker, artifact: Callable[..., Artifact], feed: Path) -> None:
    for word in ("object", "list"):
        with pytest.raises(RunFailed, match=f"gave (an array of )?{word}"):
            worker.run(artifact(word), [feed])


@pytest.mark.exhaustive
def test_what_fails_once_is_tried_again_in_a_fresh_process(
    worker: Worker, artifact: Callable[..., Artifact], feed: Path
) -> None:
    assert worker.run(artifact("dies-at-first"), [feed])
    good, bad = artifact("good"), artifact("dies-at-third")
    timing = worker.time([good, bad], feed, 4, 1000, 0)
    assert timing.ns.shape == (4, 2)


@pytest.mark.exhaustive
def test_blocks_before_a_failure_count(worker: Worker, artifact: Callable[..., Artifact], feed: Path) -> None:
    assert 1 <= len(worker.time([artifact("good"), artifact("wears-out")], feed, 100, 1000, 0).ns) < 100


@pytest.mark.parametrize("word", ["slow-death", "segfault", "raise"])
@pytest.mark.matrix
def test_an_error_tells_which_model_was_at_work(
    word: str, worker: Worker, artifact: Callable[..., Artifact], feed: Path
) -> None:
    models = [artifact("good"), artifact(word), artifact("other")]
    with pytest.raises(TargetError) as caught:
        worker.time(models, feed, 2, 1000, 0)
    assert caught.value.culprit == models[1].digest


@pytest.mark.exhaustive
def test_a_model_that_cannot_be_freed_goes_with_its_process(
    worker: Worker, artifact: Callable[..., Artifact], feed: Path
) -> None:
    model = artifact("stuck")
    worker.load(model)
    worker.drop(model)
    assert worker.run(artifact("good"), [feed])


def test_output_of_the_runtime_does_not_mix_with_answers(
    worker: Worker, artifact: Callable[..., Artifact], feed: Path
) -> None:
    assert worker.run(artifact("loud"), [feed, feed])[1]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.matrix
def test_an_interruption_in_a_call_lets_the_run_clear_up(
    kind: type[BaseException], worker: Worker, artifact: Callable[..., Artifact], feed: Path
) -> None:
    """Ctrl+C raises the one, the handler of SIGTERM the other; models are dropped on the way out."""
    worker.load(artifact("good"))

    def interrupt(number: int, frame: object) -> None:
        raise kind

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(kind):
            worker.load(artifact("hang"))
    finally:
        signal.signal(signal.SIGALRM, before)
    worker.drop(artifact("good"))
    assert worker.run(artifact("good"), [feed])


def test_dropped_models_are_built_again(worker: Worker, artifact: Callable[..., Artifact], feed: Path) -> None:
    model = artifact("good")
    worker.load(model)
    worker.drop(model)
    worker.drop(model)
    assert worker.run(model, [feed])


def test_freed_models_are_built_again_without_being_counted_anew(
    worker: Worker, artifact: Callable[..., Artifact], feed: Path
) -> None:
    first, second = artifact("good"), artifact("other")
    worker.load(first)
    worker.load(second)
    worker.free()
    worker.free()
    assert worker.run(first, [feed])
    assert worker.builds == 2
    worker.drop(first)
    assert worker.run(first, [feed])
    assert worker.builds == 3, "negative control: what was dropped counts"


@pytest.mark.parametrize(("option", "message"), [("raise", "no such device"), ("exit", "exit code 7")])
@pytest.mark.matrix
def test_a_target_that_cannot_start(option: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised, and no process or file handle stays behind."""
    started = []

    class Recorded(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    with pytest.raises(TargetError, match=message):
        Worker(TargetSpec("fake", {"at_start": option}), tmp_path)
    assert started
    assert all(process.poll() is not None for process in started)


def test_closing_ends_the_process(tmp_path: Path) -> None:
    worker = Worker(TargetSpec("null"), tmp_path)
    child = worker._process.child
    assert child is not None
    worker.close()
    assert not child.alive


def test_a_worker_measures_without_the_packages_that_take_longest_to_load(
    artifact: Callable[..., Artifact], feed: Path
) -> None:
    """Every run waits for its workers to start, and so does one that is refused for want of time."""
    model = artifact("model")
    works = [
        {"do": "target", "with": {"name": "ort-cpu", "options": {}}},
        {"do": "load", "with": {"key": "k", "path": str(model.path), "digest": model.digest, "identify": True}},
        {"do": "run", "with": {"key": "k", "feeds": [str(feed)], "out": str(feed.parent / "out.npz")}},
        {"do": "time", "with": {"keys": ["k"], "feed": str(feed), "slot_ns": 1000, "seed": 0}},
        {"do": "profile", "with": {"key": "k", "feed": str(feed), "repeats": 1}},
    ]
    code = (
        "import json, sys; from inlay.measure.worker import Service; service = Service()\n"
        "print(json.dumps([[service.handle(work) for work in json.loads(sys.argv[1])], [*sys.modules]]))"
    )
    command = [sys.executable, "-c", code, json.dumps(works)]
    answers, loaded = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [a for a in answers if "error" in a] == []
    assert answers[-1]["kernels"]
    assert "onnxruntime" in loaded
    assert not {"onnx_ir", "sympy", "scipy"} & {*loaded}


@pytest.mark.parametrize("name", ["random", "ml_dtypes", "json"])
@pytest.mark.matrix
def test_files_beside_a_model_are_data(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working directory is often a folder of downloads: nothing in it is imported."""
    marker = tmp_path / "executed"
    (tmp_path / f"{name}.py").write_text(f"open({str(marker)!r}, 'w').close()\nraise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "work"
    folder.mkdir()
    with Worker(TargetSpec("null"), folder) as worker:
        assert worker.fingerprint.target == "null"
    assert not marker.exists()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_worker_dies_with_its_parent_also_in_the_middle_of_a_call(how: signal.Signals, tmp_path: Path) -> None:
    """The parent ends while the worker is inside one long call into native code, which never returns to Python."""
    code = (
        "import os, sys; from pathlib import Path; from inlay.measure.client import Worker; "
        "from inlay.targets.base import TargetSpec; "
        "w = Worker(TargetSpec('null'), Path(sys.argv[1])); print(w._process.child.pid, flush=True); "
        "os.kill(w._process.child.pid, 19); sys.stdin.read()"  # SIGSTOP: it will never look by itself
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    worker = int(parent.stdout.readline())
    assert Path(f"/proc/{worker}").exists()
    parent.send_signal(how)
    parent.communicate()
    for _ in range(200):
        if not _runs(worker):
            break
        time.sleep(0.05)
    assert not _runs(worker)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_messages_of_another_version_are_refused() -> None:
    service = Service()
    good = service.handle({"do": "target", "with": {"name": "null", "options": {}, "protocol": PROTOCOL}})
    assert good["protocol"] == PROTOCOL
    bad = service.handle({"do": "target", "with": {"name": "null", "options": {}, "protocol": PROTOCOL + 1}})
    assert f"version {PROTOCOL + 1}" in bad["error"]

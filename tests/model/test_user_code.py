"""The user's own functions may hang, end their process, or change what they are given: none of it reaches a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from inlay.data import InputSpec, Samples, random_samples, read_samples, stress_set
from inlay.errors import DataError, Late, UsageError
from inlay.model.guard import limited
from inlay.model.user_code import user_function
from inlay.quant.accuracy import Bound, Judge, find_metric

SOURCE = """
import os, subprocess, sys, time
import numpy as np
calls = 0

def hang(*a): time.sleep(1000)
def leave(*a): print("about to leave"); sys.stdout.flush(); os._exit(3)
def quit(*a): sys.exit("enough")
def fail(*a): raise KeyError("nope")
def count(*a):
    global calls
    calls += 1
    return calls
def several(*a): return np.zeros(3)
def spoil(outputs, labels):
    for each in outputs:
        for y in each.values():
            y[...] = 0.0
    return 1.0
def feeds():
    buffer = np.zeros((1, 4), np.float32)
    for number in range(3):
        buffer[:] = number
        yield {"x": buffer}
kept = []
def keep(outputs, labels):
    kept.append((outputs[0]["y"], outputs[0]["y"].copy()))
    return float(all((one == other).all() for one, other in kept))
class Trap:
    def __reduce__(self): return (os.mkdir, (os.path.join(os.path.dirname(__file__), "sprung"),))
class Unprintable(Exception):
    def __str__(self): raise RuntimeError("no text")
def fails_late():
    yield {"x": np.zeros((1, 4), np.float32)}
    raise Unprintable
def stops_late():
    yield {"x": np.zeros((1, 4), np.float32)}
    raise KeyboardInterrupt
def traps(): return [{"x": np.array([[Trap()] * 4], dtype=object)}]
def number(*a): return 7
def trapped(sample, rng): return {"odd": {"x": np.array([[Trap()] * 4], dtype=object)}}
def nan(*a): return float("nan")
def huge(*a): return 10**400
def full(*a): raise MemoryError
def heavy(*a): return Heavy()
class Heavy:
    def __float__(self): raise MemoryError
def start(*a): return float(subprocess.Popen(["sleep", "1000"]).pid)
def start_and_leave(*a):
    print(subprocess.Popen(["sleep", "1000"]).pid)
    sys.stdout.flush()
    os._exit(3)
def vary(sample, rng):
    sample["x"][...] = rng.standard_normal(sample["x"].shape)
    return {"noise": sample}
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"mine_{tmp_path.name.replace('-', '_')}"  # modules stay loaded in the process between tests
    (tmp_path / f"{name}.py").write_text(SOURCE, encoding="utf8")
    monkeypatch.chdir(tmp_path)
    return name


SPECS = (InputSpec("x", np.dtype(np.float32), (1, 4)),)


def test_a_function_that_does_not_return_ends_with_the_budget(module: str) -> None:
    function = user_function(f"{module}:hang", "--metric", float)
    with limited(lambda: 1.0), pytest.raises(Late, match=f"--metric {module}:hang .*was ended"):
        function([], None)
    assert user_function(f"{module}:count", "--metric", float)() == 1.0, "the next call finds a new process"


def test_a_function_that_ends_its_process_is_named(module: str) -> None:
    with pytest.raises(DataError, match=rf"--metric {module}:leave ended its process \(exit code 3: about to leave\)"):
        user_function(f"{module}:leave", "--metric", float)()
    with pytest.raises(DataError, match=f"--metric {module}:quit failed: SystemExit: enough .*line "):
        user_function(f"{module}:quit", "--metric", float)()
    with pytest.raises(DataError, match=f"--metric {module}:fail failed: KeyError"):
        user_function(f"{module}:fail", "--metric", float)()


def test_what_is_missing_is_said_before_it_is_needed(module: str) -> None:
    with pytest.raises(UsageError, match=f"module {module} has no nothing"):
        user_function(f"{module}:nothing", "--metric", float)
    with pytest.raises(UsageError, match="there is no module not_there"):
        user_function("not_there:f", "--metric", float)


def test_a_function_keeps_what_it_knows_between_calls(module: str) -> None:
    function = user_function(f"{module}:count", "--metric", float)
    assert [function(), function(), function()] == [1.0, 2.0, 3.0]


def test_a_metric_that_returns_no_number_is_named(module: str) -> None:
    several, one = (cast(Any, find_metric(f"{module}:{name}", None)) for name in ("several", "count"))
    with pytest.raises(DataError, match=rf"^--metric {module}:several must return one number, not ndarray of shape"):
        several([], None)
    assert one([], None) == 1.0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nan", "gave nan: it must be a finite number"),
        ("huge", "gave inf: it must be a finite number"),
        ("full", "failed: MemoryError"),
        ("heavy", "must return one number, not Heavy"),
    ],
)
def test_a_metric_that_returns_no_finite_number_is_named(name: str, words: str, module: str) -> None:
    metric = cast(Any, find_metric(f"{module}:{name}", None))
    with pytest.raises(DataError, match=f"^--metric {module}:{name} {words}"):
        metric([], None)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("fails_late", r" failed: Unprintable: it cannot be shown \(.*line "),
        ("stops_late", r" failed: KeyboardInterrupt.*line "),
        ("traps", ", sample 0: x got object: give an array of str, or of numbers"),
        ("number", ": gave int instead of a mapping"),
    ],
)
def test_samples_that_cannot_be_had_name_their_function(name: str, words: str, module: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"^--data {module}:{name}{words}"):
        read_samples(f"{module}:{name}", SPECS, find=user_function)
    assert not (tmp_path / "sprung").exists(), "an object of the user's was unpickled here"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("number", " must return samples by the names of their variations, not int"),
        ("trapped", ", odd: x got object: give an array of str, or of numbers"),
    ],
)
def test_variations_that_cannot_be_had_name_their_function(name: str, words: str, module: str, tmp_path: Path) -> None:
    samples = Samples(random_samples(SPECS, np.random.default_rng(0), 3).feeds, "npz", "test")
    with pytest.raises(DataError, match=f"^--augment {module}:{name}{words}"):
        stress_set(samples, SPECS, f"{module}:{name}", np.random.default_rng(1), 3, 3, user_function)
    assert not (tmp_path / "sprung").exists(), "an object of the user's was unpickled here"


def test_what_a_metric_keeps_stays_as_it_was(module: str) -> None:
    metric = cast(Any, find_metric(f"{module}:keep", None))
    large = (np.full((100, 100), i, np.float32) for i in range(4))  # these travel in memory that both processes share
    assert [metric([{"y": y}], None) for y in large] == [1.0] * 4


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")
def test_what_a_function_starts_ends_with_it(module: str) -> None:
    def alive(pid: int) -> bool:
        status = Path(f"/proc/{pid}/stat")
        return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"

    started = int(user_function(f"{module}:start", "--metric", float)())
    assert alive(started)
    with pytest.raises(DataError, match=r"exit code 3: \d+") as caught:
        user_function(f"{module}:start_and_leave", "--metric", float)()
    further = int(str(caught.value).rpartition(" ")[2].rstrip(")"))
    end = time.monotonic() + 10.0  # the system takes a moment
    while (alive(started) or alive(further)) and time.monotonic() < end:
        time.sleep(0.01)
    assert not alive(started)
    assert not alive(further)


def test_what_a_metric_changes_is_its_own(module: str) -> None:
    samples = random_samples(SPECS, np.random.default_rng(0), 3)
    reference = [{"y": np.ones(4, np.float32)} for _ in samples.feeds]
    metric = find_metric(f"{module}:spoil", None)
    judge = Judge(reference, samples, Bound(metric="spoil", max_drop=0.1), metric)
    assert judge.judge(reference).sqnr_db > 100.0
    assert all((each["y"] == 1.0).all() for each in reference)

    def spoil_here(outputs: Any, labels: object) -> float:
        outputs[0]["y"][...] = 0.0
        return 1.0

    Judge(reference, samples, Bound(metric="spoil", max_drop=0.1), spoil_here).judge(reference)
    assert all((each["y"] == 1.0).all() for each in reference)


def test_samples_of_a_generator_that_fills_one_array_differ(module: str) -> None:
    found = read_samples(f"{module}:feeds", SPECS, find=user_function)
    assert [float(f["x"][0, 0]) for f in found.feeds] == [0.0, 1.0, 2.0]
    buffer = np.zeros((1, 4), np.float32)

    def here() -> Iterator[dict[str, np.ndarray]]:
        for number in range(3):
            buffer[:] = number
            yield {"x": buffer}

    assert [float(f["x"][0, 0]) for f in read_samples(here(), SPECS).feeds] == [0.0, 1.0, 2.0]


def test_variations_are_random_each_time_and_leave_samples_alone(module: str) -> None:
    samples = random_samples(SPECS, np.random.default_rng(0), 3)
    before = [f["x"].copy() for f in samples.feeds]
    samples = Samples(samples.feeds, "npz", "test")
    varied = stress_set(samples, SPECS, f"{module}:vary", np.random.default_rng(1), 3, 3, user_function).variations
    assert len({v.feed["x"].tobytes() for v in varied}) == 3
    assert all((f["x"] == x).all() for f, x in zip(samples.feeds, before, strict=True))

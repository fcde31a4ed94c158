"""Native code in a process of its own: what it returns, and what becomes of crashes, hangs and memory without end."""

from __future__ import annotations

import math
import operator
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inlay.errors import Crashed, Late, ModelError, RunFailed, TimedOut
from inlay.model.guard import Limits, Resident, call, end, limited, pid
from inlay.model.load import load

MORE_THAN_ALLOWED = 1 << 32  # bytes
SMALL = Limits(memory=1 << 28)
SHORT = Limits(seconds=0.5)


@pytest.mark.parametrize("size", [0, 1, 5_000, 3_000_000])
def test_arrays_arrive_as_they_are(size: int) -> None:
    array = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    sent = {"first": array, "second": array[::-1], "name": "x" * size}
    got: dict[str, Any] = call("copying", dict, sent)
    call("copying", dict, {"other": np.zeros(3_000_000)})  # what came before stays as it is
    assert list(got) == list(sent)
    assert got["name"] == sent["name"]
    np.testing.assert_array_equal(got["first"], array)
    np.testing.assert_array_equal(got["second"], array[::-1])


def test_what_is_sent_back_in_another_order_is_not_overwritten() -> None:
    """Long arrays travel through a file that both sides map: arguments lie where results are written."""
    arrays = [np.full(50_000, i) for i in range(6)]
    got = call("turning", operator.getitem, arrays, slice(None, None, -1))
    assert [set(a.tolist()) for a in got] == [{i} for i in reversed(range(6))]


def test_what_a_function_raises_is_raised_here(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"missing\.onnx: no such file"):
        call("loading", load, tmp_path / "missing.onnx")
    with pytest.raises(RunFailed, match="ValueError: math domain error"):
        call("computing", math.sqrt, -1.0)


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (os.abort, (), "aborting ended its process .signal SIGABRT"),
        (os._exit, (3,), "aborting ended its process .exit code 3"),
    ],
)
@pytest.mark.matrix
def test_a_crash_is_an_error_and_the_next_call_works(
    function: object, arguments: tuple[int, ...], message: str
) -> None:
    with pytest.raises(Crashed, match=message) as caught:
        call("aborting", function, *arguments)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert call("adding", math.fsum, [1.0, 2.0]) == 3.0


def test_a_hang_is_ended_and_the_next_call_works() -> None:
    call("adding", math.fsum, [])
    begun = time.monotonic()
    with pytest.raises(TimedOut, match=r"waiting took more than 0\.5 s and was ended"):
        call("waiting", time.sleep, 600.0, limits=SHORT)
    with limited(lambda: 0.5), pytest.raises(Late, match="waiting took more than"):
        call("waiting", time.sleep, 600.0)
    assert time.monotonic() - begun < 300
    assert call("adding", math.fsum, [1.0, 2.0]) == 3.0


def test_memory_without_end_is_refused_and_the_next_call_works() -> None:
    with pytest.raises(Crashed, match=r"filling needs more than 0\.25 GiB of memory"):
        call("filling", bytearray, MORE_THAN_ALLOWED, limits=SMALL)
    assert len(call("filling", bytearray, 1 << 20, limits=SMALL)) == 1 << 20


def test_memory_counts_beyond_what_the_process_has() -> None:
    """A limit that is raised again holds for the next call alone."""
    kept = Resident(bytearray, 1 << 29)
    assert call("counting", len, kept, limits=Limits(memory=1 << 30)) == 1 << 29
    assert len(call("filling", bytearray, 1 << 25, limits=SMALL)) == 1 << 25
    with pytest.raises(Crashed, match="memory"):
        call("filling", bytearray, 1 << 29, limits=SMALL)


def test_residents_are_made_once_and_again_after_a_crash() -> None:
    kept: Resident[dict[str, int]] = Resident(dict, {"a": 1})
    call("changing", dict.update, kept, {"b": 2})
    assert call("reading", dict, kept) == {"a": 1, "b": 2}
    with pytest.raises(Crashed):
        call("aborting", os.abort)
    assert call("reading", dict, kept) == {"a": 1}


def test_a_process_that_was_ended_is_followed_by_another_with_the_same_residents() -> None:
    kept: Resident[dict[str, int]] = Resident(dict, {"a": 1})
    assert call("reading", dict, kept) == {"a": 1}
    before = pid()
    end()
    assert not pid()
    assert call("reading", dict, kept) == {"a": 1}
    assert pid() not in (0, before)


@pytest.mark.exhaustive
def test_residents_are_freed_with_their_handle() -> None:
    large = 1 << 27
    for _ in range(20):  # together more than the limit
        assert call("counting", len, Resident(bytearray, large), limits=Limits(memory=8 * large)) == large


def test_prints_do_not_mix_with_answers() -> None:
    for _ in range(3):
        assert call("printing", os.write, 1, b"\0" * 5000) == 5000


def test_what_a_crash_printed_last_is_told() -> None:
    with pytest.raises(Crashed, match=r"signal SIGABRT: the reason\)"):
        call("aborting", exec, r"import os; os.write(2, b'first\nthe reason\n\n'); os.abort()")


def test_what_was_printed_before_is_no_reason_of_a_crash() -> None:
    call("printing", os.write, 2, b"a library says hello\n")
    with pytest.raises(Crashed, match=r"signal SIGABRT\)"):
        call("aborting", os.abort)


PARENT = """
import sys, time
from inlay.model import guard
print(guard.call("asking", __import__("os").getpid), flush=True)
guard.call("waiting", time.sleep, 600.0)
"""


def test_modules_of_the_working_directory_are_not_imported(tmp_path: Path) -> None:
    for name in ("numpy", "onnxruntime", "random", "ml_dtypes"):
        (tmp_path / f"{name}.py").write_text("import os; os.mkdir('executed')")
    code = "import sys; sys.path.pop(0); from inlay.model.guard import call; print(call('adding', sum, [1, 2]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "3", done.stderr
    assert not (tmp_path / "executed").exists()


def test_it_ends_with_its_parent_in_the_middle_of_a_call() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not running(pid)


def running(pid: int) -> bool:
    """Whether the process lives; one that is dead may wait to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_guarded_process_loads_little() -> None:
    """Every command waits for it: what it imports, for a session and for histograms, brings no algebra package."""
    code = "import sys, inlay.model.native, inlay.quant.observers; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "numpy" in loaded
    assert not {"onnx_ir", "sympy", "scipy"} & {*loaded}

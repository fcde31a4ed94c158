"""How a command ends when it is told to: acknowledged at once, cleared up, and without a word from destructors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored, and nohup SIGHUP
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)
from inlay.cli.commands import run
from inlay.cli.start import end_in_order
from inlay.errors import DataError

class HalfWritten:
    def __del__(self):
        raise ValueError("seek of closed file")

def command():
    half_written = HalfWritten()
    try:
        print("up", flush=True)
        if sys.argv[1:] != ["alone"]:
            time.sleep(60)
    finally:
        sys.stdin.read()  # clears up until we let it
        if sys.argv[1:] == ["fails"]:
            raise DataError("the clearing up failed")

end_in_order()
sys.exit(run(command))
"""


def started(*arguments: str) -> subprocess.Popen[str]:
    """The program, at work."""
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", PROGRAM, *arguments]
    process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.exhaustive
def test_an_interruption_is_acknowledged_before_anything_is_cleared_up() -> None:
    with started() as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        said = process.stderr.readline() + process.stderr.readline()
        assert "interrupted; clearing up" in said
        assert process.poll() is None, "it says so while it is still at work"
        assert process.communicate("", timeout=30)[1] == "inlay: interrupted\n"
        assert process.returncode == 130


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
@pytest.mark.parametrize("arguments", [[], ["fails"]])
@pytest.mark.matrix
def test_what_ends_a_command_leaves_no_complaint_of_what_it_cut_short(name: str, arguments: list[str]) -> None:
    number = getattr(signal, name)
    with started(*arguments) as process:
        process.send_signal(number)
        assert process.communicate("", timeout=30)[1] == ""
        assert process.returncode == 128 + number


@pytest.mark.exhaustive
def test_destructors_of_an_undisturbed_command_are_heard() -> None:
    """Negative control."""
    with started("alone") as process:
        said = process.communicate("", timeout=30)[1]
        assert "seek of closed file" in said
        assert process.returncode == 0

"""Products of numpy take one thread in calls from Python, and in the processes that they start."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from inlay.model.child import Child
from inlay.model.libraries import THREADS, in_one_thread
from inlay.prepare.declare import documented


def _threads() -> set[int]:
    """Of every library that multiplies for numpy or scipy in this process."""
    assert np.ones(2) @ np.ones(2) == 2.0
    return {int(each["num_threads"]) for each in threadpool_info() if each["user_api"] == "blas"}


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.delenv(THREADS, raising=False)
    with threadpool_limits(2, "blas") as limited:
        if _threads() != {2}:
            pytest.skip("numpy multiplies by a library without threads here")
        yield limited


@pytest.mark.usefixtures("two_threads")
def test_calls_from_python_take_one_thread_and_leave_the_number_as_it_was() -> None:
    def seen() -> set[int]:
        return _threads()

    assert documented(seen)() == {1}
    assert _threads() == {2}


@pytest.mark.usefixtures("two_threads")
def test_a_number_that_was_chosen_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(THREADS, "2")
    with in_one_thread():
        assert _threads() == {2}


@pytest.mark.usefixtures("two_threads")
def test_of_calls_that_overlap_the_last_one_leaves_the_number_as_it_was() -> None:
    first, second = in_one_thread(), in_one_thread()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert _threads() == {1}
    second.__exit__(None, None, None)
    assert _threads() == {2}


def say_threads() -> None:
    """What a child runs: it answers the number by which the libraries that it loads begin."""
    from inlay.model.child import serve

    serve(lambda parts: [os.environ.get(THREADS, "none").encode()])


@pytest.mark.parametrize(("chosen", "told"), [(None, "1"), ("3", "3")])
def test_processes_begin_with_one_thread_unless_a_number_was_chosen(
    monkeypatch: pytest.MonkeyPatch, chosen: str | None, told: str
) -> None:
    monkeypatch.delenv(THREADS, raising=False)
    if chosen is not None:
        monkeypatch.setenv(THREADS, chosen)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    child = Child(f"{__name__}:{say_threads.__name__}")
    try:
        assert bytes(child.ask([b"?"], 60.0)[0]).decode() == told
    finally:
        child.close()


def test_the_command_line_begins_with_one_thread() -> None:
    asked = "import inlay.cli, os; print(os.environ['OPENBLAS_NUM_THREADS'])"
    environment = {name: text for name, text in os.environ.items() if name != THREADS}
    told = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "1"

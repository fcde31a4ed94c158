"""Functions of a user that misbehave: copied into the folder of an attack, where ``HOOK_BEHAVIOR_CALL`` names one.

A hook does its ordinary work; at the call of that number, and from then on, it misbehaves: before that, after it, or in
what it returns. This file imports nothing of the tests: it is run as a user's module.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES = 8
_calls = 0
_kept: list[Any] = []


class Unprintable(Exception):
    """An error that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Trap:
    """An object that runs code where it is unpickled: the command's own process must not be that place."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_sprung, (str(Path(__file__).with_name("SPRUNG")),))

    def __float__(self) -> float:
        raise SystemExit("in float")


def _sprung(path: str) -> None:
    Path(path).write_text("code of the user ran in the command", encoding="utf8")


def _raise(error: BaseException) -> None:
    raise error


def _memory() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (1 << 30, 1 << 30))
    _kept.extend(bytearray(1 << 26) for _ in range(1000))


def _every_file() -> Iterator[int]:
    yield from (int(name) for name in os.listdir("/proc/self/fd"))


def _write_everywhere() -> None:
    for number in _every_file():
        with contextlib.suppress(OSError):
            os.write(number, b"\xff" * 4096)


def _close_everything() -> None:
    os.closerange(0, 4096)


def _start_child() -> None:
    _kept.append(subprocess.Popen(["sleep", "1000"]))


def _fork() -> None:
    if os.fork() == 0:
        time.sleep(1000)


def _thread() -> None:
    threading.Thread(target=time.sleep, args=[1000], daemon=False).start()


np.random.default_rng(0)  # numpy loads a module at the first one: a path that is cleared must not be its own trouble


def _change_surroundings() -> None:
    os.chdir("/")
    os.umask(0)
    os.environ.clear()
    sys.path.clear()
    sys.stdout = sys.stderr = None
    np.seterr(all="raise")
    sys.setrecursionlimit(200)


def _ignore_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _recurse() -> None:
    _recurse()


ENDING: dict[str, Callable[[], object]] = {
    "hang": lambda: time.sleep(1000),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "leave": lambda: os._exit(0),
    "exit": lambda: sys.exit(0),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "base": lambda: _raise(BaseException("of all")),
    "unprintable": lambda: _raise(Unprintable()),
    "lines": lambda: _raise(ValueError("one\ntwo\x1b[31m\n\n")),
    "signal": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "abort": os.abort,
    "memory": _memory,
    "recursion": _recurse,
    "closing": _close_everything,
    "writing": _write_everywhere,
}
"""What no call returns from, or no answer comes back after."""
HARMLESS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "print": lambda: print("x" * (10 << 20)),
    "input": lambda: sys.stdin.read(),
    "thread": _thread,
    "child": _start_child,
    "fork": _fork,
    "surroundings": _change_surroundings,
    "ignoring": _ignore_signals,
}
"""What a run must not notice; ``change`` and ``keep``, which need the arguments, besides."""
RESULTS: dict[str, Callable[[], object]] = {
    "text": lambda: "a word",
    "nan": lambda: float("nan"),
    "none": lambda: None,
    "huge": lambda: 10**400,
    "array": lambda: np.zeros((2, 3)),
    "complex": lambda: 1j,
    "lambda": lambda: lambda: None,
    "objects": lambda: np.array([object(), threading.Lock()], dtype=object),
    "trap": Trap,
    "traps": lambda: np.array([Trap(), Trap()], dtype=object),
}
"""What a call returns instead of a number, or of an array in a sample."""


def __getattr__(name: str) -> Callable[..., Any]:
    hook, behavior, call = name.split("_") if name.count("_") == 2 else ("", "", "")
    if hook not in _HOOKS:
        raise AttributeError(name)

    def function(*arguments: Any) -> Any:
        return _HOOKS[hook](behavior, int(call), *arguments)

    return function


def act(behavior: str, first: int = 0) -> bool:
    """Misbehave if it is time. Returns whether it is."""
    global _calls
    _calls += 1
    due = _calls > first
    if due and (do := ENDING.get(behavior) or HARMLESS.get(behavior)):
        do()
    return due


def _metric(behavior: str, first: int, outputs: Any, labels: Any) -> Any:
    due = act(behavior, first)
    found = float(sum(np.abs(y).astype(np.float64).sum() for each in outputs for y in each.values()))
    found = found / 1000.0 + float(labels.sum())
    if due and behavior == "change":
        for each in outputs:
            for y in each.values():
                y[...] = -7.0
            each.clear()
        labels[...] = 99
    if behavior == "keep":
        _kept.append((outputs, [{k: v.copy() for k, v in each.items()} for each in outputs]))
        for kept, copies in _kept:
            for one, other in zip(kept, copies, strict=True):
                for key, value in other.items():
                    np.testing.assert_array_equal(one[key], value)
    if due and behavior == "random":
        return float(np.random.default_rng().normal())
    return RESULTS[behavior]() if due and behavior in RESULTS else found


def _feeds(behavior: str, first: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    made = [{"x": rng.normal(size=SHAPE).astype(np.float32)} for _ in range(SAMPLES)]
    return [{"x": RESULTS[behavior]()}, *made] if behavior in RESULTS else made


def _data(behavior: str, first: int) -> Any:
    act(behavior)
    return RESULTS[behavior]() if behavior in RESULTS and first else _feeds(behavior, first)


def _generator(behavior: str, first: int) -> Iterator[Any]:
    for feed in _feeds(behavior, first):
        act(behavior, first)
        yield feed


def _augment(behavior: str, first: int, sample: Any, rng: np.random.Generator) -> Any:
    due = act(behavior, first)
    varied = {k: v + np.float32(0.01) * rng.standard_normal(v.shape).astype(v.dtype) for k, v in sample.items()}
    if due and behavior == "change":
        for value in sample.values():
            value[...] = -7.0
        sample.clear()
        rng.bytes(1000)
    if due and behavior in RESULTS:
        return {"odd": dict.fromkeys(varied, RESULTS[behavior]())} if first else RESULTS[behavior]()
    return {"noise": varied}


_HOOKS: dict[str, Callable[..., Any]] = {"metric": _metric, "data": _data, "generator": _generator, "augment": _augment}
SHAPE: tuple[int, ...] = ()  # of one sample; written behind this where the file is copied to

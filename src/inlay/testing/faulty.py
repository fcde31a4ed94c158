"""A target that fails in a way of your choice: what a run makes of faulty runtimes can be tried without one.

It computes and times as the ``null`` target does, or another, until its fault strikes: on models of one kind, after a
number of calls that went well, always or a number of times or by chance. Calls are counted over all processes of a run,
in a folder.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

import numpy as np

from inlay.errors import RunFailed
from inlay.model.normalize import FloatRewrite
from inlay.quant.rewrite import Rewrite
from inlay.space.rules import Rules
from inlay.targets.base import Artifact, Executable, Feed, Fingerprint, KernelTime, Simulated, Target, TargetSpec
from inlay.targets.registry import create

Call = Literal["start", "compile", "run", "time", "profile", "close"]
Place = Literal["search", "confirmation", "baseline", "anywhere"]

_SLOW_S = 2.0  # seconds of a slow build
_LEAK_BYTES = 64 << 20  # of each call
_GARBAGE = b'{"ns": [1.0], "drift": 0.0}\n' * 100  # looks like an answer of a worker
_ODD_TEXT = "\x1b[2J[/red]\0 \ud800 %s {} " + "é" * 5000
_leaked: list[np.ndarray] = []


def _abort() -> NoReturn:
    os.abort()


def _segfault() -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def _exit() -> NoReturn:
    os._exit(0)


def _hang() -> None:
    while True:
        time.sleep(3600)


def _raise() -> NoReturn:
    raise ValueError(_ODD_TEXT)


def _refuse() -> NoReturn:
    raise RunFailed("the device is busy")


def _exhaust() -> NoReturn:
    raise MemoryError


def _leak() -> None:
    _leaked.append(np.ones(_LEAK_BYTES, np.uint8))


def _print_garbage() -> None:
    os.write(1, _GARBAGE)
    print(_GARBAGE, flush=True)


def _read_messages() -> None:
    sys.stdin.readline()


def _sleep() -> None:
    time.sleep(_SLOW_S)


def _shortened(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array.reshape(-1)[:1] for name, array in outputs.items()}


def _random(outputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(time.perf_counter_ns())
    return {name: array + rng.standard_normal(array.shape).astype(array.dtype) for name, array in outputs.items()}


@dataclass(frozen=True)
class Fault:
    """One way to fail."""

    call: Call  # of the runtime that fails
    act: Callable[[], None] | None = None  # does something before the call
    spoil: Callable[[Any], Any] | None = None  # makes something else of what the call returns
    chance: float = 1.0  # that a call fails


def _filled(value: float) -> Callable[[Any], Any]:
    return lambda array: np.full(np.shape(array), value)


def _outputs(value: float) -> Callable[[Any], Any]:
    return lambda outputs: {name: np.full(array.shape, value, array.dtype) for name, array in outputs.items()}


FAULTS: Mapping[str, Fault] = {
    **{f"abort in {call}": Fault(call, _abort) for call in ("compile", "run", "time", "close")},
    **{f"exit in {call}": Fault(call, _exit) for call in ("compile", "run", "time")},
    **{f"hang in {call}": Fault(call, _hang) for call in ("compile", "run", "time", "profile", "close")},
    **{f"raise in {call}": Fault(call, _raise) for call in ("compile", "run", "time", "profile", "close")},
    **{f"{what} in start": Fault("start", act) for what, act in (("abort", _abort), ("raise", _raise))},
    "hang in start": Fault("start", _hang),
    "segfault in time": Fault("time", _segfault),
    "refuse to run": Fault("run", _refuse),
    "out of memory in compile": Fault("compile", _exhaust),
    "leak": Fault("time", _leak, chance=0.2),
    "slow build": Fault("compile", _sleep),
    "garbage on stdout": Fault("time", _print_garbage),
    "reads stdin": Fault("run", _read_messages),
    "NaN times": Fault("time", spoil=_filled(np.nan)),
    "zero times": Fault("time", spoil=_filled(0.0)),
    "negative times": Fault("time", spoil=_filled(-1e6)),
    "infinite times": Fault("time", spoil=_filled(np.inf)),
    "too few times": Fault("time", spoil=lambda ns: ns[:-1]),
    "times as objects": Fault("time", spoil=lambda ns: ns.astype(object)),
    "zero times, now and then": Fault("time", spoil=_filled(0.0), chance=0.02),
    "NaN in profile": Fault("profile", spoil=lambda found: [KernelTime("k", "Conv", float("nan")) for _ in found]),
    "NaN outputs": Fault("run", spoil=_outputs(np.nan)),
    "outputs of another shape": Fault("run", spoil=_shortened),
    "outputs as objects": Fault("run", spoil=lambda found: {k: v.astype(object) for k, v in found.items()}),
    "no outputs": Fault("run", spoil=lambda found: {}),
    "other outputs each time": Fault("run", spoil=_random),
    "abort, 2 %": Fault("time", _abort, chance=0.02),
    "raise, 2 %": Fault("time", _refuse, chance=0.02),
}
"""Every fault by name."""


class FaultyTarget:
    """A target with one fault.

    Args:
        fault: its name in :data:`FAULTS`.
        place: models that it strikes: candidates of the search, their final forms in the confirmation, the given model
            as the baseline, or all of them.
        folder: where calls are counted; a new one for each run.
        after: calls that go well before it strikes first.
        times: how often it strikes; 0 for no limit.
        seed: of faults that strike by chance.
        base: the target that does the work.
        noise: of the ``null`` target; of others this must be 0.
    """

    name = "faulty"

    def __init__(
        self,
        fault: str,
        place: str = "anywhere",
        folder: str = "",
        after: int = 0,
        times: int = 0,
        seed: int = 0,
        base: str = "null",
        noise: float = 0.0,
    ) -> None:
        self._fault, self._place, self._folder = FAULTS[fault], place, folder
        self._after, self._times, self._name = after, times, fault
        self._rng = np.random.default_rng([seed, os.getpid()])
        self._base: Target = create(TargetSpec(base, {"noise": noise} if noise else {}))
        self.deterministic = self._base.deterministic

    def fingerprint(self) -> Fingerprint:
        """That of the target below; the first thing that a worker asks for, so faults at start strike here."""
        self.strike("start", None)
        return Fingerprint(self.name, {**self._base.fingerprint().facts, "fault": self._name, "place": self._place})

    def rules(self) -> Rules:
        """Those of the target below."""
        return self._base.rules()

    def float_rewrites(self) -> Sequence[FloatRewrite]:
        """Those of the target below."""
        return self._base.float_rewrites()

    def rewrites(self) -> Sequence[Rewrite[Any]]:
        """Those of the target below."""
        return self._base.rewrites()

    def compile(self, model: Artifact) -> FaultyExecutable:
        """Build the model, unless the fault strikes."""
        self.strike("compile", model)
        return FaultyExecutable(self._base.compile(model), model, self)

    def strike(self, call: Call, model: Artifact | None) -> bool:
        """Let the fault act where it strikes this call. Returns whether it does."""
        fault = self._fault
        if fault.call != call or not (model is None or self._place in ("anywhere", place_of(model))):
            return False
        if fault.chance < 1.0 and self._rng.random() >= fault.chance:
            return False
        number = self._count()
        if number < self._after or 0 < self._times <= number - self._after:
            return False
        if fault.act is not None:
            fault.act()
        return True

    def spoiled(self, call: Call, model: Artifact, found: Any) -> Any:
        """What a call returns once the fault has made something of it."""
        spoil = self._fault.spoil
        return spoil(found) if spoil is not None and self.strike(call, model) else found

    def before(self, call: Call, model: Artifact) -> None:
        """Let a fault that acts strike a call."""
        if self._fault.act is not None:
            self.strike(call, model)

    def _count(self) -> int:
        """Calls before this one that the fault could have struck, in all processes of the run."""
        if not self._folder:
            return self._after
        with open(Path(self._folder) / "calls", "ab") as file:
            file.write(b".")
            return file.tell() - 1


class FaultyExecutable:
    """A model on a faulty target."""

    def __init__(self, executable: Executable, model: Artifact, target: FaultyTarget) -> None:
        self._executable, self._model, self._target = executable, model, target

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name, or the fault."""
        self._target.before("run", self._model)
        return cast(dict[str, np.ndarray], self._target.spoiled("run", self._model, self._executable.run(feed)))

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """Times, or the fault."""
        self._target.before("time", self._model)
        return cast(np.ndarray, self._target.spoiled("time", self._model, self._executable.time(feed, repeats)))

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """Kernel times, or the fault."""
        self._target.before("profile", self._model)
        found = self._executable.profile(feed, repeats)
        return cast(list[KernelTime], self._target.spoiled("profile", self._model, found))

    def close(self) -> None:
        """Free the model, or the fault."""
        self._target.before("close", self._model)
        self._executable.close()

    def reseed(self, seed: int) -> None:
        """Draw the noise of a simulation below from ``seed``."""
        if isinstance(self._executable, Simulated):
            self._executable.reseed(seed)


def place_of(model: Artifact) -> Place:
    """Where in a run a model occurs, by the names of the files that a run writes."""
    if model.path.name.startswith("candidate-"):
        return "search"
    return "confirmation" if model.path.parent.name.startswith("final-") else "baseline"

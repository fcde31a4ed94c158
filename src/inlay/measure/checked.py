"""What a runtime returns, checked where it arrives: all that follows may rely on it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np

from inlay.data.archives import as_text
from inlay.errors import BadReading, RunFailed, TargetError
from inlay.measure import policy
from inlay.measure.preemption import Preempted, moment, preempted
from inlay.targets.base import (
    Executable,
    Feed,
    KernelTime,
    ProfilesAsBuilt,
    RunsAtOnce,
    Simulated,
    StatesMemory,
    TimedElsewhere,
    WarmsUp,
)


class Checked:
    """An executable that returns arrays and times as the protocol says, or raises.

    Args:
        announce: called before each call of the runtime.
        estimated: its times are estimates, not readings of a clock.

    Attributes:
        preempted: what other processes took of the last call of :meth:`time`.
        warms_up: :meth:`time` runs the model before its first reading.
        is_profiled: :meth:`profile` builds nothing.
        is_real: its times are neither estimates nor a simulation's.
        is_of_this_process: inferences run here, and not in a simulation.
        one_by_one: inferences run in this process, and a call costs nothing besides.
    """

    def __init__(self, executable: Executable, announce: Callable[[], None], estimated: bool = False) -> None:
        self._executable, self._announce = executable, announce
        elsewhere = isinstance(executable, TimedElsewhere) and executable.measured_elsewhere
        self.is_real = not (estimated or isinstance(executable, Simulated))
        self.is_of_this_process = self.is_real and not elsewhere
        self.preempted = Preempted()
        self.warms_up = isinstance(executable, WarmsUp) and executable.warms_up
        self.is_profiled = isinstance(executable, ProfilesAsBuilt) and executable.is_profiled
        self.one_by_one = self.is_of_this_process and not self.warms_up

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name. Raises RunFailed."""
        self._announce()
        return checked_outputs(self._executable.run(feed))

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """Nanoseconds of each inference, shape (repeats,), float64. Raises RunFailed, BadReading."""
        self._announce()
        before = moment()
        found = self._executable.time(feed, repeats)
        self.preempted = preempted(before, moment()) if self.is_of_this_process else Preempted()
        return checked_readings(found, repeats)

    def plainly(self, feed: Feed, repeats: int) -> np.ndarray:
        """The same as the runtime gives it: nothing else runs in between. Raises RunFailed."""
        self._announce()
        return self._executable.time(feed, repeats)

    def answering(self, feed: Feed) -> Callable[[], object]:
        """What answers one request, in several threads at once. Raises TargetError where it cannot."""
        if not (isinstance(self._executable, RunsAtOnce) and self._executable.runs_at_once):
            raise TargetError("the target answers one request at a time: requests at a rate cannot be measured there")
        self._announce()
        return partial(self._executable.run, feed)

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """Kernel times. Raises RunFailed, BadReading."""
        self._announce()
        kernels = list(self._executable.profile(feed, repeats))
        for kernel in kernels:
            if not (isinstance(kernel, KernelTime) and np.isfinite(kernel.ns) and kernel.ns >= 0):
                raise BadReading(f"the runtime's profile holds {str(kernel)[:200]}, which is no time of a kernel")
        return kernels

    def stated_memory(self, feeds: Iterable[Feed]) -> int | None:
        """Bytes that a session takes at most where the model is for; None where nobody states it. Raises RunFailed."""
        if not isinstance(self._executable, StatesMemory):
            return None
        self._announce()
        return max(int(self._executable.memory(feed)) for feed in feeds)

    def close(self) -> None:
        """Free the executable."""
        self._announce()
        self._executable.close()

    def reseed(self, seed: int) -> None:
        """Draw the noise of a simulation from ``seed``; real runtimes have their own."""
        if isinstance(self._executable, Simulated):
            self._executable.reseed(seed)


def checked_readings(found: object, repeats: int) -> np.ndarray:
    """Readings as float64: one for each inference, finite, and longer than what the clock can tell from nothing.

    Raises:
        BadReading: they are not.
    """
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "iuf" or found.shape != (repeats,):
        shape = f"{found.dtype}{list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
        raise BadReading(f"the runtime gave {shape} instead of {repeats} times")
    ns = found.astype(np.float64)
    bad = ~(np.isfinite(ns) & (ns > policy.CLOCK_NS))
    if bad.any():
        raise BadReading(f"the runtime says that an inference took {ns[bad][0]:g} ns")
    return ns


def checked_outputs(found: object) -> dict[str, np.ndarray]:
    """Outputs as arrays by name. Raises RunFailed where they are something else, or hold Python objects."""
    if not isinstance(found, Mapping):
        raise RunFailed(f"the runtime gave {type(found).__name__} instead of outputs by name")
    outputs = {name: as_text(array) if isinstance(array, np.ndarray) else array for name, array in found.items()}
    for name, array in outputs.items():
        if isinstance(array, (list, dict)):
            kind = "sequence" if isinstance(array, list) else "map"
            raise RunFailed(f"its output {name} is a {kind}, and only tensors can be compared")
        if not isinstance(name, str) or not isinstance(array, np.ndarray) or array.dtype.hasobject:
            what = f"an array of {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
            raise RunFailed(f"the runtime gave {what} as output {name}")
    return outputs

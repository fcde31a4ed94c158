"""Where a run measures: on this machine, on devices elsewhere, or in a simulation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from inlay.errors import InlayError, UsageError
from inlay.files import scratch
from inlay.installed import EXECUTORS, joined
from inlay.measure.client import Limit, Worker, usual_limit
from inlay.model.pool import OpenPool
from inlay.quant.accuracy import Outputs
from inlay.targets.base import Artifact, TargetSpec
from inlay.targets.listing import TargetRow, written_options
from inlay.types import Placement

StartWorker = Callable[[TargetSpec, Path, Limit], Worker]
"""Starts a worker for a target, with a folder for scratch files and a time limit."""
EqualDevices = Callable[[TargetSpec, int], AbstractContextManager[Sequence[StartWorker]]]
"""Holds at most so many devices equal to that of a target which are free now; a way to start workers on each."""


@dataclass(frozen=True, eq=False)
class Built:
    """What building and running a model elsewhere showed."""

    graph: str  # digest of the runtime's optimized graph, as of `load`
    outputs: Sequence[Outputs]  # for every feed


Take = Callable[[str], Built | None]  # what was found out elsewhere about the model of a key; None where nothing was


@dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """The search of a run, for whoever builds models ahead of it."""

    spec: TargetSpec  # the target
    folder: Path  # for scratch files
    limit: Limit  # seconds that one message may take
    key: Callable[[Placement], str]  # identifies the model of a placement
    write: Callable[[Placement], Artifact]  # writes it
    feeds: Sequence[Path]  # that models run on: the selection samples
    # seconds that a model under way is waited for: about what the device itself would take
    patience_s: Callable[[], float]
    judged: Callable[[str], bool]  # whether the model of a key was judged before, in this session or an earlier one


class Ahead:
    """Models built and judged ahead, by the keys of models: here none, and whoever builds some derives from this.

    A search goes the same way with and without: it asks for one candidate after the other, and what was built ahead
    only saves the device the work.
    """

    def begin(self, now: str, upcoming: Callable[[int], Sequence[Placement]]) -> None:
        """Begin with what is likely next.

        Args:
            now: key of the model that the device is about to build itself, or that is taken.
            upcoming: so many placements that a strategy will probably propose, the likeliest first.
        """

    def take(self, key: str) -> Built | None:
        """What was found out about a model; None where nothing was, or it takes too long."""
        return None


BuildAhead = Callable[[Search], AbstractContextManager[Ahead]]
"""Holds whoever builds ahead of a search, until it has ended."""


def no_others(spec: TargetSpec, most: int) -> AbstractContextManager[Sequence[StartWorker]]:
    """No device but the one."""
    return nullcontext(())


@dataclass(frozen=True)
class Lab:
    """Where a run measures, and by which clock: processes on this machine, or a simulation."""

    start: StartWorker = Worker  # starts a worker
    clock: Callable[[], float] = time.monotonic  # returns seconds
    sleep: Callable[[float], None] = time.sleep  # waits for a number of seconds of that clock
    equal: EqualDevices = no_others  # holds further devices that measure as `start`'s does
    ahead: BuildAhead = lambda search: nullcontext(Ahead())  # holds processes elsewhere that build as `start`'s does
    open_pool: OpenPool | None = None  # opens a pool for what is not measured, where there may be one
    targets: Sequence[str] = ()  # names of those that may be there, where it is opened for none in particular


HERE = Lab()  # this machine


OpenLab = Callable[[str, Iterable[TargetSpec], Callable[[str], None]], AbstractContextManager[Lab]]
"""Opens a lab elsewhere, whose devices are let go at the end. The entry point is such a function; its name is that of
the option which asks for it. It is given what the option says, the targets that will be asked for (none to find out
what is there), and what hears in one line what the run waits for. It raises UsageError where it does not understand
the address, or lacks what it needs, and TargetError where nobody answers, or a target cannot be created."""


def measuring(
    ray: str | None, specs: Iterable[TargetSpec], tell: Callable[[str], None], device: str | None = None
) -> AbstractContextManager[Lab]:
    """The lab of a run: this machine, or what an executor makes of the address that its option says.

    Raises UsageError where both options are given, and what an OpenLab does.
    """
    given = {option: address for option, address in (("ray", ray), ("device", device)) if address is not None}
    if not given:
        return nullcontext(HERE)
    if len(given) > 1:
        raise UsageError(f"--ray {ray} and --device {device}: a run measures in one place: give one of them")
    ((option, address),) = given.items()
    found = joined(EXECUTORS).get(option)
    if found is None:
        raise UsageError(f"--{option} {address}: this part of Inlay is not installed: install Inlay again")
    open_lab: OpenLab = found.load()
    return open_lab(address, specs, tell)


def targets_on(device: str, tell: Callable[[str], None]) -> list[TargetRow]:
    """What a device has of the targets whose workers it can be sent: what their measurements depend on, or why not."""
    with scratch() as folder, measuring(None, (), tell, device) as lab:
        return [_row_of(name, lab, folder) for name in lab.targets]


def _row_of(name: str, lab: Lab, folder: Path) -> TargetRow:
    facts: Mapping[str, str] = {}
    problem, options = "", list[str]()
    try:
        options = written_options(name)
        with lab.start(TargetSpec(name), folder, usual_limit) as worker:
            facts = {**worker.fingerprint.facts, **worker.machine}
    except InlayError as error:
        problem = str(error)
    return TargetRow(name, facts, problem, options)

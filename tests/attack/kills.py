"""Signals at random moments of runs: nothing recorded is lost, nothing left behind, and the resumed run ends the same.

Each attack starts ``inlay tune``, waits for a stage that its seed names and a little longer, and sends a signal to the
command, to its worker, or to both. Then the same command runs to its end. On simulated targets the result must equal
that of an undisturbed run bit for bit; elsewhere readings differ, and everything else is checked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from inlay.cli import commands
from inlay.errors import UNPROVEN
from inlay.testing import random_feed, small_model
from tests.attack import numbered

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
VICTIMS = ("command", "worker", "both")
STAGES = (
    "",  # before anything is said: Python is loading, the worker starts
    "build and run",
    "normalize",
    "calibrate",
    "ranges by",
    " float:",
    " full-int8:",
    " conv-matmul:",
    "cut",
    "confirm",
    "written",
)
"""What the command prints as a stage begins; ``written`` is the first output file, which nothing announces."""
STAGES_OF_SEVERAL = ("measure the files of all targets", "look for one file", "ethos-u55-128: calibrate")
"""More of them where it tunes for several targets."""
SIMULATED = ("null", "ethos-u")
ORPHAN_S = 2.0
_PATIENCE_S = 600.0  # for one run on a busy machine
_LONGEST_DELAY_S = 0.5
_VARIES = {"measurements", "compiles", "equal_graphs", "replayed", "builds", "wall_s", "overhead", "machine", "failed"}
MARK = "INLAY_KILLED_RUN"
"""In the environment of all processes of a command: the folder that it was started in."""


@dataclass(frozen=True)
class Attack:
    """One signal: after what was printed, how much later, which, and to whom."""

    number: int
    stage: str
    delay_s: float
    number_of_signal: signal.Signals
    victim: str

    @classmethod
    def drawn(cls, seed: int, number: int, stages: Sequence[str] = STAGES) -> Attack:
        """The attack that follows from a seed and its number: stages, signals and victims come up equally often."""
        rng = np.random.default_rng([seed, number])
        stage = stages[number % len(stages)]
        kind, victim = SIGNALS[rng.integers(len(SIGNALS))], VICTIMS[rng.integers(len(VICTIMS))]
        return cls(number, stage, float(rng.uniform(0.0, _LONGEST_DELAY_S)) * float(rng.random()), kind, victim)

    def __str__(self) -> str:
        when = f"after '{self.stage.strip()}'" if self.stage else "at the start"
        return f"#{self.number} {self.number_of_signal.name} to {self.victim} {when} + {self.delay_s:.2f} s"


@dataclass(frozen=True)
class Ended:
    """How one run of the command ended: its exit code (negative for a signal), and what it printed."""

    code: int
    said: tuple[str, ...]


class Ground:
    """Where attacks take place: a model with samples, and an undisturbed run of it.

    Args:
        folder: for everything.
        targets: names of the targets.
        model: a file; a small network by default.
        data: its samples.
    """

    def __init__(
        self, folder: Path, targets: Sequence[str] = ("null",), model: Path | None = None, data: Path | None = None
    ) -> None:
        self.folder = folder
        self.repeats = all(name.startswith(SIMULATED) for name in targets)
        self.stages = STAGES if len(targets) == 1 else (*STAGES_OF_SEVERAL, *STAGES)
        if model is None:
            proto = small_model()
            model, data = folder / "small.onnx", folder / "samples.npz"
            onnx.save(proto, model)
            feeds = [random_feed(proto, seed) for seed in range(8)]
            np.savez(data, **{name: np.concatenate([f[name] for f in feeds]) for name in feeds[0]})
        given = [] if data is None else ["--data", str(data)]
        self.options = [str(model), *given, "--min-sqnr", "10", "--max-measurements", "6", "--budget", "none"]
        self.options += ["--no-cost-db", *(word for name in targets for word in ("--target", name))]
        self.whole = folder / "whole"
        ended = self.run(self.whole)
        assert ended.code in (0, UNPROVEN), ended
        self.outputs = outputs(self.whole)
        self.temporary = {p.name for p in (folder / "temp").iterdir()}  # what the runtime leaves in any case

    def run(self, out: Path, attack: Attack | None = None) -> Ended:
        """Run the command to its end, or to that of the attack."""
        with Command(self.folder, ["tune", *self.options, "-o", str(out)]) as command:
            if attack is not None:
                command.await_stage(attack.stage, out)
                time.sleep(attack.delay_s)
                command.send(attack.number_of_signal, attack.victim)
            return command.ended()

    def faults(self, attack: Attack) -> list[str]:
        """What one attack broke; nothing where every promise held."""
        out = self.folder / f"attack-{attack.number}"
        disturbed = self.run(out, attack)
        found = [] if wait_for_none(self.folder) else ["a process outlived the command"]
        before = trials(out)
        judged = sum(" dB" in line or "exact" in line for line in disturbed.said if "x [" in line)
        recorded = sum(len(rows) for rows in before.values())
        found += [f"{judged} trials were reported, {recorded} recorded"] if judged > recorded else []
        found += [f"it ended with a traceback: {disturbed.said[-1]}"] if _traceback(disturbed) else []
        resumed = self.run(out)
        if resumed.code not in (0, UNPROVEN):
            found.append(f"the resumed run ended with {resumed.code}: {resumed.said[-1:]}")
        elif any(trials(out).get(name, [])[: len(rows)] != rows for name, rows in before.items()):
            found.append("records are lost or changed")
        elif self.repeats:
            found += [
                f"{n} differs from the undisturbed run's" for n, v in outputs(out).items() if self.outputs[n] != v
            ]
        found += [] if wait_for_none(self.folder) else ["a process outlived the resumed command"]
        left = sorted(_files(out) ^ _files(self.whole))
        left += [f"temp/{p.name}" for p in (self.folder / "temp").iterdir() if p.name not in self.temporary]
        found += [f"left behind or missing: {', '.join(left)}"] if left else []
        if not found:
            shutil.rmtree(out)
        return found


class Command:
    """The command in a fork of this process, which has everything imported: it starts in no time.

    Args:
        folder: of all processes of it, see :data:`MARK`.
        arguments: of the command line.
        prepare: what the process does before.
    """

    def __init__(self, folder: Path, arguments: Sequence[str], prepare: Callable[[], object] = lambda: None) -> None:
        (folder / "temp").mkdir(exist_ok=True)
        self._folder, self._said, self._lines = folder, list[str](), threading.Condition()
        readable, writable = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(readable)
            _become(arguments, folder, writable, prepare)
        os.close(writable)
        self._reader = threading.Thread(target=self._read, args=[readable], daemon=True)
        self._reader.start()
        self._code: int | None = None

    def __enter__(self) -> Command:
        return self

    def __exit__(self, *_: object) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self.ended()

    @property
    def alive(self) -> bool:
        """Whether it goes on."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code is None

    def await_stage(self, stage: str, out: Path) -> None:
        """Return once ``stage`` began, or the command ended."""
        end = time.monotonic() + _PATIENCE_S
        while time.monotonic() < end and self._reader.is_alive():
            written = stage == "written" and (out / "recipe.yaml").exists()
            if written or not stage or any(stage in line for line in self._said):
                return
            time.sleep(0.002)

    def send(self, number: signal.Signals, victim: str) -> None:
        """Send a signal; a process that ended already does not mind."""
        workers = [p for p in processes(self._folder) if p != self.pid]
        chosen = {"command": [self.pid], "worker": workers, "both": [*workers, self.pid]}[victim]
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def ended(self) -> Ended:
        """How it ended."""
        end = time.monotonic() + _PATIENCE_S
        while self.alive and time.monotonic() < end:
            time.sleep(0.005)
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            self._code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            self._said.append(f"it did not end within {_PATIENCE_S:.0f} s")
        self._reader.join(ORPHAN_S)  # a worker that lives on holds the pipe open
        return Ended(self._code, tuple(self._said))

    def _read(self, readable: int) -> None:
        with os.fdopen(readable, errors="replace") as lines:
            for line in lines:
                self._said.append(line.rstrip())


def _become(arguments: Sequence[str], folder: Path, stderr: int, prepare: Callable[[], object]) -> None:
    """Be the command, in a child process: this does not return."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(stderr, 2)
    sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
    os.environ.update({MARK: str(folder), "TMPDIR": str(folder / "temp")})
    tempfile.tempdir = None
    sys.argv = ["inlay", *arguments]
    code = 1
    try:
        prepare()
        commands.main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException as error:  # what would be a traceback at the end of the process
        print(f"Traceback: {type(error).__name__}: {error}", file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def outputs(out: Path) -> dict[str, Any]:
    """What two runs of one seed have in common: the files, and the results without counts of work and times."""
    found: dict[str, Any] = {"trials": trials(out)}
    for path in sorted(p for p in out.rglob("*") if p.name in ("model.onnx", "recipe.yaml")):
        found[str(path.relative_to(out))] = path.read_bytes()
    for path in sorted(out.rglob("result.json")):
        result = json.loads(path.read_text(encoding="utf8"))
        result.pop("command", None)  # it names the folder
        result["search"] = {k: v for k, v in result["search"].items() if k not in _VARIES}
        found.update({f"{path.relative_to(out)}: {k}": v for k, v in result.items()})
    return found


def trials(out: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every trial of each journal, in order; none of one that is not there yet."""
    query = "SELECT candidate, origin, placement, outcome, accepted, versus FROM trials ORDER BY number"
    found = {}
    for path in out.rglob("run.sqlite"):
        with contextlib.closing(sqlite3.connect(path)) as db:
            made = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'trials'").fetchone()
            # it may have been killed as it made its tables
            found[str(path.relative_to(out))] = db.execute(query).fetchall() if made else []
    return found


def _files(out: Path) -> set[str]:
    return {str(path.relative_to(out)) for path in out.rglob("*")}


def processes(folder: Path) -> Iterator[int]:
    """Every process of a command that was started in ``folder``, its workers included."""
    mark = f"{MARK}={folder}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes().split(b"\0") and (entry / "cmdline").read_bytes():
                    yield int(entry.name)


def wait_for_none(folder: Path, but: Collection[int] = ()) -> bool:
    """Whether no process of ``folder`` is left after a moment, those ``but`` aside."""
    end = time.monotonic() + ORPHAN_S
    while any(pid not in but for pid in processes(folder)):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def end_all(folder: Path) -> None:
    """End what is left of a command's processes."""
    for pid in processes(folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _traceback(ended: Ended) -> bool:
    return any(line.startswith("Traceback") for line in ended.said)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    numbered.add_arguments(parser)
    parser.add_argument("--target", action="append", help="null by default, whose results must be equal; repeatable")
    parser.add_argument("--model", type=Path, help="a model; a small network by default")
    parser.add_argument("--data", type=Path, help="its samples")


def run(given: argparse.Namespace) -> int:
    """Attack, and print what broke. Returns 1 where something did."""
    if not numbered.can_run():
        return 2
    with tempfile.TemporaryDirectory(prefix="kills-", ignore_cleanup_errors=True) as name:
        ground = Ground(Path(name), given.target or ["null"], given.model, given.data)
        attacks = (Attack.drawn(given.seed, number, ground.stages) for number in numbered.numbers(given))
        return numbered.work(attacks, ground.faults)

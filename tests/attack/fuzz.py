"""Hostile inputs for as long as the budget lasts: models, samples, YAML, journals, results and command lines.

Every input is a folder with a command line (:mod:`~tests.attack.case`), which follows from the seed and its number
alone. Most run one after the other in a lane (:mod:`~tests.attack.lane`), which costs milliseconds. One in 16, and
whatever seemed to break a promise in a lane, runs in a fork of a process that has everything imported and has run
nothing: crashes, hangs, memory and exit code are its own, with nothing left of the input before it. One in some
hundreds runs in a fresh interpreter instead, as a user would start it. Several processes share the numbers.

The generators draw from :class:`~tests.attack.choices.Choices`: here numbers from a seed, which cost microseconds; in
``test_fuzz.py`` hypothesis, which shrinks what it finds. An input that broke a promise is generated again into the
folder of findings, untouched; ``--again FOLDER`` runs it once more.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import selectors
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.attack import sandbox, trial
from tests.attack.case import Case
from tests.attack.choices import Seeded
from tests.attack.lane import Lane
from tests.attack.sandbox import Ended, adopt_orphans
from tests.attack.seeds import Seeds

_KEPT = 2  # reproducers of one finding by each process: the second one shows whether it is always the same
_REPORT_S = 60.0
_MEMORY = "/dev/shm"
"""Where inputs lie, each for a moment: making and removing so many small files is a good part of the work on a disk."""
_ALONE = 16  # every so many-th input runs in a process of its own from the start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--budget", default="1h", help="time in all: 90s, 10m, 1h (default 1h)")
    parser.add_argument("--count", type=int, help="inputs instead of a budget")
    parser.add_argument("--seed", type=int, default=0, help="every input follows from it (default 0)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at work (default: all cores)")
    parser.add_argument("--kinds", default=",".join(trial.KINDS), help="kinds of input, with commas")
    parser.add_argument("--findings", type=Path, default=Path("out/findings"), help="where reproducers are kept")
    parser.add_argument("--again", type=Path, nargs="*", help="run reproducers again instead")


def run(given: argparse.Namespace) -> int:
    """Attack, and print the summary. Returns 1 where something was found."""
    if sys.platform != "linux":
        print("the processes under attack are watched through /proc: this needs Linux")
        return 2
    memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True, dir=memory) as name:
        seeds = trial.prepare(Path(name) / "seeds")
        if given.again:
            return _again(given.again, Path(name))
        plan = Plan(given.seed, tuple(given.kinds.split(",")), given.findings, Path(name), seeds)
        deadline = None if given.count else time.monotonic() + _seconds(given.budget)
        summary = plan.work(given.jobs, deadline, given.count)
        print(summary)
        return int(bool(summary.findings))


def _seconds(text: str) -> float:
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms])", text)
    if not parts or "".join(n + u for n, u in parts) != text:
        sys.exit(f"--budget {text}: give a duration such as 90s, 10m or 1h")
    return sum(float(n) * {"h": 3600, "m": 60, "s": 1}[u] for n, u in parts)


def _again(kept: Sequence[Path], folder: Path) -> int:
    found = 0
    for number, path in enumerate(kept):
        verdict = trial.again(path, folder / str(number))
        found += bool(verdict.findings)
        print(f"{path.name}: {verdict.outcome}, exit code {verdict.ended.code}, {verdict.ended.seconds:.1f} s")
        for finding in verdict.findings:
            print(f"  {finding}: {finding.detail}")
    return int(found > 0)


@dataclass
class Summary:
    """What came of all inputs so far."""

    seconds: float = 0.0
    by_kind: Counter[tuple[str, str]] = field(default_factory=Counter)
    findings: Counter[str] = field(default_factory=Counter)
    longest_s: dict[str, float] = field(default_factory=dict)
    largest_mb: dict[str, float] = field(default_factory=dict)
    cpu_s: Counter[str] = field(default_factory=Counter)

    def add(self, row: dict[str, Any]) -> None:
        """Count one input."""
        kind = str(row["kind"])
        self.by_kind[kind, str(row["outcome"])] += 1
        self.findings.update(row["findings"])
        self.cpu_s[kind] += row["cpu_s"]
        for table, key in ((self.longest_s, "seconds"), (self.largest_mb, "rss_mb")):
            table[kind] = max(table.get(kind, 0.0), row[key])

    def __str__(self) -> str:
        outcomes = ("accepted", "refused", "findings")
        rows: list[tuple[str, ...]] = [("kind", "inputs", *outcomes, "CPU each", "longest", "largest")]
        for kind in sorted({k for k, _ in self.by_kind}):
            counts = [self.by_kind[kind, o] for o in outcomes]
            cpu_ms = self.cpu_s[kind] / sum(counts) * 1e3
            shown = (f"{cpu_ms:.0f} ms", f"{self.longest_s[kind]:.1f} s", f"{self.largest_mb[kind]:.0f} MB")
            rows.append((kind, str(sum(counts)), *map(str, counts), *shown))
        total = [sum(n for (_, o), n in self.by_kind.items() if o == wanted) for wanted in outcomes]
        rows.append(("all", str(sum(total)), *map(str, total)))
        lines = ["  ".join(cell.rjust(9) for cell in row) for row in rows]
        lines.append(f"{sum(total)} inputs in {self.seconds:.0f} s; {len(self.findings)} different findings")
        lines += [f"{n:7} x {finding}" for finding, n in self.findings.most_common()]
        return "\n".join(lines)


@dataclass(frozen=True)
class Plan:
    """Which inputs to make.

    Attributes:
        seed: of the run.
        kinds: of inputs.
        findings: folder for reproducers.
        folder: for inputs at work.
        seeds: valid inputs to start from.
    """

    seed: int
    kinds: tuple[str, ...]
    findings: Path
    folder: Path
    seeds: Seeds

    def work(self, jobs: int, deadline: float | None, count: int | None) -> Summary:
        """Run inputs until ``deadline``, or ``count`` of them, in ``jobs`` processes."""
        begun = time.monotonic()
        summary, started = Summary(), list[int]()
        with selectors.DefaultSelector() as selector:
            for job in range(jobs):
                pid, reader = self._start(job, jobs, deadline, count)
                started.append(pid)
                selector.register(reader, selectors.EVENT_READ, [b""])
            reported = begun
            while selector.get_map():
                for key, _ in selector.select(1.0):
                    chunk = os.read(key.fd, 1 << 16)
                    if not chunk:
                        selector.unregister(key.fd)
                        os.close(key.fd)
                        continue
                    *lines, key.data[0] = (key.data[0] + chunk).split(b"\n")
                    for line in lines:
                        summary.add(json.loads(line))
                summary.seconds = time.monotonic() - begun
                if time.monotonic() - reported > _REPORT_S:
                    reported = time.monotonic()
                    done = sum(summary.by_kind.values())
                    print(f"{done} inputs, {summary.seconds:.0f} s, {len(summary.findings)} findings", flush=True)
        for pid in started:
            _, status = os.waitpid(pid, 0)
            if status:
                summary.findings[f"a process at work ended with status {status}"] += 1
        return summary

    def _start(self, job: int, jobs: int, deadline: float | None, count: int | None) -> tuple[int, int]:
        """A process that works through every ``jobs``-th number; its pipe tells what came of them."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            cores = sorted(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {cores[job % len(cores)]})  # no threads of the runtime that wait for one another
            code = 1
            try:
                with os.fdopen(writer, "w") as told:
                    numbers = range(job, sys.maxsize if count is None else count, jobs)
                    for row in self._rows(numbers, deadline):
                        told.write(json.dumps(row) + "\n")
                        told.flush()
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writer)
        return pid, reader

    def _rows(self, numbers: Sequence[int], deadline: float | None) -> Iterator[dict[str, object]]:
        adopt_orphans()
        kept: Counter[str] = Counter()
        lane = Lane()

        def alone(case: Case, folder: Path) -> Ended:
            return sandbox.run(case, folder, lane.pids)

        for number in numbers:
            if deadline is not None and time.monotonic() > deadline:
                break
            folder = self.folder / f"{number}"
            kind = self.kind(number)
            case = trial.generate(kind, Seeded(self.seed, number, 1), self.seeds, folder)
            is_alone = case.real or number % _ALONE == 0
            verdict = trial.judge(case, folder, alone if is_alone else lane.run)
            if verdict.findings and not is_alone:
                lane.close()
                shutil.rmtree(folder, ignore_errors=True)
                case = trial.generate(kind, Seeded(self.seed, number, 1), self.seeds, folder)
                verdict = trial.judge(case, folder, alone)
            for finding in verdict.findings:
                kept[str(finding)] += 1
                if kept[str(finding)] <= _KEPT:
                    self._keep(kind, number, folder, f"{finding}\n{finding.detail}\n")
            shutil.rmtree(folder, ignore_errors=True)
            yield {
                "kind": kind,
                "outcome": verdict.outcome,
                "findings": [str(f) for f in verdict.findings],
                "seconds": verdict.ended.seconds,
                "rss_mb": verdict.ended.rss_mb,
                "cpu_s": verdict.ended.cpu_s,
            }
        lane.close()

    def kind(self, number: int) -> str:
        """The kind of input ``number``."""
        return Seeded(self.seed, number).weighted([(trial.KINDS[k][0], k) for k in self.kinds])

    def _keep(self, kind: str, number: int, ran: Path, text: str) -> None:
        """Generate an input again among the findings; what it printed is kept beside it."""
        what = re.sub(r"[^a-z]+", "-", text.split(":")[0])
        name = f"{what}-{hashlib.sha256(text.splitlines()[0].encode()).hexdigest()[:6]}-{kind}-{self.seed}-{number}"
        kept = self.findings.resolve() / name
        if not kept.exists():
            trial.generate(kind, Seeded(self.seed, number, 1), self.seeds, kept)
            (kept / "finding.txt").write_text(text, encoding="utf8")
            for stream in ("stdout", "stderr"):
                (kept / f"{stream}.txt").write_bytes((ran / stream).read_bytes()[-20_000:])

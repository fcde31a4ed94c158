"""Rows of tables: made once for the same settings, and kept when a later one fails or is stopped."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnxruntime

from benchmarks import render, subjects
from inlay.errors import InlayError
from inlay.installed import __version__
from inlay.targets.base import TargetSpec
from inlay.targets.registry import create

Row = dict[str, Any]


class OutOfTime(BaseException):
    """The time of a call is over, wherever it is: what is done is kept, and no handler of errors may stop it."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise :class:`OutOfTime` in what runs longer, where the system has such an alarm."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def over(*_: object) -> None:
        raise OutOfTime(f"{seconds:.0f} s are over")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def facts(budget: float, threads: int = 1) -> dict[str, Any]:
    """What the figures depend on."""
    target = create(TargetSpec("ort-cpu", {"threads": threads})).fingerprint().facts
    known = {k: str(v) for k, v in target.items()}
    return {
        "inlay": __version__,
        "onnxruntime": onnxruntime.__version__,
        "cpu": known.get("cpu", platform.processor()),
        "isa": known.get("isa", platform.machine()),
        "cores": os.cpu_count(),
        "threads": threads,
        "budget_s": budget,
        "target": known,
    }


def trained(options: argparse.Namespace) -> list[str]:
    """Names of the models that are wanted: trained ones where none are named."""
    found = [] if options.models is None else [p.stem for p in options.models.glob("*.onnx")]
    return [n for n in subjects.chosen(options.models, options.only) if n in (options.only or found)]


def collect(
    table: str,
    names: Sequence[str],
    options: argparse.Namespace,
    make: Callable[[subjects.Subject, Path], Row],
    settings: Row,
    line: Callable[[Row], str] | None = None,
    resumes: bool = False,
) -> list[Row]:
    """The row of each model: those that an earlier run wrote with the same settings, and new ones.

    What ``make`` raises :class:`OutOfTime` for ends it. Where it ``resumes``, it then finds its folder as it left it.
    """

    def row(name: str, work: Path) -> Row:
        return make(subjects.make(name, options.models, work), work)

    return collect_named(table, (names, subjects.names(options.models)), options, row, settings, line, resumes)


def collect_named(
    table: str,
    names: tuple[Sequence[str], Sequence[str]],
    options: argparse.Namespace,
    make: Callable[[str, Path], Row],
    settings: Row,
    line: Callable[[Row], str] | None = None,
    resumes: bool = False,
) -> list[Row]:
    """As :func:`collect`, of any subjects: ``names`` are those that are wanted, and all in the order of the table."""
    wanted, order = names
    folder = options.out / "rows" / table
    folder.mkdir(parents=True, exist_ok=True)
    for name in wanted:
        path, work = folder / f"{name}.json", options.out / "work" / table / name
        if options.restart:
            path.unlink(missing_ok=True)
            shutil.rmtree(work, ignore_errors=True)
        if path.exists() and json.loads(path.read_text(encoding="utf8")).get("settings") == settings:
            print(f"{table}: {name}: done before", flush=True)
            continue
        _make_folder(work, settings, resumes)
        begun = time.monotonic()
        print(f"{table}: {name} …", flush=True)
        try:
            found = make(name, work)
        except (InlayError, subprocess.CalledProcessError) as error:  # one model must not lose the others' figures
            found = {"model": name, "error": str(error)}
        except OutOfTime as why:
            print(f"{table}: {name}: {why}: the same command goes on", flush=True)
            break
        seconds = round(time.monotonic() - begun, 1)
        write_json(path, {**found, "settings": settings, "seconds": seconds})
        shutil.rmtree(work, ignore_errors=True)
        print(f"{table}: {name}: {_shown(found, line)} ({seconds:.0f} s)", flush=True)
    rows = [json.loads(p.read_text(encoding="utf8")) for p in folder.glob("*.json")]
    rows = [r for r in rows if r["settings"] == settings and r["model"] in order]
    return sorted(rows, key=lambda r: order.index(r["model"]))


def _make_folder(work: Path, settings: Row, resumes: bool) -> None:
    """Clear what a run that was killed has left, but for the folder of one that can go on, with the same settings."""
    mark = work / "settings.json"
    if resumes and mark.exists() and json.loads(mark.read_text(encoding="utf8")) == settings:
        return
    shutil.rmtree(work, ignore_errors=True)
    if resumes:
        work.mkdir(parents=True)
        write_json(mark, settings)


def write_table(out: Path, name: str, table: Row, markdown: Callable[[Row], str]) -> None:
    """``NAME.json`` and ``NAME.md``."""
    write_json(out / f"{name}.json", table)
    (out / f"{name}.md").write_text(markdown(table), encoding="utf8")
    print(f"wrote {out / name}.json and .md", flush=True)


def write_json(path: Path, data: Row) -> None:
    """All of it or nothing."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(data, indent=1) + "\n", encoding="utf8")
    fresh.replace(path)


def _shown(row: Row, line: Callable[[Row], str] | None) -> str:
    if "error" in row:
        return f"fails: {row['error']}"
    if line is not None:
        return line(row)
    return render.ratio(row.get("over_best_anchor") or row.get("short_over_long"))

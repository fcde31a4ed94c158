"""Whole runs on runtimes that fail in every way at every stage: each ends in time with a model whose figure is true."""

from __future__ import annotations

import argparse
import tempfile
import traceback
from pathlib import Path

from inlay.testing.faulty import FAULTS
from tests.support.faulty_runs import PLACES, Outcome, attempt, installed

_OVER = 1.1  # times the budget that a run may take


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budget", type=float, default=8.0, help="seconds of each run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="faults whose name holds this")
    parser.add_argument("--place", choices=PLACES, help="one place instead of all")


def run(arguments: argparse.Namespace) -> int:
    """Print a row for each run. Returns 1 where one broke a promise."""
    bad = total = 0
    print(f"{'fault':<28}{'place':<18}{'wall s':>8}{'claimed':>26}{'true':>8}  verdict", flush=True)
    with tempfile.TemporaryDirectory() as folder, installed(Path(folder) / "site"):
        for fault in (name for name in FAULTS if arguments.only in name):
            for place in PLACES if arguments.place is None else (arguments.place,):
                own = Path(folder) / f"{total}"
                try:
                    found = attempt(fault, place, own, arguments.budget, arguments.seed)
                except Exception:
                    traceback.print_exc()
                    found = Outcome(float("nan"), None, float("nan"), False, "TRACEBACK")
                broken = _broken(found, place, arguments.budget)
                total, bad = total + 1, bad + bool(broken)
                print(_row(fault, place, found, broken), flush=True)
    print(f"{total} runs, {bad} broke a promise")
    return int(bad > 0)


def _broken(found: Outcome, place: str, budget_s: float) -> str:
    """Which promise a run broke; empty where it kept all."""
    if found.message == "TRACEBACK":
        return "TRACEBACK"
    if found.seconds > _OVER * budget_s:
        return "LATE"
    if found.claimed is None:  # one clear line is all that can be had where the given model never runs
        return "" if place == "baseline, always" else "NO MODEL"
    return "" if found.is_true else "FALSE"


def _row(fault: str, place: str, found: Outcome, broken: str) -> str:
    claimed = "" if found.claimed is None else "{:.3f} [{:.3f}, {:.3f}]".format(*found.claimed)
    how = "confirmed" if found.confirmed else found.message.encode("ascii", "replace").decode()[:70]
    truth = "" if found.claimed is None else f"{found.truth:.3f}"
    return f"{fault:<28}{place:<18}{found.seconds:>8.1f}{claimed:>26}{truth:>8}  {broken or 'ok'}: {how}"

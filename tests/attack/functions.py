"""The user's own functions misbehave: one line that names them, within the budget, and nothing else of the run changes.

Every attack is an ``inlay tune`` on ``null`` with one function of :mod:`tests.attack.misbehaving`. Those that end their
process, never return, or return what nobody can use must end the command in one line that names them. All others must
leave a run as it is with the same function behaving well: its trials, files, their modes and the folders around.
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from inlay.errors import UNPROVEN
from inlay.testing import random_feed, small_model
from tests.attack import kills, misbehaving, numbered
from tests.attack.misbehaving import ENDING, HARMLESS, RESULTS, SAMPLES

HOOKS = ("metric", "data", "generator", "augment")
BUDGET_S = 20.0
OVER_S = 6.0
"""Seconds that a command may take beyond its budget, on a busy machine, to say which function did not return."""
_PROGRESS = re.compile(r"\[ *\d+\.\d s\] ")
_OWN = ("change", "keep")  # what needs the arguments


@dataclass(frozen=True)
class Attack:
    """One function: which hook of the command it is, what it does, and from which call on."""

    number: int
    hook: str
    behavior: str
    call: int

    @classmethod
    def drawn(cls, seed: int, number: int) -> Attack:
        """The attack that follows from a seed and its number: all hooks and behaviors come up before one does again."""
        every = [(h, b) for h in HOOKS for b in (*ENDING, *HARMLESS, *RESULTS, *_OWN, "random")]
        order, turn = np.random.default_rng(seed).permutation(len(every)), number // len(every)
        hook, behavior = every[order[number % len(every)]]
        return cls(number, hook, behavior, int(np.random.default_rng([seed, number]).integers(3)) if turn else 0)

    @property
    def name(self) -> str:
        """``module:function``."""
        return f"mine:{self.hook}_{self.behavior}_{self.call}"

    @property
    def refused(self) -> bool:
        """Whether the command cannot make anything of it."""
        return self.behavior in ENDING or self.behavior in RESULTS

    def __str__(self) -> str:
        return f"#{self.number} {self.name}"


class Ground:
    """Where attacks take place: a model with samples, labels and a module of functions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        proto = small_model()
        feeds = [random_feed(proto, seed)["x"] for seed in range(SAMPLES)]
        for name in ("given", "current", "temp"):
            (folder / name).mkdir()
        self.given = folder / "given"
        onnx.save(proto, self.given / "small.onnx")
        np.savez(self.given / "samples.npz", x=np.concatenate(feeds))
        np.save(self.given / "labels.npy", np.arange(SAMPLES))
        source = Path(misbehaving.__file__).read_text(encoding="utf8")
        (folder / "current" / "mine.py").write_text(f"{source}\nSHAPE = {feeds[0].shape}\n", encoding="utf8")
        self.around = self._around()

    def options(self, attack: Attack, out: Path) -> list[str]:
        """The command line."""
        sampled = attack.hook in ("data", "generator")
        words = ["tune", str(self.given / "small.onnx"), "-o", str(out), "--target", "null", "--no-cost-db"]
        words += ["--data", attack.name if sampled else str(self.given / "samples.npz"), "--max-measurements", "3"]
        words += ["--budget", f"{BUDGET_S:g}s"] if attack.behavior in ("hang", "stop") else ["--budget", "none"]
        if attack.hook == "metric":
            return [*words, "--metric", attack.name, "--labels", str(self.given / "labels.npy"), "--max-drop", "4"]
        return [*words, "--min-sqnr", "10", *(["--augment", attack.name] if attack.hook == "augment" else [])]

    def run(self, attack: Attack, out: Path) -> tuple[kills.Ended, float]:
        """Run the command to its end. Returns that, and the seconds that it took."""
        begun = time.monotonic()
        here = functools.partial(os.chdir, self.folder / "current")
        with kills.Command(self.folder, self.options(attack, out), here) as command:
            ended = command.ended()
        return ended, time.monotonic() - begun

    @functools.cached_property
    def calm(self) -> dict[str, Any]:
        """What a run leaves whose function behaves well, by hook."""
        return {}

    def expected(self, hook: str) -> Any:
        """That of one hook."""
        if hook not in self.calm:
            attack, out = Attack(0, hook, "nothing", 0), self.folder / f"calm-{hook}"
            ended, _ = self.run(attack, out)
            assert ended.code in (0, UNPROVEN), ended
            self.calm[hook] = left(out, attack)
        return self.calm[hook]

    def faults(self, attack: Attack) -> list[str]:
        """What one function broke; nothing where every promise held."""
        expected = self.expected(attack.hook)
        out = self.folder / f"attack-{attack.number}"
        ended, seconds = self.run(attack, out)
        found = [] if kills.wait_for_none(self.folder) else ["a process outlived the command"]
        kills.end_all(self.folder)
        lines = [line for line in ended.said if line and not _PROGRESS.match(line)]
        if seconds > BUDGET_S + OVER_S and attack.behavior in ("hang", "stop"):
            found.append(f"it took {seconds:.0f} s with a budget of {BUDGET_S:g}")
        if any("Traceback" in line for line in ended.said):
            found.append(f"a traceback: {lines[-1:]}")
        elif ended.code in (0, UNPROVEN):
            found += [f"it was taken: {lines}"] if attack.refused and not self._told(attack, out) else []
            found += [] if not lines else [f"it said {lines}"]
            if attack.behavior in (*HARMLESS, *_OWN):
                found += [f"{k} differs" for k, v in left(out, attack).items() if expected.get(k) != v]
                found += [f"{k} is missing" for k in expected.keys() - left(out, attack).keys()]
        elif not attack.refused and attack.behavior != "random":
            found.append(f"exit code {ended.code}: {lines}")
        elif ended.code not in (1, 2) or len(lines) != 1 or not lines[0].startswith("inlay: "):
            found.append(f"not one clear line: {ended.code} {lines}")
        elif "is too short" in lines[0] and attack.behavior in ("hang", "stop"):
            pass  # on a machine this busy
        elif attack.name not in lines[0]:
            found.append(f"the line does not name the function: {lines[0]}")
        if self._around() != self.around:
            found.append(f"outside the output: {sorted(set(self._around().items()) ^ set(self.around.items()))}")
            self.around = self._around()
        if not found:
            shutil.rmtree(out, ignore_errors=True)
        return found

    def _told(self, attack: Attack, out: Path) -> bool:
        """Whether a run that ended well, with what it had by then, says what the function did."""
        return attack.name in (out / "result.json").read_text(encoding="utf8").partition('"notes"')[2]

    def _around(self) -> dict[str, str]:
        """Everything that a run must leave alone, with sizes and modes."""
        paths = (p for place in ("given", "current", "temp") for p in (self.folder / place).rglob("*"))
        return {
            str(p.relative_to(self.folder)): f"{p.stat().st_mode:o} {p.stat().st_size if p.is_file() else ''}"
            for p in paths
            if "__pycache__" not in p.parts and not p.name.startswith("onnxruntime")
        }


def left(out: Path, attack: Attack) -> dict[str, Any]:
    """What a run left that must not depend on what its function does besides: trials, models, modes."""
    found: dict[str, Any] = {f"{p.relative_to(out)} mode": oct(p.stat().st_mode) for p in out.rglob("*")}
    found["trials"] = kills.trials(out)
    found |= {name: (out / name).read_bytes() for name in ("model.onnx", "recipe.yaml") if (out / name).exists()}
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    numbered.add_arguments(parser)
    parser.add_argument("--only", help="one hook and behavior, as metric_hang or metric_hang_2")


def run(given: argparse.Namespace) -> int:
    """Attack, and print what broke. Returns 1 where something did."""
    if not numbered.can_run():
        return 2
    attacks = [Attack.drawn(given.seed, number) for number in numbered.numbers(given)]
    if given.only:
        hook, behavior, call = [*given.only.split("_"), "0"][:3]
        attacks = [Attack(0, hook, behavior, int(call))]
    with tempfile.TemporaryDirectory(prefix="functions-", ignore_cleanup_errors=True) as name:
        return numbered.work(attacks, Ground(Path(name)).faults)

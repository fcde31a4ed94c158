"""Given files are written over at random moments: what is delivered is of what was read, or one line names the file.

An exporter, or a person, overwrites the model, its external data, a Q/DQ baseline, the samples, or the model that an
earlier run delivered: in place, half of it, by renaming another file; or truncates or removes it. The moment is a stage
of the run and a little more, or just before the command opens one of its inputs for the n-th time, which finds what is
read twice. On simulated targets the run must then equal an undisturbed one bit for bit, either of the old or of the new
files; elsewhere readings differ, and the digest and the function of the delivered model are checked.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from inlay.errors import UNPROVEN, InlayError
from inlay.model.load import file_sha256, load
from inlay.testing import random_feed, run_reference, small_model, sqnr
from tests.attack import kills, numbered

WHATS = ("model", "data", "baseline", "samples", "delivered")
HOWS = ("in place", "half", "rename", "truncate", "remove")
STAGES = ("", "build and run", "normalize", "calibrate", " full-int8:", "confirm", "written")
MOST_OPENS = 30
"""Moments by the number of files that are opened: a run on a small model opens its inputs so often."""
_PROGRESS = re.compile(r"\[ *\d+\.\d s\] ")
_BOUND_DB = 10.0
_Files = Mapping[str, bytes]


@dataclass(frozen=True)
class Attack:
    """One change of a file.

    Attributes:
        number: of the attack.
        external: whether the model has external data.
        what: which file.
        how: it is changed.
        opens: before the command opens an input for this time; 0 for a moment by ``stage``.
        stage: after what was printed.
        delay_s: how much later.
    """

    number: int
    external: bool
    what: str
    how: str
    opens: int
    stage: str = ""
    delay_s: float = 0.0

    @classmethod
    def drawn(cls, seed: int, number: int) -> Attack:
        """The attack that follows from a seed and its number."""
        rng = np.random.default_rng([seed, number])
        external = bool(rng.integers(2))
        what = str(rng.choice([w for w in WHATS if external or w != "data"]))
        how = str(rng.choice(HOWS))
        if rng.random() < 0.6:
            return cls(number, external, what, how, 1 + int(rng.integers(MOST_OPENS)))
        return cls(number, external, what, how, 0, str(rng.choice(STAGES)), float(rng.uniform(0.0, 0.3)))

    def __str__(self) -> str:
        when = f"before open {self.opens}" if self.opens else f"after '{self.stage.strip()}' + {self.delay_s:.2f} s"
        return f"#{self.number} {self.what}{', external data' if self.external else ''}: {self.how} {when}"


class Ground:
    """Where attacks take place: models with samples, baselines, and undisturbed runs of them."""

    def __init__(self, folder: Path, target: str = "null") -> None:
        self.folder, self.target = folder, target
        self.given = folder / "given"
        self.old, self.new = dict[bool, _Files](), dict[bool, _Files]()
        model = small_model()
        for external in (False, True):
            self.old[external] = self._made(model, external, 0)
            self.new[external] = self._made(_other(model), external, 100)
        self.feed = random_feed(model, 99)
        (folder / "temp").mkdir(exist_ok=True)
        self._calm: dict[Any, Any] = {}

    def _made(self, model: onnx.ModelProto, external: bool, seed: int) -> _Files:
        """The files of one state, by name."""
        made = Path(tempfile.mkdtemp(dir=self.folder))
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        onnx.save(copy, made / "m.onnx", save_as_external_data=external, location="weights.bin", size_threshold=64)
        feeds = [random_feed(model, seed + i) for i in range(8)]
        np.savez(made / "samples.npz", **{name: np.concatenate([f[name] for f in feeds]) for name in feeds[0]})
        words = ["quantize", str(made / "m.onnx"), "-o", str(made / "q.onnx"), "--data", str(made / "samples.npz")]
        with kills.Command(self.folder, [*words, "--target", "null"]) as command:  # not here, which is forked
            assert command.ended().code in (0, UNPROVEN)
        return {p.name: p.read_bytes() for p in made.iterdir()}

    def put(self, files: _Files) -> None:
        """Make the given files these."""
        shutil.rmtree(self.given, ignore_errors=True)
        self.given.mkdir()
        for name, content in files.items():
            (self.given / name).write_bytes(content)

    def names(self, attack: Attack) -> list[str]:
        """Names of the files that are changed, in that order."""
        with_data = ["m.onnx", "weights.bin"] if attack.external else ["m.onnx"]
        return {
            "model": with_data,
            "data": ["weights.bin"],
            "baseline": ["q.onnx"],
            "samples": ["samples.npz"],
            "delivered": ["model.onnx"],
        }[attack.what]

    def change(self, attack: Attack, out: Path) -> None:
        """Do it."""
        (self.folder / "acted").write_text(str(time.time_ns()), encoding="utf8")
        for name in self.names(attack):
            path = (out if attack.what == "delivered" else self.given) / name
            content = self.new[attack.external]["m.onnx" if attack.what == "delivered" else name]
            if attack.how == "rename":
                fresh = self.given / "fresh"
                fresh.write_bytes(content)
                fresh.replace(path)
            elif path.exists() and attack.how == "remove":
                path.unlink()
            elif path.exists():
                with path.open("r+b") as file:
                    half = len(file.read()) // 2
                    file.seek(0)
                    if attack.how != "truncate":
                        file.write(content[: half if attack.how == "half" else None])
                    if attack.how != "half":
                        file.truncate(half if attack.how == "truncate" else None)

    def run(self, attack: Attack, out: Path, more: int, is_attacked: bool = True) -> kills.Ended:
        """Run the command to its end."""
        options = ["tune", str(self.given / "m.onnx"), "--data", str(self.given / "samples.npz"), "-o", str(out)]
        options += ["--qdq-baseline", str(self.given / "q.onnx"), "--target", self.target, "--no-cost-db"]
        options += ["--min-sqnr", f"{_BOUND_DB:g}", "--max-measurements", str(3 + more), "--budget", "none"]
        watched = (str(self.given), str(out / "model.onnx"), str(out / "result.json"))
        act = functools.partial(self.change, attack, out)

        def prepare() -> None:
            os.environ["INLAY_TRACEBACK"] = "1"
            if is_attacked and attack.opens:
                sys.addaudithook(_before_open(watched, attack.opens, act))

        with kills.Command(self.folder, options, prepare) as command:
            if is_attacked and not attack.opens:
                command.await_stage(attack.stage, out)
                time.sleep(attack.delay_s)
                act()
            return command.ended()

    def calm(self, attack: Attack, changed: bool) -> dict[str, Any]:
        """What an undisturbed run leaves, on the files before or after the change; nothing where it fails."""
        key = attack.external, attack.what == "delivered", *((attack.what, attack.how) if changed else ())
        if key not in self._calm:
            out = self.folder / "calm"
            shutil.rmtree(out, ignore_errors=True)
            self.before(attack, out)
            if changed:
                self.change(attack, out)
            self.run(attack, out, attack.what == "delivered", is_attacked=False)
            self._calm[key] = self._left(out)
        left: dict[str, Any] = self._calm[key]
        return left

    def before(self, attack: Attack, out: Path) -> None:
        """All as it is before the command begins: with an earlier result where that is attacked."""
        self.put(self.old[attack.external])
        (self.folder / "acted").unlink(missing_ok=True)
        if attack.what == "delivered":
            key = "earlier", attack.external
            if key not in self._calm:
                self._calm[key] = self.folder / f"earlier-{attack.external}"
                self.run(attack, self._calm[key], 0, is_attacked=False)
            shutil.copytree(self._calm[key], out)

    def _left(self, out: Path) -> dict[str, Any]:
        if not (out / "result.json").exists():
            return {}
        result = json.loads((out / "result.json").read_text(encoding="utf8"))
        found: dict[str, Any] = {"digest": result["model"]["sha256"]}
        if self.target == "null":
            found["trials"] = [t for rows in kills.trials(out).values() for t in rows]
            found["model.onnx"] = result["best"]["output_sha256"]
        return found

    def faults(self, attack: Attack) -> list[str]:
        """What one change broke; nothing where every promise held."""
        states = [self.calm(attack, changed=False), self.calm(attack, changed=True)]
        out = self.folder / f"attack-{attack.number}"
        self.before(attack, out)
        had = {p.name: p.read_bytes() for p in out.glob("*.*")} if out.exists() else {}
        ended = self.run(attack, out, attack.what == "delivered")
        found = [] if kills.wait_for_none(self.folder) else ["a process outlived the command"]
        lines = [line for line in ended.said if line and not _PROGRESS.match(line)]
        if any("Traceback" in line for line in lines) or ended.code < 0:
            found.append(f"a crash: {ended.code} {lines[-1:]}")
        elif ended.code in (0, UNPROVEN):
            found += [f"it said {lines}"] if lines else []
            found += self._delivered(attack, out, [s for s in states if s])
        elif ended.code not in (1, 2) or len(lines) != 1 or not lines[0].startswith("inlay: "):
            found.append(f"not one clear line: {ended.code} {lines}")
        else:
            named = any(
                name in lines[0] for name in (*self.names(attack), *(["m.onnx"] if attack.what == "data" else []))
            )
            found += [] if named else [f"the line does not name the file: {lines[0]}"]
            now = {p.name: p.read_bytes() for p in out.glob("*.*")} if out.exists() else {}
            kept = [n for n in ("model.onnx", "result.json") if now.get(n) != had.get(n) and attack.what != "delivered"]
            found += [f"it failed, and wrote {kept}"] if kept else []
        scratch = [p.name for p in out.glob(".*")] if out.exists() else []
        found += [f"left behind: {scratch}"] if scratch else []
        if not found:
            shutil.rmtree(out, ignore_errors=True)
        return found

    def _delivered(self, attack: Attack, out: Path, states: list[dict[str, Any]]) -> list[str]:
        """What is wrong with a result."""
        found, left = [], self._left(out)
        if left not in states:
            apart = [k for k in left if all(left[k] != s.get(k) for s in states)]
            found.append(f"it is a mixture: {apart or 'of both'}")
        result = json.loads((out / "result.json").read_text(encoding="utf8"))
        model = out / "model.onnx"
        acted = self.folder / "acted"
        late = attack.what == "delivered" and acted.exists()
        written = out / "recipe.yaml"  # next after the model; none beside one that is delivered as it was given
        late = late and (not written.exists() or int(acted.read_text()) > written.stat().st_mtime_ns)
        if late:  # it is no longer what was delivered, and nobody can know
            return found
        if not model.exists() or file_sha256(model) != result["best"]["output_sha256"]:
            return [*found, "the delivered file is not the one of the result"]
        for files in (self.old[attack.external], self._files()):
            if self._digest(files) == result["model"]["sha256"] and self._same(files, model):
                return found
        return [*found, "the delivered model computes something else than the model of the result's digest"]

    def _files(self) -> _Files:
        return {p.name: p.read_bytes() for p in self.given.iterdir() if p.is_file()}

    def _digest(self, files: _Files) -> str:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            _write(files, Path(name))
            try:
                return load(Path(name) / "m.onnx").sha256
            except InlayError:
                return ""

    def _same(self, files: _Files, model: Path) -> bool:
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            _write(files, Path(name))
            want, got = run_reference(Path(name) / "m.onnx", self.feed), run_reference(model, self.feed)
            return min(sqnr(w, got[k]) for k, w in want.items()) > _BOUND_DB - 3.0  # on one sample of others


def _write(files: _Files, folder: Path) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _other(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same network with other weights: what an exporter writes next."""
    other, rng = onnx.ModelProto(), np.random.default_rng(5)
    other.CopyFrom(model)
    for tensor in other.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(rng.permutation(array.ravel()).reshape(array.shape), tensor.name))
    return other


def _before_open(watched: tuple[str, ...], number: int, act: Callable[[], None]) -> Callable[[str, Any], None]:
    """An audit hook that does something before one of the watched files is opened for that time."""
    count, pid = [0], os.getpid()

    def hook(event: str, arguments: Any) -> None:
        if event != "open" or count[0] >= number or os.getpid() != pid:
            return
        if isinstance(arguments[0], (str, os.PathLike)) and str(arguments[0]).startswith(watched):
            count[0] += 1
            if count[0] == number:
                act()

    return hook


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    numbered.add_arguments(parser)
    parser.add_argument("--target", default="null", help="null by default, where runs must be equal")


def run(given: argparse.Namespace) -> int:
    """Attack, and print what broke. Returns 1 where something did."""
    if not numbered.can_run():
        return 2
    with tempfile.TemporaryDirectory(prefix="replaced-", ignore_cleanup_errors=True) as name:
        ground = Ground(Path(name), given.target)
        return numbered.work((Attack.drawn(given.seed, n) for n in numbered.numbers(given)), ground.faults)

"""What must be true of every command, whatever it was given."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from inlay.errors import UNPROVEN
from tests.attack.case import TRACE, Case
from tests.attack.loadable import REPORT
from tests.attack.sandbox import Ended

LONGEST_LINE = 4000
"""Characters of an error message beside the command line's own. A longer one is not the clear line of the promise."""

_OTHERS = ("current/inlay-out", "current/__pycache__")
"""Where ``tune`` writes when it is not told, and where Python keeps a module of the user that it imports."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\x80-\x9f]")
_PROGRESS = re.compile(r"\[ *\d+\.\d s\] ")
_FRAME = re.compile(r'File "(?:[^"]*/)?((?:inlay|onnx_ir|onnx|numpy|yaml|typer|rich)/[^"]*)", line (\d+), in (\S+)')
_OWN = ("stdout", "stderr", "case.json", "finding.txt", "stdout.txt", "stderr.txt", REPORT, TRACE)

_ALLOWED = frozenset({"out", "cache", *_OWN})

Snapshot = Mapping[str, str]


@dataclass(frozen=True)
class Finding:
    """A broken promise.

    Attributes:
        what: which one.
        where: what tells this finding from others of its sort.
        detail: for people.
    """

    what: str
    where: str
    detail: str

    def __str__(self) -> str:
        return f"{self.what}: {self.where}"


def snapshot(folder: Path) -> Snapshot:
    """Everything that a command must leave alone, with digests."""
    found: dict[str, str] = {}
    waiting = [""]
    while waiting:
        inner = waiting.pop()
        for entry in os.scandir(folder / inner):
            name = f"{inner}/{entry.name}" if inner else entry.name
            if name in _ALLOWED or name.startswith(_OTHERS):
                continue
            if entry.is_symlink():
                found[name] = f"-> {os.readlink(entry)}"
            elif entry.is_file():
                found[name] = hashlib.sha256(Path(entry).read_bytes()).hexdigest()
            else:
                found[name] = "other"
                waiting += [name] if entry.is_dir() else []
    return found


def findings(case: Case, folder: Path, before: Snapshot, ended: Ended) -> list[Finding]:
    """Every promise that the command broke."""
    out, err = ((folder / name).read_bytes() for name in ("stdout", "stderr"))
    command = " ".join(a for a in case.argv[:2] if "@" not in a and not a.startswith("-"))
    found = _end(command, ended, err)
    if not ended.reason:  # what this program killed could not clean up
        found += _files(case, folder, before, command, ended.code in (0, UNPROVEN))
    if ended.code is not None and ended.code >= 0 and not any(f.what == "traceback" for f in found):
        found += _text(case, command, ended.code, out, err)
    return found


def _end(command: str, ended: Ended, err: bytes) -> list[Finding]:
    text = err.decode(errors="replace")
    found = []
    if ended.reason:
        measure = f"{ended.seconds:.0f} s, {ended.cpu_s:.0f} s of CPU, {ended.rss_mb:.0f} MB"
        found.append(Finding(ended.reason, command, measure))
    elif ended.code is not None and ended.code < 0:
        found.append(Finding("crash", f"{command} by signal {-ended.code}", text[-500:]))
    if "Traceback (most recent call last)" in text:
        frames = _FRAME.findall(text)
        place = next((f"{p}:{n} {w}" for p, n, w in reversed(frames) if p.startswith("inlay/")), "")
        error = next((line for line in reversed(text.splitlines()) if line and not line.startswith(" ")), "")
        found.append(Finding("traceback", f"{error.partition(':')[0][-60:]} at {place}", error[:300]))
    if ended.orphans:
        found.append(Finding("orphan", command, f"{ended.orphans} processes outlived the command"))
    return found


def _text(case: Case, command: str, code: int, out: bytes, err: bytes) -> list[Finding]:
    found = []
    if code not in (0, 1, 2, UNPROVEN):
        found.append(Finding("exit code", f"{command} {code}", err.decode(errors="replace")[-300:]))
    codec = "ascii" if case.encoding.startswith("ascii") else "utf8"
    texts = {name: raw.decode(codec, errors="replace") for name, raw in (("stdout", out), ("stderr", err))}
    for name, text in texts.items():
        if match := _CONTROL.search(text):
            line = next(t for t in text.split("\n") if _CONTROL.search(t))
            found.append(Finding("control character", f"{command} {name}", f"{match.group()!r} in {line[:200]!r}"))
    lines = [line for line in texts["stderr"].split("\n") if line and not _PROGRESS.match(line)]
    wanted = int(code not in (0, UNPROVEN))
    if [line.startswith("inlay: ") for line in lines] != [True] * wanted:
        sort = "no message" if not lines else next((ln for ln in lines if not ln.startswith("inlay: ")), "two")
        shape = re.sub(r"0x[0-9a-f]+|\d+", "N", sort)[:80]
        found.append(Finding("not one clear line", f"{command} {code}: {shape}", "\n".join(lines)[:600]))
    elif lines and len(lines[0]) > LONGEST_LINE + sum(map(len, case.argv)):
        found.append(Finding("endless message", command, f"{len(lines[0])} characters: {lines[0][:200]}"))
    return found


def _asked_for(case: Case, folder: Path) -> list[Path]:
    """Outputs that the command line names and that are no input of it, relative to ``folder``.

    As with a compiler, the file behind ``-o`` is replaced where it is there: that it is no input of this command is all
    that can be known of it, and a rule that only files of one's own are replaced would refuse the second run of every
    build. A run knows its model and its samples, so that ``select`` has more inputs than it names.
    """
    arguments = case.arguments(folder)
    named = {i + 1 for i, a in enumerate(arguments) if a in ("-o", "--out", "--to", "--json-log")}
    values = [a for i, a in enumerate(arguments) if i not in named]
    inputs = {_place(a.partition("=")[2] or a, folder) for a in values}
    if arguments[0] == "select":
        given = [path for path in (folder / "given").iterdir() if path.suffix != ".yaml"]
        inputs |= {path.resolve() for path in (*(folder / "model").iterdir(), *given)}
    outputs = [_place(arguments[i], folder) for i in named if i < len(arguments)]
    outputs += [_place(value, folder) for value in _configured(arguments, folder)]
    root = folder.resolve()
    return [o.relative_to(root) for o in outputs if o not in inputs and o.is_relative_to(root) and o != root]


def _configured(arguments: Sequence[str], folder: Path) -> list[str]:
    """Outputs that a file for ``--config`` names."""
    places = [_place(arguments[i + 1], folder) for i, a in enumerate(arguments[:-1]) if a == "--config"]
    files = [place for place in places if place.is_file()]  # a pipe would be waited for
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
        found = [yaml.safe_load(file.read_text(encoding="utf8")) for file in files]
        return [str(f[key]) for f in found if isinstance(f, dict) for key in ("o", "out", "to") if key in f]
    return []


def _place(argument: str, folder: Path) -> Path:
    try:
        return (folder / "current" / argument).resolve()
    except (OSError, RuntimeError):  # too long, or a circle of links
        return Path(argument)


def _belongs(name: Path, output: Path) -> bool:
    """Whether a file is ``output``, lies in it, is a folder above it, or stands beside it with another ending."""
    return (
        name.is_relative_to(output)
        or output.is_relative_to(name)
        or (output.suffix != "" and name.parent == output.parent and name.name.startswith(f"{output.stem}."))
    )


def _files(case: Case, folder: Path, before: Snapshot, command: str, succeeded: bool) -> list[Finding]:
    found = []
    after = snapshot(folder)
    outputs = _asked_for(case, folder) if succeeded else []
    for name in sorted({*before, *after}):
        allowed = any(Path(name) == o or (name not in before and _belongs(Path(name), o)) for o in outputs)
        if before.get(name) != after.get(name) and not allowed:
            top = name.split("/")[0]
            what = "left-over file" if top == "tmp" else "changed" if name in before else "written outside"
            shape = re.sub(r"[0-9a-z_]{8}(?=$|/|\.)", "*", name)
            found.append(Finding(what, f"{command} {shape}", name))
            break
    hidden = [p.name for p in (folder / "out").glob(".*") if p.name != ".gitignore"]
    if hidden:
        found.append(Finding("left-over file", f"{command} out/{hidden[0][:8]}", ", ".join(hidden)))
    for name, what in ((REPORT, "unusable output"), (TRACE, "code executed")):
        if (folder / name).exists():
            text = (folder / name).read_text(encoding="utf8")
            found.append(Finding(what, f"{command} {text[:70]}", text))
    return found

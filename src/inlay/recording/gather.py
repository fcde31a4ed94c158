"""What the hook left in its folder, made into a folder for ``inlay tune``: samples by model, and ``pipeline.yaml``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from inlay.data.archives import load_feed, save_feed
from inlay.data.reading import checked
from inlay.data.samples import Feed, InputSpec, input_specs
from inlay.errors import DataError, InlayError, UsageError
from inlay.files import as_file_name, read_json, replacing
from inlay.model.load import load
from inlay.recording.hook.keep import COUNTS, Kept, Limits, chosen
from inlay.recording.hook.recorder import MODEL, NOTE
from inlay.recording.pipeline import PIPELINE, Part, Pipeline
from inlay.trial import counted


@dataclass(frozen=True)
class Recorded:
    """What was recorded of one model."""

    part: Part  # the model as the pipeline has it; its seconds are those of all its runs
    samples: int  # that were kept
    shapes: int  # how many different shapes these have
    processes: int  # in which it ran
    notes: tuple[str, ...]  # what people should know of it


@dataclass(frozen=True)
class Recording:
    """What a program's sessions were fed."""

    folder: Path  # where `pipeline.yaml` and the samples are
    models: tuple[Recorded, ...]  # by the time of their first run
    exit_code: int = 0  # of the program
    notes: tuple[str, ...] = ()  # what people should know of the recording as a whole


@dataclass
class _Fed:
    """What the processes fed one model, by its key."""

    said: Mapping[str, Any]
    counts: list[int] = field(default_factory=lambda: [0, 0, 0])
    files: dict[Kept, Path] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    processes: int = 0


def prepare(out: Path) -> None:
    """Make the folder ``out``, or see that an earlier recording in it may be replaced.

    Raises:
        UsageError: it holds something else.
    """
    if out.is_dir() and any(out.iterdir()) and not (out / PIPELINE).is_file():
        raise UsageError(f"--out {out} holds files, and no recording: name another folder")
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out} is not a folder")
    out.mkdir(parents=True, exist_ok=True)


def gather(spool: Path, out: Path, limits: Limits, program: str = "", exit_code: int = 0) -> Recording:
    """Write samples and ``pipeline.yaml`` into ``out``; nothing if nothing ran.

    Args:
        limits: of what is kept for each model, over all processes.
    """
    fed = _fed(spool)
    notes = tuple(path.read_text(encoding="utf8") for path in sorted(spool.glob(f"{NOTE}*")))
    if not fed:
        return Recording(out, (), exit_code, notes)
    names = _names([each.said for each in fed])
    models = tuple(_written(each, name, spool, out, limits) for each, name in zip(fed, names, strict=True))
    Pipeline(tuple(each.part for each in models), program).write(out)
    return Recording(out, models, exit_code, notes)


def _fed(spool: Path) -> list[_Fed]:
    """By model, over all processes, in the order in which they first ran."""
    found: dict[str, _Fed] = {}
    folders = sorted((path.parent for path in spool.glob("*/*/model.json")), key=lambda p: (int(p.parent.name), p.name))
    for folder in folders:
        counts = folder / "counts"
        if not counts.is_file() or counts.stat().st_size != COUNTS.size:
            continue  # its process ended as it began
        said = read_json(folder / "model.json")
        each = found.setdefault(said.get("path") or said["sha256"], _Fed(said))
        each.counts = [a + b for a, b in zip(each.counts, COUNTS.unpack(counts.read_bytes()), strict=True)]
        each.files.update({Kept.of(p.name): p for p in folder.glob("*.npz") if not p.name.endswith(".part.npz")})
        each.notes += [p.read_text(encoding="utf8") for p in sorted(folder.glob(f"{NOTE}*"))]
        each.processes += 1
    ran = [each for each in found.values() if each.counts[0] or each.files]
    return sorted(ran, key=lambda each: min((kept.time_ns for kept in each.files), default=0))


def _names(said: Sequence[Mapping[str, Any]]) -> list[str]:
    """One for each model: of its file; where several have the same, of its folder too, or a number."""
    paths = [Path(each["path"]) if "path" in each else None for each in said]
    short = [f"model-{each['sha256'][:12]}" if "path" not in each else Path(each["path"]).stem for each in said]
    names = [
        f"{path.parent.name}-{path.stem}" if path is not None and short.count(path.stem) > 1 else name
        for path, name in zip(paths, short, strict=True)
    ]
    found: list[str] = []
    for name in map(as_file_name, names):
        number, unique = 2, name or "model"
        while unique in found:
            number, unique = number + 1, f"{name}-{number}"
        found.append(unique)
    return found


def _written(fed: _Fed, name: str, spool: Path, out: Path, limits: Limits) -> Recorded:
    notes = list(dict.fromkeys(fed.notes))
    path = _model(fed.said, name, spool, out)
    runs, spent_ns, unread = fed.counts
    if unread:
        notes.insert(0, f"{counted(unread, 'run')} could not be recorded")
    sha256 = ""
    if (changed := _changed(fed.said)) is not None:
        notes.append(changed)
    kept = sorted(chosen([*fed.files], limits.samples, limits.bytes), key=lambda each: each.time_ns)
    feeds = [load_feed(fed.files[each]) for each in kept]
    try:
        file = load(path)
        sha256 = file.sha256
        feeds, refused = _fitting(feeds, input_specs(file.model))
        notes += [f"{counted(count, 'sample')} left out: {why}" for why, count in refused.items()]
    except InlayError as error:
        notes.append(f"inlay tune will not take it as it is: {error}")
    if not feeds and not notes:
        notes.append(f"no sample is within --max-mb {limits.bytes >> 20}")
    data = None
    if feeds:
        data = f"{name}.npz"
        with replacing(out / data) as fresh, fresh.open("wb") as opened:
            save_feed(opened, _stacked(feeds))
    shapes = len({tuple((key, array.shape) for key, array in sorted(feed.items())) for feed in feeds})
    part = Part(name, path, data, max(runs, 1), spent_ns / 1e9 if spent_ns else None, sha256)
    return Recorded(part, len(feeds), shapes, fed.processes, tuple(notes))


def _model(said: Mapping[str, Any], name: str, spool: Path, out: Path) -> Path:
    """The file of a model; one that the program gave as bytes is written beside its samples."""
    if "path" in said:
        return Path(said["path"])
    with replacing(out / f"{name}.onnx") as fresh:
        fresh.write_bytes((spool / f"{MODEL}{said['sha256']}").read_bytes())
    return out / f"{name}.onnx"


def _changed(said: Mapping[str, Any]) -> str | None:
    if "path" not in said or not (path := Path(said["path"])).is_file() or said["size"] is None:
        return None
    stat = path.stat()
    same = (stat.st_size, stat.st_mtime_ns) == (said["size"], said["mtime_ns"])
    return None if same else "the file is another one than when it was first run"


def _fitting(feeds: Sequence[Feed], specs: Sequence[InputSpec]) -> tuple[list[Feed], Counter[str]]:
    """The feeds that ``--data`` takes, and why it does not take the others, with how many they are.

    What the program fed in place of a constant of the model is no input of it for Inlay, and is left out.
    """
    names = [spec.name for spec in specs]
    for spec in specs:
        spec.refuse_unfed()
    found, refused = list[Feed](), Counter[str]()
    for feed in feeds:
        own = {name: feed[name] for name in names if name in feed}
        try:
            found += checked([own], "npz", "recorded", specs).feeds
        except DataError as error:
            refused[str(error).partition("sample 0: ")[2] or str(error)] += 1
    return found, refused


def _stacked(feeds: Sequence[Feed]) -> dict[str, np.ndarray]:
    """Arrays for a ``.npz`` with one for each input and sample, whose numbers make no name of another input."""
    width = len(str(len(feeds)))
    while any(f"{name}_{0:0{width}}" in feeds[0] for name in feeds[0]):
        width += 1
    return {f"{name}_{i:0{width}}": array for i, feed in enumerate(feeds) for name, array in feed.items()}

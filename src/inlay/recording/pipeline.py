"""``pipeline.yaml``: the models of one program, how often each runs, how long that takes, and the samples of each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from inlay.errors import UsageError, near
from inlay.files import as_file_name, write_text
from inlay.yaml_file import read_yaml

PIPELINE = "pipeline.yaml"
_KEYS = ("models", "program")
_OF_A_MODEL = ("name", "model", "sha256", "data", "runs", "seconds")
_HEAD = "# The models of a program, with the samples of each; paths are relative to this file.\n"


@dataclass(frozen=True)
class Part:
    """One model of a pipeline."""

    name: str  # of its own in the pipeline, as a file may be named
    model: Path  # the file
    data: str | None = None  # its samples, as `--data` takes them; None without
    runs: float = 1.0  # how often it runs, in one unit for all: per task, or in one recording
    seconds: float | None = None  # that these runs take together; None where nobody measured
    sha256: str = ""  # digest of the model when it was recorded; empty where that is not known


@dataclass(frozen=True)
class Pipeline:
    """The models of a program, in the order of their first runs."""

    parts: tuple[Part, ...]  # at least one
    program: str = ""  # the command that was recorded, for people; may be empty

    def write(self, folder: Path) -> Path:
        """Write ``pipeline.yaml`` into ``folder``, and return its path."""
        models = []
        for part in self.parts:
            said: dict[str, Any] = {"name": part.name, "model": relative(part.model, folder)}
            said |= {"sha256": part.sha256} if part.sha256 else {}
            said |= {} if part.data is None else {"data": part.data}
            said["runs"] = int(part.runs) if part.runs == int(part.runs) else part.runs
            said |= {} if part.seconds is None else {"seconds": round(part.seconds, 6)}
            models.append(said)
        found = {"program": self.program, "models": models} if self.program else {"models": models}
        write_text(folder / PIPELINE, _HEAD + yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=120))
        return folder / PIPELINE


def read_pipeline(path: Path) -> Pipeline:
    """The pipeline in a YAML file, or in a folder's ``pipeline.yaml``.

    Raises:
        NoSuchFile: it does not exist.
        UsageError: it is not YAML, or says something that a pipeline cannot be; no file that it names is looked up.
    """
    path = path / PIPELINE if path.is_dir() else path
    found = read_yaml(path)
    if not isinstance(found, dict) or not isinstance(found.get("models"), list) or not found["models"]:
        raise UsageError(f"{path} is not a pipeline: expected models, as in 'models: [{{model: a.onnx, runs: 2}}]'")
    for key in found:
        if key not in _KEYS:
            raise UsageError(f"{path}: a pipeline has no {key}{near(key, _KEYS)}")
    parts = [_part(item, path, f"{path}, model {n}") for n, item in enumerate(found["models"], 1)]
    return Pipeline(_named_apart(parts, path), str(found.get("program") or ""))


def pipeline_of(models: Sequence[Path], folder: Path) -> Pipeline:
    """The pipeline of some files, each with what a recording in ``folder`` says of it, or else with samples there.

    Those are what has its name: ``NAME.npz``, ``NAME.jsonl``, or a folder. A model that is not recorded runs once.

    Raises:
        UsageError: two models have one name, or what is recorded in ``folder`` is no pipeline.
    """
    recorded = read_pipeline(folder).parts if (folder / PIPELINE).is_file() else ()
    known = {**{part.name: part for part in recorded}, **{str(part.model.resolve()): part for part in recorded}}
    parts = []
    for model in models:
        name = as_file_name(model.stem)
        part = known.get(str(model.resolve()), known.get(name, Part(name, model)))
        found = (path for path in (folder / f"{name}.npz", folder / f"{name}.jsonl", folder / name) if path.exists())
        data = part.data or next(map(str, found), None)
        parts.append(replace(part, model=model, data=data))
    return Pipeline(_named_apart(parts, folder))


def _named_apart(parts: Sequence[Part], where: Path) -> tuple[Part, ...]:
    names = [part.name for part in parts]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{where}: two models have the name {twice[0]}: give each a name of its own")
    return tuple(parts)


def _part(item: object, path: Path, where: str) -> Part:
    given: Mapping[str, Any] = {"model": item} if isinstance(item, str) else item if isinstance(item, dict) else {}
    for key in given:
        if key not in _OF_A_MODEL:
            raise UsageError(f"{where}: there is no {key}{near(key, _OF_A_MODEL)}")
    for key in ("model", "name", "data", "sha256"):
        if not isinstance(given.get(key, ""), str) or (key == "model" and not given.get(key)):
            raise UsageError(f"{where}: give its {key} as text")
    model, data = path.parent / given["model"], given.get("data")
    if data is not None and (":" not in data or (path.parent / data).exists()):  # else it is module:function
        data = str(path.parent / data)
    seconds = _number(given["seconds"], "seconds", where) if "seconds" in given else None
    runs = _number(given.get("runs", 1), "runs", where)
    return Part(as_file_name(given.get("name") or model.stem), model, data, runs, seconds, given.get("sha256", ""))


def _number(value: object, name: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise UsageError(f"{where}: {name} is a number above 0, not {value}")
    return float(value)


def relative(path: Path, folder: Path) -> str:
    """``path`` as seen from ``folder``, where it lies in it; else whole."""
    whole, folder = path.resolve(), folder.resolve()
    return str(whole.relative_to(folder) if whole.is_relative_to(folder) else whole)

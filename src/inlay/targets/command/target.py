"""Any program as a target: it measures, Inlay writes the models."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np

from inlay.errors import BadReading, CompileFailed, DataError, RunFailed, UsageError
from inlay.files import read_bytes, scratch_folder
from inlay.targets.attribution import Names
from inlay.targets.base import (
    Artifact,
    Capabilities,
    Feed,
    Fingerprint,
    KernelKind,
    KernelTime,
    Lack,
    StatesCapabilities,
    TargetSpec,
)
from inlay.targets.command.protocol import (
    Conversation,
    Description,
    Program,
    read_latencies,
    read_outputs,
    save_inputs,
)
from inlay.targets.model_file import ModelFile
from inlay.targets.registry import create


def read_layers(answer: Mapping[str, Any], names: Names) -> list[KernelTime]:
    """Kernels, with the nodes and values that the program tells, or that its layers' names show.

    Raises:
        BadReading: the answer has no list of layers, or one of them says less than its name and its time.
    """
    rows = answer.get("layers")
    if not isinstance(rows, list):
        raise BadReading("the answer to profile has no list of layers")
    return [_kernel(row, names) for row in rows]


def _kernel(row: Any, names: Names) -> KernelTime:
    try:
        name, op_type, ns = str(row["name"]), str(row.get("op_type", "")), float(row["ms"]) * 1e6
        kind, precision = row.get("kind"), str(row.get("precision", ""))
        nodes, values = tuple(map(str, row.get("nodes", ()))), tuple(map(str, row.get("values", ())))
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise BadReading(f"a layer is {str(row)[:200]}: give at least its name and ms ({error!r})") from error
    if kind is not None and kind not in get_args(KernelKind):
        raise BadReading(f"layer {name} is of kind {kind!r}; give {', '.join(get_args(KernelKind))}")
    if not np.isfinite(ns) or ns < 0:
        raise BadReading(f"layer {name} takes {row['ms']} ms")
    if nodes or values:
        told: KernelKind = kind or ("compute" if nodes else "layout")
        return KernelTime(name, op_type or "layer", ns, precision, nodes, names.known(values), told)
    return names.layer(name, op_type or "layer", ns, precision, kind)


_LACKS: dict[str, Lack] = {"latency": "latency", "outputs": "accuracy", "profile": "profile"}


class CommandTarget(StatesCapabilities):
    """A runtime behind a program that prints JSON; :mod:`.protocol` is what the two say to each other.

    The program is started in workers only, and never because a model, a recipe or a journal names it: making this
    object, and asking it for its rules, starts nothing.

    Args:
        program: the program and its arguments, as one text.
        rules: what the runtime runs in low precision: the name of another target, whose rewrites are then used as well,
            or a YAML file (:mod:`.table`).
        limit_s: seconds that one request may take.

    Raises:
        UsageError: it is no number of seconds.
    """

    name = "command"

    def __init__(self, program: str, rules: str, limit_s: float = 600.0) -> None:
        if not limit_s > 0.0:
            raise UsageError(f"--target-option limit_s={limit_s:g}: give more than 0 s")
        self._program = Program(program, limit_s)
        self._rules = rules

    @cached_property
    def description(self) -> Description:
        """What the program says of itself. Raises TargetError."""
        return self._program.describe()

    @property
    def deterministic(self) -> bool:
        """Whether the program says so."""
        return self.description.deterministic

    @property
    def lacks(self) -> frozenset[Lack]:
        """What the program does not give."""
        return frozenset(lack for gift, lack in _LACKS.items() if gift not in self.description.gives)

    def fingerprint(self) -> Fingerprint:
        """The program's file and arguments, the rules, and the facts that the program tells. Raises TargetError."""
        program, *arguments = self._program.arguments
        facts = {"program": program, "sha256": _digest(program), "arguments": " ".join(arguments)}
        facts["rules"] = Path(self._rules).name if _is_file(self._rules) else self._rules
        if _is_file(self._rules):
            facts["rules sha256"] = _digest_of(Path(self._rules))
        if "accuracy" in self.lacks:
            facts["outputs"] = "of ONNX Runtime without fusions, as the program gives none"
        kind = {"kind": "estimate"} if self.deterministic else {}
        return Fingerprint(self.name, {**kind, **self.description.facts, **facts})

    def capabilities(self) -> Capabilities:
        """Those of the named target, or the rules of the file. Raises UsageError where there are no such rules."""
        return _capabilities(self._rules)

    def compile(self, model: Artifact) -> CommandExecutable:
        """Have the program build the model, or check that it is a valid one where it cannot. Raises CompileFailed."""
        return CommandExecutable(model, self._program, self.description)

    def compile_identified(self, model: Artifact) -> tuple[CommandExecutable, str]:
        """The same, with the ``graph`` that the program tells: models of one graph are measured once."""
        executable = self.compile(model)
        return executable, executable.graph


class CommandExecutable:
    """A model for a program.

    Attributes:
        graph: identifies what the runtime made of the model; empty where the program does not tell.

    Raises:
        CompileFailed: the file is not a valid model, or the program says that it cannot build it.
    """

    measured_elsewhere = True
    warms_up = True  # each request runs the model before it reads the clock

    def __init__(self, model: Artifact, program: Program, description: Description) -> None:
        self._model, self._gives = model, description.gives
        self._file = ModelFile(model.path, is_checked="build" in self._gives)
        self._folder = scratch_folder()
        self._conversation: Conversation | None = Conversation(program, description.resident)
        self._written: tuple[Feed, list[dict[str, Any]]] | None = None
        self.graph = ""
        if "build" in self._gives:
            try:
                self.graph = str(self._ask("build").get("graph", ""))
            except RunFailed as error:
                self.close()
                raise CompileFailed(f"{model.path.name}: {error}") from error
            except BaseException:
                self.close()
                raise

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name: the program's, or those of the numeric reference where it gives none. Raises RunFailed."""
        if self._conversation is not None and "outputs" not in self._gives:
            return self._file.reference(feed)
        found = read_outputs(self._ask("run", feed), self._folder)
        missing = [name for name in self._file.outputs if name not in found]
        if missing:
            raise RunFailed(f"the program gave no output {missing[0]}")
        return {name: found[name] for name in self._file.outputs}

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """Nanoseconds of each inference, as the program tells. Raises RunFailed, BadReading."""
        return read_latencies(self._ask("time", feed, readings=repeats, warm_up=1))

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """Kernels by the program's layers. Raises RunFailed, BadReading."""
        return read_layers(self._ask("profile", feed, readings=repeats, warm_up=1), self._file.names)

    def close(self) -> None:
        """End the program, and remove the files that were written for it."""
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            conversation.end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, do: str, feed: Feed | None = None, **fields: Any) -> dict[str, Any]:
        if self._conversation is None:
            raise RunFailed("the model was closed")
        gift = {"time": "latency", "run": "outputs"}.get(do, do)
        if gift not in self._gives:
            raise RunFailed(f"the program gives no {gift}")
        file = str(self._model.path.resolve())
        model: dict[str, Any] = {"model": file, "digest": self._model.digest, "folder": str(self._folder)}
        if self._file.external:
            model["external"] = list(self._file.external)
        if feed is not None:
            fields["inputs"] = self._inputs(feed)
        return self._conversation.ask(do, **model, **fields)

    def _inputs(self, feed: Feed) -> list[dict[str, Any]]:
        """What a request says of the inputs; their files are written anew for another feed only."""
        if self._written is None or self._written[0] is not feed:
            self._written = feed, save_inputs(feed, self._folder / "inputs")
        return self._written[1]


def _capabilities(rules: str) -> Capabilities:
    from inlay.targets.command.table import load_rules  # a worker never asks, and may be where there is no YAML

    if rules == CommandTarget.name:
        raise UsageError("--target-option rules=command: give another target's name, or a YAML file")
    if _is_file(rules):
        return Capabilities(load_rules(Path(rules)))
    try:
        return Capabilities.of(create(TargetSpec(rules)))
    except UsageError as error:
        raise UsageError(f"--target-option rules={rules}: give a YAML file, or a target's name: {error}") from error


def _is_file(rules: str) -> bool:
    return Path(rules).suffix in (".yaml", ".yml")


def _digest_of(rules: Path) -> str:
    """16 hexadecimal digits over the file: measurements under other rules are another run's. Raises UsageError."""
    return hashlib.sha256(read_bytes(rules, _LARGEST_PROGRAM, UsageError, "rules ")).hexdigest()[:16]


_LARGEST_PROGRAM = 1 << 32
"""Bytes of a program whose content is looked at."""


def _digest(program: str) -> str:
    """16 hexadecimal digits over the program's file; empty where there is none to read."""
    found = shutil.which(program)
    with contextlib.suppress(DataError):
        return hashlib.sha256(read_bytes(Path(found or program), _LARGEST_PROGRAM)).hexdigest()[:16]
    return ""

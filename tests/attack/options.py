"""Cases about the command line: every command with any of its options and any values, as the program declares them."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np
import typer
import typer.main
import yaml

from inlay import installed
from inlay.cli.commands import app
from inlay.installed import joined
from tests.attack.case import Case
from tests.attack.choices import Choices
from tests.attack.protos import TEXTS
from tests.attack.seeds import Seeds, put_model, put_run, samples

PATHS = (
    "@/model/model.onnx", "@/given/samples.npz", "@/given/labels.npy", "@/given/recipe.yaml", "@/given/link.onnx",
    "@/out/run", "@/missing", "@/given", "@/out", "", "/dev/null", "-", "@/model/model.onnx/x", "@/given/empty",
    "@/out/" + "n" * 300, "@/missing/deep/x.onnx", "@/given/pipe", "@/given/pipe.npz", "/dev/zero", "/proc/version",
)  # fmt: skip
OUTPUTS = (
    "@/out/o.onnx", "@/out/new", "@/out/run", "@/out/o.tosa", "@/out/m.yaml", "@/out", "@/model/model.onnx",
    "@/given/link.onnx", "@/given/samples.npz", "@/given/recipe.yaml", "@/given/folder", "@/missing/o.onnx",
    "@/given/pipe", "/dev/full",
    "/dev/null/x", "@/out/" + "n" * 300, "@/out/[red]x.onnx", "@/out/\x1b[31m.onnx", "@/out/a\nb.onnx",
)  # fmt: skip
"""What is given may be named as an output, too: where it is no input of the command it is replaced."""
WORDS = (
    "null", "ort-cpu", "ethos-u55-128", "guided", "evolve", "anchors", "refine", "auto", "conv-matmul", "full-int8",
    "top1", "sqnr", "INT", "INT+FP", "math:fsum", "nothing:f", "os:getcwd", "0.5%", "1%", "50", "-1", "nan", "inf",
    "1e999", "1e-9", "1s", "0s", "-1s", "1h30m", "none", "9" * 400, "9" * 5000 + "s", "1.5.5h", "N=1", "x=0", "=1",
    "N=" + "9" * 30, "N=-1", "x=4", "x=1x4:2", "x=1x4:0", "x=x", "1,8", "0,1", "8,", "instant", "thorough", "int8",
    "fp8", "uint16", "ort-exclude", "csv", "size", "memory", "latency", "rgb", "pad", "NHWC", "4x4", "*",
    "conv*", "[", "[!a]", "(?x", "\u0663s", "N=²",
)  # fmt: skip
NUMBERS = (
    "0",
    "1",
    "2",
    "3",
    "-1",
    "1000000",
    "9" * 30,
    "9" * 5000,
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "",
    "x",
    "0x10",
    "1_0",
    "\u0661",
)
_SHORT = ("--max-measurements", "1", "--budget", "2s", "--strategy", "anchors")
"""The last value of an option counts: keeps runs short that are in order otherwise."""


def options(choose: Choices, seeds: Seeds, folder: Path) -> Case:
    """Any options of any command."""
    given = folder / "given"
    put_model(folder)
    np.savez(given / "samples.npz", **samples())
    np.save(given / "labels.npy", np.arange(4))
    (given / "recipe.yaml").write_text("inlay-recipe: 1\nrules: []\n", encoding="utf8")
    (given / "empty").write_bytes(b"")
    (given / "options.yaml").write_text(_settings(choose), encoding="utf8")
    (given / "link.onnx").symlink_to("../model/model.onnx")
    (given / "folder").mkdir()
    for name in ("pipe", "pipe.npz"):
        os.mkfifo(given / name)
    names, callback = choose.weighted(COMMANDS)
    argv = [*names]
    for parameter in inspect.signature(callback).parameters.values():
        argv += _given(parameter, choose)
    if choose.one_in(8):
        argv.insert(
            choose.below(len(argv) + 1),
            choose.among(("--", "--help", "-h", "--no-such", "-o", "--version", choose.among(TEXTS))),
        )
    if names == ("tune",):
        argv += _SHORT
    if names == ("calibrate-machine",):
        argv += ["--budget", "1s"]
    if any("@/out/run" in a or a == "@/out" for a in argv):
        put_run(seeds, folder, "out/run")
    argv = [a.replace("\0", "") for a in argv]  # no program can be given these
    return Case("options", tuple(argv), _terminal(choose), "ascii" if choose.one_in(8) else "utf8", choose.one_in(400))


def _commands(group: typer.Typer) -> Iterator[tuple[tuple[str, ...], Callable[..., Any]]]:
    """Every command of a group with its words."""
    for command in group.registered_commands:
        assert command.callback is not None
        yield (command.name or command.callback.__name__,), command.callback


def _every() -> Iterator[tuple[tuple[str, ...], Callable[..., Any]]]:
    """Every command with its words, in the order of ``inlay --help``; those of wings are entry points."""
    own: dict[str, Any] = {words[0]: callback for words, callback in _commands(app)}
    found = {**own, **{name: each.load() for name, each in joined(installed.COMMANDS).items()}}
    for name in typer.main.get_command(app).list_commands(None):  # type: ignore[attr-defined]
        if isinstance(found[name], typer.Typer):
            yield from (((name, *words), callback) for words, callback in _commands(found[name]))
        else:
            yield (name,), found[name]


COMMANDS = tuple((1 + len(inspect.signature(c[1]).parameters), c) for c in _every())
"""Commands as often as they have options to go wrong with."""


def _given(parameter: inspect.Parameter, choose: Choices) -> list[str]:
    """An option with a value, or nothing, as often as its sort asks for."""
    kind, info = get_args(parameter.annotation)[:2]
    positional = isinstance(info, typer.models.ArgumentInfo)
    needed = positional or parameter.name in ("target", "out")
    if choose.one_in(20) if needed else not choose.one_in(5):
        return []
    names = [n for n in (info.default, *(info.param_decls or ())) if isinstance(n, str) and n.startswith("-")]
    flags = [] if positional else [choose.among(names)]  # the first name stands in place of a default
    if kind is bool:
        return flags
    many = choose.below(4) if positional and get_origin(kind) is list else 1
    return [*flags, *(_value(parameter.name, str(kind), positional, choose) for _ in range(many))]


def _settings(choose: Choices) -> str:
    """A file for ``--config``: some options with any values, as YAML has them."""
    named = (
        "budget",
        "target",
        "o",
        "data",
        "threads",
        "seed",
        "bind",
        "quiet",
        "json",
        "help",
        "effort",
        "to",
        "config",
    )
    values: tuple[Any, ...] = (True, False, None, 0, -1, 1.5, float("nan"), [], [1], ["x", None], {"a": 1}, *WORDS)
    return yaml.safe_dump({choose.among(named): choose.among(values) for _ in range(choose.below(4))})


def _value(name: str, kind: str, positional: bool, choose: Choices) -> str:
    if name in ("out", "to") and not positional:
        return choose.among(OUTPUTS[:5]) if choose.one_in(2) else choose.among(OUTPUTS)
    if name == "config" and choose.below(3):
        return "@/given/options.yaml"
    if "Path" in kind:
        usual = "@/out/run" if name == "out" else "@/given/labels.npy" if name == "labels" else PATHS[0]
        return usual if choose.below(3) else choose.among(PATHS)
    if "int" in kind or "float" in kind:
        return choose.among(NUMBERS)
    if name == "target" and choose.below(4):
        return "null"
    if name == "data" and choose.below(2):
        return "@/given/samples.npz"
    return choose.weighted(((4, choose.among(WORDS)), (1, choose.among(PATHS)), (1, choose.among(TEXTS))))


def _terminal(choose: Choices) -> dict[str, str]:
    """Variables that people set, or that a terminal sets."""
    return choose.weighted(
        ((6, {}), (1, {"COLUMNS": "1"}), (1, {"COLUMNS": "0"}), (1, {"NO_COLOR": "1"}), (1, {"LC_ALL": "C"}))
    )

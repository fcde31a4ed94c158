"""What must not change while the code is rearranged: a record of what commands accept and write, and its comparison.

    python -m benchmarks.behaviour record FILE [--models DIR] [--only NAME ...] [--targets NAME ...]
    python -m benchmarks.behaviour compare OLD NEW

The record goes through the command line alone, so that it can be made of any version: the help of every command, the
signature of every public name, the keys of what is written as JSON, and digests of files written for fixed recipes and
seeds, of each model for each target, as well as what a search on ``null`` delivers, whose every cost is known. Of each
model there are two digests: of all its bytes, and of what it computes, without metadata, documentation and version.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import inspect
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks import subjects
from benchmarks.rows import Row, write_json

DIGITS = Path(__file__).parent.parent / "examples" / "digits"
RECIPES = ("full-int8", "conv-matmul", "dynamic")
TARGETS = ("null", "ort-cpu", "openvino-cpu")
_RANDOM = 3
"""Recipes in which each kind of operator is left in float or not, by seed."""
_KEPT = frozenset({"Conv", "Relu", "Clip", "MaxPool", "AveragePool", "Concat", "Mul", "Resize", "Softmax", "Sigmoid"})
"""Kinds of operators that no normalization folds away or renames."""
_TRIALS = 60
"""Of each search on ``null``."""
_VARYING = re.compile(r"\d+(?:\.\d+)?|/\S+")  # figures of time and places differ from run to run


def record(models: Path | None, only: Sequence[str], targets: Sequence[str]) -> Row:
    """All that is compared."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        given = [subjects.Subject("digits", DIGITS / "digits.onnx", DIGITS / "data.npz", DIGITS / "unseen.npz", True)]
        trained = [] if models is None else sorted(p.stem for p in models.glob("*.onnx"))
        wanted = [n for n in trained if not only or n in only]
        given += [subjects.make(n, models, work / n) for n in wanted]
        return {
            "commands": dict(_helps()),
            "names": dict(_signatures()),
            "written": {k: v for subject in given for k, v in _written(subject, work, targets)},
            "searched": {k: v for subject in given[:3] for k, v in _searched(subject, work)},
        }


def _run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "inlay", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _helps() -> Iterator[tuple[str, str]]:
    """What each command says of itself."""
    whole = _run("--help").stdout
    yield "inlay", whole
    for line in whole.partition("Commands:")[2].splitlines():
        if found := re.match(r"  ([a-z][a-z-]*) ", line):
            text = _run(found[1], "--help").stdout
            yield found[1], text
            for nested in text.partition("Commands:")[2].splitlines():
                if below := re.match(r"  ([a-z][a-z-]*) ", nested):
                    yield f"{found[1]} {below[1]}", _run(found[1], below[1], "--help").stdout


def _signatures() -> Iterator[tuple[str, str]]:
    """Public names, with the signatures of functions and classes."""
    package = importlib.import_module("inlay")
    for name in sorted(package.__all__):
        item = getattr(package, name)
        try:
            yield name, str(inspect.signature(item))
        except (TypeError, ValueError):
            yield name, type(item).__name__


def _recipes(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    """Names of recipes, each with what ``--recipe`` is given."""
    yield from ((name, name) for name in RECIPES)
    kinds = sorted({node.op_type for node in model.graph.node} & _KEPT)
    for seed in range(_RANDOM):
        rng = np.random.default_rng([seed, 54])
        left = [f"  - {{op_type: {kind}, config: float}}" for kind in kinds if rng.random() < 0.3]
        yield f"random {seed}", "\n".join(["inlay-recipe: 1", "rules:", "  - {global: int}", *left, ""])


def _written(subject: subjects.Subject, work: Path, targets: Sequence[str]) -> Iterator[tuple[str, Row]]:
    """Of each recipe for each target: digests of the file, or the line that says why there is none."""
    for target in targets:
        for name, recipe in _recipes(onnx.load(subject.model, load_external_data=False)):
            out = work / "written.onnx"
            out.unlink(missing_ok=True)
            if "\n" in recipe:
                (work / "recipe.yaml").write_text(recipe, encoding="utf8")
                recipe = str(work / "recipe.yaml")
            options = ("--recipe", recipe, "--target", target, "--seed", "0", "--json")
            done = _run("quantize", subject.model, "--data", subject.samples, "-o", out, *options)
            key = f"{subject.name}, {target}, {name}"
            print(key, done.returncode, flush=True)
            if done.returncode or not out.exists():
                yield key, {"refused": _VARYING.sub("#", done.stderr.strip().splitlines()[-1] if done.stderr else "")}
            else:
                yield key, {**digests(out), "keys": sorted(set(_keys(json.loads(done.stdout))))}


def _searched(subject: subjects.Subject, work: Path) -> Iterator[tuple[str, Row]]:
    """What searches on ``null`` leave in their folder."""
    for seed in range(2):
        out = work / f"out-{subject.name}-{seed}"
        options = ("--target", "null", "--seed", str(seed), "--budget", "10m", "--max-measurements", str(_TRIALS), "-q")
        done = _run("tune", subject.model, "--data", subject.samples, "-o", out, *options)
        key = f"{subject.name}, seed {seed}"
        print(key, done.returncode, flush=True)
        if not (out / "result.json").exists():
            yield key, {"refused": _VARYING.sub("#", done.stderr.strip()[-300:])}
            continue
        result = json.loads((out / "result.json").read_text(encoding="utf8"))
        told = {name: result["best"][name] for name in ("origin", "latency_ms", "speedup", "sqnr_db", "qdq_pairs")}
        files = {
            name: hashlib.sha256((out / name).read_bytes()).hexdigest()[:16]
            for name in ("recipe.yaml", "pattern_cache.yaml")
            if (out / name).exists()
        }
        anchors = {a["name"]: [a["latency_ms"], a["sqnr_db"], a["feasible"]] for a in result["anchors"]}
        yield (
            key,
            {
                **digests(out / "model.onnx"),
                **files,
                "best": told,
                "anchors": anchors,
                "keys": sorted(set(_keys(result))),
                "files": sorted(p.name for p in out.iterdir()),
                "search": {k: result["search"][k] for k in ("measurements", "failed", "stopped_because")},
            },
        )


def digests(path: Path) -> Row:
    """Of all bytes of a model, and of what it computes."""
    model = onnx.load(path)
    whole = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    for field in ("metadata_props", "producer_version", "doc_string"):
        model.ClearField(field)
    for graph in _graphs(model.graph):
        for each in (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output):
            each.ClearField("doc_string")
            if "metadata_props" in each.DESCRIPTOR.fields_by_name:
                each.ClearField("metadata_props")
    bare = hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()[:16]
    return {"bytes": whole, "graph": bare, "nodes": len(model.graph.node)}


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _graphs(body)


def _keys(data: Any, path: str = "") -> Iterator[str]:
    """Paths of all keys; those of lists without their places."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from _keys(value, f"{path}.{key}" if path else str(key))
    elif isinstance(data, list) and any(isinstance(each, (Mapping, list)) for each in data):
        for each in data:
            yield from _keys(each, f"{path}[]")
    else:
        yield path


def differences(old: Row, new: Row, path: str = "") -> Iterator[str]:
    """Each place in which two records differ."""
    for key in sorted({*old, *new}):
        place = f"{path} / {key}" if path else key
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from differences(before, after, place)
        elif before != after:
            yield f"{place}: {_short(before)} -> {_short(after)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def main(arguments: Sequence[str]) -> int:
    """Write a record; or print what differs between two, 1 where anything does."""
    parser = argparse.ArgumentParser("benchmarks.behaviour")
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record")
    recording.add_argument("file", type=Path)
    recording.add_argument("--models", type=Path, default=subjects.default_models())
    recording.add_argument("--only", nargs="*", default=[])
    recording.add_argument("--targets", nargs="+", default=TARGETS)
    comparing = commands.add_parser("compare")
    comparing.add_argument("old", type=Path)
    comparing.add_argument("new", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "record":
        write_json(options.file, record(options.models, options.only, options.targets))
        return 0
    old, new = (json.loads(path.read_text(encoding="utf8")) for path in (options.old, options.new))
    found = list(differences(old, new))
    print("\n".join(found) or "nothing differs")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Cases about YAML: recipes, pattern caches, and states of the step-by-step tuner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from inlay.model.load import file_sha256
from tests.attack.case import Case
from tests.attack.choices import Choices
from tests.attack.damage import changed, damaged, deep
from tests.attack.seeds import MODEL, QUANTIZE, TUNE, Seeds, put_model

_RECIPE = {
    "inlay-recipe": 1,
    "rules": [
        {"global": "int"},
        {"op_type": "Softmax", "config": "float"},
        {"name": "head*", "config": {"activation": "int8", "per_channel": False}, "optional": True},
        {"module": "backbone/", "config": "int", "optional": True},
        {"io": "float"},
    ],
}
_CACHE = {
    "inlay_pattern_cache": 1,
    "minimum_distance": 4,
    "max_entries_per_pattern": 32,
    "patterns": {
        "0f3a": {
            "summary": "Conv",
            "schemes": [{"speedup": 1.3, "points": [["node_input", 0, 0], ["output", None, 1, 0]]}],
        }
    },
}
_TEXTS = (
    "", "\0", "{", "[" * 5000, "{a: " * 3000, "- " * 20000, "a: &a [*a, *a]", "a: *b",
    "!!python/object/apply:os.system [ls]", "\t", "%YAML 9.9\n---", "inlay-recipe: 1\nrules: 2001-99-99\n",
    "inlay_pattern_cache: 2001-02-30\n", f"inlay-recipe: {'9' * 5000}\n",
    f"inlay_pattern_cache: 1\nminimum_distance: {'9' * 5000}\n", "? [a]\n: b", "a: !!binary x", "a: !!timestamp 99",
    "---\n---\n", "\ufeffa: 1", "a: !!float x", "a: !!int x", "<<: 3", "!!set {a, b}", "!!omap [a: 1]",
    "a: 0x" + "f" * 9000, "a: 1:60:99999999999:1", "a: 0b", "a: !!int 0b2",
    "x: &x [a,a,a,a,a,a,a,a,a]\ny: &y [*x,*x,*x,*x,*x,*x,*x,*x]\nz: [*y,*y,*y,*y,*y,*y,*y,*y,*y,*y]",
)  # fmt: skip


def text(choose: Choices, seeds: Seeds, folder: Path) -> Case:
    """Recipes, pattern caches and states of the step-by-step tuner."""
    put_model(folder)
    what = choose.weighted(((3, "recipe"), (5, "cache"), (1, "state")))
    start: Any = _RECIPE if what == "recipe" else _CACHE
    if what == "state":
        start = {
            "inlay_autotuner_state": 1,
            "model_sha256": file_sha256(folder / "model" / "model.onnx"),
            "config": {},
            "baseline_latency_ms": 1.0,
            "incumbent_latency_ms": 0.5,
            "profiled_patterns": {"0f3a": 2},
            "placement": [["conv", 0, "uint8"]],
            "cache": _CACHE,
        }
    action = choose.below(8)
    if action == 0:
        raw = choose.among(_TEXTS).encode("utf8", "surrogatepass")
    elif action == 1:
        key = choose.among(list(start))
        raw = (
            yaml.safe_dump({k: v for k, v in start.items() if k != key}).encode() + f"{key}: {deep(choose)}\n".encode()
        )
    else:
        for _ in range(1 + choose.below(3)):
            start = changed(start, choose)
        raw = _dumped(start)
        raw = damaged(raw, choose) if action > 5 else raw
    (folder / "given" / "g.yaml").write_bytes(raw)
    real = choose.one_in(300)
    if what == "recipe":
        command = choose.weighted(((8, QUANTIZE), (1, ("tune", MODEL, "-o", "@/out", *TUNE))))
        return Case("yaml", (*command, "--recipe", "@/given/g.yaml"), real=real)
    if what == "state":
        return Case("yaml", ("tests.attack.python:load_state", MODEL, "@/given/g.yaml"))
    (folder / "given" / "good.yaml").write_text(yaml.safe_dump(_CACHE), encoding="utf8")
    merge = (
        "cache",
        "merge",
        *choose.among(
            (("@/given/g.yaml",), ("@/given/g.yaml", "@/given/good.yaml"), ("@/given/good.yaml", "@/given/g.yaml"))
        ),
    )
    commands = (
        (6, ("cache", "show", "@/given/g.yaml")),
        (6, (*merge, "-o", "@/out/m.yaml")),
        (1, ("tune", MODEL, "-o", "@/out", *TUNE, "--strategy", "evolve", "--pattern-cache", "@/given/g.yaml")),
    )
    return Case("yaml", choose.weighted(commands), encoding="ascii" if choose.one_in(10) else "utf8", real=real)


def _dumped(start: Any) -> bytes:
    try:
        return yaml.safe_dump(start, allow_unicode=True).encode("utf8", "surrogatepass")
    except (ValueError, yaml.YAMLError):  # integers of 400 digits and the like
        return json.dumps(start, default=str).encode()

"""Which kernels of ONNX Runtime Web gain by 8 bits: chains of one operator, in float and quantized, in Node.

    python -m benchmarks.web_kernels [--only KIND ...] [--out DIR]

Needs ``inlay targets --install ort-web``. Each model is the same operator a few times in a row, so that what happens at
its ends counts little: quantized, integers flow from one to the next, as within a quantized network. Float and
quantized models are timed in the same interleaved blocks. Together with the share of each kind in a network this says
whether any placement could gain there.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import inlay
from benchmarks import paired, render, rows
from inlay.data import input_specs, random_samples
from inlay.errors import InlayError
from inlay.model.load import load
from inlay.targets.base import TargetSpec
from inlay.targets.ort_web.micro_models import POOL, conv, plain, product
from inlay.targets.registry import create

OUT = Path(__file__).parent / "out"
TARGET = TargetSpec("ort-web", {"threads": 1})
RECIPES = ("full-int8", "dynamic")
BLOCKS, PROCESSES, LENGTH = 12, 2, 4

MODELS = (
    *(conv(c, r, 3, LENGTH) for c, r in ((32, 56), (64, 28), (256, 14))),
    *(conv(c, r, 1, LENGTH) for c, r in ((32, 112), (96, 28), (512, 7))),
    *(conv(c, r, w, LENGTH, c) for c, r, w in ((32, 112, 3), (192, 28, 3), (96, 14, 5))),
    *(product(rows, width, LENGTH) for rows, width in ((1, 1024), (32, 256), (128, 384))),
    *(plain(kind, 64, 56, LENGTH, [""]) for kind in ("Add", "Mul")),
    plain("Sigmoid", 64, 56, LENGTH),
    *(plain(kind, 64, 56, LENGTH, **POOL) for kind in ("MaxPool", "AveragePool")),
)


def row(model: onnx.ModelProto, folder: Path) -> dict[str, Any]:
    """One kind in float and quantized: milliseconds of one operator, and speed-ups over float."""
    path = folder / "float.onnx"
    onnx.save(model, path)
    files, notes = {"float": path}, {}
    for recipe in RECIPES:
        made = folder / f"{recipe}.onnx"
        try:
            done = inlay.quantize(path, made, target=TARGET, recipe=recipe)
        except InlayError as error:
            notes[recipe] = str(error)
            continue
        if done.ports:
            files[recipe] = made
    samples = random_samples(input_specs(load(path).model), np.random.default_rng(0), 1)
    readings = paired.measure(files, samples, BLOCKS, PROCESSES, targets=dict.fromkeys(files, TARGET))
    return {
        "kind": model.graph.name,
        "float_ms": readings.milliseconds("float") / LENGTH,
        "over_float": {name: readings.ratio("float", name) for name in files if name != "float"},
        "notes": notes,
    }


def text(table: dict[str, Any]) -> str:
    """The table as Markdown."""
    lines = [
        "# Kernels of ONNX Runtime Web",
        "",
        f"{', '.join(f'{k} {v}' for k, v in table['target'].items())}. Chains of {LENGTH} equal operators in Node; "
        "speed-ups over float are paired ratios with 95 % intervals. Empty: the recipe quantizes nothing there.",
        "",
        "| operator | float, each | " + " | ".join(RECIPES) + " |",
        "|---|---|" + "---|" * len(RECIPES),
    ]
    for each in table["rows"]:
        found = " | ".join(render.ratio(each["over_float"].get(recipe)) for recipe in RECIPES)
        lines.append(f"| {each['kind']} | {each['float_ms']:.3f} ms | {found} |")
    return "\n".join([*lines, ""])


def main() -> None:
    """Measure all kinds, and write the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.web_kernels", description=__doc__)
    parser.add_argument("--only", nargs="*", default=[], help="kinds whose names begin so")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    found = []
    for model in MODELS:
        kind = model.graph.name
        if options.only and not kind.startswith(tuple(options.only)):
            continue
        with tempfile.TemporaryDirectory() as name:
            found.append(row(model, Path(name)))
        shown = ", ".join(f"{recipe} {render.ratio(each)}" for recipe, each in found[-1]["over_float"].items())
        print(f"{kind}: {found[-1]['float_ms']:.3f} ms; {shown}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    rows.write_table(
        options.out, "web_kernels", {"target": dict(create(TARGET).fingerprint().facts), "rows": found}, text
    )


if __name__ == "__main__":
    main()

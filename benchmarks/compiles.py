"""How soon is the search near the best? A run of few built models against a run of many.

    python -m benchmarks compiles [--models DIR] [--only NAME ...] [--restart]

Every build of the whole model counts: the given one, each candidate, and those for profiles.
Both runs begin without costs from earlier runs. The two delivered models are timed in the same interleaved blocks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import inlay
from benchmarks import paired
from benchmarks.quality import BOUND_DB
from benchmarks.subjects import Subject

SUBJECTS = ("ultraface_rfb320_simplified", "squeezenet", "inception_v1", "vit", "lstm")
FEW, MANY = 40, 400
BLOCKS, PROCESSES = 20, 2
LONGEST_S = 900.0  # of the long run's search


def row(subject: Subject, folder: Path, many: int = MANY, longest_s: float = LONGEST_S) -> dict[str, Any]:
    """Both runs, compared.

    Raises:
        InlayError: the model cannot be tuned.
    """
    runs = {
        name: inlay.tune(
            subject.model,
            out=folder / name,
            data=subject.samples,
            min_sqnr=BOUND_DB,
            budget=budget,
            max_builds=builds,
            cost_db=False,
        )
        for name, builds, budget in (("short", FEW, None), ("long", many, longest_s))
    }
    files = {name: run.model_path for name, run in runs.items()}
    readings = paired.measure(
        {**files, "given": subject.model}, paired.read(subject.samples, subject.model, 1), BLOCKS, PROCESSES
    )
    return {
        "model": subject.name,
        "short_over_long": readings.ratio("long", "short"),
        "over_given": {name: readings.ratio("given", name) for name in runs},
        **{
            name: {
                k: run.search[k]
                for k in ("builds", "compiles", "measurements", "wall_s", "stopped_because", "replayed")
            }
            for name, run in runs.items()
        },
    }


def table(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Rows, with whether each keeps the goal: at most 40 builds, and within 2 %."""
    for r in rows:
        if "error" not in r:
            r["reached"] = r["short"]["builds"] <= FEW and r["short_over_long"]["value"] >= 0.98
    return {"few": FEW, "rows": rows}

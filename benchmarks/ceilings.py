"""How far models are from what the processor can do: float, and as ``inlay quantize`` writes them.

The processor's peaks are those that ``inlay calibrate-machine`` kept, so run that first, on an idle machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import inlay
from benchmarks.reasons import first
from benchmarks.subjects import Subject

BUDGET_S = 60.0  # of each explanation
MIN_SQNR = 20.0


def row(subject: Subject, work: Path) -> dict[str, Any]:
    """The ceilings of one model."""
    work.mkdir(parents=True, exist_ok=True)
    file = work / "int8.onnx"
    inlay.quantize(subject.model, out=file, data=subject.samples, min_sqnr=MIN_SQNR)
    found = {name: _ceiling(path, subject) for name, path in (("float", subject.model), ("quantized", file))}
    return {"model": subject.name, **found}


def _ceiling(path: Path, subject: Subject) -> dict[str, Any] | None:
    said = inlay.explain(path, data=first(subject.samples), budget=BUDGET_S).ceiling
    return None if said is None else said.as_json()


def line(row: Mapping[str, Any]) -> str:
    """A row in a few words."""
    return ", ".join(f"{name} {_shown(row[name])}" for name in ("float", "quantized"))


def _shown(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "not known"
    return "no bound" if found["bound_ms"] is None else f"{found['bound_ms']:.3f} of {found['now_ms']:.3f} ms"


def markdown(table: Mapping[str, Any]) -> str:
    """The table for people."""
    return "\n".join(_lines(table["rows"])) + "\n"


def _lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "# How far models are from what the processor can do"
    yield ""
    yield "Each model in float and as `inlay quantize` writes it, at 20 dB; one thread. The bound is the time if each"
    yield "operator ran at the peak of its precision that was measured on this processor (`inlay explain`)."
    for name, title in (("float", "In float"), ("quantized", "As `inlay quantize` writes it")):
        yield ""
        yield f"## {title}"
        yield ""
        yield "| model | now | bound | outside products | products run at | largest gaps |"
        yield "|---|--:|--:|--:|---|---|"
        for row in rows:
            found = row.get(name)  # none of a model that failed
            if found is not None:
                yield f"| {row['model']} | {_cells(found)} |"


def _cells(found: Mapping[str, Any]) -> str:
    rates = ", ".join(f"{precision} {share:.0%}" for precision, share in found["reached"].items())
    gaps = "; ".join(f"{g['ms']:.3f} ms {g['name']}: {g['why']}" for g in found["gaps"])
    bound = found["beaten"] if found["bound_ms"] is None else f"{found['bound_ms']:.3f} ms"
    return f"{found['now_ms']:.3f} ms | {bound} | {found['outside']:.0%} | {rates} | {gaps}"

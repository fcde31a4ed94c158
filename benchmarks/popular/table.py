"""The table ``popular``: rows, geometric means and its Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import paired
from benchmarks.popular.row import FLOAT, OURS
from benchmarks.render import machine, ratio
from inlay.errors import UNPROVEN

Row = dict[str, Any]


def table(rows: list[Row]) -> Row:
    """Rows, and the geometric mean of what Inlay delivers over the best feasible of what people have, and over float.

    Rows whose delivered file is outside its bound do not count: nobody could use the file.
    """
    done = [r for r in rows if r.get("over_best") is not None and r["feasible"]]
    return {
        "rows": rows,
        "feasible": [len(done), len(rows)],
        "geometric_mean": {
            "over_best": paired.geometric_mean([r["over_best"] for r in done]),
            "over_float": paired.geometric_mean([r["over_float"] for r in done]),
        },
    }


def text(found: Mapping[str, Any]) -> str:
    """Verdicts, every file of every model, and what was fetched."""
    lines = [
        "# Popular models",
        "",
        machine(found["machine"]),
        "Speed-ups are paired ratios from the same interleaved blocks with 95 % intervals. Metrics are of samples from "
        "other sources than those given to any tool, with the loss against float and its 95 % interval (paired "
        "bootstrap over samples); a file is feasible where the loss is within the bound. Each run starts cold; where "
        "the samples that it is given have labels, or need none, it is told the metric by `--evaluate`. What a run "
        "cannot state for new samples, its first line says.",
        "",
        "| model | Inlay over the best feasible | which | over float | metric (bound of the loss) | within | says "
        "| run | memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        if "error" in row:
            lines.append(f"| {row['model']} | fails: {cell(row['error'])} | | | | | | | |")
            continue
        ours: Row = next((f for f in row["files"] if f["name"] == OURS), {})
        name = row["model"] + ("" if row["trained"] else "\\*")
        metric = f"{row['metric']['name']}: {_metric(ours)} ({row['metric']['bound']:g})"
        run = f"{row['run']['wall_s']:.0f} s | {row['run']['peak_mb'] / 1000:.1f} GB"
        within = "yes" if row["feasible"] else "**no**"
        says = "`BOUND NOT SHOWN`" if row["run"]["exit_code"] == UNPROVEN else ""
        lines.append(
            f"| {name} | {ratio(row['over_best'])} | {row['best']} | {ratio(row['over_float'])} | {metric} | {within} "
            f"| {says} | {run} |"
        )
    feasible, count = found["feasible"]
    lines += ["", f"Within the bound: {feasible} of {count}. Geometric means over them:", ""]
    for key, what in (("over_best", "the best feasible of what people have"), ("over_float", "the float model")):
        if found["geometric_mean"][key] is not None:
            lines.append(f"- over {what}: {ratio(found['geometric_mean'][key])}")
    lines += ["", "## Files", "", "| model | file | over float | latency | metric | loss | within | size | note |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    for row in found["rows"]:
        lines += [_file(row, file) for file in row.get("files", ())]
    return "\n".join([*lines, "", *packages_of(found["rows"])]) + "\n"


def packages_of(rows: Sequence[Row]) -> list[str]:
    """What was fetched for ``rows``, as a table."""
    packages = {name: facts for row in rows for name, facts in row.get("packages", {}).items()}
    lines = ["## Packages", "", "| package | version | licence | sha256 of the wheel |", "|---|---|---|---|"]
    return lines + [f"| {n} | {v} | {licence} | `{digest}` |" for n, (v, digest, licence) in sorted(packages.items())]


def line(row: Row) -> str:
    """A row in brief, for a log."""
    return f"{ratio(row['over_best'])} over {row['best']}, {'within' if row['feasible'] else 'outside'} its bound"


def _file(row: Row, file: Row) -> str:
    timed = f"{ratio(file['over_float'])} | {file['ms']:.3g} ms" if "ms" in file else " | "
    loss = ""
    if "metric" in file and file["name"] != FLOAT:
        figures = {k: round(v, 4) + 0.0 for k, v in file["metric"].items()}  # nothing lost has no sign
        loss = "{loss:.4f} [{loss_low:.4f}, {loss_high:.4f}]".format(**figures)
    size = f"{file['mb']:.1f} MB" if "mb" in file else ""
    within = "yes" if file["feasible"] else "no"
    judged = f"{_metric(file)} | {loss} | {within}"
    return f"| {row['model']} | {file['name']} | {timed} | {judged} | {size} | {cell(file['note'])} |"


def _metric(file: Row) -> str:
    return f"{file['metric']['value']:.4f}" if "metric" in file else ""


def cell(note: str) -> str:
    """A note that fits into a table."""
    return " ".join(note.replace("|", "/").split())[:160]

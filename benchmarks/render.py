"""Tables as Markdown, and the comparison in the documentation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- comparison: begin -->", "<!-- comparison: end -->"
_PEERS = ("quantize_static", "quantize_dynamic", "MatMulNBits 8", "MatMulNBits 4", "NNCF")
RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs/benchmarks.md"


def _means(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Geometric means of a table of quality: their keys, and over what they are, by the peers that were measured."""
    measured = {a["name"] for row in table["rows"] for a in row.get("anchors", ()) if "sqnr_db" in a}
    *peers, last = ["the given file", *(name for name in _PEERS if name in measured)]
    usual = f"the {'best' if len(peers) > 1 else 'better'} feasible one of {', '.join(peers)} and {last}"
    return [("geometric_mean", "the best feasible anchor"), ("geometric_mean_over_usual", usual)]


def ratio(found: Mapping[str, float] | None) -> str:
    """``1.23x [1.20, 1.25]``."""
    return "" if found is None else f"{found['value']:.2f}x [{found['low']:.2f}, {found['high']:.2f}]"


def decibels(value: float) -> str:
    """An SQNR; differences that no format tells apart are exact."""
    return "exact" if value >= 299.0 else f"{value:.1f} dB"


def machine(facts: Mapping[str, Any]) -> str:
    """One line on where the figures come from."""
    count = facts.get("threads", 1)
    threads = "one thread" if count == 1 else f"{count} threads"
    return (
        f"Inlay {facts['inlay']}, ONNX Runtime {facts['onnxruntime']}, {threads}, {facts['cpu']} ({facts['isa']}), "
        f"{facts['cores']} cores; search budget {facts['budget_s']:.0f} s for each model."
    )


def quality(table: Mapping[str, Any]) -> str:
    """Every anchor of every model."""
    lines = [
        "# Quality",
        "",
        machine(table["machine"]),
        f"Speed-ups are paired ratios from the same interleaved blocks with 95 % intervals; the bound is "
        f"{table['bound_db']:.0f} dB on samples from other sources than those given. \\* seeded weights.",
        "",
        "| model | over the best feasible anchor | which | over the given model | SQNR | built | wall | overhead |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table["rows"]:
        if "error" in row:
            lines.append(f"| {row['model']} | fails: {row['error']} | | | | | | |")
            continue
        search = row["search"]
        overhead = "" if search["overhead"] is None else f"{search['overhead']:.1%}"
        lines.append(
            f"| {_name(row)} | {ratio(row['over_best_anchor'])} | {row['best_anchor']} | {ratio(row['over_given'])} "
            f"| {_fidelity(row)} | {search['builds']} "
            f"| {search['wall_s']:.0f} s | {overhead} |"
        )
    for kind, what in _means(table):
        lines += ["", f"Geometric mean over {what}:", ""]
        for name, mean in table[kind].items():
            if mean is not None:
                lines.append(f"- {name} ({table['models'][name]} models): {ratio(mean)}")
    largest = table["overhead"]["largest"]
    if largest is not None:
        lines += [
            "",
            f"Overhead (neither building, running, timing nor calibrating): at most {largest:.1%} of the wall time.",
        ]
    if table["unattributed"] is not None:
        lines += ["", f"Kernel time without a known cause: at most {table['unattributed']:.1%} of any profile."]
    lines += [
        "",
        "## Anchors",
        "",
        "| model | anchor | over the given model | SQNR | feasible | note |",
        "|---|---|---|---|---|---|",
    ]
    lines += anchor_lines(table)
    return "\n".join(lines) + "\n"


def anchor_lines(table: Mapping[str, Any]) -> list[str]:
    lines = []
    for row in table["rows"]:
        for anchor in row.get("anchors", ()):
            figures = f"{ratio(anchor['over_given'])} | {decibels(anchor['sqnr_db'])}" if "sqnr_db" in anchor else " | "
            lines.append(
                f"| {row['model']} | {anchor['name']} | {figures} | {'yes' if anchor['feasible'] else 'no'} "
                f"| {_plain(anchor['note'])} |"
            )
    return lines


def openvino(table: Mapping[str, Any]) -> str:
    """What is delivered for OpenVINO, and every anchor there."""
    what = (
        "What people have without Inlay is OpenVINO's precisions, ONNX Runtime's `quantize_static` and NNCF; all "
        "anchors: Inlay's one-shot recipes besides, which have its ranges and rewrites."
    )
    columns = {
        "over the best that people have": lambda row: ratio(row["over_usual"]),
        "which": lambda row: row["usual_anchor"],
        "over the best of all anchors": lambda row: ratio(row["over_best_anchor"]),
        "which ": lambda row: row["best_anchor"],
        "over ONNX Runtime's float": lambda row: ratio(row["over_onnxruntime"]),
        "SQNR": _fidelity,
        "built": lambda row: row["search"]["builds"],
        "wall": lambda row: f"{row['search']['wall_s']:.0f} s",
    }
    return _on_openvino(table, "OpenVINO", what, columns)


def auto(table: Mapping[str, Any]) -> str:
    """What is delivered for whichever runtime is the fastest, and every anchor on both."""
    what = (
        "`--target auto` says which runtime to deploy with. What people have without Inlay, on either of them: the "
        "given model in each precision, what ONNX Runtime's quantizers make of it, and NNCF's files."
    )
    columns = {
        "over the best that people have": lambda row: ratio(row["over_usual"]),
        "which": lambda row: row["usual_anchor"],
        "over ONNX Runtime's float": lambda row: ratio(row["over_onnxruntime"]),
        "deployed with": lambda row: row["deployed"],
        "SQNR": _fidelity,
        "within": lambda row: "yes" if row["feasible"] else "**no**",
        "says so": lambda row: "`BOUND NOT SHOWN`" if row["unproven"] else "",
        "wall": lambda row: f"{row['wall_s']:.0f} s",
    }
    return _on_openvino(table, "Whichever runtime is the fastest", what, columns)


def _on_openvino(
    table: Mapping[str, Any], title: str, what: str, columns: Mapping[str, Callable[[Mapping[str, Any]], object]]
) -> str:
    heads = [head.strip() for head in columns]
    lines = [
        f"# {title}",
        "",
        f"OpenVINO {table['target']['openvino']}. {machine(table['machine'])}",
        f"Speed-ups are paired ratios from the same blocks with 95 % intervals; the bound is {table['bound_db']:.0f} "
        "dB against ONNX Runtime on the given model, on samples from other sources than those given. \\* seeded "
        "weights.",
        "",
        what,
        "",
        f"| model | {' | '.join(heads)} |",
        f"|---|{'---|' * len(heads)}",
    ]
    for row in table["rows"]:
        if "error" in row:
            lines.append(f"| {row['model']} | fails: {row['error']} |{' |' * (len(heads) - 1)}")
        else:
            lines.append(f"| {_name(row)} | {' | '.join(str(shown(row)) for shown in columns.values())} |")
    means = table["geometric_mean"]
    kept = table.get("kept", table["models"])
    those = "" if kept == table["models"] else f" of {table['models']}, those that keep the bound"
    lines += ["", f"Geometric means over {kept} models{those}:", ""]
    lines.append(f"- over the best feasible of what people have: {ratio(means['over_usual'])}")
    if means["over_best_anchor"] != means["over_usual"]:
        lines.append(f"- over the best feasible of all anchors: {ratio(means['over_best_anchor'])}")
    lines.append(f"- over ONNX Runtime's float: {ratio(means['over_onnxruntime'])}")
    lines += [
        "",
        "## Anchors",
        "",
        "| model | anchor | over ONNX Runtime's float | SQNR | feasible | note |",
        "|---|---|---|---|---|---|",
        *anchor_lines(table),
    ]
    return "\n".join(lines) + "\n"


def compiles(table: Mapping[str, Any]) -> str:
    """Short against long runs."""
    lines = [
        "# Builds",
        "",
        machine(table["machine"]),
        f"What a run of at most {table['few']} built models delivers, over what a long run delivers.",
        "",
        "| model | short over long | built | in the long run | why the long run ended | within 2 % |",
        "|---|---|---|---|---|---|",
    ]
    for row in table["rows"]:
        if "error" in row:
            lines.append(f"| {row['model']} | fails: {row['error']} | | | | |")
            continue
        lines.append(
            f"| {row['model']} | {ratio(row['short_over_long'])} | {row['short']['builds']} | {row['long']['builds']} "
            f"| {row['long']['stopped_because']} | {'yes' if row['reached'] else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def transfer(table: Mapping[str, Any]) -> str:
    """Schemes to 98 % of the long run, without and with the cache of a relative."""
    lines = [
        "# Pattern caches between relatives",
        "",
        machine(table["machine"]).partition("; search budget")[0] + ".",
        f"Schemes measured by evolution until the best is within {1 - table['enough']:.0%} of the best of a long run "
        f"without a cache ({table['schemes_per_region']} schemes for each pattern). `null` has known costs and no "
        "noise; on `ort-cpu` the anchors come first and are not counted.",
        "",
        "| from, to | target | known | long run | best | without cache | with cache | share |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table["rows"]:
        if "error" in row:
            lines.append(f"| {row['model']} | {row['target']} | fails: {row['error']} | | | | | |")
            continue
        cold, warm = row["cold"], row["warm"]
        share = f"{warm / cold:.2f}" if cold and warm is not None else "-"
        reached = "not reached" if warm is None else str(warm)
        best = f"{row['best']:.2f}x | {cold} | {reached} | {share}"
        lines.append(f"| {row['model']} | {row['target']} | {row['known']} | {row['schemes']} | {best} |")
    return "\n".join(lines) + "\n"


def budgets(table: Mapping[str, Any]) -> str:
    """Wall time over budget, quiet and busy."""
    lines = [
        "# Budgets",
        "",
        machine(table["machine"]).partition("; search budget")[0] + ".",
        "Wall time of the whole command over its budget. A budget that was refused as too short is followed by the "
        "least that the command asked for, which it was then given.",
        "",
        "| model | inference | budget | beside | wall | share | speed-up | timed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in table["rows"]:
        if "error" in row:
            lines.append(f"| {row['model']} | fails: {row['error']} | | | | | | |")
            continue
        for cell in row["cells"]:
            asked = f"{cell['asked_s']} s" + ("" if cell["refused_s"] is None else f" -> {cell['budget_s']} s")
            beside = f"{cell['busy']} busy" if cell["busy"] else "quiet"
            ended = cell["code"] == 0
            time = f"{cell['given_ms']:.3g} ms" if ended else ""
            result = f"{cell['speedup']:.2f}x | {cell['timed']}" if ended else f"{_plain(cell['last'])} |"
            wall = f"{cell['wall_s']:.1f} s | {cell['ratio']:.2f}"
            lines.append(f"| {_name(row)} | {time} | {asked} | {beside} | {wall} | {result} |")
    lines += ["", f"Kept to within 10 %: {table['kept']} of {table['of']}."]
    return "\n".join(lines) + "\n"


def comparison(table: Mapping[str, Any]) -> str:
    """The table of the documentation: the runtime's own quantizer beside what is delivered."""
    lines = [
        BEGIN,
        "| model | `quantize_static` | Inlay | over the best feasible anchor |",
        "|---|---|---|---|",
    ]
    done = [r for r in table["rows"] if "error" not in r]
    for row in done:
        theirs = next(a for a in row["anchors"] if a["name"] == "quantize_static")
        other = (
            f"{theirs['over_given']['value']:.2f}x ({decibels(theirs['sqnr_db'])})"
            if "sqnr_db" in theirs
            else _short(theirs["note"])
        )
        ours = f"**{ratio(row['over_given'])}** ({_fidelity(row)})"
        if row["delivers_given"]:
            ours = "float is best: the given file is kept"
        elif row["is_float"]:
            ours = f"{ratio(row['over_given'])}: float, normalized"
        lines.append(f"| {_name(row)} | {other} | {ours} | {ratio(row['over_best_anchor'])} |")
    which = {"trained": f"the {table['models']['trained']} trained models", "all": f"all {table['models']['all']}"}
    lines.append("")
    for kind, what in _means(table):
        means = [f"{ratio(mean)} on {which[name]}" for name, mean in table[kind].items() if mean is not None]
        lines.append(f"Geometric mean over {what}: {'; '.join(means)}.")
    lines += [machine(table["machine"]), END]
    return "\n".join(lines)


def page(text: str, table: Mapping[str, Any]) -> str:
    """``text`` with the part between the two markers rendered from ``table``. Raises ValueError without markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"the page needs one line {BEGIN} and one line {END}")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + comparison(table) + after


def read(name: str, folder: Path = RESULTS) -> dict[str, Any]:
    """A table that was committed."""
    found: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf8"))
    return found


def _fidelity(row: Mapping[str, Any]) -> str:
    return decibels(row["sqnr_db"]) + ("" if row["feasible"] else ", below the bound")


def _name(row: Mapping[str, Any]) -> str:
    return str(row["model"]) + ("" if row["trained"] else "\\*")


def _short(note: str) -> str:
    return note.partition(":")[0] if note else "fails"


def _plain(note: str) -> str:
    return " ".join(note.replace("|", "/").split())[:160]


TABLES: Sequence[str] = (
    "quality",
    "popular",
    "shipped",
    "openvino",
    "auto",
    "runtimes",
    "browser",
    "compiles",
    "honesty",
    "coverage",
    "few_samples",
    "growth",
    "fleet",
    "ethos",
    "lowering",
    "precisions",
    "instant",
    "npu",
    "ranges",
    "reasons",
    "imports",
    "waste",
    "ceilings",
    "budgets",
    "stopping",
    "transfer",
    "gpu",
)

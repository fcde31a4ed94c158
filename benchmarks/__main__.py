"""``python -m benchmarks [TABLE] [options]``: all tables, or one of them (``--help`` lists their names).

Each table goes to ``benchmarks/out`` as JSON and Markdown. Every model's row is written when it is done: the same
command goes on where an earlier one was stopped, ``--restart`` begins anew. ``publish`` copies finished tables to
``benchmarks/results``, and ``page`` renders the comparison of ``docs/benchmarks.md`` from there. Measure on a quiet
machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import (
    browser,
    budgets,
    ceilings,
    claims,
    compiles,
    coverage,
    few_samples,
    fleet,
    gpu,
    honesty,
    imports,
    instant,
    light_models,
    lowering,
    npu,
    openvino,
    precisions,
    quality,
    ranges,
    reasons,
    render,
    runtimes,
    stopping,
    subjects,
    transfer,
    transformers,
    uses,
    waste,
)
from benchmarks.popular import packages
from benchmarks.rows import Row, collect, collect_named, facts, trained, write_json, write_table
from inlay.errors import InlayError
from inlay.installed import __version__
from inlay.targets.registry import create

OUT = Path(__file__).parent / "out"
BUDGET_S, POPULAR_S = 40.0, 90.0


def run_quality(options: argparse.Namespace) -> None:
    """``quality.json`` and ``.md``."""
    settings = {"budget": options.budget, "bound": options.bound, "nncf": bool(options.nncf), "version": __version__}
    if options.threads != 1:
        settings["threads"] = options.threads
    names = subjects.chosen(options.models, options.only)

    def make(subject: subjects.Subject, work: Path) -> Row:
        found = quality.row(subject, work, options.budget, options.bound, options.nncf, options.threads)
        if options.keep is not None:
            (options.keep / subject.name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(quality.delivered(work), options.keep / subject.name / "model.onnx")
        return found

    table = quality.table(collect("quality", names, options, make, settings), options.bound)
    write_table(options.out, "quality", {"machine": facts(options.budget, options.threads), **table}, render.quality)


def run_instant(options: argparse.Namespace) -> None:
    """``instant.json`` and ``.md``."""
    settings = {"long": options.long.name if options.long else "", "version": __version__}
    names = subjects.chosen(options.models, options.only)

    def make(subject: subjects.Subject, work: Path) -> Row:
        return instant.row(subject, work, options.long)

    table = instant.table(collect("instant", names, options, make, settings))
    write_table(options.out, "instant", {"machine": facts(0.0), **table}, instant.text)


def run_coverage(options: argparse.Namespace) -> None:
    """``coverage.json`` and ``.md``, of trained models."""
    settings = {"given": list(coverage.GIVEN), "splits": coverage.SPLITS, "version": __version__}
    table = coverage.table(collect("coverage", trained(options), options, coverage.row, settings))
    write_table(options.out, "coverage", table, coverage.text)


def run_few_samples(options: argparse.Namespace) -> None:
    """``few_samples.json`` and ``.md``, of trained models."""
    settings = {"ranged": list(few_samples.RANGED), "version": __version__}
    table = few_samples.table(collect("few_samples", trained(options), options, few_samples.measured, settings))
    write_table(options.out, "few_samples", table, few_samples.text)


def run_openvino(options: argparse.Namespace) -> None:
    """``openvino.json`` and ``.md``."""
    settings = {"budget": options.budget, "nncf": options.nncf is not None, "version": __version__}
    names = subjects.chosen(options.models, options.only)

    def make(subject: subjects.Subject, work: Path) -> Row:
        return openvino.row(subject, work, options.budget, options.nncf)

    table = openvino.table(collect("openvino", names, options, make, settings))
    known = create(openvino.PLAIN).fingerprint().facts
    write_table(options.out, "openvino", {"machine": facts(options.budget), "target": known, **table}, render.openvino)


def run_auto(options: argparse.Namespace) -> None:
    """``auto.json`` and ``.md``: of trained models, transformers, and models out of packages."""
    from benchmarks.popular.models import TASKS  # they need packages that the other tables do without

    settings = {"budget": options.budget, "nncf": options.nncf is not None, "version": __version__}
    known = [*subjects.names(options.models), *TASKS]
    order = [n for n in known if n in options.only or n not in (*light_models.NAMES, *transformers.VARIANTS)]

    def make(name: str, work: Path) -> Row:
        subject = TASKS[name].laid(options.cache, work) if name in TASKS else subjects.make(name, options.models, work)
        return openvino.row_anywhere(subject, work, options.budget, options.nncf)

    wanted = [n for n in order if not options.only or n in options.only]
    table = openvino.table(collect_named("auto", (wanted, order), options, make, settings))
    target = create(openvino.PLAIN).fingerprint().facts
    write_table(options.out, "auto", {"machine": facts(options.budget), "target": target, **table}, render.auto)


def run_runtimes(options: argparse.Namespace) -> None:
    """``runtimes.json`` and ``.md``."""
    settings = {"budget": options.budget, "targets": options.targets, "version": __version__}
    names = subjects.chosen(options.models, options.only)

    def make(subject: subjects.Subject, work: Path) -> Row:
        return runtimes.row(subject, work, options.budget, options.targets)

    table = runtimes.table(collect("runtimes", names, options, make, settings, runtimes.line), options.targets)
    write_table(options.out, "runtimes", {"machine": facts(options.budget), **table}, runtimes.text)


def run_browser(options: argparse.Namespace) -> None:
    """``browser.json`` and ``.md``, of trained models."""
    settings = {"budget": options.budget, "version": __version__}
    names = trained(options)

    def make(subject: subjects.Subject, work: Path) -> Row:
        return browser.row(subject, work, options.budget)

    table = browser.table(collect("browser", names, options, make, settings))
    write_table(options.out, "browser", {"machine": facts(options.budget), **table}, browser.text)


def run_compiles(options: argparse.Namespace) -> None:
    """``compiles.json`` and ``.md``."""
    settings = {"many": options.many, "longest_s": options.longest, "version": __version__}
    names = [n for n in subjects.chosen(options.models, options.only) if n in compiles.SUBJECTS]

    def make(subject: subjects.Subject, work: Path) -> Row:
        return compiles.row(subject, work, options.many, options.longest)

    table = compiles.table(collect("compiles", names, options, make, settings))
    write_table(options.out, "compiles", {"machine": facts(options.longest), **table}, render.compiles)


def run_honesty(options: argparse.Namespace) -> None:
    """``honesty.json`` and ``.md``."""
    given = {"--runs": options.runs, "--jobs": options.jobs, "--out": options.out}
    arguments = [str(a) for pair in given.items() for a in pair]
    honesty.main([*arguments, *(["--restart"] if options.restart else [])])


def run_growth(options: argparse.Namespace) -> None:
    """``growth.json`` and ``.md``, always in ``benchmarks/out``."""
    subprocess.call([sys.executable, "-m", "benchmarks.growth"])


def run_fleet(options: argparse.Namespace) -> None:
    """``fleet.json`` and ``.md``; no model is needed."""
    write_table(options.out, "fleet", fleet.table(), fleet.text)


def run_ethos(options: argparse.Namespace) -> None:
    """``ethos.json`` and ``.md``; a line where the Arm tools are not installed."""
    command = [sys.executable, "-m", "benchmarks.ethos_concat", "--json", str(options.out / "ethos.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"ethos: fails: {(done.stderr.splitlines() or ['?'])[-1]}", file=sys.stderr)
        return
    text = f"# Concat on Ethos-U\n\n```\n{done.stdout}```\n"
    (options.out / "ethos.md").write_text(text, encoding="utf8")
    print(done.stdout, end="")


def run_lowering(options: argparse.Namespace) -> None:
    """``lowering.json`` and ``.md``."""
    settings = {"accelerator": lowering.ACCELERATOR, "version": __version__}
    names = subjects.chosen(options.models, options.only)
    rows = collect("lowering", names, options, lowering.row, settings, lowering.line)
    write_table(options.out, "lowering", {"rows": rows}, lowering.text)


def run_precisions(options: argparse.Namespace) -> None:
    """``precisions.json`` and ``.md``, of trained models."""
    settings = {"types": list(precisions.TYPES), "version": __version__}
    rows = collect("precisions", trained(options), options, precisions.row, settings, precisions.line)
    write_table(options.out, "precisions", {"machine": facts(0.0), "rows": rows}, precisions.text)


def run_ranges(options: argparse.Namespace) -> None:
    """``ranges.json`` and ``.md``."""
    names = subjects.chosen(options.models, options.only)
    rows = collect("ranges", names, options, ranges.row, {"version": __version__}, ranges.line)
    write_table(options.out, "ranges", {"machine": facts(0.0), "rows": rows}, ranges.text)


def run_npu(options: argparse.Namespace) -> None:
    """``npu.json`` and ``.md``, of trained models."""
    settings = {"builds": npu.MOST_BUILDS, "version": __version__}
    rows = collect("npu", trained(options), options, npu.row, settings, npu.line)
    write_table(options.out, "npu", {"rows": rows}, npu.text)


def run_reasons(options: argparse.Namespace) -> None:
    """``reasons.json`` and ``.md``, of trained models."""
    ways = [*reasons.WAYS, *reasons.of_others(options.nncf, options.modelopt)]
    settings = {"ways": ways, "version": __version__}

    def make(subject: subjects.Subject, _: Path) -> Row:
        return reasons.row(subject, options.nncf, options.modelopt)

    rows = collect("reasons", trained(options), options, make, settings, reasons.line)
    write_table(options.out, "reasons", {"machine": facts(0.0), "rows": rows}, reasons.markdown)


def run_imports(options: argparse.Namespace) -> None:
    """``imports.json`` and ``.md``, of trained models."""
    settings = {"nncf": bool(options.nncf), "modelopt": bool(options.modelopt), "version": __version__}

    def make(subject: subjects.Subject, work: Path) -> Row:
        return imports.row(subject, work, options.nncf, options.modelopt)

    rows = collect("imports", trained(options), options, make, settings, imports.line)
    write_table(options.out, "imports", {"machine": facts(0.0), "rows": rows}, imports.text)


def run_waste(options: argparse.Namespace) -> None:
    """``waste.json`` and ``.md``, of trained models."""
    settings = {"values": waste.VALUES, "share": waste.SHARE, "version": __version__}
    rows = collect("waste", trained(options), options, waste.row, settings, waste.line)
    write_table(options.out, "waste", {"machine": facts(0.0), "rows": rows}, waste.markdown)


def run_ceilings(options: argparse.Namespace) -> None:
    """``ceilings.json`` and ``.md``, of trained models."""
    settings = {"budget": ceilings.BUDGET_S, "bound": ceilings.MIN_SQNR, "version": __version__}
    rows = collect("ceilings", trained(options), options, ceilings.row, settings, ceilings.line)
    write_table(options.out, "ceilings", {"machine": facts(0.0), "rows": rows}, ceilings.markdown)


def run_budgets(options: argparse.Namespace) -> None:
    """``budgets.json`` and ``.md``."""
    settings = {"budgets": list(budgets.BUDGETS_S), "busy": list(budgets.BUSY), "version": __version__}
    names = [n for n in subjects.chosen(options.models, options.only) if options.only or n in budgets.SUBJECTS]
    table = budgets.table(collect("budgets", names, options, budgets.row, settings, budgets.line))
    write_table(options.out, "budgets", {"machine": facts(max(budgets.BUDGETS_S)), **table}, render.budgets)


def run_claims(options: argparse.Namespace) -> None:
    """``claims.json`` and ``.md``: of all models, and of random nets beside them."""
    settings = {"budget": options.budget, "version": __version__}
    order = [n for n in subjects.names(options.models) if n != "bert_base"] + list(claims.NETS)
    names = [n for n in order if n in options.only] if options.only else order

    def make(name: str, work: Path) -> Row:
        made = claims.made if name in claims.NETS else lambda n, w: subjects.make(n, options.models, w)
        return claims.row(made(name, work), work, options.budget)

    table = claims.table(collect_named("claims", (names, order), options, make, settings, claims.line))
    write_table(options.out, "claims", {"machine": facts(options.budget), **table}, claims.markdown)


def run_uses(options: argparse.Namespace) -> None:
    """``uses.json`` and ``.md``, of trained models."""
    settings = {"budget": options.budget, "version": __version__}

    def make(subject: subjects.Subject, work: Path) -> Row:
        return uses.row(subject, work, options.budget)

    rows = collect("uses", trained(options), options, make, settings, uses.line)
    write_table(options.out, "uses", {"machine": facts(options.budget), "rows": rows}, uses.markdown)


def run_stopping(options: argparse.Namespace) -> None:
    """``stopping.json`` and ``.md``."""
    settings = {"budget": options.budget, "version": __version__}
    names = subjects.chosen(options.models, options.only)

    def make(subject: subjects.Subject, work: Path) -> Row:
        return stopping.row(subject, work, options.budget)

    table = stopping.table(collect("stopping", names, options, make, settings, stopping.line))
    write_table(options.out, "stopping", {"machine": facts(options.budget), **table}, stopping.text)


def run_transfer(options: argparse.Namespace) -> None:
    """``transfer.json`` and ``.md``; ``--only`` names targets."""
    folder = options.out / "rows" / "transfer"
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"budget": options.budget, "version": __version__}
    rows: list[Row] = []
    for target in options.only or transfer.TARGETS:
        for number, pair in enumerate(transfer.PAIRS):
            path = folder / f"{target}-{number}.json"
            if options.restart or not path.exists() or json.loads(path.read_text())["settings"] != settings:
                work = options.out / "work" / "transfer" / path.stem
                try:
                    found = transfer.row(pair, target, options.models or Path(), work, options.budget)
                except (InlayError, OSError) as error:  # one pair must not lose the others' figures
                    found = {"model": pair.name, "target": target, "error": str(error)}
                shutil.rmtree(work, ignore_errors=True)
                write_json(path, {**found, "settings": settings})
    for path in sorted(folder.glob("*.json")):
        row = json.loads(path.read_text(encoding="utf8"))
        if row["settings"] == settings:
            rows.append(row)
    table = {"machine": facts(options.budget), **transfer.table(rows)}
    write_table(options.out, "transfer", table, render.transfer)


def run_popular(options: argparse.Namespace) -> None:
    """``popular.json`` and ``.md``; models come from packages, and ``--models`` is not asked."""
    # Imported here: pictures and fonts need packages that the other tables do without.
    from benchmarks.popular import row as popular_row
    from benchmarks.popular import table as popular_table
    from benchmarks.popular.models import TASKS

    _fetched("popular", TASKS, popular_row.row, popular_table, options)


def run_shipped(options: argparse.Namespace) -> None:
    """``shipped.json`` and ``.md``: int8 files out of packages, repaired; ``--models`` is not asked."""
    from benchmarks.popular import repair
    from benchmarks.popular.models import SHIPPED

    _fetched("shipped", SHIPPED, repair.row, repair, options)


def _fetched(
    name: str, tasks: Mapping[str, Any], row: Callable[..., Row], table: Any, options: argparse.Namespace
) -> None:
    """The table of models out of packages: ``table`` makes it of what ``row`` makes of each of the ``tasks``."""
    budget, threads, known = options.budget, options.threads, list(tasks)
    settings = {"budget": budget, "threads": threads, "nncf": bool(options.nncf), "version": __version__}
    if unknown := [n for n in options.only if n not in known]:
        raise SystemExit(f"there is no model {', '.join(unknown)}: there are {', '.join(known)}")

    def make(model: str, work: Path) -> Row:
        try:
            return row(tasks[model], options.cache, work, budget, threads, options.nncf)
        except Exception as error:  # of whatever type: the others' rows are made all the same
            return {"model": model, "error": f"{type(error).__name__}: {error}"}

    wanted = [n for n in known if not options.only or n in options.only]
    rows = collect_named(name, (wanted, known), options, make, settings, table.line)
    write_table(options.out, name, {"machine": facts(budget, threads), **table.table(rows)}, table.text)


def publish(options: argparse.Namespace) -> None:
    """Copy finished tables to ``benchmarks/results``: those are committed."""
    render.RESULTS.mkdir(exist_ok=True)
    for name in render.TABLES:
        for suffix in (".json", ".md"):
            path = options.out / f"{name}{suffix}"
            if not path.exists():
                continue
            if name == "honesty" and suffix == ".json":  # single runs are many, and made again from their seeds
                table = json.loads(path.read_text(encoding="utf8"))
                del table["runs"]
                write_json(render.RESULTS / path.name, table)
            else:
                shutil.copyfile(path, render.RESULTS / path.name)
            print(f"wrote {render.RESULTS / path.name}")


def rewrite_page(options: argparse.Namespace) -> None:
    """Render the comparison in the documentation from the committed table."""
    text = render.page(render.PAGE.read_text(encoding="utf8"), render.read("quality"))
    render.PAGE.write_text(text, encoding="utf8")
    print(f"wrote {render.PAGE}")


COMMANDS: dict[str, Callable[[argparse.Namespace], None]] = {
    "quality": run_quality,
    "instant": run_instant,
    "coverage": run_coverage,
    "few_samples": run_few_samples,
    "npu": run_npu,
    "openvino": run_openvino,
    "auto": run_auto,
    "runtimes": run_runtimes,
    "browser": run_browser,
    "compiles": run_compiles,
    "honesty": run_honesty,
    "growth": run_growth,
    "fleet": run_fleet,
    "ethos": run_ethos,
    "lowering": run_lowering,
    "precisions": run_precisions,
    "ranges": run_ranges,
    "reasons": run_reasons,
    "imports": run_imports,
    "waste": run_waste,
    "ceilings": run_ceilings,
    "budgets": run_budgets,
    "stopping": run_stopping,
    "gpu": gpu.run,
    "uses": run_uses,
    "claims": run_claims,
    "transfer": run_transfer,
    "popular": run_popular,
    "shipped": run_shipped,
    "publish": publish,
    "page": rewrite_page,
}


ELSEWHERE = ("gpu",)
"""Tables that are made by name alone, on machines of their own."""


def main() -> int:
    """Make the table that is named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", choices=COMMANDS, help="all of them without it")
    parser.add_argument("--models", type=Path, default=subjects.default_models(), help="folder of trained models")
    parser.add_argument(
        "--budget",
        type=float,
        help=f"seconds of search for each model ({BUDGET_S:g}; auto, popular, shipped, stopping: {POPULAR_S:g})",
    )
    parser.add_argument("--bound", type=float, default=quality.BOUND_DB, help="least dB of quality (default 20)")
    parser.add_argument(
        "--nncf",
        metavar="PYTHON",
        help="a Python with NNCF, for most tables with peers",
    )
    parser.add_argument("--threads", type=int, default=1, help="of the runtime in quality")
    parser.add_argument("--modelopt", metavar="PYTHON", help="a Python with ModelOpt, for imports, reasons and gpu")
    parser.add_argument(
        "--long", type=Path, metavar="DIR", help="results of tune by model's name, for the table instant"
    )
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep what quality delivers as DIR/NAME/model.onnx, for --long"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="models")
    parser.add_argument("--targets", nargs="+", default=[*runtimes.TARGETS], metavar="NAME", help="of runtimes")
    parser.add_argument(
        "--cache", type=Path, default=packages.default_cache(), metavar="DIR", help="packages of popular are kept here"
    )
    parser.add_argument("--restart", action="store_true", help="forget the rows that are done")
    parser.add_argument("--many", type=int, default=compiles.MANY, help="builds of the long runs of compiles")
    parser.add_argument("--longest", type=float, default=compiles.LONGEST_S, help="most seconds of their search")
    parser.add_argument("--limit", type=float, default=gpu.LIMIT_S, help="most seconds of a call of gpu (default 540)")
    parser.add_argument("--wheels", action="store_true", help="list what a machine with a GPU needs for gpu, and end")
    parser.add_argument("--runs", type=int, default=300, help="of each scenario of honesty")
    parser.add_argument("--jobs", type=int, default=1, help="processes of honesty")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = [options.table] if options.table else [name for name in render.TABLES if name not in ELSEWHERE]
    for name in wanted:
        budget = options.budget or (POPULAR_S if name in ("auto", "popular", "shipped", "stopping") else BUDGET_S)
        COMMANDS[name](argparse.Namespace(**{**vars(options), "budget": budget}))
    return 0


if __name__ == "__main__":
    sys.exit(main())

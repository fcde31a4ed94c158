"""The command line. Commands read their options, call the library, and print; nothing is decided here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from inlay import api
from inlay.cli import render
from inlay.cli.progress import Lines, LiveTable
from inlay.errors import InlayError
from inlay.prepare.config import DEFAULT_BUDGET_S, DEFAULT_MIN_SQNR_DB, STRATEGIES, parse_bind
from inlay.regions import cache
from inlay.regions.describe import regions_json, regions_text
from inlay.run.progress import Progress, Silent
from inlay.tosa.command import lower_file
from inlay.version import __version__

app = typer.Typer(
    name="inlay",
    help="Set QuantizeLinear/DequantizeLinear nodes into ONNX models exactly where they pay.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

CommandLineError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
"""Base of all usage errors. typer carries a click of its own, and shows this class only as an ancestor."""

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX model.", show_default=False)]
TargetName = Annotated[str, typer.Option("--target", help="Where the model will run; see `inlay targets`.")]
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="SAMPLES",
        help="Samples: a .npz (an array per input, first axis = samples), a folder, or module:function.",
        show_default=False,
    ),
]
Labels = Annotated[
    Path | None, typer.Option("--labels", metavar="FILE", help="One label per sample: .npy, .npz or text.")
]
Bind = Annotated[list[str] | None, typer.Option("--bind", metavar="NAME=N", help="Size of a dynamic dimension.")]
Threads = Annotated[int, typer.Option("--threads", min=0, help="Threads of the runtime; 0 lets it choose.")]
Nodes = Annotated[
    list[str] | None, typer.Option("--nodes", metavar="GLOB", help="Quantize only nodes with such names; repeatable.")
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of every random choice.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the verdict only.")]


@app.command()
def tune(
    model: Model,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT", help="Output folder.")] = Path("inlay-out"),
    target: TargetName = "ort-cpu",
    data: Data = None,
    labels: Labels = None,
    metric: Annotated[
        str | None, typer.Option("--metric", help="top1, sqnr, or module:function(outputs, labels).")
    ] = None,
    max_drop: Annotated[
        str | None, typer.Option("--max-drop", metavar="DROP", help="Most that the metric may fall: 0.5% or 0.005.")
    ] = None,
    min_sqnr: Annotated[
        float | None,
        typer.Option(
            "--min-sqnr",
            metavar="DB",
            help=f"Least SQNR of the worst output; {DEFAULT_MIN_SQNR_DB:g} when no other bound is given.",
            show_default=False,
        ),
    ] = None,
    no_bound: Annotated[bool, typer.Option("--no-bound", help="Let accuracy go where it will.")] = False,
    budget: Annotated[
        str, typer.Option("--budget", metavar="TIME", help="Time for the search: 90s, 10m, 1h30m, or none.")
    ] = f"{DEFAULT_BUDGET_S:.0f}s",
    max_measurements: Annotated[
        int | None, typer.Option("--max-measurements", min=1, help="Most candidates to time.")
    ] = None,
    threads: Threads = 1,
    bind: Bind = None,
    seed: Seed = 0,
    qdq_baseline: Annotated[
        Path | None, typer.Option("--qdq-baseline", metavar="FILE", help="A Q/DQ model to start from and to beat.")
    ] = None,
    keep_qparams: Annotated[
        bool, typer.Option("--keep-qparams", help="Use the scales and zero points that came with a Q/DQ model.")
    ] = False,
    no_cost_db: Annotated[
        bool, typer.Option("--no-cost-db", help="Neither use nor keep costs learned on this target by other runs.")
    ] = False,
    strategy: Annotated[str, typer.Option("--strategy", help=f"{', '.join(STRATEGIES)}.")] = "auto",
    schemes_per_region: Annotated[
        int, typer.Option("--schemes-per-region", min=1, help="Most placements tried for one pattern of regions.")
    ] = 30,
    pattern_cache: Annotated[
        Path | None, typer.Option("--pattern-cache", metavar="FILE", help="Schemes of earlier runs, tried first.")
    ] = None,
    nodes: Nodes = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", metavar="FILE", help="Rules; nodes that they keep in float stay float.")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="Forget an earlier run in OUT.")] = False,
    quiet: Quiet = False,
) -> None:
    """Find the fastest placement of Q/DQ nodes that keeps the accuracy bound.

    The same command on the same OUT continues where it was stopped.
    """
    progress = _progress(quiet)
    try:
        result = api.tune(
            model,
            out=out,
            target=target,
            data=data,
            labels=labels,
            metric=metric,
            max_drop=max_drop,
            min_sqnr=min_sqnr,
            no_bound=no_bound,
            budget=budget,
            max_measurements=max_measurements,
            threads=threads,
            bind=bind or [],
            seed=seed,
            qdq_baseline=qdq_baseline,
            keep_qparams=keep_qparams,
            cost_db=not no_cost_db,
            strategy=strategy,
            schemes_per_region=schemes_per_region,
            pattern_cache=pattern_cache,
            nodes=nodes or [],
            recipe=recipe,
            restart=restart,
            progress=progress,
        )
    finally:
        progress.close()
    Console().print(render.verdict(result), highlight=False, soft_wrap=True, markup=False)
    if result.interrupted:
        raise typer.Exit(130)


@app.command()
def bench(
    models: Annotated[
        list[Path], typer.Argument(metavar="MODEL...", help="Two or more models; ratios are to the first.")
    ],
    target: TargetName = "ort-cpu",
    data: Data = None,
    blocks: Annotated[int, typer.Option("--blocks", min=1, help="Interleaved blocks in each process.")] = 10,
    processes: Annotated[int, typer.Option("--processes", min=1, help="Fresh processes.")] = 2,
    threads: Threads = 1,
    bind: Bind = None,
    seed: Seed = 0,
) -> None:
    """Compare the latency of models: interleaved, paired, with 95 % intervals."""
    rows = api.bench(
        models,
        target=target,
        data=data,
        blocks=blocks,
        processes=processes,
        threads=threads,
        bind=bind or [],
        seed=seed,
    )
    Console().print(render.bench_table(rows), highlight=False)


@app.command()
def quantize(
    model: Model,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT.onnx", help="The quantized model.")],
    target: TargetName = "ort-cpu",
    data: Data = None,
    bind: Bind = None,
    recipe: Annotated[
        str, typer.Option("--recipe", metavar="RECIPE", help="full-int8, conv-matmul, or a YAML file of rules.")
    ] = "full-int8",
    explain: Annotated[
        bool, typer.Option("--explain", help="Print precision, deciding rule and reason of every node.")
    ] = False,
    seed: Seed = 0,
) -> None:
    """Quantize by a recipe, the target's usual one by default, in one shot, without search."""
    done = api.quantize(model, out, target=target, data=data, bind=bind or [], recipe=recipe, seed=seed)
    if explain:
        typer.echo(render.decisions(done.decisions))
    Console().print(render.quantized(done), highlight=False, soft_wrap=True, markup=False)


@app.command()
def select(
    folder: Annotated[Path, typer.Argument(metavar="OUT", help="Output folder of a run.", show_default=False)],
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="The model to write; OUT/selected.onnx.", show_default=False),
    ] = None,
    max_drop: Annotated[
        str | None, typer.Option("--max-drop", metavar="DROP", help="Most that the metric may fall: 0.5% or 0.005.")
    ] = None,
    min_sqnr: Annotated[
        float | None, typer.Option("--min-sqnr", metavar="DB", help="Least SQNR of the worst output.")
    ] = None,
    fastest: Annotated[bool, typer.Option("--fastest", help="The fastest, whatever its accuracy.")] = False,
) -> None:
    """Write another model that a run has measured, without searching again."""
    done = api.select(folder, to=to, max_drop=max_drop, min_sqnr=min_sqnr, fastest=fastest)
    Console().print(render.selected(done), highlight=False, soft_wrap=True, markup=False)


@app.command()
def regions(
    model: Model,
    target: TargetName = "ort-cpu",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON with stable keys.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Show every region, point and refused port.")] = False,
    data: Data = None,
    bind: Bind = None,
    nodes: Nodes = None,
    largest: Annotated[
        int, typer.Option("--maximum-sequence-region-size", min=1, help="Most nodes of a leaf region.")
    ] = 10,
    smallest: Annotated[
        int, typer.Option("--minimum-topdown-search-size", min=0, help="Fewest nodes of a composite sequence.")
    ] = 10,
) -> None:
    """Show the regions of a model, their patterns and insertion points, and why a port is not offered."""
    space = api.regions(
        model,
        target=target,
        data=data,
        bind=bind or [],
        nodes=nodes or [],
        maximum_sequence_region_size=largest,
        minimum_topdown_search_size=smallest,
    )
    typer.echo(json.dumps(regions_json(space), indent=2) if as_json else regions_text(space, every))


cache_app = typer.Typer(help="Look at and merge pattern caches.", rich_markup_mode=None)
app.add_typer(cache_app, name="cache")


@cache_app.command("show")
def cache_show(file: Annotated[Path, typer.Argument(metavar="FILE", help="A pattern cache.")]) -> None:
    """Print the schemes of a pattern cache."""
    typer.echo(cache.show(cache.PatternCache.load(file)))


@cache_app.command("merge")
def cache_merge(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Pattern caches.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The merged cache.")],
) -> None:
    """Merge pattern caches into one."""
    merged = cache.merge_files(files, out)
    typer.echo(f"Wrote {out}: {len(merged)} patterns.")


@app.command("lower")
def lower_model(
    model: Annotated[Path, typer.Argument(metavar="QDQ_MODEL", help="A Q/DQ model.", show_default=False)],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="OUT.tosa", help="The TOSA flatbuffer.")],
    profile: Annotated[str, typer.Option("--profile", help="INT, or INT+FP.")] = "INT",
    bind: Bind = None,
) -> None:
    """Lower a Q/DQ model to integer TOSA 1.0; OUT.tosa.json beside it describes inputs, outputs and partitions."""
    for line in lower_file(model, out, profile, parse_bind(bind or [])).lines():
        typer.echo(line)


@app.command()
def targets() -> None:
    """List the installed targets, and what their measurements depend on."""
    Console().print(render.targets_table(api.list_targets()), highlight=False)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Set QuantizeLinear/DequantizeLinear nodes into ONNX models exactly where they pay."""
    if version:
        typer.echo(f"inlay {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _progress(quiet: bool) -> Progress:
    if quiet:
        return Silent()
    console = Console(stderr=True)
    return LiveTable(console) if console.is_terminal else Lines(sys.stderr)


def main() -> None:
    """Entry point: 0 fine, 1 failed, 2 wrong usage, 130 interrupted. Errors are one line on standard error."""
    sys.exit(run(lambda: app(standalone_mode=False)))


def run(command: Callable[[], object]) -> int:
    """Run a command, and turn what it raises into a line and an exit code."""
    try:
        code = command()
    except InlayError as error:
        return _fail(str(error), error.exit_code)
    except typer.Exit as stop:
        return stop.exit_code
    except CommandLineError as error:
        return _fail(f"{error.format_message().rstrip('.')}. See inlay --help", 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", 130)
    except BrokenPipeError:  # the reader of our output went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}", 1)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    print(f"inlay: {' '.join(message.split())}", file=sys.stderr)
    return code

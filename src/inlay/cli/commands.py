"""The commands: each calls one function of :mod:`inlay.api` with its options and prints the result."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main
from typer.core import TyperGroup

from inlay import api
from inlay.cli import quantized, render
from inlay.cli.grouped import Grouped
from inlay.cli.options import CONFIG, EFFORT, options_of
from inlay.cli.progress import JsonLines, begin_clock, progress_of, seconds_before
from inlay.cli.start import code_of_stop, end_in_order
from inlay.cli.terminal import JSON, answer, columns, laid_out, plain, tolerate_encoding
from inlay.errors import InlayError, UsageError
from inlay.files import refuse_overwriting
from inlay.installed import COMMANDS, SEVERAL_TARGETS, __version__, joined
from inlay.measure.lab import targets_on
from inlay.prepare import options as declared
from inlay.prepare.declare import Option
from inlay.run.result import TuneResult
from inlay.targets import listing

_SHOWN = (
    "tune",
    "fleet",
    "bench",
    "quantize",
    "calibrate-machine",
    "select",
    "check",
    "inspect",
    "record",
    "folder",
    "report",
    "export",
    "card",
    "regions",
    "explain",
    "lower",
    "targets",
    "cache",
)
"""The order of commands in ``inlay --help``; others follow."""


class Commands(TyperGroup):
    """The commands here, and those that join through entry points, each loaded when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        """All names."""
        order = {name: place for place, name in enumerate(_SHOWN)}
        return sorted({*self.commands, *joined(COMMANDS)}, key=lambda name: (order.get(name, len(order)), name))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; where there is none, all are loaded, so that those of similar names are suggested."""
        found = joined(COMMANDS)
        for name in [cmd_name] if cmd_name in found else found if cmd_name not in self.commands else ():
            if name not in self.commands:
                self.commands[name] = _loaded(name, found[name].load())
        return super().get_command(ctx, cmd_name)


def _loaded(name: str, item: Callable[..., None] | typer.Typer) -> Any:
    if isinstance(item, typer.Typer):
        return typer.main.get_command(item)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, cls=Grouped)(item)
    return typer.main.get_command(alone)


app = typer.Typer(
    name="inlay",
    cls=Commands,
    help="Set QuantizeLinear/DequantizeLinear nodes into ONNX models exactly where they pay.",
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

CommandLineError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
"""Base of all usage errors. typer carries a click of its own, and shows this class only as an ancestor."""

_LONGEST = 1000  # characters of an error: libraries repeat whole graphs in theirs
_UNEXPECTED = "this is a bug in inlay: please report it"


@app.command(cls=Grouped)
@options_of(api.tune, (CONFIG, EFFORT))
def tune(
    *,
    quiet: Annotated[bool, Option("Print the verdict only.", flags=("--quiet", "-q"), type=bool)] = False,
    json_log: Annotated[
        Path | None, Option("Write each event as one line of JSON.", metavar="FILE", type=Path, show_default=False)
    ] = None,
    as_json: Annotated[bool, JSON] = False,
    dry_run: Annotated[
        bool, Option("Say what would be tried, how long it would take, and what can be quantized.", type=bool)
    ] = False,
    **options: Any,
) -> None:
    """Find the fastest placement of Q/DQ nodes that keeps the accuracy bound.

    The same command on the same OUT continues where it was stopped.

    Example:
        inlay tune model.onnx --data samples.npz --budget 5m -o out
        inlay tune model.onnx --data images --preprocess 'fit=crop' -o out
    """
    progress = progress_of(quiet)
    before_s = seconds_before()
    if dry_run:
        try:
            done = api.dry_run(**options, progress=progress, before_s=before_s)
        finally:
            progress.close()
        answer(as_json, done, lambda: render.dry_run(done))
        return
    log = None if json_log is None else JsonLines(_log_file(json_log, options), progress)
    try:
        result = api.tune(**options, progress=log or progress, before_s=before_s)
        if log is not None:
            log.result(result.as_json())
    finally:
        (log or progress).close()
    told = render.verdict if isinstance(result, TuneResult) else joined(SEVERAL_TARGETS)["verdict"].load()
    answer(as_json, result, lambda: told(result))
    raise typer.Exit(result.exit_code)


@app.command(cls=Grouped)
@options_of(api.bench)
def bench(*, as_json: Annotated[bool, JSON] = False, **options: Any) -> None:
    """Compare the latency of models: interleaved, paired, with 95 % intervals.

    Example:
        inlay bench model.onnx out/model.onnx
    """
    with closing(progress_of(as_json)) as progress:
        rows = api.bench(**options, progress=progress)
    answer(as_json, {"models": rows}, lambda: render.benched(rows))


@app.command(cls=Grouped)
@options_of(api.quantize)
def quantize(
    *,
    explain: Annotated[
        bool, Option("Print precision, deciding rule and reason of every node.", type=bool, before="seed")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
    **options: Any,
) -> None:
    """Quantize in seconds, without a search: by the processor's cost table within a bound, or by a recipe.

    Example:
        inlay quantize model.onnx --data samples.npz -o int8.onnx
    """
    with closing(progress_of(as_json)) as progress:
        done = api.quantize(**options, progress=progress, before_s=seconds_before())
    listed = [render.decisions(done.decisions)] if explain else []
    answer(as_json, quantized.quantized_json(done), lambda: [*listed, *quantized.quantized(done)])


@app.command("calibrate-machine", cls=Grouped)
@options_of(api.calibrate_machine)
def calibrate_machine(
    *,
    quiet: Annotated[bool, Option("Print only where the table is.", flags=("--quiet", "-q"), type=bool)] = False,
    as_json: Annotated[bool, JSON] = False,
    **options: Any,
) -> None:
    """Measure once, on a quiet machine, what this processor's kernels cost, for `quantize` and `tune`.

    Example:
        inlay calibrate-machine --budget 2m
    """
    with closing(progress_of(quiet)) as progress:
        done = api.calibrate_machine(**options, progress=progress)
    answer(as_json, done, lambda: render.calibrated(done, quiet))


@app.command(cls=Grouped)
@options_of(api.select)
def select(*, as_json: Annotated[bool, JSON] = False, **options: Any) -> None:
    """Write another model that a run has measured, without searching again.

    Example:
        inlay select out --min-sqnr 30 --to accurate.onnx
    """
    done = api.select(**options)
    answer(as_json, done, lambda: render.selected(done))


@app.command(cls=Grouped)
@options_of(api.inspect)
def inspect(*, as_json: Annotated[bool, JSON] = False, **options: Any) -> None:
    """Show inputs, outputs and operators of a model, what can be quantized, and how to write samples for --data.

    Example:
        inlay inspect model.onnx
    """
    with closing(progress_of(as_json)) as progress:
        found = api.inspect(**options, progress=progress)
    answer(as_json, found, lambda: render.inspection(found))


@app.command(cls=Grouped)
@options_of()
def targets(
    *,
    install: Annotated[
        str | None, Option("Install what this target needs besides Python packages.", metavar="TARGET")
    ] = None,
    device: Annotated[str | None, declared.DEVICE] = None,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List the installed targets, or those of a device, and what their measurements depend on.

    Example:
        inlay targets
    """
    if install is not None:
        folder = listing.install(install)
        answer(as_json, {"path": folder}, lambda: [f"Installed in {folder}."])
        return
    rows = listing.list_targets() if device is None else targets_on(device, lambda line: typer.echo(line, err=True))
    answer(as_json, {"targets": rows}, lambda: [render.targets_table(rows)])


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Set QuantizeLinear/DequantizeLinear nodes into ONNX models exactly where they pay."""
    if version:
        typer.echo(f"inlay {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _log_file(path: Path, options: Mapping[str, Any]) -> Path:
    """``path``, which must be none of the files that ``options`` name. Raises UsageError."""
    inputs = [v for name, v in options.items() if name != "out" and isinstance(v, str | Path)]
    refuse_overwriting([path], [*options["model"], *inputs])
    if path.is_dir():
        raise UsageError(f"--json-log {path} is a folder: name a file")
    return path


def main() -> None:
    """Entry point: 0 fine, 1 failed, 2 wrong usage, 3 a bound that is not shown, 130 interrupted.

    Errors are one line on standard error.
    """
    tolerate_encoding()
    if not sys.warnoptions:
        warnings.simplefilter("ignore")  # of libraries, for their callers; an error is one line
    begin_clock()
    end_in_order()
    sys.exit(run(lambda: app(standalone_mode=False)))


def run(command: Callable[[], object]) -> int:
    """Run a command, and turn what it raises into a line and an exit code.

    What should not be raised at all is shown whole where ``INLAY_TRACEBACK`` is set.
    """
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
    except MemoryError:
        return _fail("there is not enough memory", 1)
    except Exception as error:  # what nobody foresaw is a fault of this program, and one line as well
        if os.environ.get("INLAY_TRACEBACK"):
            raise
        return _fail(f"{_UNEXPECTED} ({type(error).__name__}: {error}); INLAY_TRACEBACK=1 shows where", 1)
    return code if isinstance(code, int) else 0


def _fail(message: str, code: int) -> int:
    if (stopped := code_of_stop()) is not None:
        return stopped
    line = plain(" ".join(message.split()))
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"
    width = columns(sys.stderr) if sys.stderr.isatty() else None  # for programs an error is one line
    for shown in laid_out([f"inlay: {line}"], width):
        print(shown, file=sys.stderr)
    return code

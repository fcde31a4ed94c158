"""Options are declared once: the command line and the docstrings come from the same declarations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from inlay import api
from inlay.autotune import regions
from inlay.cli.options import options_of
from inlay.prepare.config import TuneConfig
from inlay.prepare.declare import Option, declared, documented, option_in


def example(
    model: Annotated[Path, Option("A model.", metavar="MODEL", type=Path, positional=True)],
    *,
    sizes: Annotated[Sequence[str], Option("Sizes.", repeated=True)] = ("a", "b"),
    keep: Annotated[bool, Option("Forget.", "Keep.", flags=("--forget",), type=bool, negated=True)] = True,
    count: Annotated[int, Option("How many.", type=int, least=1)] = 3,
    hidden: Annotated[object, Option("For Python.", type=None)] = None,
) -> None:
    """Do it.

    Raises:
        ValueError: never.
    """


@pytest.fixture
def call() -> Callable[..., dict[str, Any] | str]:
    """Runs a derived command; returns what it was called with, or the text of an error."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    calls: list[dict[str, Any]] = []

    @app.command()
    @options_of(example)
    def command(*, extra: Annotated[bool, Option("Own.", type=bool, before="count")] = False, **options: Any) -> None:
        """Help of the command."""
        calls.append({"extra": extra, **options})

    def run(*arguments: str) -> dict[str, Any] | str:
        result = CliRunner().invoke(app, list(arguments))
        return calls.pop() if calls else result.output

    return run


def test_defaults_are_those_of_the_function(call: Callable[..., dict[str, Any] | str]) -> None:
    given = call("m.onnx")
    assert given == {"model": Path("m.onnx"), "extra": False, "sizes": ["a", "b"], "keep": True, "count": 3}


def test_values_reach_the_function(call: Callable[..., dict[str, Any] | str]) -> None:
    given = call("m.onnx", "--sizes", "c", "--forget", "--count", "5", "--extra")
    assert given == {"model": Path("m.onnx"), "extra": True, "sizes": ["c"], "keep": False, "count": 5}


def test_limits_hold_and_python_only_options_are_no_flags(call: Callable[..., dict[str, Any] | str]) -> None:
    assert "--count" in str(call("m.onnx", "--count", "0"))
    assert "--hidden" in str(call("m.onnx", "--hidden", "1"))


def test_help_shows_options_in_order(call: Callable[..., dict[str, Any] | str]) -> None:
    text = str(call("--help"))
    at = [text.index(word) for word in ("MODEL", "Help of the command.", "--sizes", "--forget", "--extra", "--count")]
    assert at == sorted(at)
    assert "hidden" not in text


def test_docstrings_come_from_the_declarations() -> None:
    documented(example)
    assert example.__doc__ is not None
    lines = [line.strip() for line in example.__doc__.splitlines()]
    assert lines.index("keep: Keep.") < lines.index("count: How many.") < lines.index("Raises:")
    assert "hidden: For Python." in lines


@pytest.mark.parametrize("function", [api.tune, api.bench, api.quantize, api.select, regions])
def test_every_parameter_of_a_command_is_declared(function: Callable[..., Any]) -> None:
    for name, parameter in declared(function).items():
        option = option_in(parameter.annotation)
        assert option is not None, name
        assert f"{name}: {option.documentation}" in (function.__doc__ or "")


def test_a_run_has_the_defaults_of_its_options() -> None:
    config = TuneConfig()
    parameters = declared(api.tune)
    shared = {n for n, hint in inspect.get_annotations(TuneConfig, eval_str=True).items() if option_in(hint)}
    assert {"seed", "strategy", "cost_db"} <= shared <= parameters.keys()
    for name in shared:
        assert parameters[name].default == getattr(config, name), name

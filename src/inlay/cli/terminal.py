"""The one way to the terminal: what models, files and libraries say is shown, and controls nothing.

Names in a model are text from a stranger. Control characters, escape codes, line breaks and marks that turn the
direction of text are written as Python escapes; rich sees no markup. What the encoding lacks is escaped as well.

Prose ends at a terminal's edge between two words, and tables fold their cells; nothing is cut. In a pipe or a log every
line is whole, however long it is, so that tools find it; ``COLUMNS`` in the environment sets a width there as well.
"""

from __future__ import annotations

import json
import math
import os
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from io import TextIOWrapper
from typing import Any, TextIO

import numpy as np
import typer
from rich.console import Console, JustifyMethod
from rich.padding import Padding
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from inlay.prepare.declare import Option

_GAP = 2  # spaces between two columns of a table, and by which the further lines of a long one are indented
_SIDES: dict[str, JustifyMethod] = {"<": "left", ">": "right"}


def plain(text: str) -> str:
    """One line: ``text`` with all that is not printable as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True, slots=True)
class Table:
    """Cells in aligned columns."""

    sides: str  # one `<` or `>` for each column: where its cells are aligned
    rows: Sequence[Sequence[str]]  # the cells of each row, from the left; missing ones are empty
    indent: int = 0  # spaces before the first column


def say(lines: Iterable[str | Table]) -> None:
    """Print lines on standard output."""
    for line in laid_out(lines, columns(sys.stdout)):
        print(line)
    sys.stdout.flush()  # here, where a reader that went away is handled


def columns(stream: TextIO) -> int | None:
    """Characters in a line of ``stream``: ``COLUMNS``, else a terminal's width; None where lines have no end."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None if stream.isatty() else None
    except (OSError, ValueError):  # a stream of a program that has no file
        return None


def laid_out(lines: Iterable[str | Table], width: int | None = None) -> Iterator[str]:
    """Printable lines of at most ``width`` characters, but for words that are longer: a name or path stays whole."""
    for line in lines:
        if isinstance(line, Table):
            yield from _aligned(line, width)
        else:
            yield from _wrapped(plain(line), width)


def _wrapped(line: str, width: int | None) -> list[str]:
    if width is None or len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + _GAP)
    return textwrap.wrap(line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def _aligned(table: Table, width: int | None) -> Iterator[str]:
    rows = [[plain(cell) for cell in row] + [""] * (len(table.sides) - len(row)) for row in table.rows]
    sizes = [max((len(row[n]) for row in rows), default=0) for n in range(len(table.sides))]
    if width is None or table.indent + sum(sizes) + _GAP * (len(sizes) - 1) <= width:
        for row in rows:
            cells = (f"{cell:{side}{size}}" for cell, side, size in zip(row, table.sides, sizes, strict=True))
            yield (" " * table.indent + (" " * _GAP).join(cells)).rstrip()
        return
    folded = RichTable(
        *(Column(justify=_SIDES[side], overflow="fold") for side in table.sides),
        box=None,
        show_header=False,
        pad_edge=False,
        padding=(0, _GAP, 0, 0),
    )
    for row in rows:
        folded.add_row(*row)
    console = Terminal(width=width)
    with console.capture() as capture:
        console.print(Padding(folded, (0, 0, 0, table.indent)))
    yield from (line.rstrip() for line in capture.get().splitlines())


class Terminal(Console):
    """A console that shows strings as they are."""

    def __init__(self, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(stderr=stderr, width=width, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """A string of a table or title, without what could control the terminal."""
        return super().render_str(plain(text), **options)


def tolerate_encoding() -> None:
    """Let standard output and error escape what their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


JSON = Option("Print one JSON object with stable keys instead of text.", flags=("--json",), type=bool)


def answer(as_json: bool, found: object, lines: Callable[[], Iterable[str | Table]]) -> None:
    """Print ``found`` as JSON, or else the ``lines`` on it."""
    if as_json:
        typer.echo(json.dumps(as_data(found), indent=2, allow_nan=False))
    else:
        say(lines())


def as_data(found: object) -> Any:
    """``found`` as JSON has it: results by their ``as_json()`` or by their fields, numbers that are none as null."""
    if hasattr(found, "as_json"):
        return as_data(found.as_json())
    if is_dataclass(found) and not isinstance(found, type):
        return {f.name: as_data(getattr(found, f.name)) for f in fields(found)}
    if isinstance(found, Mapping):
        return {str(key): as_data(value) for key, value in found.items()}
    if isinstance(found, np.generic):
        return as_data(found.item())
    if found is None or isinstance(found, bool | int | str):
        return found
    if isinstance(found, float):
        return found if math.isfinite(found) else None
    return [as_data(each) for each in found] if isinstance(found, Iterable) else str(found)

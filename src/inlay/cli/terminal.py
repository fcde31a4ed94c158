"""The one way to the terminal: what models, files and libraries say is shown, and controls nothing.

Names in a model are text from a stranger. Control characters, escape codes, line breaks and marks that turn the
direction of text are written as Python escapes; rich sees no markup. What the encoding lacks is escaped as well.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from io import TextIOWrapper
from typing import Any

from rich.console import Console
from rich.text import Text


def plain(text: str) -> str:
    """One line: ``text`` with all that is not printable as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(lines: Iterable[str]) -> None:
    """Print lines on standard output."""
    for line in lines:
        print(plain(line))
    sys.stdout.flush()  # here, where a reader that went away is handled


class Terminal(Console):
    """A console that shows strings as they are."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """A string of a table or title, without what could control the terminal."""
        return super().render_str(plain(text), **options)


def drawn(table: Any) -> list[str]:
    """The lines of a table of rich, as wide as the terminal, or 80 characters where there is none."""
    console = Terminal()
    with console.capture() as capture:
        console.print(table)
    return capture.get().splitlines()


def tolerate_encoding() -> None:
    """Let standard output and error escape what their encoding lacks."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")

"""The help of every command: options in groups, those that matter first, and an example that can be run as it is."""

from __future__ import annotations

import io
import math
import re
import shlex
from typing import Any

import pytest
from typer.main import get_command

from inlay.cli import grouped
from inlay.cli.commands import app
from inlay.cli.progress import Lines, so_far
from inlay.run.progress import SearchStep
from inlay.testing import small_model
from inlay.trial import Failed, Proposal, Trial
from inlay.types import Placement
from tests.support.command_line import RunCommand, failed
from tests.support.fixtures import SaveModel


def commands() -> dict[str, Any]:
    found: dict[str, Any] = {}
    group: Any = get_command(app)
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        inner = getattr(command, "commands", None)
        found |= {f"{name} {each}": c for each, c in inner.items()} if inner else {name: command}
    return found


@pytest.mark.parametrize("name", commands())
def test_each_command_ends_with_an_example_of_its_own_options(name: str, run: RunCommand) -> None:
    code, out, _ = run(*name.split(), "--help")
    assert code == 0
    _, heading, examples = out.replace("\nExamples:", "\nExample:").partition("\nExample:\n")
    assert heading
    known = {flag for parameter in commands()[name].params for flag in parameter.opts}
    for line in examples.strip().splitlines():
        words = shlex.split(line.strip())
        words = words[: words.index("--")] if "--" in words else words
        assert words[: 1 + len(name.split())] == ["inlay", *name.split()]
        assert {word for word in words if word.startswith("-")} <= known


def test_the_options_that_matter_most_come_first_and_all_are_in_a_group(run: RunCommand) -> None:
    out = run("tune", "--help")[1]
    headings = [grouped.FIRST, *grouped.GROUPS]
    at = [out.index(f"\n{heading}:\n") for heading in headings]
    assert at == sorted(at)
    assert f"\n{grouped.OTHER}:\n" not in out, "a new option of tune belongs into a group of inlay.cli.grouped"
    first = out[at[0] : at[1]]
    assert all(f"--{name.replace('_', '-')} " in first for name in grouped.MOST_USED)
    assert len(grouped.MOST_USED) == 10
    assert "--image-size" not in out, "what goes is not in the help"
    assert "<" not in out.split("Arguments:")[1].split("\n\n", 1)[1], "placeholders have names"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("tune", "MODEL", "--buget", "3s"), "--budget"),
        (("tun", "MODEL"), "tune"),
        (("tune", "MODEL", "--target", "ort-cp"), "did you mean ort-cpu?"),
        (("tune", "MODEL", "--strategy", "guide"), "did you mean guided?"),
        (("tune", "MODEL", "--task", "detectr"), "did you mean detector?"),
        (("tune", "MODEL", "--metric", "top-1"), "did you mean top1?"),
    ],
)
def test_what_was_meant_is_said(words: tuple[str, ...], meant: str, run: RunCommand, save: SaveModel) -> None:
    model = str(save(small_model()))
    failed(run(*(model if word == "MODEL" else word for word in words)), 2, meant)


def test_a_log_says_now_and_then_what_has_been_gained_and_when_the_search_ends() -> None:
    now = [0.0]
    stream = io.StringIO()
    lines = Lines(stream, clock=lambda: now[0])
    trial = Trial(Proposal(Placement(), "float"), Failed("compile", "no"))
    for now[0] in (1.0, 15.0, 21.0, 22.0, 43.0):
        lines.trial(SearchStep(trial, trial, judged=3, timed=2, failed=1, left_s=90.0))
    said = [line for line in stream.getvalue().splitlines() if "best so far" in line]
    assert [line[:10].strip() for line in said] == ["[  21.0 s]", "[  43.0 s]"]
    assert re.search(r"\(float\) · 3 judged, 2 timed, 1 failed · at most 90 s left, until \d\d:\d\d:\d\d$", said[0])
    assert "no limit" in so_far(SearchStep(trial, trial, judged=0, timed=0, failed=0, left_s=math.inf))

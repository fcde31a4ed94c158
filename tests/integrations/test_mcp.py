"""The server for agents: a real client over stdio, paths that are refused, and no process that outlives its client."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main

from inlay.cli.commands import app
from inlay.errors import UsageError
from inlay.integrations.mcp.folders import Folders
from inlay.testing import random_feed
from inlay.testing.models import residual_model
from tests.conftest import ROOT

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc")


@pytest.fixture
def room(tmp_path: Path) -> Path:
    room = tmp_path / "room"
    room.mkdir()
    model = residual_model()
    (room / "m.onnx").write_bytes(model.SerializeToString())
    feeds = [random_feed(model, seed) for seed in range(16)]
    np.savez(room / "d.npz", **{name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]})
    return room


def test_only_files_of_the_folders_are_named(room: Path) -> None:
    (room.parent / "secret").write_text("x")
    (room / "link").symlink_to(room.parent / "secret")
    (room / "away").symlink_to(room.parent)
    (room / "nested").mkdir()
    (room / "nested" / "link").symlink_to(room.parent / "secret")
    os.mkfifo(room / "pipe")
    folders = Folders.of([room], 100_000)
    assert folders.existing("m.onnx") == room / "m.onnx"
    assert folders.existing(str(room / "m.onnx")) == room / "m.onnx"
    assert folders.new("out") == room / "out"
    for text, words in {
        "../secret": "without ..",
        "nested/../../secret": "without ..",
        str(room.parent / "secret"): "outside the folders",
        "/dev/zero": "outside the folders",
        "/etc/passwd": "outside the folders",
        "link": "is a link",
        "away/secret": "is a link",
        "nested": "link is neither a file nor a folder",
        "pipe": "pipe is neither a file nor a folder",
        "gone": "no such file",
        "": "give a path",
        "a\nb": "give a path",
        "x" * 2000: "give a path",
    }.items():
        with pytest.raises(UsageError, match=words) as error:
            folders.existing(text)
        assert "\n" not in str(error.value)
    for text, words in {
        "link": "is a link",
        "away/new": "is a link",
        "no/new": "no folder",
        "pipe": "name a file",
    }.items():
        with pytest.raises(UsageError, match=words):
            folders.new(text)
    with pytest.raises(UsageError, match="more than the 100 "):
        Folders.of([room], 100).existing("m.onnx")
    with pytest.raises(UsageError, match="is no folder"):
        Folders.of([room / "m.onnx"], 100)


def test_the_skill_names_commands_and_options_that_exist() -> None:
    group: Any = typer.main.get_command(app)
    lines = re.findall(r"^inlay .*$", (ROOT / "SKILL.md").read_text(encoding="utf8"), re.M)
    assert len(lines) >= 7
    for line in lines:
        _, name, *words = shlex.split(line)
        command = group.get_command(None, name)
        assert command is not None, line
        command.make_context(name, words)


def client_of(room: Path, *options: str) -> tuple[Any, Any, Any]:
    mcp = pytest.importorskip("mcp", reason="mcp is not installed (extra mcp)")
    from mcp.client.stdio import StdioServerParameters, stdio_client

    words = ["-m", "inlay", "mcp", str(room), *options]
    return mcp, stdio_client, StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))


@pytest.mark.exhaustive
def test_a_client_inspects_tunes_and_selects(room: Path) -> None:
    mcp, stdio_client, server = client_of(room, "--max-input", "1MB", "--max-budget", "1m")
    heard: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message or "")

    async def talk() -> None:
        async with stdio_client(server) as (reads, writes), mcp.ClientSession(reads, writes) as session:
            await session.initialize()
            listed = await session.list_tools()
            assert {t.name for t in listed.tools} == {"inspect", "quantize", "tune", "explain", "select"}

            async def call(name: str, **given: Any) -> Any:
                return await session.call_tool(name, given, progress_callback=hear)

            found = await call("inspect", model="m.onnx")
            assert not found.is_error, found
            assert "operators" in found.content[0].text
            done = await call("tune", model="m.onnx", out="out", data="d.npz", min_sqnr=5, budget="1m")
            assert not done.is_error, done
            assert "speedup" in done.content[0].text
            assert (room / "out" / "model.onnx").is_file()
            assert any("confirm" in line for line in heard)
            picked = await call("select", out="out", to="fast.onnx", fastest=True)
            assert not picked.is_error, picked
            assert (room / "fast.onnx").is_file()
            for name, given, words in (
                ("inspect", {"model": "/etc/passwd"}, "outside the folders"),
                ("quantize", {"model": "m.onnx", "out": "q.onnx", "data": "os:listdir"}, "no such file"),
                (
                    "tune",
                    {"model": "m.onnx", "out": "o", "metric": "os:system", "budget": "9s"},
                    "metric os:system: give top1",
                ),
                ("tune", {"model": "m.onnx", "out": "o", "budget": "9h"}, "searches for 1m at most"),
                ("inspect", {"model": "d.npz"}, "d.npz"),
            ):
                refused = await call(name, **given)
                assert refused.is_error
                assert words in refused.content[0].text
                assert "Traceback" not in refused.content[0].text

    asyncio.run(asyncio.wait_for(talk(), 240))


_CLIENT = """
import asyncio, os, sys
import mcp
from mcp.client.stdio import StdioServerParameters, stdio_client

async def hear(progress, total, message):
    print(message, flush=True)

async def talk():
    server = StdioServerParameters(command=sys.executable, args=["-m", "inlay", "mcp", "."], env=dict(os.environ))
    async with stdio_client(server) as (reads, writes), mcp.ClientSession(reads, writes) as session:
        await session.initialize()
        given = {"model": "m.onnx", "out": "out", "data": "d.npz", "budget": "5m"}
        await session.call_tool("tune", given, progress_callback=hear)

asyncio.run(talk())
"""


def processes(mark: str) -> Iterator[int]:
    """Those whose environment holds ``mark``."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    yield int(entry.name)
            except OSError:
                pass


@LINUX
@pytest.mark.exhaustive
def test_a_client_that_vanishes_in_a_run_leaves_no_process(room: Path) -> None:
    pytest.importorskip("mcp", reason="mcp is not installed (extra mcp)")
    mark = f"INLAY_TEST_MARK={os.getpid()}-{time.monotonic_ns()}"
    name, _, value = mark.partition("=")
    client = subprocess.Popen(
        [sys.executable, "-c", _CLIENT], cwd=room, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        env={**os.environ, name: value},
    )  # fmt: skip
    assert client.stdout is not None
    for line in client.stdout:
        if "calibrate" in line or "search" in line or "build and run" in line:
            break
    assert len(list(processes(mark))) >= 3, "client, server and command are at work"
    client.send_signal(signal.SIGKILL)
    client.wait()
    client.stdout.close()
    end = time.monotonic() + 60
    while list(processes(mark)) and time.monotonic() < end:
        time.sleep(0.2)
    left = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in processes(mark)]
    assert left == []

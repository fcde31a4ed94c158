"""The server: each tool is a command of ``inlay``, a process of its own that ends with the call, or with the server."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from inlay.errors import UNPROVEN, InlayError, UsageError
from inlay.integrations.mcp.folders import Folders
from inlay.integrations.packages import required
from inlay.prepare.options import parse_duration

_NAMES = ("top1", "top1-agreement", "token-agreement", "cosine", "sqnr")
"""Metrics that a client may name: none that is code."""
_LINE = 1 << 20  # bytes of a line of what a command says
_BOOT = (
    "import sys; from inlay.model.child import die_with_parent; die_with_parent(int(sys.argv.pop(1))); "
    "from inlay.cli.commands import main; sys.argv[0] = 'inlay'; main()"
)
Tell = Callable[[str], Awaitable[None]]


async def command(words: Sequence[str], tell: Tell) -> dict[str, Any]:
    """Run ``inlay`` with ``words``, and give what it prints with ``--json``.

    Args:
        tell: hears each line of progress.

    Raises:
        UsageError: it failed; the message is its line.
    """
    import anyio

    process = await anyio.open_process(
        [sys.executable, "-c", _BOOT, str(os.getpid()), *words, "--json"],
        stdin=-3,  # subprocess.DEVNULL
        start_new_session=True,
    )
    said, found = list[str](), bytearray()

    async def hear() -> None:
        assert process.stderr is not None
        rest = b""
        async for part in process.stderr:
            *lines, rest = (rest + part)[-_LINE:].split(b"\n")
            for line in lines:
                said.append(line.decode(errors="replace"))
                await tell(said[-1])
        said.append(rest.decode(errors="replace"))

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(hear)
            assert process.stdout is not None
            async for part in process.stdout:
                found += part
        code = await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # its workers end with it
    if code not in (0, UNPROVEN):
        line = next((line for line in reversed(said) if line.startswith("inlay: ")), f"inlay ended with code {code}")
        raise UsageError(line.removeprefix("inlay: "))
    answer: dict[str, Any] = json.loads(found.decode())
    return answer


def _telling(tool: Callable[..., Any], error_type: type[Exception]) -> Callable[..., Any]:
    """``tool``, whose errors the client may read: of others the server says nothing."""

    @functools.wraps(tool)
    async def told(*arguments: Any, **named: Any) -> Any:
        try:
            return await tool(*arguments, **named)
        except InlayError as error:
            raise error_type(str(error)) from error

    return told


def server_of(folders: Folders, most_budget: str) -> Any:
    """A server whose tools work in ``folders``, and search no longer than ``most_budget``.

    Raises:
        UsageError: the package ``mcp`` is not installed, or is older than 2.
    """
    mcp = required("mcp.server.mcpserver", "mcp", "inlay mcp")
    import anyio

    most_s, alone = parse_duration(most_budget), anyio.Lock()
    server = mcp.MCPServer("inlay", instructions=__doc__)

    async def run(context: Any, *words: str) -> dict[str, Any]:
        count = 0

        async def tell(line: str) -> None:
            nonlocal count
            count += 1
            await context.report_progress(count, None, line)

        async with alone:  # what is measured is not disturbed by another call
            return await command(words, tell)

    def options(**given: Any) -> list[str]:
        return [f"--{n.replace('_', '-')}={v}" for n, v in given.items() if v is not None]

    def samples(data: str | None, labels: str | None = None) -> list[str]:
        named = {"data": data, "labels": labels}
        return options(**{n: folders.existing(each) for n, each in named.items() if each is not None})

    def metric_of(name: str | None) -> str | None:
        if name is not None and name not in _NAMES:
            raise UsageError(f"metric {name}: give {', '.join(_NAMES)}")
        return name

    async def inspect(context: Any, model: str) -> dict[str, Any]:
        """Say what a model takes and gives, and what of it can be quantized."""
        return await run(context, "inspect", str(folders.existing(model)))

    async def quantize(
        context: Any, model: str, out: str, data: str | None = None, min_sqnr: float | None = None
    ) -> dict[str, Any]:
        """Quantize a model in seconds, without a search; data are real samples (.npz, .jsonl, .csv, or a folder)."""
        words = [str(folders.existing(model)), f"--out={folders.new(out)}", *samples(data)]
        return await run(context, "quantize", *words, *options(min_sqnr=min_sqnr))

    async def tune(
        context: Any,
        model: str,
        out: str,
        data: str | None = None,
        labels: str | None = None,
        metric: str | None = None,
        max_drop: str | None = None,
        min_sqnr: float | None = None,
        budget: str = "2m",
    ) -> dict[str, Any]:
        """Search for the fastest placement of Q/DQ nodes within the accuracy bound; measured, with progress."""
        if parse_duration(budget) > most_s:
            raise UsageError(f"budget {budget}: this server searches for {most_budget} at most")
        words = [str(folders.existing(model)), f"--out={folders.new(out)}", *samples(data, labels)]
        bound = options(metric=metric_of(metric), max_drop=max_drop, min_sqnr=min_sqnr, budget=budget)
        return await run(context, "tune", *words, *bound)

    async def explain(context: Any, model: str, data: str | None = None, budget: str = "1m") -> dict[str, Any]:
        """Say why each operator runs in the precision in which it runs, and what misplaced Q/DQ nodes cost."""
        if parse_duration(budget) > most_s:
            raise UsageError(f"budget {budget}: this server works for {most_budget} at most")
        return await run(context, "explain", str(folders.existing(model)), *samples(data), *options(budget=budget))

    async def select(
        context: Any,
        out: str,
        to: str,
        max_drop: str | None = None,
        min_sqnr: float | None = None,
        max_size: str | None = None,
        fastest: bool = False,
    ) -> dict[str, Any]:
        """Write another model that an earlier tune has measured, within other bounds."""
        words = [str(folders.existing(out)), f"--to={folders.new(to)}", *["--fastest"] * fastest]
        return await run(context, "select", *words, *options(max_drop=max_drop, min_sqnr=min_sqnr, max_size=max_size))

    for tool in (inspect, quantize, tune, explain, select):
        tool.__annotations__["context"] = mcp.Context
        server.tool()(_telling(tool, required("mcp.server.mcpserver.exceptions", "mcp", "inlay mcp").ToolError))
    return server

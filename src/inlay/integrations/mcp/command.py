"""``inlay mcp``: the server on standard input and output."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from inlay.cli.options import options_of
from inlay.integrations.mcp.folders import Folders
from inlay.integrations.mcp.server import server_of
from inlay.prepare.declare import Option
from inlay.prepare.options import parse_size


@options_of(defaults=())
def mcp(
    *,
    folders: Annotated[
        list[Path],
        Option("Folders that the client may use.", metavar="FOLDER...", positional=True, repeated=True, type=Path),
    ],
    max_input: Annotated[str, Option("Most that a model or its samples may take: 2GB, 500MB.", metavar="SIZE")] = "2GB",
    max_budget: Annotated[str, Option("Longest search that a client may ask for.", metavar="TIME")] = "10m",
) -> None:
    """Serve inspect, quantize, tune, explain and select to agents, by the Model Context Protocol on standard input."""
    server_of(Folders.of(folders, parse_size(max_input, "--max-input")), max_budget).run("stdio")

"""Where a board is: ``ssh://USER@HOST:PORT?python=…``, or the name of one in ``devices.yaml``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from inlay.errors import UsageError
from inlay.yaml_file import read_yaml

DEVICES = "devices.yaml"
_FORM = "give ssh://USER@HOST, ssh://USER@HOST:PORT?python=/usr/bin/python3, or a name in devices.yaml"
_HOST = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*")


@dataclass(frozen=True)
class Address:
    """A board."""

    host: str  # its name or address, or one that the configuration of `ssh` knows
    name: str = ""  # for people
    user: str = ""  # there; empty for the one that `ssh` takes
    port: int = 0  # 0 for the one that `ssh` takes
    python: str = "python3"  # what starts Python there, with arguments
    folder: str = ""  # where files go there; empty for the usual place for temporary ones
    config: str = ""  # a file in place of the user's configuration of `ssh`; empty for that

    @property
    def words(self) -> list[str]:
        """Those that start Python."""
        return shlex.split(self.python)

    def __str__(self) -> str:
        return self.name or f"{self.user}@{self.host}".lstrip("@") + f":{self.port}" * bool(self.port)


def address_of(given: str, listed: Path = Path(DEVICES)) -> Address:
    """The board that an option names. Raises UsageError where it is neither."""
    if "://" in given:
        return _of_url(given, f"--device {given}")
    if not listed.is_file():
        raise UsageError(f"--device {given}: there is no {listed} here that could name it: {_FORM}")
    boards = read_yaml(listed)
    if not isinstance(boards, Mapping) or given not in boards:
        names = ", ".join(map(str, boards)) if isinstance(boards, Mapping) else "no names"
        raise UsageError(f"--device {given}: {listed} has {names}")
    said, where = boards[given], f"{listed}: {given}"
    found = _of_url(said, where) if isinstance(said, str) else _of_fields(said, where)
    return replace(found, name=given)


def _of_url(url: str, where: str) -> Address:
    try:
        parts = urlsplit(url)
        port, query = parts.port or 0, dict(parse_qsl(parts.query, True, strict_parsing=bool(parts.query)))
    except ValueError as error:
        raise UsageError(f"{where}: {error}: {_FORM}") from None
    if parts.scheme != "ssh" or parts.path not in ("", "/") or parts.password or parts.fragment:
        raise UsageError(f"{where}: {_FORM}; keys only, so there is no password in it")
    place = {"host": parts.hostname or "", "user": unquote(parts.username or ""), "port": port}
    return _of_fields({**query, **place}, where)


def _of_fields(given: Any, where: str) -> Address:
    known = {f.name for f in fields(Address)} - {"name"}
    if not isinstance(given, Mapping) or not set(given) <= known or not isinstance(given.get("port", 0), int):
        raise UsageError(f"{where}: a board has {', '.join(sorted(known))}")
    said: dict[str, Any] = {k: v if k == "port" else str(v) for k, v in given.items()}
    found = Address(**said)
    try:
        sound = bool(found.words) and _HOST.fullmatch(found.host) and not found.user.startswith("-")
    except ValueError:
        sound = False
    if not sound or not 0 <= found.port < 1 << 16:
        raise UsageError(f"{where}: {_FORM}")
    return found

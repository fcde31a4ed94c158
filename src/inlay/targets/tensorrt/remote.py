"""Engines that are built here and timed on another machine: remote autotuning of safe engines.

``trtexec --remoteAutoTuningConfig=ssh://USER[:PASSWORD]@HOST[:PORT]?remote_exec_path=PATH&remote_lib_path=PATH --safe
--skipInference`` builds an engine with the times of the remote device. The engine is then copied there, and timed by
``trtexec_safe`` beside the program of that path.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from shlex import quote
from urllib.parse import parse_qs, urlsplit

from inlay.errors import UsageError

_OPTION = "--remoteAutoTuningConfig"
_PASSWORD = re.compile(r"(://[^/@:\s]*):[^@\s]*@")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SSH = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=20")
"""Keys only: a password would have to stand on a command line that every user of the machine can read."""


@dataclass(frozen=True)
class Remote:
    """The machine that times engines."""

    user: str
    host: str
    port: int
    programs: PurePosixPath
    libraries: PurePosixPath

    def copy(self, engine: str, name: str) -> list[str]:
        """The command that copies an engine there."""
        return ["scp", "-P", str(self.port), *_SSH, engine, f"{self.user}@{self.host}:{quote(self._path(name))}"]

    def run(self, name: str, arguments: Sequence[str]) -> list[str]:
        """The command that times it there."""
        program = [str(self.programs / "trtexec_safe"), f"--loadEngine={self._path(name)}", *arguments]
        line = " ".join(["env", f"LD_LIBRARY_PATH={quote(str(self.libraries))}", *map(quote, program)])
        return ["ssh", "-p", str(self.port), *_SSH, f"{self.user}@{self.host}", line]

    def remove(self, name: str) -> list[str]:
        """The command that removes it there."""
        return ["ssh", "-p", str(self.port), *_SSH, f"{self.user}@{self.host}", f"rm -f {quote(self._path(name))}"]

    @staticmethod
    def _path(name: str) -> str:
        return f"/tmp/{name}"


def remote_in(arguments: Sequence[str]) -> Remote | None:
    """The machine that the arguments of ``trtexec`` name; None where they name none.

    Raises:
        UsageError: they name several, or one in another form.
    """
    found = [_value(arguments, i) for i, a in enumerate(arguments) if a == _OPTION or a.startswith(f"{_OPTION}=")]
    if not found:
        return None
    if len(found) > 1:
        raise UsageError(f"{_OPTION} is given {len(found)} times")
    form = "ssh://USER@HOST[:PORT]?remote_exec_path=PATH&remote_lib_path=PATH"
    try:
        parts = urlsplit(found[0])
        query = parse_qs(parts.query, strict_parsing=True)
        (program,), (libraries,) = query["remote_exec_path"], query["remote_lib_path"]
        user, host, port = parts.username or "", parts.hostname or "", parts.port or 22
    except (ValueError, KeyError):
        raise UsageError(f"{_OPTION}={without_password(found[0])}: give {form}") from None
    if parts.scheme != "ssh" or not _NAME.fullmatch(user) or not _NAME.fullmatch(host):  # ssh takes -x for an option
        raise UsageError(f"{_OPTION}={without_password(found[0])}: give {form}")
    return Remote(user, host, port, PurePosixPath(program).parent, PurePosixPath(libraries))


def without_password(text: str) -> str:
    """``text`` with the passwords of addresses left out."""
    return _PASSWORD.sub(r"\1@", text)


def _value(arguments: Sequence[str], index: int) -> str:
    _, equals, value = arguments[index].partition("=")
    if equals:
        return value
    return arguments[index + 1] if index + 1 < len(arguments) else ""

"""One attack as a folder: everything that a command is given, and everything that it may touch.

::

    CASE/case.json   the command line and its surroundings
    CASE/model/      the model with its external data; must not change
    CASE/given/      samples, recipes and whatever else the user names; must not change
    CASE/current/    the working directory, with modules that nobody may import; must not change
    CASE/secret.bin  outside the model's folder; must not change, and is none of the model's business
    CASE/out/        where the command writes
    CASE/cache/      Inlay's cache folder
    CASE/home/       the user's home: nothing may be left in it
    CASE/tmp/        the folder for temporary files; empty again when the command has ended
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

HERE = "@"
"""Stands for the case's folder in its command line, so that a case can be moved."""
BAIT = ("random", "ml_dtypes", "secrets", "antigravity")
"""Modules that lie in the working directory. Importing one leaves a trace."""
TRACE = "EXECUTED"
HANG_S = 10.0
"""The promise: no command that only looks at its input takes longer."""
MOST_RSS_MB = 6000.0
"""What one guarded call may take, and the processes around it."""
SECRET = bytes(range(256)) * 16


@dataclass(frozen=True)
class Case:
    """A command line, with ``@`` for the folder of the case, and the process that it runs in.

    Attributes:
        kind: which generator made it.
        argv: the arguments; the first names a command of Inlay, or a function as ``module:function`` that takes the
            others.
        environment: variables of the process beside the usual ones.
        encoding: of standard output and error.
        real: a fresh process from the installed command, rather than a fork of one that has everything imported.
        hang_s: seconds that it may take.
        rss_mb: memory of all its processes together.
    """

    kind: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    encoding: str = "utf8"
    real: bool = False
    hang_s: float = HANG_S
    rss_mb: float = MOST_RSS_MB

    def arguments(self, folder: Path) -> list[str]:
        """The command line for a case that lies in ``folder``."""
        return [a.replace(HERE, str(folder)) for a in self.argv]

    def save(self, folder: Path) -> None:
        """Write ``case.json``."""
        (folder / "case.json").write_text(json.dumps(asdict(self), indent=1), encoding="utf8")

    @classmethod
    def load(cls, folder: Path) -> Case:
        """Read ``case.json``."""
        data = json.loads((folder / "case.json").read_text(encoding="utf8"))
        return cls(**{**data, "argv": tuple(data["argv"])})


def make_folder(folder: Path) -> None:
    """The folders of a new case, with the secret and the bait."""
    for name in ("model", "given", "current", "out", "cache", "home", "tmp"):
        (folder / name).mkdir(parents=True)
    (folder / "secret.bin").write_bytes(SECRET)
    for name in BAIT:
        trace = folder / TRACE
        (folder / "current" / f"{name}.py").write_text(f"open({str(trace)!r}, 'a').write('{name} ')\n", encoding="utf8")

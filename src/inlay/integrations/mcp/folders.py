"""Which files a client may name: those in the folders that the server was started with, and no large ones."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from inlay.errors import UsageError

_LONGEST = 1024  # characters of a path


@dataclass(frozen=True)
class Folders:
    """Folders that a client works in; their paths are resolved once, when the server starts."""

    roots: Sequence[Path]
    most_bytes: int  # that a file or folder may hold

    @classmethod
    def of(cls, given: Sequence[str | Path], most_bytes: int) -> Folders:
        """The folders at these paths. Raises UsageError where one is none."""
        if missing := [str(path) for path in given if not Path(path).is_dir()]:
            raise UsageError(f"{missing[0]} is no folder: give the folders that the client may use")
        return cls(tuple(Path(path).resolve() for path in given), most_bytes)

    def existing(self, text: str) -> Path:
        """A file or folder that a command may read.

        Raises:
            UsageError: it is outside, leads through a link or ``..``, is no file or folder, is not there, or too large.
        """
        path = self._inside(text)
        if not path.exists():
            raise UsageError(f"{text}: there is no such file or folder")
        size = 0
        for each in (path, *(_below(path) if path.is_dir() else ())):
            found = os.lstat(each)
            if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
                raise UsageError(f"{text}: {each.name} is neither a file nor a folder")
            size += found.st_size
        if path.is_file() and (beside := path.with_name(f"{path.name}.data")).exists():
            size += self.existing(str(beside)).stat().st_size
        if size > self.most_bytes:
            raise UsageError(f"{text} holds {size} bytes, more than the {self.most_bytes} that this server takes")
        return path

    def new(self, text: str) -> Path:
        """A place that a command may write to: its folder is there. Raises UsageError as :meth:`existing` does."""
        path = self._inside(text)
        if not path.parent.is_dir():
            raise UsageError(f"{text}: there is no folder {path.parent.name} to write it to")
        if path in self.roots or (path.exists() and not (path.is_file() or path.is_dir())):
            raise UsageError(f"{text}: name a file or folder to write")
        return path

    def _inside(self, text: str) -> Path:
        if not text or len(text) > _LONGEST or not text.isprintable():
            raise UsageError(f"give a path of at most {_LONGEST} printable characters")
        path = Path(text)
        if ".." in path.parts:
            raise UsageError(f"{text}: give a path without ..")
        path = path if path.is_absolute() else self.roots[0] / path
        root = next((root for root in self.roots if path.is_relative_to(root)), None)
        if root is None:
            raise UsageError(f"{text} is outside the folders of this server: {', '.join(map(str, self.roots))}")
        for part in (path, *path.parents):
            if part == root:
                return path
            if part.is_symlink():
                raise UsageError(f"{text}: {part.name} is a link: give the file itself")
        return path


def _below(folder: Path) -> Iterator[Path]:
    for place, names, files in os.walk(folder):
        yield from (Path(place, name) for name in (*names, *files))

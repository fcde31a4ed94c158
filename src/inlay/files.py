"""Files are written whole or not at all, and are as readable as the user's umask says."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from inlay.errors import InlayError, JournalError, UsageError


@contextlib.contextmanager
def replacing(path: Path, error: type[InlayError] = JournalError) -> Iterator[Path]:
    """A file beside ``path`` that replaces it when the block succeeds, and is removed when it does not.

    Args:
        path: the file to write.
        error: raised, as one line, where the folder cannot be written or the disk is full.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(handle)
    except OSError as failure:
        raise error(f"{path.parent} cannot be written: {failure.strerror or failure}") from failure
    fresh = Path(name)
    try:
        fresh.chmod(0o666 & ~_umask())  # temporary files are private; what a user asked for is not
        yield fresh
        with fresh.open("rb+") as file:
            os.fsync(file.fileno())  # else a power cut may leave an empty file under the new name
        fresh.replace(path)
    except OSError as failure:
        raise error(f"{path} cannot be written: {failure.strerror or failure}") from failure
    finally:
        fresh.unlink(missing_ok=True)


def write_text(path: Path, text: str, error: type[InlayError] = JournalError) -> None:
    """Write ``text`` in UTF-8; arguments and errors as of :func:`replacing`."""
    with replacing(path, error) as fresh:
        fresh.write_text(text, encoding="utf8")


def refuse_overwriting(outputs: Iterable[Path], inputs: Iterable[str | Path]) -> None:
    """Refuse to write where an input lies, also through symbolic or hard links.

    Args:
        outputs: files that will be written.
        inputs: files that the user gave; what does not exist is passed over.

    Raises:
        UsageError: an output is an input.
    """
    given = [Path(p) for p in inputs if os.path.exists(p)]
    for output in outputs:
        for path in given:
            if output.resolve() == path.resolve() or (output.exists() and output.samefile(path)):
                raise UsageError(f"{output} would overwrite {path}, which is an input: choose another output")


def cache_folder() -> Path:
    """Where the platform wants caches of the user: ``INLAY_CACHE_DIR`` goes before."""
    chosen = os.environ.get("INLAY_CACHE_DIR")
    if chosen:
        return Path(chosen)
    home = Path.home()
    usual = {"win32": home / "AppData" / "Local", "darwin": home / "Library" / "Caches"}.get(
        sys.platform, home / ".cache"
    )
    return Path(os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA") or usual) / "inlay"


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask

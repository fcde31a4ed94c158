"""Data sets that the package ``datasets`` saved on disk: found by their files, read by the package itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inlay.errors import DataError


def is_saved_set(folder: Path) -> bool:
    """Whether a folder was written by ``save_to_disk``: one data set, or several splits."""
    return (folder / "dataset_dict.json").is_file() or (folder / "dataset_info.json").is_file()


def open_set(folder: Path) -> Any:
    """The data set, or its splits by name.

    Raises:
        DataError: the package is not installed, or cannot read it.
    """
    try:
        from datasets import load_from_disk
    except ImportError:
        raise DataError(f"--data {folder} is a saved data set, which needs: pip install 'inlay[datasets]'") from None
    try:
        return load_from_disk(str(folder))
    except Exception as error:  # of pyarrow and others, which share no class
        raise DataError(f"--data {folder} cannot be read as a data set: {error}") from error

"""A given model as it was read, for as long as a command works on it.

An exporter may write over a model at any moment, and over its external data in place. What a command measures, judges
and delivers must be one and the same: it works on a copy in its own folder, with the digest of what was read.
"""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError

from inlay.errors import ModelError
from inlay.files import replacing
from inlay.model.external import external_locations
from inlay.model.load import ModelFile, files_sha256, load


def held(file: ModelFile, folder: Path) -> ModelFile:
    """The same model, read from a copy of all its files.

    Args:
        file: as it was loaded.
        folder: for the copy, with the names and the order of the files kept; it must not exist.

    Raises:
        ModelError: the model is no longer what was loaded, or there is no room for the copy.
    """
    changed = _changed(file)
    copy, root = folder / file.path.name, file.path.parent.resolve()
    try:
        folder.mkdir(parents=True)
        shutil.copyfile(file.path, copy)
        copies = {}
        for location in external_locations(onnx.load(str(copy), load_external_data=False)) if file.external else ():
            source, to = (root / location).resolve(), folder / location
            if source not in file.external or not to.resolve().is_relative_to(folder.resolve()):
                raise changed
            to.parent.mkdir(parents=True, exist_ok=True)
            copies[source] = shutil.copyfile(source, to)
        if copies.keys() != {*file.external}:
            raise changed
        if files_sha256([copy, *(copies[each] for each in file.external)]) != file.sha256:
            raise changed
    except (FileNotFoundError, DecodeError, ValueError) as error:
        raise changed from error
    except OSError as error:
        raise ModelError(f"{file.path} cannot be copied to {folder}: {error.strerror or error}") from error
    if not file.external:
        return replace(file, copy=copy)
    try:
        mapped = load(copy)  # which maps the copied data
        mapped.model.metadata_props.update(file.model.metadata_props)  # what the user said of it
        return replace(mapped, path=file.path, external=file.external, copy=copy)
    except ModelError as error:  # data may have been cut short before its digest was taken
        raise changed from error


def require_as_read(file: ModelFile) -> None:
    """For what reads all of a model at once: raise ModelError where that is no longer what was loaded."""
    if changed_since(file):
        raise _changed(file)


def _changed(file: ModelFile) -> ModelError:
    return ModelError(f"{file.path} changed while it was read: run the command again once it is written")


def kept(file: ModelFile, path: Path) -> ModelFile:
    """A model without external data, also written to ``path``. Raises JournalError where that cannot be."""
    with contextlib.suppress(OSError):  # what is wrong with the folder is said below
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as fresh:
        fresh.write_bytes(file.path.read_bytes())
    return replace(file, path=path)


def changed_since(file: ModelFile) -> str:
    """What people should know where a model is no longer what was read; else nothing."""
    with contextlib.suppress(OSError):
        if files_sha256(file.files) == file.sha256:
            return ""
    return (
        f"{file.path} changed during the run: this result is that of the model as it was read at the beginning "
        f"(sha256 {file.sha256[:16]}…); run the command again for the new one"
    )

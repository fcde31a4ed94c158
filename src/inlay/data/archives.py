"""Arrays in files: the bytes come from strangers, so nothing in them is executed, and they say at most what they weigh.

Pickles are refused. An archive is unpacked only if it declares a size in proportion to that of its file, and an array
only if its shape and type give as many bytes as there are.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from inlay.errors import DataError
from inlay.files import opened

_MOST_BYTES, _MOST_TIMES = 1 << 30, 100
"""A larger archive may unpack to so many times its size. Images and sound compress two- to tenfold; a zip bomb, by a
thousand. What is refused by mistake can be saved uncompressed."""
_MOST_ROWS = 1_000_000
"""Of an array that holds nothing: the past of a decoder at its first step has the shape (1, 0, 64)."""
_LEVEL = 1  # of zlib: how 85 million weights are rounded takes 27 % more than at the usual 6, and a tenth of the time
_NAMES = "inlay names"  # the member that lists the names of all others: those of members are not free


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays in a ``.npz`` file by name, or the one in a ``.npy`` file under the name ``""``.

    The names are those that :func:`save_feed` was given, where it wrote the file.

    Raises:
        DataError: it cannot be read, is damaged, or unpacks to much more than it weighs.
    """
    try:
        with opened(path) as file:
            if not zipfile.is_zipfile(file):
                file.seek(0)
                return {"": _array(file, path.stat().st_size)}
            with zipfile.ZipFile(file) as archive:
                return _named(_members(archive, path.stat().st_size))
    except DataError:
        raise
    except Exception as error:  # zipfile, its decompressors and numpy each raise many types on damaged bytes
        raise DataError(f"{path} cannot be read: {error or type(error).__name__}") from error


def read_tensor(path: Path) -> tuple[str, np.ndarray]:
    """Name and content of an ONNX ``TensorProto`` file.

    Raises:
        DataError: it is none, or its content is in another file.
    """
    import onnx  # a worker, which reads no such file, may be where the package is not
    from onnx import numpy_helper

    try:
        with opened(path) as file:
            proto = onnx.TensorProto.FromString(file.read())
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            raise ValueError("its content is in another file")
        return proto.name, numpy_helper.to_array(proto)
    except DataError:
        raise
    except Exception as error:  # protobuf and numpy each raise their own
        raise DataError(f"{path} cannot be read: {error or type(error).__name__}") from error


def save_feed(file: Path | IO[bytes], arrays: Mapping[str, np.ndarray], compressed: bool = False) -> None:
    """Write arrays under any names, for :func:`load_feed`. Raises DataError for what is neither numbers nor text."""
    arrays = {name: as_text(array) if array.dtype.hasobject else array for name, array in arrays.items()}
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise DataError(f"{name} holds objects: only numbers and text can be fed and compared")
    listed = np.frombuffer(json.dumps(list(arrays)).encode(), np.uint8)
    members = {**{f"arr_{i}": array for i, array in enumerate(arrays.values())}, _NAMES: listed}
    how = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
    form: Any = np.lib.format  # its functions have no types
    with zipfile.ZipFile(file, "w", how, compresslevel=_LEVEL) as archive:  # numpy's own function fixes the level
        for name, array in members.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                form.write_array(member, np.asanyarray(array), allow_pickle=False)


def save_feeds(folder: Path, feeds: Sequence[Mapping[str, np.ndarray]]) -> list[Path]:
    """Write each feed as a file that a worker can read, into a new folder."""
    folder.mkdir()
    paths = [folder / f"{number}.npz" for number in range(len(feeds))]
    for path, feed in zip(paths, feeds, strict=True):
        save_feed(path, feed)
    return paths


def as_text(array: np.ndarray) -> np.ndarray:
    """Text in the form of which numpy keeps files, or ``array`` itself where it holds something else.

    Runtimes return strings as Python objects, and objects are never loaded; bytes are UTF-8, as in ONNX.
    """
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    text = array.dtype.hasobject and all(isinstance(each, str) for each in array.ravel())
    return array.astype(np.str_) if text else array


def load_feed(file: Path | IO[bytes]) -> dict[str, np.ndarray]:
    """What :func:`save_feed` wrote, or any other archive."""
    with np.load(file, allow_pickle=False) as archive:
        return _named(archive)


def load_workload(path: Path) -> list[tuple[Path, float]]:
    """The files and weights of what :meth:`~inlay.data.Workload.save` wrote, or of any single feed."""
    if path.suffix != ".json":
        return [(path, 1.0)]
    return [(path.with_name(name), float(weight)) for name, weight in json.loads(path.read_text(encoding="utf8"))]


def _named(members: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays of an archive under the names that they were saved under."""
    if _NAMES not in members:
        return dict(members)
    return {name: members[f"arr_{i}"] for i, name in enumerate(json.loads(members[_NAMES].tobytes()))}


def _members(archive: zipfile.ZipFile, weight: int) -> dict[str, np.ndarray]:
    members = archive.infolist()
    total = sum(m.file_size for m in members)
    if total > max(_MOST_BYTES, _MOST_TIMES * weight):
        raise ValueError(f"its {weight} bytes unpack to {total}: save it without compression")
    arrays: dict[str, np.ndarray] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            raise ValueError(f"its member {name} is not a .npy file")
        if name in arrays:
            raise ValueError(f"it holds {name} twice")
        if member.flag_bits & 1:
            raise ValueError(f"its member {member.filename} is encrypted")
        with archive.open(member) as file:
            arrays[name] = _array(file, member.file_size)
    return arrays


def _array(file: IO[bytes], size: int) -> np.ndarray:
    """The array in an open ``.npy`` file of ``size`` bytes."""
    form: Any = np.lib.format  # its functions have no types
    version = form.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"it has format version {version}")
    shape, by_column, dtype = (
        form.read_array_header_1_0(file) if version == (1, 0) else form.read_array_header_2_0(file)
    )
    if dtype.hasobject:
        raise ValueError(
            "it holds Python objects, which are not loaded: where shapes differ, save an array for each input and "
            "sample, INPUT_0, INPUT_1, and so on"
        )
    count = 1
    for length in shape:
        count *= length
    left = size - file.tell()
    if count * dtype.itemsize != left:
        raise ValueError(f"an array of shape {list(shape)} and type {dtype} cannot have {left} bytes")
    if not left and max(shape, default=0) > _MOST_ROWS:  # each would become an array of its own
        raise ValueError(f"an array of shape {list(shape)} holds nothing")
    content = bytearray(file.read(left))  # which grows with the file, not with what its header says
    if len(content) != left:
        raise ValueError("it is cut short")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if by_column else "C")

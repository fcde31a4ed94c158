"""Sample files from strangers: whatever the bytes are, arrays or one error; nothing is executed or blown up."""

from __future__ import annotations

import contextlib
import io
import resource
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from inlay.data.archives import load_feed, read_arrays, read_tensor, save_feed
from inlay.errors import DataError

ARRAY = np.arange(600, dtype=np.float32).reshape(2, 300)


def npy(array: np.ndarray = ARRAY) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def with_header(shape: str, descr: str = "'<f4'", content: bytes = b"\0" * 8, version: bytes = b"\x01\x00") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + len(header).to_bytes(2, "little") + header + content


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def patched(content: bytes, local: int, central: int, value: bytes) -> bytes:
    """A zip file with one member and other bytes in its local and central header."""
    changed = bytearray(content)
    changed[local : local + len(value)] = value
    start = content.index(b"PK\x01\x02") + central
    changed[start : start + len(value)] = value
    return bytes(changed)


def with_damaged_content() -> bytes:
    content = bytearray(zipped({"x.npy": npy()}, zipfile.ZIP_STORED))
    content[content.index(npy()[-40:])] ^= 1
    return bytes(content)


BAD: dict[str, tuple[bytes, str]] = {
    "zip bomb": (patched(zipped({"x.npy": npy()}), 22, 24, ((1 << 30) + 1).to_bytes(4, "little")), "unpack to"),
    "more than it declares": (patched(zipped({"x.npy": npy()}), 22, 24, (200).to_bytes(4, "little")), "cannot"),
    "damaged content": (with_damaged_content(), "CRC"),
    "encrypted": (patched(zipped({"x.npy": npy()}), 6, 8, b"\x01\x00"), "encrypted"),
    "unknown compression": (patched(zipped({"x.npy": npy()}), 8, 10, b"\x5f\x00"), "compression"),
    "damaged deflate": (zipped({"x.npy": npy()})[:60] + b"\xff" * 20 + zipped({"x.npy": npy()})[80:], "cannot be read"),
    "other members": (zipped({"x.npy": npy(), "README.txt": b"hello"}), "README.txt is not a .npy file"),
    "pickle as member": (zipped({"x.npy": npy(np.array([{"a": 1}], object))}), "objects"),
    "one name twice": (
        zipped({"x.npy": npy(), "x.npy.npy": npy()}).replace(b"x.npy.npy", b"x.npy\0npy"),
        "cannot be read",
    ),
    "no array in the member": (zipped({"x.npy": b"hello"}), "cannot be read"),
    "more in the header than in the file": (zipped({"x.npy": with_header("(1 << 40,)")}), "cannot be read"),
    "2^40 elements": (with_header(f"({1 << 40},)"), "cannot have 8 bytes"),
    "2^62 rows of nothing": (with_header(f"({1 << 62}, 0)", content=b""), "holds nothing"),
    "elements without a size": (with_header(f"({1 << 62},)", "'|S0'", b""), "holds nothing"),
    "negative": (with_header("(-1, -2)"), "cannot be read"),
    "no type": (with_header("(2,)", "'nonsense'"), "cannot be read"),
    "a type that nests": (with_header("(2,)", "[" * 300 + "]" * 300), "cannot be read"),
    "code as shape": (with_header("__import__('os').getcwd()"), "cannot be read"),
    "bytes after the array": (npy() + b"more", "cannot have"),
    "cut short": (npy()[:-4], "cannot have"),
    "later version": (with_header("(2,)", version=b"\x09\x00"), "version"),
    "a bare pickle": (b"\x80\x04K\x01.", "cannot be read"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_bad_files(name: str, suffix: str, tmp_path: Path) -> None:
    content, message = BAD[name]
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=message) as caught:
        read_arrays(path)
    assert str(path) in str(caught.value)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 200_000, f"kB more than before: {grown}"


@given(st.data())
def test_every_flipped_byte_gives_an_array_or_one_error(data: st.DataObject) -> None:
    form: Callable[[], bytes] = data.draw(st.sampled_from([npy, lambda: zipped({"x.npy": npy()})]))
    content = bytearray(form())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, min(len(content) - 1, 400)))] = data.draw(st.integers(0, 255))
    with tempfile.NamedTemporaryFile(suffix=".npz") as file:
        file.write(content)
        file.flush()
        with contextlib.suppress(DataError):
            assert all(isinstance(a, np.ndarray) for a in read_arrays(Path(file.name)).values())


def test_good_files_in_all_their_forms(tmp_path: Path) -> None:
    path = tmp_path / "good.npz"
    by_column = np.asfortranarray(np.arange(6).reshape(2, 3))
    for save in (np.savez, np.savez_compressed):
        save(path, ARRAY, by_column=by_column, scalar=np.float16(3), none=np.zeros((0, 3)))
        read = read_arrays(path)
        assert list(read) == ["by_column", "scalar", "none", "arr_0"]
        for name, want in (("arr_0", ARRAY), ("by_column", by_column), ("none", np.zeros((0, 3)))):
            assert np.array_equal(read[name], want)
            assert read[name].dtype == want.dtype
            assert read[name].flags.writeable
        assert read["scalar"] == np.float16(3)


@given(st.lists(st.text(min_size=1), unique=True, max_size=5))
def test_feeds_come_back_under_any_names(names: list[str]) -> None:
    names = [*names, "file", "args", "kwds", "allow_pickle", "arr_0", "a/b", "../up", "x.npy", "nul\0nul", "n" * 70_000]
    feed = {name: np.full(3, i) for i, name in enumerate(dict.fromkeys(names))}
    for compressed in (False, True):
        buffer = io.BytesIO()
        save_feed(buffer, feed, compressed)
        buffer.seek(0)
        found = load_feed(buffer)
        assert list(found) == list(feed)
        assert all(np.array_equal(found[n], feed[n]) for n in feed)


def test_objects_are_no_feed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="words holds objects"):
        save_feed(tmp_path / "f.npz", {"words": np.array(["a", 1], object)})
    assert not (tmp_path / "f.npz").exists()


def test_tensors_in_files_of_their_own(tmp_path: Path) -> None:
    path, other = tmp_path / "input_0.pb", tmp_path / "secret"
    path.write_bytes(numpy_helper.from_array(ARRAY, "x").SerializeToString())
    name, array = read_tensor(path)
    assert name == "x"
    assert np.array_equal(array, ARRAY)
    other.write_bytes(b"\0" * 4)
    outside = onnx.TensorProto(name="x", data_type=1, dims=[1], data_location=onnx.TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value=str(other))
    for content, message in (
        (outside.SerializeToString(), "in another file"),
        (onnx.TensorProto(data_type=1, dims=[1 << 40]).SerializeToString(), "cannot be read"),
        (onnx.TensorProto(data_type=99, dims=[1], raw_data=b"1234").SerializeToString(), "cannot be read"),
        (b"\xff\xff\xff", "cannot be read"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=message):
            read_tensor(path)

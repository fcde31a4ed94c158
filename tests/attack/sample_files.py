"""Cases about samples and labels: files, folders and functions."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from onnx import numpy_helper

from tests.attack.case import Case
from tests.attack.choices import Choices
from tests.attack.damage import damaged
from tests.attack.protos import FLOATS, TEXTS, change_field
from tests.attack.seeds import MODEL, QUANTIZE, TUNE, Seeds, put_model, samples

_MOST_ELEMENTS = 1_000_000
_DTYPES = ("f4", "f8", "f2", "i4", "i8", "u1", "?", "c8", "U3", "S3", "O", "M8[s]", ">f4", "f4,i4")

FUNCTIONS = """
def raises(*a): raise RuntimeError("x")
def leaves(*a): raise SystemExit(7)
def number(*a): return 5
def nothing(*a): return None
def text(*a): return "abc"
def endless(*a):
    while True: yield {"y": 1}
def wrong(*a): return [1, 2]
def bad_feed(*a): return [{"x": "text"}]
def ragged(*a): return [{"x": [[1], [1, 2]]}]
class Odd:
    def __iter__(self): raise ValueError("no")
    def __float__(self): raise ValueError("no")
def iterates(*a): return Odd()
not_a_function = 3
"""


def data(choose: Choices, seeds: Seeds, folder: Path) -> Case:
    """Samples and labels: damaged files, folders, dtypes, shapes and names; functions of all sorts."""
    del seeds
    put_model(folder, choose.weighted(((8, "tiny"), (1, "scalars"), (1, "matmuls"))))
    given = folder / "given"
    action = choose.weighted(
        ((4, _npz), (2, _npy), (3, _zip), (2, _test_data), (2, _folder_of_files), (1, _function), (2, _labels))
    )
    options = action(choose, given)
    if options[:1] == ("--labels",):
        return Case("samples", ("tune", MODEL, "-o", "@/out", *TUNE, *options))
    command = choose.weighted(
        ((9, QUANTIZE), (3, ("regions", MODEL, "--target", "null")), (1, ("tune", MODEL, "-o", "@/out", *TUNE)))
    )
    if action is _function:
        (folder / "current" / "mine.py").write_text(FUNCTIONS, encoding="utf8")
    return Case("samples", (*command, *options), real=choose.one_in(300))


def _array(choose: Choices) -> Any:
    shape = (
        [choose.among((4, 1, 3, 6, 0, 2, 100)) for _ in range(choose.below(6))] if choose.one_in(2) else [4, 3, 6, 6]
    )
    while math.prod(shape) > _MOST_ELEMENTS:
        shape.pop()
    values = samples()["x"] if shape == [4, 3, 6, 6] else np.ones(shape, "f4")
    if choose.one_in(3) and values.size:
        values.flat[0] = choose.among(FLOATS)
    with np.errstate(all="ignore"):
        try:
            return values.astype(choose.among(_DTYPES)) if choose.one_in(2) else values
        except (TypeError, ValueError):
            return values


def _saved(choose: Choices) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, _array(choose), allow_pickle=True)
    return buffer.getvalue()


def _zipped(choose: Choices) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", choose.among((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))) as archive:
        archive.writestr(
            choose.weighted(((8, "x.npy"), (1, "x"), (1, "file.npy"), (1, "../x.npy"), (1, "y.npy"))), _saved(choose)
        )
        if choose.one_in(6):
            archive.writestr(choose.among(TEXTS).replace("\0", "") + ".npy", _saved(choose))
    return buffer.getvalue()


def _npz(choose: Choices, given: Path) -> tuple[str, ...]:
    raw = _zipped(choose)
    (given / "s.npz").write_bytes(damaged(raw, choose) if choose.one_in(2) else raw)
    return ("--data", "@/given/s.npz")


def _npy(choose: Choices, given: Path) -> tuple[str, ...]:
    raw = _saved(choose)
    (given / "s.npy").write_bytes(damaged(raw, choose) if choose.one_in(2) else raw)
    return ("--data", "@/given/s.npy")


def _zip(choose: Choices, given: Path) -> tuple[str, ...]:
    """Archives that are odd in their headers, or in what they hold."""
    raw = bytearray(_zipped(choose))
    for mark, offset in ((b"PK\1\2", 8), (b"PK\3\4", 6)):
        at = raw.find(mark) + offset
        if choose.one_in(2):
            raw[at] ^= choose.among((1, 2, 8, 0x40))  # encrypted, or other flags
        if choose.one_in(2):
            raw[at + 2] = choose.among((0, 8, 9, 12, 14, 93, 99))  # method of compression
    if choose.one_in(4):
        bomb = io.BytesIO()
        with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
            head = (
                b"\x93NUMPY\1\0\x76\0"
                + b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }" % choose.among((10**6, 10**9, 10**12))
            )
            archive.writestr("x.npy", head.ljust(127) + b"\n" + bytes(4 * 10**6))
        raw = bytearray(bomb.getvalue())
    (given / "s.npz").write_bytes(raw)
    return ("--data", "@/given/s.npz")


def _test_data(choose: Choices, given: Path) -> tuple[str, ...]:
    inner = given / "test_data_set_0"
    inner.mkdir()
    tensor = numpy_helper.from_array(samples(1)["x"], choose.among(("x", "", "y")))
    for _ in range(choose.below(3)):
        change_field(tensor, choose)
    raw = tensor.SerializeToString()
    name = choose.weighted(((6, "input_0.pb"), (1, "input_x.pb"), (1, "input_.pb"), (1, "input_7.pb")))
    (inner / name).write_bytes(damaged(raw, choose) if choose.one_in(2) else raw)
    return ("--data", "@/given")


def _folder_of_files(choose: Choices, given: Path) -> tuple[str, ...]:
    for number in range(choose.below(4)):
        zipped = bool(choose.below(2))
        raw = _zipped(choose) if zipped else _saved(choose)
        name = choose.weighted(((5, f"{number}"), (1, f"[red]{number}"), (1, "\x1b[31m"), (1, "☃")))
        path = given / f"{name}.{'npz' if zipped else 'npy'}"
        path.write_bytes(damaged(raw, choose) if choose.one_in(3) else raw)
    if choose.one_in(6):
        (given / "folder.npz").mkdir()
    return ("--data", "@/given")


def _function(choose: Choices, given: Path) -> tuple[str, ...]:
    del given
    names = (
        "raises",
        "leaves",
        "number",
        "nothing",
        "text",
        "endless",
        "wrong",
        "bad_feed",
        "ragged",
        "iterates",
        "not_a_function",
        "no",
    )
    return (
        "--data",
        choose.weighted(
            (
                (6, f"mine:{choose.among(names)}"),
                (1, "nothing:f"),
                (1, "os:getcwd"),
                (1, ":"),
                (1, "a.b.c:d"),
                (1, "mine:a:b"),
                (1, "..mine:raises"),
            )
        ),
    )


def _labels(choose: Choices, given: Path) -> tuple[str, ...]:
    np.savez(given / "s.npz", **samples())
    labels = choose.among((np.arange(4), np.arange(3), np.zeros((4, 2)), np.full(4, np.nan), np.array(["a"] * 4)))
    buffer = io.BytesIO()
    np.save(buffer, labels)
    raw = choose.among((buffer.getvalue(), b"1\n2\n3\n4\n", b"1\n" * 9, b"a\n", b"", b"1e999\n" * 4, b"\xff\xfe" * 4))
    name = choose.among(("l.npy", "l.txt", "l.npz"))
    (given / name).write_bytes(damaged(raw, choose) if choose.one_in(2) else raw)
    metric = choose.weighted(((4, "top1"), (1, "sqnr"), (1, "mine:raises"), (1, "math:fsum")))
    return ("--labels", f"@/given/{name}", "--data", "@/given/s.npz", "--metric", metric)

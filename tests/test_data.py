"""Samples and labels: every way in, and a message for every way that does not fit."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from inlay.data import (
    InputSpec,
    Samples,
    bound,
    labelled,
    load_feed,
    load_function,
    random_samples,
    read_samples,
    save_feed,
    split,
)
from inlay.errors import DataError, InlayError, UsageError

X = InputSpec("x", np.dtype(np.float32), (1, 3, 4, 4))
DYNAMIC = InputSpec("x", np.dtype(np.float32), ("batch", 3, "height", 4))
IDS = InputSpec("ids", np.dtype(np.int64), (1, 5))


def images(count: int = 4, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, 3, 4, 4)).astype(dtype)


def save(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, **arrays)
    return path


def test_npz_with_the_batch_as_first_axis(tmp_path: Path) -> None:
    array = images()
    found = read_samples(save(tmp_path / "a.npz", x=array), [X])
    assert (len(found), found.kind) == (4, "npz")
    assert all(f["x"].shape == (1, 3, 4, 4) for f in found.feeds)
    assert np.array_equal(np.concatenate([f["x"] for f in found.feeds]), array)


def test_npz_with_an_extra_first_axis(tmp_path: Path) -> None:
    array = images()[:, None]
    found = read_samples(save(tmp_path / "a.npz", x=array), [X])
    assert np.array_equal(np.stack([f["x"] for f in found.feeds]), array)


def test_a_lone_npy(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", images())
    assert len(read_samples(tmp_path / "a.npy", [X])) == 4
    with pytest.raises(DataError, match=r"the model has the inputs x, ids"):
        read_samples(tmp_path / "a.npy", [X, IDS])


def test_folder_of_npz_and_npy(tmp_path: Path) -> None:
    save(tmp_path / "1.npz", x=images(1))
    np.save(tmp_path / "2.npy", images(2))
    assert len(read_samples(tmp_path, [X])) == 3


def test_folder_of_onnx_test_data_sets(tmp_path: Path) -> None:
    for number in range(3):
        inner = tmp_path / f"test_data_set_{number}"
        inner.mkdir()
        for i, (name, array) in enumerate((("x", images(1)), ("", np.arange(5)[None]))):
            (inner / f"input_{i}.pb").write_bytes(numpy_helper.from_array(array, name).SerializeToString())
    found = read_samples(tmp_path, [X, IDS])
    assert (len(found), found.kind) == (3, "folder")
    assert found.feeds[0]["ids"].tolist() == [[0, 1, 2, 3, 4]]


def test_module_and_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "samples_of_mine.py").write_text(
        "import numpy as np\n"
        "def feeds():\n    return ({'x': np.zeros((1, 3, 4, 4), np.float32)} for _ in range(2))\n"
        "def stacked():\n    return {'x': np.zeros((5, 3, 4, 4), np.float32)}\n"
        "number = 3\n"
        "def raises():\n    return {}['nothing']\n"
        "def leaves():\n    raise SystemExit(7)\n"
        "def raises_late():\n    yield {'x': np.zeros((1, 3, 4, 4), np.float32)}\n    raise OSError('disk')\n"
        "def gives_number():\n    return 5\n"
        "def gives_numbers():\n    return [5]\n"
        "def ragged():\n    return {'x': [[1], [1, 2]]}\n"
        "def other_keys():\n    return [{1: np.zeros(3)}]\n"
        "def wants_argument(x):\n    return []\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert len(read_samples("samples_of_mine:feeds", [X])) == 2
    assert len(read_samples("samples_of_mine:stacked", [X])) == 5
    for text, message in (
        ("samples_of_mine:nothing", "has no nothing"),
        ("samples_of_mine:number", "is not a function"),
        ("no_such_module_here:feeds", "there is no module no_such_module_here"),
    ):
        with pytest.raises(UsageError, match=message):
            load_function(text, "--data")
    for name, message in (
        ("raises", r"samples_of_mine:raises failed: KeyError: 'nothing' \(.*samples_of_mine.py, line 8\)"),
        ("raises_late", "OSError: disk"),
        ("leaves", "SystemExit: 7"),
        ("gives_number", "gave int instead of a mapping"),
        ("gives_numbers", "gave int instead of a mapping"),
        ("ragged", "different lengths"),
        ("other_keys", "no array for the model's input x.*it has 1 instead"),
        ("wants_argument", "TypeError.*argument"),
    ):
        with pytest.raises(DataError, match=message):
            read_samples(f"samples_of_mine:{name}", [X])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\nsys.exit(3)", "importing a_module failed: SystemExit: 3"),
        ("1 / 0", r"ZeroDivisionError: .*a_module.py, line 1\)"),
        ("def f(:", "SyntaxError"),
        ("import not_installed_here", "there is no module not_installed_here"),
    ],
)
def test_modules_that_cannot_be_imported(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_module.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_module", raising=False)
    with pytest.raises(UsageError, match=message):
        load_function("a_module:f", "--metric")


@pytest.mark.parametrize("text", [":f", "a..b:f", ".a:f", "math:", "math:no", "\udcff:f", "math\0:f"])
def test_names_that_are_no_functions(text: str) -> None:
    with pytest.raises(UsageError, match="--data"):
        load_function(text, "--data")


def test_feeds_given_directly() -> None:
    found = read_samples([{"x": images(1)}, {"x": images(1)}], [X])
    assert (len(found), found.kind) == (2, "feeds")


def test_harmless_dtypes_are_converted() -> None:
    assert read_samples([{"x": images(1, np.float64)}], [X]).feeds[0]["x"].dtype == np.float32
    assert read_samples([{"ids": np.ones((1, 5), np.int32)}], [IDS]).feeds[0]["ids"].dtype == np.int64


def test_what_people_have_is_taken_where_it_says_the_same(tmp_path: Path) -> None:
    """Without the batch of one; masks of booleans for integers, and of 0 and 1 for booleans; one scalar for all."""
    mask = InputSpec("mask", np.dtype(np.bool_), ("batch", 5))
    scale = InputSpec("scale", np.dtype(np.float32), ())
    specs, given = [X, IDS, mask, scale], np.array([[1, 0, 1, 1, 0]])
    feed = {"x": images(1)[0], "ids": given.astype(bool)[0], "mask": given, "scale": 2.0}
    (found,) = read_samples([feed], specs).feeds
    assert np.array_equal(found["x"], images(1))
    assert np.array_equal(found["ids"], given)
    assert (found["ids"].dtype, found["mask"].dtype) == (np.int64, np.bool_)
    np.savez(tmp_path / "s.npz", x=images(6), ids=np.repeat(given, 6, 0), mask=np.ones((6, 5), bool), scale=2.0)
    stacked = read_samples(tmp_path / "s.npz", specs)
    assert len(stacked) == 6
    assert all(feed["scale"].shape == () and feed["scale"] == 2 for feed in stacked.feeds)
    with pytest.raises(DataError, match="cannot hold"):
        read_samples([{**feed, "mask": given + 1}], specs)


@pytest.mark.parametrize(
    ("feed", "words"),
    [
        ({"y": images(1)}, ("x: float32 [1, 3, 4, 4]", "y")),
        ({"x": images(1), "y": images(1)}, ("no input y", "x: float32 [1, 3, 4, 4]")),
        ({}, ("x: float32 [1, 3, 4, 4]",)),
        ({"x": images(2)}, ("x: float32 [1, 3, 4, 4]", "[2, 3, 4, 4]")),
        ({"x": images(1)[0, 0]}, ("x: float32 [1, 3, 4, 4]", "[4, 4]")),
        ({"x": images(1).transpose(0, 2, 3, 1)}, ("x: float32 [1, 3, 4, 4]", ".transpose(0, 3, 1, 2)")),
        ({"x": [[1.0], [1.0, 2.0]]}, ("x is not an array", "different lengths")),
        ({"x": images(1).astype(np.uint8)}, ("x: float32 [1, 3, 4, 4]", "uint8")),
        ({"x": images(1).astype(np.int64)}, ("x: float32", "int64")),
        ({"x": np.where(images(1) > 1, np.nan, images(1))}, ("x", "NaN or infinite")),
        ({"x": np.full((1, 3, 4, 4), -np.inf, np.float32)}, ("x", "NaN or infinite")),
    ],
)
def test_feeds_that_do_not_fit(feed: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(DataError) as caught:
        read_samples([{"x": images(1)}, feed], [X])
    text = str(caught.value)
    assert "sample 1" in text, "it says which sample"
    assert all(w in text for w in words), text
    assert "\n" not in text


def test_integers_that_would_lose_their_value() -> None:
    small = InputSpec("ids", np.dtype(np.uint8), (1, 5))
    with pytest.raises(DataError, match="ids: uint8"):
        read_samples([{"ids": np.full((1, 5), 300)}], [small])
    with pytest.raises(DataError, match="ids: int64"):
        read_samples([{"ids": np.ones((1, 5), np.float32)}], [IDS])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": images()}, r"x: float32 \[1, 3, 4, 4\]"),
        ({"x": images()[0, 0]}, r"rank 4.*\[4, 4\]"),
        ({"x": np.zeros((4, 3, 5, 4), np.float32)}, r"x: float32 \[1, 3, 4, 4\].*\[1, 3, 5, 4\]"),
        ({"x": np.zeros((0, 3, 4, 4), np.float32)}, "no samples"),
        ({"x": np.full((2, 3, 4, 4), np.inf, np.float32)}, "NaN or infinite"),
        ({"x": np.array([["a"]] * 2)[..., None, None]}, "x: float32"),
    ],
)
def test_archives_that_do_not_fit(arrays: dict[str, np.ndarray], message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        read_samples(save(tmp_path / "bad.npz", **arrays), [X])


def test_inputs_with_different_counts(tmp_path: Path) -> None:
    path = save(tmp_path / "bad.npz", x=images(4), ids=np.zeros((3, 5), np.int64))
    with pytest.raises(DataError, match="different numbers of samples"):
        read_samples(path, [X, IDS])


@pytest.mark.parametrize("content", [b"", b"not an archive", b"PK\x03\x04 broken"])
def test_files_that_cannot_be_read(content: bytes, tmp_path: Path) -> None:
    for name in ("bad.npz", "bad.npy"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match="cannot be read"):
            read_samples(tmp_path / name, [X])


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    """Sample files are data: nothing in them is executed."""
    np.save(tmp_path / "evil.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        read_samples(tmp_path / "evil.npy", [X])
    np.savez(tmp_path / "evil.npz", x=np.array([{"a": 1}], object))
    with pytest.raises(DataError, match="cannot be read"):
        read_samples(tmp_path / "evil.npz", [X])


@pytest.mark.parametrize("source", ["missing.npz", "nowhere", "samples.txt"])
def test_sources_that_are_not_there(source: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=source):
        read_samples(str(tmp_path / source), [X])


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds neither"):
        read_samples(tmp_path, [X])


def test_a_broken_test_data_set(tmp_path: Path) -> None:
    inner = tmp_path / "test_data_set_0"
    inner.mkdir()
    (inner / "input_0.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(DataError, match=r"input_0.pb cannot be read"):
        read_samples(tmp_path, [X])
    (inner / "input_0.pb").write_bytes(onnx.TensorProto(name="x", data_type=1, dims=[2, 2]).SerializeToString())
    with pytest.raises(InlayError):
        read_samples(tmp_path, [X])


def labels_of(path: Path, count: int) -> list[int]:
    found = labelled(Samples(({},) * count, "feeds", ""), path, [X]).labels
    assert found is not None
    return list(found)


def test_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "l.npy", np.arange(3))
    np.savez(tmp_path / "l.npz", labels=np.arange(3))
    (tmp_path / "l.txt").write_text("0\n1\n2\n")
    for name in ("l.npy", "l.npz", "l.txt"):
        assert labels_of(tmp_path / name, 3) == [0, 1, 2]
        with pytest.raises(DataError, match=r"3 labels, but --data has 4 samples"):
            labels_of(tmp_path / name, 4)


def test_labels_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        labels_of(tmp_path / "missing.npy", 3)
    (tmp_path / "words.txt").write_text("cat\ndog\n")
    (tmp_path / "bad.npy").write_bytes(b"junk")
    (tmp_path / "empty.npy").write_bytes(b"")
    np.savez(tmp_path / "two.npz", a=np.arange(2), b=np.arange(2))
    np.save(tmp_path / "scalar.npy", np.array(3))
    for name in ("words.txt", "bad.npy", "empty.npy", "two.npz", "scalar.npy"):
        with pytest.raises(DataError, match=name):
            labels_of(tmp_path / name, 2)


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize("count", [3, 4, 7, 50, 400])
def test_the_three_parts_are_disjoint(count: int, labelled: bool) -> None:
    feeds = tuple({"x": np.full((1,), i, np.float32)} for i in range(count))
    labels = np.arange(count) * 10 if labelled else None
    parts = split(Samples(feeds, "feeds", "test", labels), np.random.default_rng(0), calibration=20, others=15)
    assert parts.verified
    drawn = [[int(f["x"][0]) for f in p.feeds] for p in (parts.calibration, parts.selection, parts.verification)]
    assert all(drawn)
    assert len({i for part in drawn for i in part}) == sum(map(len, drawn))
    assert len(drawn[0]) <= 20
    assert max(len(drawn[1]), len(drawn[2])) <= 15
    for part, numbers in zip((parts.calibration, parts.selection, parts.verification), drawn, strict=True):
        if labelled:
            assert part.labels is not None
            assert part.labels.tolist() == [10 * i for i in numbers]


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_samples_are_not_called_verified(count: int) -> None:
    feeds = tuple({"x": np.zeros(1, np.float32)} for _ in range(count))
    parts = split(Samples(feeds, "feeds", "test"), np.random.default_rng(0))
    assert not parts.verified
    assert len(parts.calibration) == count
    assert len(parts.selection) == len(parts.verification) == 1


def test_random_samples_bind_dimensions() -> None:
    rng = np.random.default_rng(0)
    found = random_samples(bound([DYNAMIC, IDS], {"height": 7}), rng, 2)
    assert found.feeds[0]["x"].shape == (1, 3, 7, 4)
    assert set(np.unique(found.feeds[0]["ids"])) <= {0, 1}
    with pytest.raises(UsageError, match=r"--bind height=224"):
        random_samples(bound([DYNAMIC], {"batch": 2}), rng, 1)


def test_an_input_of_any_size_is_not_filled_with_random_numbers() -> None:
    with pytest.raises(UsageError, match=r"input x: float32 \[1, 1099511627776\] is larger than 256 MiB"):
        random_samples([InputSpec("x", np.dtype(np.float32), (1, 2**40))], np.random.default_rng(0), 1)
    with pytest.raises(UsageError, match="is larger than 256 MiB"):  # numpy refuses it, though it is empty
        random_samples([InputSpec("x", np.dtype(np.int64), (2**31, 2**62, 0))], np.random.default_rng(0), 1)


def test_scalar_inputs_are_fed_as_scalars(tmp_path: Path) -> None:
    scalar = InputSpec("scale", np.dtype(np.float32), ())
    (random,) = random_samples([scalar], np.random.default_rng(0), 1).feeds
    for found in (
        read_samples([random], [scalar]),
        read_samples([{"scale": np.array(2.0)}], [scalar]),
        read_samples(save(tmp_path / "a.npz", scale=np.ones(3, np.float32)), [scalar]),
    ):
        assert {f["scale"].shape for f in found.feeds} == {()}
        assert {f["scale"].dtype for f in found.feeds} == {np.dtype(np.float32)}


def test_sizes_hold_for_given_samples_too() -> None:
    two = read_samples([{"x": images(2)}], bound([DYNAMIC], {"batch": 2}))
    assert two.feeds[0]["x"].shape == (2, 3, 4, 4)
    with pytest.raises(DataError, match=r"x: float32 \[batch, 3, 9, 4\] got shape \[1, 3, 4, 4\]"):
        read_samples([{"x": images(1)}], bound([DYNAMIC], {"height": 9}))
    for specs, known in (([DYNAMIC], "they have batch, height"), ([X], "all of theirs are fixed")):
        with pytest.raises(UsageError, match=f"--bind width=3: no input has the dynamic dimension width; {known}"):
            bound(specs, {"width": 3})


def test_stacked_samples_come_in_batches_of_the_bound_size(tmp_path: Path) -> None:
    path = save(tmp_path / "a.npz", x=images(7))
    specs = bound([DYNAMIC], {"batch": 3})
    assert [f["x"].shape[0] for f in read_samples(path, specs).feeds] == [3, 3]
    with pytest.raises(DataError, match="takes 9 rows at once, the array has 7"):
        read_samples(path, bound([DYNAMIC], {"batch": 9}))


TEXT = InputSpec("words", np.dtype(object), ("batch", 3))


@pytest.mark.parametrize("kind", ["str", "bytes", "object"])
def test_text_for_an_input_of_strings(tmp_path: Path, kind: str) -> None:
    words = np.array([["a", "", "naïve"], ["d", "e", "f"]])
    given = {"str": words, "bytes": np.char.encode(words, "utf-8"), "object": words.astype(object)}[kind]
    if kind == "object":  # which no file may hold
        found = read_samples([{"words": row[None]} for row in given], [TEXT])
    else:
        found = read_samples(save(tmp_path / "a.npz", words=given), [TEXT])
    assert [f["words"].tolist() for f in found.feeds] == [words[:1].tolist(), words[1:].tolist()]
    save_feed(tmp_path / "feed.npz", {"words": words.astype(object)})
    assert np.array_equal(load_feed(tmp_path / "feed.npz")["words"], words)


def test_numbers_for_an_input_of_strings(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"input words: string \[batch, 3\] got int64: give an array of str"):
        read_samples(save(tmp_path / "a.npz", words=np.zeros((2, 3), np.int64)), [TEXT])
    mixed = np.array([["a", 1, None]], object)
    with pytest.raises(DataError, match="got object: give an array of str"):
        read_samples([{"words": mixed}], [TEXT])
    with pytest.raises(DataError, match="not UTF-8"):
        read_samples(save(tmp_path / "a.npz", words=np.array([[b"\xff", b"", b""]])), [TEXT])


TEN = InputSpec("x", np.dtype(np.float32), (10, 3))


def rows(count: int) -> np.ndarray:
    return np.arange(3 * count, dtype=np.float32).reshape(count, 3)


def test_rows_that_fill_no_batch_are_told(tmp_path: Path) -> None:
    found = read_samples(save(tmp_path / "a.npz", x=rows(14)), [TEN])
    assert len(found) == 1
    assert found.left_out == ("4 of 14 rows were not used: the model takes 10 at once, and they fill no further batch",)
    assert read_samples(save(tmp_path / "b.npz", x=rows(20)), [TEN]).left_out == ()
    assert read_samples(save(tmp_path / "c.npz", x=images(7)), [X]).left_out == ()
    (tmp_path / "d.csv").write_text("\n".join(",".join(map(str, row)) for row in rows(21)))
    assert "1 of 21 rows was not used" in read_samples(tmp_path / "d.csv", [TEN]).left_out[0]


def test_rows_of_each_file_are_told_together(tmp_path: Path) -> None:
    save(tmp_path / "1.npz", x=rows(12))
    save(tmp_path / "2.npz", x=rows(13))
    assert "5 of 25 rows were not used" in read_samples(tmp_path, [TEN]).left_out[0]


class Loader:
    """Batches of a data set, as a PyTorch DataLoader gives them."""

    def __init__(self, count: int, batch_size: int) -> None:
        self.dataset, self.batch_size = rows(count), batch_size

    def __iter__(self) -> Iterator[tuple[np.ndarray]]:
        return ((self.dataset[i : i + self.batch_size],) for i in range(0, len(self.dataset), self.batch_size))


def test_the_short_last_batch_of_a_loader_is_told() -> None:
    found = read_samples(Loader(24, 10), [TEN])  # type: ignore[arg-type]
    assert (len(found), "4 of 24 rows were not used" in found.left_out[0]) == (2, True)
    with pytest.raises(DataError, match="holds no samples"):
        read_samples(Loader(4, 10), [TEN])  # type: ignore[arg-type]


def test_other_files_of_a_folder_are_told(tmp_path: Path) -> None:
    save(tmp_path / "1.npz", x=images(2))
    (tmp_path / "classes.txt").write_text("cat\n")
    assert read_samples(tmp_path, [X]).left_out == ()
    inner = tmp_path / "more"
    inner.mkdir()
    for name in ("2.npz", "a.flac", "b.FLAC"):
        (inner / name).write_bytes(b"")
    (said,) = read_samples(tmp_path, [X]).left_out
    assert said == f"3 files were not used (2 .flac, 1 .npz): the samples are the .npz and .npy files in {tmp_path}"


def test_samples_that_never_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inlay.data.objects.MOST_SAMPLES", 10)
    with pytest.raises(DataError, match="more than 10 samples"):
        read_samples(({"x": images(1)} for _ in itertools.count()), [X])


def test_labels_of_rows_where_the_batch_is_fixed(tmp_path: Path) -> None:
    """One for each row of the data, those that fill no batch among them; not where rows are missing in the middle."""
    np.savetxt(path := tmp_path / "labels.txt", np.arange(24), "%d")
    found = labelled(read_samples(save(tmp_path / "a.npz", x=rows(24)), [TEN]), path, [TEN])
    assert found.labels is not None
    assert found.labels.tolist() == np.arange(20).reshape(2, 10).tolist()
    folder = tmp_path / "two"
    folder.mkdir()
    for name in ("1.npz", "2.npz"):
        save(folder / name, x=rows(12))
    with pytest.raises(DataError, match=r"24 labels, but --data has 2 samples, each of 10 rows"):
        labelled(read_samples(folder, [TEN]), path, [TEN])

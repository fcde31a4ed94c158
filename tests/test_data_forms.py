"""Samples as people have them: each form gives what the arrays in it say, and each wrong one is refused in one line."""

from __future__ import annotations

import json
import wave
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnxruntime.quantization import CalibrationDataReader

from inlay.data import InputSpec, files_of, read_samples
from inlay.data.sounds import log_mel, read_wav
from inlay.errors import DataError, InlayError

X = InputSpec("x", np.dtype(np.float32), ("batch", 3))
Y = InputSpec("y", np.dtype(np.int64), ("batch", 2))
ROWS = np.arange(18, dtype=np.float32).reshape(6, 3)
KEYS = np.arange(12).reshape(6, 2)


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: Sequence[Mapping[str, np.ndarray]]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        return next(self._feeds, None)


class Tensor:
    """What a tensor of another library offers."""

    def __init__(self, array: np.ndarray, why: str = "") -> None:
        self._array, self._why, self.shape = array, why, array.shape

    def detach(self) -> Tensor:
        return self

    cpu = detach

    def numpy(self) -> np.ndarray:
        if self._why:
            raise TypeError(self._why)
        return self._array

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError("it requires grad")


class Loader:
    """What a loader of batches offers."""

    dataset, batch_size = (), 4

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)


class Set:
    """What a data set of columns offers, whose rows are lists."""

    def __init__(self, **columns: Any) -> None:
        self._columns, self.column_names = columns, list(columns)

    def select_columns(self, names: Sequence[str]) -> Set:
        return Set(**{name: self._columns[name] for name in names})

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        count = len(next(iter(self._columns.values())))
        return iter([{name: column[i].tolist() for name, column in self._columns.items()} for i in range(count)])


def tensors(of: type[Tensor] = Tensor) -> list[Any]:
    return [{"x": of(ROWS[:4]), "y": of(KEYS[:4]), "label": of(KEYS[:4])}, {"x": of(ROWS[4:]), "y": of(KEYS[4:])}]


FORMS: dict[str, Callable[[], Any]] = {
    "reader": lambda: Reader([{"x": ROWS[i : i + 1], "y": KEYS[i : i + 1]} for i in range(6)]),
    "iterator": lambda: ({"x": ROWS[i : i + 1], "y": KEYS[i : i + 1]} for i in range(6)),
    "iterator of tensors": lambda: ({"x": Tensor(ROWS[i : i + 1]), "y": Tensor(KEYS[i : i + 1])} for i in range(6)),
    "loader of mappings": lambda: Loader(tensors()),
    "loader of tuples": lambda: Loader([(Tensor(ROWS[:4]), Tensor(KEYS[:4]), "y"), [ROWS[4:], KEYS[4:]]]),
    "data set": lambda: Set(label=KEYS, y=KEYS, x=ROWS.astype(float)),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_one_sample_for_each_row(form: str) -> None:
    found = read_samples(FORMS[form](), [X, Y])
    assert len(found) == 6
    for i, feed in enumerate(found.feeds):
        np.testing.assert_array_equal(feed["x"], ROWS[i : i + 1])
        np.testing.assert_array_equal(feed["y"], KEYS[i : i + 1])
        assert (feed["x"].dtype, feed["y"].dtype) == (np.float32, np.int64)


def test_a_memory_map_is_a_stack_of_samples(tmp_path: Path) -> None:
    held: np.memmap[Any, Any] = np.memmap(tmp_path / "x.bin", np.float32, "w+", shape=(6, 3))
    held[:] = ROWS
    found = read_samples(held, [X])
    held[:] = 0
    np.testing.assert_array_equal(np.concatenate([f["x"] for f in found.feeds]), ROWS)
    huge: np.memmap[Any, Any] = np.memmap(tmp_path / "y.bin", np.float32, "w+", shape=(1 << 29, 3))  # takes no disk
    with pytest.raises(DataError, match=r"rows take 6.0 GiB: give fewer, such as array\[::2\]"):
        read_samples(huge, [X])


def exhausted() -> Reader:
    reader = Reader([{"x": ROWS}])
    reader.get_next()
    return reader


WRONG: dict[str, tuple[Any, str]] = {
    "a reader that was read": (exhausted, "the calibration reader gives nothing: make a new one"),
    "one array for two inputs": (lambda: ROWS, "one array, but the model has the inputs x, y: give them by name"),
    "a set without an input": (lambda: Set(x=ROWS, label=KEYS), "the columns are x, label; the model also takes y"),
    "splits": (lambda: {"train": Set(x=ROWS), "test": Set(x=ROWS)}, "it holds the splits train, test: give one"),
    "a batch without an input": (lambda: Loader([{"x": ROWS}]), "batch 0: it holds x; the model also takes y"),
    "a batch of too few": (lambda: Loader([[ROWS]]), "batch 0: it holds ndarray, but the model takes x, y"),
    "a batch of something": (lambda: Loader([None]), "batch 0: it holds NoneType, but the model takes x, y"),
    "a type without arrays": (
        lambda: [{"x": Tensor(ROWS, "no such type: bfloat16"), "y": KEYS}],
        "x: it cannot become an array: no such type: bfloat16",
    ),
    "another shape": (lambda: Loader([{"x": ROWS[:, :2], "y": KEYS}]), "input x"),
    "no batches": (lambda: Loader([]), "holds no samples"),
}


@pytest.mark.parametrize("case", WRONG)
def test_each_wrong_form_is_refused_in_one_line(case: str) -> None:
    make, words = WRONG[case]
    with pytest.raises(InlayError) as error:
        read_samples(make(), [X, Y])
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_set_that_was_saved_is_read_by_its_package(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed (extra datasets)")
    made = datasets.Dataset.from_dict({"x": ROWS.tolist(), "y": KEYS.tolist(), "label": list(range(6))})
    made.save_to_disk(str(tmp_path / "set"))
    for given in (made, tmp_path / "set"):
        found = read_samples(given, [X, Y])
        np.testing.assert_array_equal(np.concatenate([f["x"] for f in found.feeds]), ROWS)
        np.testing.assert_array_equal(np.concatenate([f["y"] for f in found.feeds]), KEYS)
    datasets.DatasetDict({"train": made, "test": made}).save_to_disk(str(tmp_path / "splits"))
    with pytest.raises(DataError, match="it holds the splits train, test: give one of them"):
        read_samples(tmp_path / "splits", [X, Y])


def test_a_saved_set_asks_for_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    (tmp_path / "dataset_info.json").write_text("{}")
    with pytest.raises(DataError, match=r"pip install 'inlay\[datasets\]'"):
        read_samples(tmp_path, [X])


# --- tables ----------------------------------------------------------------------------------------------------------


def table(folder: Path, text: str) -> Path:
    (folder / "t.csv").write_text(text, encoding="utf8")
    return folder / "t.csv"


@pytest.mark.parametrize(
    "text",
    ["a,b,c\n0,1,2\n3,4,5\n", "0,1,2\n3,4,5", "x_0;x_1;x_2\n0;1;2\n\n3;4;5", "x[0]\tx[1]\tx[2]\n0\t1\t2\n3\t4\t5"],
)
def test_rows_of_a_table_are_samples(tmp_path: Path, text: str) -> None:
    found = read_samples(table(tmp_path, text), [X])
    np.testing.assert_array_equal(np.concatenate([f["x"] for f in found.feeds]), ROWS[:2])


def test_columns_are_named_for_inputs_in_any_order(tmp_path: Path) -> None:
    one = InputSpec("n", np.dtype(np.int64), ("batch",))
    cube = InputSpec("z", np.dtype(np.float32), (1, 2, "k"))
    found = read_samples(table(tmp_path, "z.0,n,z.1,z.2,z.3\n0,7,1,2,3\n4,8,5,6,7\n"), [one, cube])
    assert [f["n"].tolist() for f in found.feeds] == [[7], [8]]
    np.testing.assert_array_equal(found.feeds[1]["z"], np.arange(4, 8).reshape(1, 2, 2))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a,b,c\n1,2,red\n", "row 2: column c holds 'red', no number"),
        ("a,b,c\n1,,3\n", "row 2: column b holds '', no number"),
        ("a,b,c\n1,nan,3\n", "row 2: column b holds 'nan', no number"),
        ("1,2,3\n4,5\n", "row 2: 2 cells, but there are 3 columns"),
        ("a,b\n1,2\n", "2 columns do not make up input x"),
        (",a,b,c\n0,1,2,3\n", "leave out what is no input of the model, such as row numbers or a target"),
        (",x_0,x_1,x_2\n0,1,2,3\n", "no input for column 1, which has no name: leave the column out"),
        (",a,b\n1,2,red\n", "row 2: column b holds 'red', no number"),
        ("x_0,x_1,x_2,species\n1,2,3,4\n", "the model has no input species"),
        ("species,x_0,x_1,x_2\n1,2,3,4\n", "the model has no input species: leave the column out"),
        ("", "holds no rows"),
        ("a,b,c\n", "holds no samples"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(DataError) as error:
        read_samples(table(tmp_path, text), [X])
    assert words in str(error.value)


def test_columns_of_text_are_for_inputs_of_strings(tmp_path: Path) -> None:
    """As models of data frames take them, an input a column."""
    age = InputSpec("age", np.dtype(np.float32), ("n", 1))
    city = InputSpec("city", np.dtype(object), ("n", 1))
    found = read_samples(table(tmp_path, 'city,age\nLima,31\n"Bonn, am Rhein",7\n'), [age, city])
    assert [(f["age"].tolist(), f["city"].tolist()) for f in found.feeds] == [
        ([[31.0]], [["Lima"]]),
        ([[7.0]], [["Bonn, am Rhein"]]),
    ]
    with pytest.raises(DataError, match="row 2: 1 cells"):
        read_samples(table(tmp_path, "city,age\nLima\n"), [age, city])


def test_whole_numbers_stay_whole(tmp_path: Path) -> None:
    large = 2**53 + 1
    found = read_samples(table(tmp_path, f"y_0,y_1\n{large},2\n"), [Y])
    assert found.feeds[0]["y"].tolist() == [[large, 2]]
    with pytest.raises(DataError, match=r"holds '1\.5', no whole number that int64 holds"):
        read_samples(table(tmp_path, "y_0,y_1\n1.5,2\n"), [Y])


# --- sounds ----------------------------------------------------------------------------------------------------------

RATE = 16000
SOUND = InputSpec("audio", np.dtype(np.float32), (1, 4000))
BANDS = InputSpec("mel", np.dtype(np.float32), (1, 1, 40, "frames"))


def save_sound(path: Path, sound: np.ndarray, rate: int = RATE, width: int = 2, channels: int = 1) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(width)
        file.setframerate(rate)
        whole = np.round(sound * (2 ** (8 * width - 1) - 1)).astype("<i4")
        raw = (whole + 128).astype(np.uint8) if width == 1 else whole.reshape(-1, 1).view(np.uint8)[:, :width]
        file.writeframes(np.ascontiguousarray(raw).tobytes())


def tone(hertz: float, count: int = 10000) -> np.ndarray:
    found: np.ndarray = 0.5 * np.sin(2 * np.pi * hertz * np.arange(count) / RATE)
    return found


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_sounds_of_each_width_are_the_numbers_that_were_written(tmp_path: Path, width: int) -> None:
    stereo = np.stack([tone(440, 800), tone(440, 800)], axis=1).reshape(-1)
    save_sound(tmp_path / "a.wav", stereo, width=width, channels=2)
    sound, rate = read_wav(tmp_path / "a.wav")
    assert rate == RATE
    np.testing.assert_allclose(sound, tone(440, 800), atol=2.0 ** (2 - 8 * width) + 1e-6)


def test_a_folder_of_sounds_through_a_front_end(tmp_path: Path) -> None:
    save_sound(tmp_path / "b.wav", tone(440))
    save_sound(tmp_path / "a.WAV", tone(880, 3000))
    found = read_samples(f"waveform:{tmp_path}", [SOUND])
    assert len(found) == 1 + 3, "a short one is filled up, a long one cut"
    np.testing.assert_allclose(found.feeds[0]["audio"][0, :3000], tone(880, 3000), atol=1e-4)
    assert not found.feeds[0]["audio"][0, 3000:].any()
    np.testing.assert_allclose(found.feeds[2]["audio"][0], tone(440)[4000:8000], atol=1e-4)
    assert [p.name for p in files_of(f"waveform:{tmp_path}")] == ["a.WAV", "b.wav"]
    loud = [feed["mel"][0, 0].mean(axis=1).argmax() for feed in read_samples(f"log-mel:{tmp_path}", [BANDS]).feeds]
    assert loud[0] > loud[1], "the higher tone is in a higher band"


def test_log_mel_is_what_its_description_says() -> None:
    """By sums over the definition, frame by frame and band by band."""
    sound, rng = tone(1000, 1200).astype(np.float32), np.random.default_rng(0)
    sound += rng.normal(0, 0.01, len(sound)).astype(np.float32)
    window, hop, bands, floor = 200, 80, 20, 1e-6
    found = log_mel(sound, RATE, bands, {"window": window, "hop": hop, "floor": floor})
    whole = np.concatenate([sound[1:101][::-1], sound, sound[-101:-1][::-1]]).astype(np.float64)
    assert found.shape == (bands, (len(whole) - window) // hop + 1)
    points = [700 * (10 ** (m / 2595) - 1) for m in np.linspace(0, 2595 * np.log10(1 + 8000 / 700), bands + 2)]
    for frame, band in ((0, 3), (5, 9), (14, 19)):
        part = [whole[frame * hop + t] * (0.5 - 0.5 * np.cos(2 * np.pi * t / window)) for t in range(window)]
        energy = 0.0
        for k in range(window // 2 + 1):
            hertz = k * RATE / window
            low, peak, high = points[band : band + 3]
            weight = max(0.0, min((hertz - low) / (peak - low), (high - hertz) / (high - peak)))
            total = sum(p * np.exp(-2j * np.pi * k * t / window) for t, p in enumerate(part))
            energy += weight * abs(total) ** 2
        assert found[band, frame] == pytest.approx(np.log(energy + floor), rel=1e-4)


def test_a_front_end_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sounds = tmp_path / "sounds"
    sounds.mkdir()
    save_sound(sounds / "a.wav", tone(440))
    (tmp_path / "mine_of_sounds.py").write_text("def ends(sound, rate):\n    return sound[:rate // 4][None]\n")
    monkeypatch.chdir(tmp_path)
    found = read_samples(f"mine_of_sounds:ends:{sounds}", [SOUND])
    np.testing.assert_allclose(found.feeds[0]["audio"][0], tone(440)[:4000], atol=1e-4)


def test_wrong_sounds_are_refused_in_one_line(tmp_path: Path) -> None:
    def refused(words: str, data: str, spec: InputSpec = SOUND) -> None:
        with pytest.raises(InlayError) as error:
            read_samples(data, [spec])
        assert words in str(error.value), str(error.value)
        assert "\n" not in str(error.value)

    refused("holds no .wav files", f"waveform:{tmp_path}")
    save_sound(tmp_path / "a.wav", tone(440))
    refused("say what the model takes of them: --data waveform:", str(tmp_path))
    refused("takes numbers above 0 for rate", f"waveform,hop=1:{tmp_path}")
    refused("rate=-1", f"waveform,rate=-1:{tmp_path}")
    refused("has 16000 samples a second, not 8000: resample it", f"waveform,rate=8000:{tmp_path}")
    refused("is no sound of one channel", f"waveform:{tmp_path}", IMAGE)
    refused("does not say how many bands", f"log-mel:{tmp_path}", InputSpec("m", np.dtype(np.float32), (1, "a", "b")))
    save_sound(tmp_path / "b.wav", tone(440), rate=8000)
    refused("b.wav has 8000 samples a second, not 16000", f"waveform:{tmp_path}")
    (tmp_path / "b.wav").write_bytes(b"RIFF" + json.dumps({"no": "sound"}).encode())
    refused("b.wav cannot be read as a sound", f"waveform:{tmp_path}")


IMAGE = InputSpec("image", np.dtype(np.float32), (1, 3, 8))

"""A folder of ``.wav`` files as the samples of a model with one input, through a front end that is named.

``waveform:FOLDER`` gives the sound itself, between -1 and 1; ``log-mel:FOLDER`` the natural logarithm of the energies
in mel bands (HTK's scale, triangles without norm; a periodic Hann window, frames centred with reflected ends), plus
``floor``. Options follow after commas, ``log-mel,window=400,hop=160:FOLDER``. ``module:function:FOLDER`` calls a
function of the user's with the sound (float32, mono) and its rate, for each file.

Where the model fixes a length, files are cut into pieces of that length, the last one filled up with silence.
"""

from __future__ import annotations

import io
import math
import re
import wave
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inlay.data.samples import Feed, InputSpec
from inlay.errors import DataError, UsageError
from inlay.files import read_bytes

_MOST_BYTES = 1 << 30  # of all sounds together
_NAMED = re.compile(r"(waveform|log-mel)((?:,\w+=[\w.\-]+)*):(.+)")
_OWN = re.compile(r"([\w.]+:\w+):(.+)")
_USUAL = {"waveform": {"rate": 0.0}, "log-mel": {"rate": 0.0, "window": 400.0, "hop": 160.0, "floor": 1e-6}}
"""Options of front ends; a rate of 0 takes any, as long as it is the same in all files."""


@dataclass(frozen=True)
class Sounds:
    """A folder with the front end that it is read through."""

    text: str  # as it was given
    folder: Path
    name: str  # of the front end, or of the user's function
    options: dict[str, float]  # of the front end

    @property
    def files(self) -> list[Path]:
        """The sounds in the folder and those below it, in the order of their paths."""
        return sound_files(self.folder)


def sound_files(folder: Path) -> list[Path]:
    """The ``.wav`` files in a folder and those below it, in the order of their paths."""
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() == ".wav" and p.is_file())


def sounds_in(text: str) -> Sounds | None:
    """The folder and front end that ``text`` names; None where it names something else. Raises UsageError."""
    if (own := _OWN.fullmatch(text)) is not None and Path(own[2]).is_dir():
        return Sounds(text, Path(own[2]), own[1], {"rate": 0.0})
    if (found := _NAMED.fullmatch(text)) is None:
        return None
    options = dict(_USUAL[found[1]])
    for name, value in (part.split("=", 1) for part in found[2].split(",")[1:]):
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if name not in options or not 0.0 < number < 1e9:
            raise UsageError(
                f"--data {text}: {name}={value}: {found[1]} takes numbers above 0 for {', '.join(options)}"
            )
        options[name] = number
    return Sounds(text, Path(found[3]), found[1], options)


def read_sounds(
    wish: Sounds, specs: Sequence[InputSpec], own: Callable[[np.ndarray, int], np.ndarray] | None
) -> list[Feed]:
    """The samples that the files make.

    Args:
        specs: the inputs, of which there must be one.
        own: the user's function, where ``wish`` names one.

    Raises:
        DataError: there are no files, one is no sound that can be read, or they do not fit the input.
    """
    where = f"--data {wish.text}"
    if not wish.files:
        raise DataError(f"{where}: {wish.folder} holds no .wav files")
    if len(specs) != 1 or specs[0].dims is None:
        names = ", ".join(s.name for s in specs)
        raise DataError(f"{where}: sounds are for a model with one input; this one takes {names}: give .npz files")
    if sum(path.stat().st_size for path in wish.files) > _MOST_BYTES:
        raise DataError(f"{where}: the sounds take more than {_MOST_BYTES >> 30} GiB: give fewer")
    wanted, feeds = int(wish.options["rate"]), list[Feed]()
    for path in wish.files:
        sound, rate = read_wav(path)
        wanted = wanted or rate
        if rate != wanted:
            raise DataError(f"{where}: {path} has {rate} samples a second, not {wanted}: resample it, or leave it out")
        if own is not None:
            feeds.append({specs[0].name: own(sound, rate)})
            continue
        pieces = _waves(sound, specs[0]) if wish.name == "waveform" else _bands(sound, rate, wish.options, specs[0])
        feeds += [{specs[0].name: piece} for piece in pieces]
    return feeds


def read_wav(path: Path) -> tuple[np.ndarray, int]:
    """The sound in a PCM file, float32 between -1 and 1, its channels averaged, and samples per second.

    Raises:
        DataError: it is none, is compressed, or is shorter than it says.
    """
    try:
        with wave.open(io.BytesIO(read_bytes(path, _MOST_BYTES)), "rb") as file:
            channels, width, rate = file.getnchannels(), file.getsampwidth(), file.getframerate()
            raw = file.readframes(file.getnframes())
    except (wave.Error, EOFError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a sound: {error or 'it ends too early'}") from error
    if not raw or rate <= 0 or channels < 1 or len(raw) % (width * channels):
        raise DataError(f"{path} cannot be read as a sound: it holds no whole frames")
    if width == 1:
        sound = np.frombuffer(raw, np.uint8).astype(np.float32) / 128 - 1
    elif width == 3:
        padded = np.zeros((len(raw) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        sound = padded.reshape(-1).view("<i4").astype(np.float32) / 2**31
    else:
        sound = np.frombuffer(raw, f"<i{width}").astype(np.float32) / 2 ** (8 * width - 1)
    mono: np.ndarray = sound.reshape(-1, channels).mean(axis=1, dtype=np.float32)
    return mono, rate


def _waves(sound: np.ndarray, spec: InputSpec) -> Iterator[np.ndarray]:
    dims = spec.dims or ()
    if not dims or any(size not in (1,) and not isinstance(size, str) for size in dims[:-1]):
        raise DataError(f"waveform: input {spec} is no sound of one channel: give .npz files")
    for piece in _pieces(sound, dims[-1], 0.0):
        yield piece.reshape((1,) * (len(dims) - 1) + (-1,))


def _bands(sound: np.ndarray, rate: int, options: dict[str, float], spec: InputSpec) -> Iterator[np.ndarray]:
    dims = spec.dims or ()
    sizes = dims[-2:]
    likely = [size for size in sizes if isinstance(size, int) and 8 <= size <= 256]
    if len(dims) < 2 or not likely:
        raise DataError(f"log-mel: input {spec} does not say how many bands it takes: give .npz files")
    count = min(likely)  # a piece has more frames than bands
    bands_first = sizes[0] == count
    frames = sizes[1] if bands_first else sizes[0]
    for piece in _pieces(log_mel(sound, rate, count, options), frames, float(np.log(options["floor"]))):
        turned = piece if bands_first else piece.T
        yield turned.reshape((1,) * (len(dims) - 2) + turned.shape)


def log_mel(sound: np.ndarray, rate: int, bands: int, options: dict[str, float]) -> np.ndarray:
    """Logarithms of mel energies, float32, bands by frames; see the module's docstring for what is computed."""
    window, hop = int(options["window"]), int(options["hop"])
    half = window // 2
    padded = np.pad(sound.astype(np.float64), half, mode="reflect" if len(sound) > half else "constant")
    frames = np.lib.stride_tricks.sliding_window_view(padded, window)[::hop]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    power = np.abs(np.fft.rfft(frames * hann, axis=1)) ** 2
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + rate / 2 / 700), bands + 2) / 2595) - 1)
    at = np.fft.rfftfreq(window, 1 / rate)
    rising = (at[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - at[None]) / (edges[2:] - edges[1:-1])[:, None]
    mel = np.maximum(0.0, np.minimum(rising, falling)) @ power.T
    found: np.ndarray = np.log(mel + options["floor"]).astype(np.float32)
    return found


def _pieces(array: np.ndarray, length: int | str, silence: float) -> Iterator[np.ndarray]:
    """``array`` whole, or cut along its last axis into pieces of ``length``."""
    if isinstance(length, str):
        yield array
        return
    whole = -(-array.shape[-1] // length) * length
    more = [(0, 0)] * (array.ndim - 1) + [(0, whole - array.shape[-1])]
    filled = np.pad(array, more, constant_values=silence)
    yield from np.split(filled, whole // length, axis=-1)

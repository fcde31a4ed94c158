"""A folder of images as the samples of a model with one input.

What the options do not say follows from the input: its size, its layout, its channels. The files come from strangers:
only decoders of plain raster formats are used (Pillow's others start programs), and an image says how large it is
before it is decoded.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from inlay.data.left_out import LeftOut
from inlay.data.samples import InputSpec
from inlay.errors import DataError, UsageError
from inlay.files import opened

if TYPE_CHECKING:
    from PIL import Image

_FORMATS = {
    ".bmp": "BMP", ".gif": "GIF", ".jpeg": "JPEG", ".jpg": "JPEG", ".png": "PNG", ".ppm": "PPM", ".tif": "TIFF",
    ".tiff": "TIFF", ".webp": "WEBP",
}  # fmt: skip
"""Pillow's names of formats, by suffix."""
_MOST_PIXELS = 64_000_000  # of one image: some 0.25 GB once decoded. Cameras make up to that; bombs declare billions.
_MOST_BYTES = 4 << 30
"""Of all images as arrays, which are in memory together. A run uses some four thousand samples at most."""
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # pillow's modes by the number of channels
_LONGEST = 8  # times that an image is longer than it is wide, at most, unless the layout is given
_LAYOUTS = ("NCHW", "NHWC")
_ORDERS = ("rgb", "bgr")
_FITS = ("stretch", "crop", "pad")


@dataclass(frozen=True)
class Images:
    """How images become arrays: ``(pixel / 255 * top - mean) / std``, per channel. None: as the model's input says.

    Attributes:
        size: ``224`` or ``HEIGHTxWIDTH``, in pixels.
        mean, std: one number, or one for each channel behind commas, in the order of the array's channels.
        top: what the brightest pixel becomes before ``mean`` and ``std``.
        layout: ``NCHW`` or ``NHWC``.
        order: of the colours: ``rgb`` or ``bgr``.
        fit: how an image of another shape fills the size: ``stretch``, ``crop`` its middle, or ``pad`` with black.
    """

    size: str | None = None
    mean: str | Sequence[float] | None = None
    std: str | Sequence[float] | None = None
    top: float | None = None
    layout: str | None = None
    order: str | None = None
    fit: str | None = None


@dataclass(frozen=True, kw_only=True)
class _Form:
    """:class:`Images`, checked and completed."""

    size: tuple[int, int]
    channels: int
    mean: np.ndarray
    std: np.ndarray
    top: float
    channels_first: bool
    reverse: bool
    fit: str


def image_files(folder: Path) -> list[Path]:
    """The images in a folder and those below it, by their suffixes, in the order of their paths."""
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in _FORMATS and p.is_file())


def read_images(
    files: Sequence[Path], specs: Sequence[InputSpec], wish: Images, where: str, left: LeftOut
) -> dict[str, np.ndarray]:
    """Images as one array by the name of the model's input; its first axis counts them.

    Args:
        specs: the inputs, of which there must be one.
        where: names the folder in messages.
        left: hears of files with several pictures.

    Raises:
        UsageError: an option is wrong, is missing, or contradicts the model's input.
        DataError: Pillow is not installed, a file is no image that can be read, or there are too many.
    """
    try:
        from PIL import Image  # noqa: F401  # here, and not at the first file
    except ImportError:
        raise DataError(f"{where} holds images, which need Pillow: pip install 'inlay[images]'") from None
    if len(specs) != 1:
        names = ", ".join(s.name for s in specs)
        raise DataError(f"{where} holds images, but the model has the inputs {names}: give .npz files")
    spec = specs[0]
    form = _form(spec, wish, where)
    height, width = form.size
    shape = (form.channels, height, width) if form.channels_first else (height, width, form.channels)
    if len(files) * math.prod(shape) * spec.dtype.itemsize > _MOST_BYTES:
        raise DataError(f"{where}: {len(files)} images take more than {_MOST_BYTES >> 30} GiB as arrays: give fewer")
    stacked = np.empty((len(files), *shape), spec.dtype)
    for row, file in zip(stacked, files, strict=True):
        row[...] = _array(_pixels(file, form, left), form, spec.dtype)
    return {spec.name: stacked}


def _form(spec: InputSpec, wish: Images, where: str) -> _Form:
    if spec.dims is None or len(spec.dims) not in (3, 4) or spec.dtype.kind not in "fui":
        raise DataError(f"{where} holds images, but input {spec} is not one: give .npz files")
    dims = spec.dims[-3:]
    said = _choice(wish.layout, _LAYOUTS, "layout")
    first = said or _layout(dims, spec)
    channels, height, width = dims if first == "NCHW" else (dims[2], dims[0], dims[1])
    if said is None and not _looks_like_images(len(spec.dims), channels, height, width):
        raise UsageError(
            f"{where} holds images, but input {spec} looks like features, not like an image: give .npz files, or "
            f"--preprocess layout={first} if it is one"
        )
    count = channels if isinstance(channels, int) else 3
    if count not in _MODES:
        raise UsageError(f"--preprocess layout={first}: input {spec} has {count} channels; images have 1, 3 or 4")
    order = _choice(wish.order, _ORDERS, "order")
    size = _size(wish.size, (height, width), spec)
    integers = spec.dtype.kind in "ui"
    top = wish.top if wish.top is not None else 255.0 if integers else 1.0
    limit = np.iinfo(spec.dtype).max if integers else math.inf
    if not 0 < top <= limit:
        raise UsageError(f"--preprocess top={top:g}: give a number above 0 that a {spec.dtype.name} can hold")
    mean, std = _numbers(wish.mean, count, "mean", 0.0), _numbers(wish.std, count, "std", 1.0)
    if (std == 0).any():
        raise UsageError("--preprocess std: it divides, and must not be 0")
    if integers and ((mean != 0).any() or (std != 1).any()):
        raise UsageError(f"--preprocess: mean and std are for floats; input {spec} takes the pixels as they are")
    fit = _choice(wish.fit, _FITS, "fit") or _FITS[0]
    return _Form(
        size=size,
        channels=count,
        mean=mean,
        std=std,
        top=top,
        channels_first=first == "NCHW",
        reverse=order == "bgr" and count >= 3,
        fit=fit,
    )


def _layout(dims: Sequence[int | str], spec: InputSpec) -> str:
    """Where the channels are: at the one end of three axes that has as many as images have, four last."""
    for counts in ((1, 3), (4,)):
        first, last = dims[0] in counts, dims[2] in counts
        if first != last:
            return _LAYOUTS[0] if first else _LAYOUTS[1]
    raise UsageError(f"input {spec} does not say where its channels are: give --preprocess layout=NCHW or layout=NHWC")


def _looks_like_images(rank: int, channels: int | str, height: int | str, width: int | str) -> bool:
    """Whether an input is an image, and not features over time: (1, 16, 96), or (1, 1, 80, 3000)."""
    sides = [side for side in (height, width) if isinstance(side, int)]
    return (rank == 4 or channels != 1) and (len(sides) < 2 or max(sides) <= _LONGEST * min(sides))


def _size(wish: str | None, dims: tuple[int | str, int | str], spec: InputSpec) -> tuple[int, int]:
    if wish is None:
        height, width = dims
        if isinstance(height, str) or isinstance(width, str):
            raise UsageError(f"input {spec} takes images of any size: give --preprocess size=HEIGHTxWIDTH")
        return height, width
    parts = str(wish).lower().split("x")
    if len(parts) > 2 or not all(p.isdecimal() and len(p) < 6 and int(p) for p in parts):
        raise UsageError(f"--preprocess size={wish}: give pixels, such as 224 or 480x640 (height x width)")
    size = int(parts[0]), int(parts[-1])
    if any(isinstance(d, int) and d != n for d, n in zip(dims, size, strict=True)):
        raise UsageError(f"--preprocess size={wish}: input {spec} has a different size")
    return size


def _numbers(wish: str | Sequence[float] | None, count: int, option: str, default: float) -> np.ndarray:
    given: Any = wish.split(",") if isinstance(wish, str) else [default] if wish is None else wish
    try:
        found: np.ndarray = np.atleast_1d(np.asarray(given, dtype=object)).astype(np.float32)
    except (TypeError, ValueError):
        found = np.full(1, np.nan, np.float32)
    if found.ndim != 1 or len(found) not in (1, count) or not np.isfinite(found).all():
        raise UsageError(
            f"--preprocess {option}={wish}: give one number, or {count} separated by commas, such as 0.485,0.456,0.406"
        )
    return found


def _choice(wish: str | None, known: Sequence[str], option: str) -> str | None:
    found = next((k for k in known if wish is not None and k.lower() == str(wish).lower()), None)
    if wish is not None and found is None:
        raise UsageError(f"--preprocess {option}={wish}: give {', '.join(known)}")
    return found


def _pixels(file: Path, form: _Form, left: LeftOut) -> np.ndarray:
    """Height, width and channels of uint8."""
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with opened(file) as raw, Image.open(raw, formats=sorted(set(_FORMATS.values()))) as image:
                if image.width * image.height > _MOST_PIXELS:
                    raise ValueError(f"it has {image.width}x{image.height} pixels")
                if image.mode[0] in "IF":
                    raise ValueError("its pixels have more than 8 bits: convert it to 8")
                whole = ImageOps.exif_transpose(image).convert(_MODES[form.channels])
                # what is behind the first picture may be damaged
                with contextlib.suppress(OSError, ValueError, SyntaxError):
                    if getattr(image, "is_animated", False):
                        left.further_pictures()
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{file} cannot be read as an image: {error.strerror or error}") from error
    except Exception as error:  # decoders raise many types on damaged bytes
        raise DataError(f"{file} cannot be read as an image: {error or type(error).__name__}") from error
    found: np.ndarray = np.asarray(_fitted(whole, form), np.uint8)
    return found.reshape(*form.size, form.channels)


def _fitted(image: Image.Image, form: _Form) -> Image.Image:
    from PIL import Image, ImageOps

    size, bilinear = form.size[::-1], Image.Resampling.BILINEAR
    if form.fit == "crop":
        return ImageOps.fit(image, size, bilinear)
    return ImageOps.pad(image, size, bilinear) if form.fit == "pad" else image.resize(size, bilinear)


def _array(pixels: np.ndarray, form: _Form, dtype: np.dtype[Any]) -> np.ndarray:
    if form.reverse:
        pixels = np.concatenate([pixels[..., 2::-1], pixels[..., 3:]], axis=-1)
    if dtype.kind == "f" or form.top != 255:
        scaled = pixels.astype(np.float32) * np.float32(form.top / 255)
        pixels = (scaled - form.mean) / form.std if dtype.kind == "f" else np.rint(scaled)
    found: np.ndarray = pixels.transpose(2, 0, 1) if form.channels_first else pixels
    return found.astype(dtype)

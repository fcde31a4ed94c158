"""Folders of images as samples: an independent reading of the same pixels, and files that are not what they say."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inlay.data import Images, InputSpec, read_samples
from inlay.errors import DataError, InlayError, UsageError

CHW = InputSpec("x", np.dtype(np.float32), (1, 3, 4, 6))
HWC = InputSpec("x", np.dtype(np.float32), ("n", 4, 6, 3))
ANY = InputSpec("x", np.dtype(np.float32), (1, "c", "h", "w"))
GRAY = InputSpec("x", np.dtype(np.float32), (1, 1, 4, 6))
BYTES = InputSpec("x", np.dtype(np.uint8), (1, 4, 6, 3))


@pytest.fixture
def pixels() -> np.ndarray:
    """Three images of uint8, 4 x 6."""
    return np.random.default_rng(0).integers(0, 256, (3, 4, 6, 3), np.uint8)


@pytest.fixture
def folder(tmp_path: Path, pixels: np.ndarray) -> Path:
    """The images without loss, one of them in a folder of its own, beside files that are none."""
    (tmp_path / "images" / "b").mkdir(parents=True)
    for name, image in zip(("a.png", "b/0.BMP", "c.tiff"), pixels, strict=True):
        Image.fromarray(image).save(tmp_path / "images" / name)
    (tmp_path / "images" / "labels.txt").write_text("0 1 2")
    return tmp_path / "images"


def read(folder: Path, spec: InputSpec, wish: Images | None = None) -> np.ndarray:
    return np.concatenate([f["x"] for f in read_samples(folder, [spec], wish).feeds])


def test_layout_and_size_follow_from_the_input(folder: Path, pixels: np.ndarray) -> None:
    want = pixels.astype(np.float64) / 255
    assert np.allclose(read(folder, HWC), want, atol=1e-6)
    assert np.allclose(read(folder, CHW), want.transpose(0, 3, 1, 2), atol=1e-6)
    assert np.array_equal(read(folder, BYTES), pixels)
    assert read_samples(folder, [CHW]).kind == "images"


@pytest.mark.parametrize("dims", [(1, 16, 96), ("batch", 1, 80, 3000), (16, 96, 1)])
def test_features_are_no_images_unless_it_is_said(folder: Path, dims: tuple[int | str, ...]) -> None:
    """Negative control: four dimensions with sides of about one length, or three with colors, are."""
    spec = InputSpec("x", np.dtype(np.float32), dims)
    with pytest.raises(UsageError, match="looks like features, not like an image: give") as caught:
        read(folder, spec)
    assert "\n" not in str(caught.value)
    wish = Images(layout="NHWC" if dims[-1] == 1 else "NCHW")
    assert len(read_samples(folder, [spec], wish)) == 3
    for image in ((1, 1, 16, 96), (3, 16, 96), (1, 28, 28, 1)):
        assert len(read(folder, InputSpec("x", np.dtype(np.float32), image))) in (1, 3, 9)


def test_mean_std_order_and_range(folder: Path, pixels: np.ndarray) -> None:
    wish = Images(mean=(103.5, 116, 123.7), std="57,58,59", top=255, order="bgr")
    want = (pixels[..., ::-1].astype(np.float64) - [103.5, 116, 123.7]) / [57, 58, 59]
    assert np.allclose(read(folder, HWC, wish), want, atol=1e-5)


def test_what_the_input_leaves_open(folder: Path, pixels: np.ndarray) -> None:
    with pytest.raises(UsageError, match="--preprocess layout=NCHW or layout=NHWC"):
        read(folder, ANY)
    with pytest.raises(UsageError, match="--preprocess size=HEIGHTxWIDTH"):
        read(folder, ANY, Images(layout="nchw"))
    found = read(folder, ANY, Images(layout="nchw", size="4x6"))
    assert np.allclose(found, pixels.transpose(0, 3, 1, 2) / 255.0, atol=1e-6)
    assert read(folder, ANY, Images(layout="nchw", size="8")).shape == (3, 3, 8, 8)


def test_fit(tmp_path: Path) -> None:
    wide = np.zeros((4, 8, 3), np.uint8)
    wide[:, 2:6] = 255  # the middle is white, the sides are black
    Image.fromarray(wide).save(tmp_path / "wide.png")
    square = InputSpec("x", np.dtype(np.float32), (1, 4, 4, 3))
    assert read(tmp_path, square, Images(fit="crop")).min() == 1
    padded = read(tmp_path, square, Images(fit="pad"))[0]
    assert padded[[0, 3]].max() == 0
    assert padded[1:3].max() > 0.8
    assert 0.3 < read(tmp_path, square, Images(fit="stretch")).mean() < 0.7


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr"])
@pytest.mark.parametrize("spec", [CHW, GRAY])
def test_every_mode(mode: str, spec: InputSpec, tmp_path: Path) -> None:
    suffix = "tiff" if mode in ("CMYK", "YCbCr") else "png"
    Image.new("RGB", (6, 4), (255, 255, 255)).convert(mode).save(tmp_path / f"a.{suffix}")
    assert np.allclose(read(tmp_path, spec), 1.0, atol=0.02)


@pytest.mark.parametrize(
    ("spec", "wish", "word"),
    [
        (CHW, Images(size="5x6"), "--preprocess size=5x6"),
        (CHW, Images(size="0x6"), "--preprocess size=0x6"),
        (CHW, Images(size="1x2x3"), "--preprocess size=1x2x3"),
        (CHW, Images(size="999999x9"), "--preprocess size=999999x9"),
        (CHW, Images(mean="1,2"), "--preprocess mean=1,2"),
        (CHW, Images(mean="a"), "--preprocess mean=a"),
        (CHW, Images(mean="nan"), "--preprocess mean=nan"),
        (CHW, Images(std="0"), "--preprocess std"),
        (CHW, Images(std=(1, 0, 1)), "--preprocess std"),
        (CHW, Images(top=0), "--preprocess top"),
        (CHW, Images(top=float("nan")), "--preprocess top"),
        (BYTES, Images(top=256), "--preprocess top"),
        (BYTES, Images(mean="1"), "mean and std are for floats"),
        (CHW, Images(layout="NCWH"), "--preprocess layout=NCWH"),
        (CHW, Images(layout="NHWC"), "--preprocess layout=NHWC"),
        (CHW, Images(order="gbr"), "--preprocess order=gbr"),
        (CHW, Images(fit="zoom"), "--preprocess fit=zoom"),
    ],
)
def test_wrong_options(spec: InputSpec, wish: Images, word: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=word):
        read(folder, spec, wish)


def bomb(side: int) -> bytes:
    """A PNG that says that it has so many pixels in each direction, and holds next to none."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(99))) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [8_200, 10_000, 50_000, 2**31 - 1])
def test_an_image_too_large_to_decode(side: int, folder: Path) -> None:
    (folder / "bomb.png").write_bytes(bomb(side))
    with pytest.raises(DataError, match=r"bomb\.png cannot be read as an image") as error:
        read(folder, CHW)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"text", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 6 4\n", bomb(6)[:60]])
def test_a_file_that_is_no_image(content: bytes, folder: Path) -> None:
    (folder / "d.png").write_bytes(content)
    with pytest.raises(DataError, match=r"d\.png cannot be read as an image"):
        read(folder, CHW)


def test_a_truncated_image(folder: Path) -> None:
    Image.effect_noise((600, 400), 90).save(folder / "d.jpg")
    (folder / "d.jpg").write_bytes((folder / "d.jpg").read_bytes()[:5000])
    with pytest.raises(DataError, match=r"d\.jpg cannot be read as an image"):
        read(folder, CHW)


def test_more_than_8_bits(folder: Path) -> None:
    Image.fromarray(np.full((4, 6), 40_000, np.uint16)).save(folder / "d.png")
    with pytest.raises(DataError, match="more than 8 bits"):
        read(folder, CHW)


def test_models_that_take_no_image(folder: Path) -> None:
    tokens = InputSpec("ids", np.dtype(np.int64), (1, 5))
    with pytest.raises(DataError, match=r"give \.npz files"):
        read_samples(folder, [tokens])
    with pytest.raises(DataError, match="has the inputs x, ids"):
        read_samples(folder, [CHW, tokens])


def test_more_than_fits_into_memory(folder: Path) -> None:
    with pytest.raises(DataError, match="give fewer"):
        read(folder, ANY, Images(layout="NCHW", size="30000"))


def test_options_without_images(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 3, 4, 6), np.float32))
    for source in (tmp_path, tmp_path / "a.npz"):
        with pytest.raises(UsageError, match="only to --data FOLDER with images"):
            read_samples(source, [CHW], Images(mean="0"))


def test_without_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(InlayError, match=r"pip install 'inlay\[images\]'"):
        read(folder, CHW)


def test_further_pictures_and_other_files_are_told(folder: Path, pixels: np.ndarray) -> None:
    several = [Image.fromarray(image) for image in pixels]
    several[0].save(folder / "d.gif", save_all=True, append_images=several[1:])
    (folder / "e.heic").write_bytes(b"")
    assert read_samples(folder, [CHW]).left_out == (
        f"1 file was not used (1 .heic): the samples are the images in {folder}",
        "of 1 file with several pictures only the first one was used",
    )

"""Options that would change nothing are errors: a mistyped name must not pass for a setting."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from inlay.testing import Builder
from tests.support.command_line import FAST, RunCommand, failed, nothing_written
from tests.support.fixtures import SaveModel

TUNE = ("tune", "M", "-o", "OUT", *FAST)
QUANTIZE = ("quantize", "M", "-o", "OUT", "--target", "null")
REGIONS = ("regions", "M", "--target", "null")
BENCH = ("bench", "M", "M", "--target", "null")
LOWER = ("lower", "M", "-o", "OUT.tosa")
SELECT = ("select", "OUT")


@pytest.mark.parametrize("command", [TUNE, QUANTIZE, REGIONS, BENCH, LOWER])
@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        (["foo=3"], "--bind foo=3"),
        (["H=8", "H=9"], "H is 8 already"),
        (["H=99999999999"], "--bind H=99999999999"),
        ([f"H={'9' * 5000}"], "--bind H="),
        (["H=²"], "--bind H=²"),
    ],
)
def test_sizes(command: tuple[str, ...], sizes: list[str], word: str, run: RunCommand, place: Place) -> None:
    failed(run(*place(command), *(part for size in sizes for part in ("--bind", size))), 2, word)
    nothing_written(place.out)


@pytest.mark.parametrize("command", [TUNE, QUANTIZE, REGIONS, BENCH])
def test_sizes_that_are_not_those_of_the_samples(command: tuple[str, ...], run: RunCommand, place: Place) -> None:
    outcome = run(*place(command), "--bind", "H=999", "--bind", "N=1", "--data", place.data)
    failed(outcome, 1, "x: float32 [1, 3, 999, 12]", "[1, 3, 12, 12]")
    nothing_written(place.out)


@pytest.mark.parametrize(
    ("command", "options", "word"),
    [
        (TUNE, ["--min-sqnr", "nan"], "--min-sqnr nan"),
        (TUNE, ["--min-sqnr", "inf"], "--min-sqnr inf"),
        (TUNE, ["--min-sqnr", "-inf"], "--min-sqnr -inf"),
        (TUNE, ["--min-sqnr", "-1e9"], "--min-sqnr -1e+09"),
        (SELECT, ["--min-sqnr", "nan"], "--min-sqnr nan"),
        (SELECT, ["--max-drop", "nan"], "--max-drop nan"),
        (SELECT, ["--max-drop", "9" * 400], "--max-drop"),
        (TUNE, ["--budget", "9" * 400], "--budget"),
        (TUNE, ["--data", "D", "--labels", "L", "--metric", "top1", "--max-drop", "nan"], "--max-drop"),
        (TUNE, ["--data", "D", "--labels", "L", "--metric", "top1", "--max-drop", "50"], "--max-drop 50"),
        (TUNE, ["--data", "D", "--labels", "L"], "--metric"),
        (TUNE, ["--data", "D", "--labels", "L", "--metric", "sqnr"], "--metric"),
        (TUNE, ["--threads", "3"], "--threads 3"),
        (TUNE, ["--keep-qparams"], "--keep-qparams"),
        (TUNE, ["--nodes", "nothing*"], "nothing*"),
        (REGIONS, ["--nodes", "nothing*"], "nothing*"),
        (QUANTIZE, ["--recipe", "name: {nothing: 1}"], "--recipe"),
        (QUANTIZE, ["--recipe", "{name: nothing*, config: float}"], "matches no node"),
        (QUANTIZE, ["--recipe", "{op_type: Nothing, config: float}"], "matches no operator type"),
        (QUANTIZE, ["--recipe", "{module: nothing/, config: float}"], "matches no node"),
        (QUANTIZE, ["--recipe", "{io: nothing, config: float}"], "matches no model input or output"),
        (QUANTIZE, ["--recipe", "{global: {activation: int, fly: true}}"], "fly"),
        (TUNE, ["--recipe", "{name: nothing*, config: float}"], "matches no node"),
    ],
)
@pytest.mark.matrix
def test_other_options(command: tuple[str, ...], options: list[str], word: str, run: RunCommand, place: Place) -> None:
    sized = () if command is SELECT else ("--bind", "H=12")
    failed(run(*place(command), *place(options), *sized), 2, word)
    nothing_written(place.out)


@pytest.mark.exhaustive
def test_a_drop_that_the_metric_cannot_make(run: RunCommand, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a metric with units of its own it is known once the float model has been judged."""
    (place.folder / "metric_of_half.py").write_text("def half(outputs, labels):\n    return 0.5\n")
    monkeypatch.syspath_prepend(place.folder)
    options = ("--data", place.data, "--metric", "metric_of_half:half", "--min-sqnr", "3", "--max-drop")
    failed(run(*place(TUNE), *options, "50"), 2, "--max-drop 50", "0.5")
    nothing_written(place.out)
    assert run(*place(TUNE), *options, "49%", "--accept-unproven").code == 0


class Place:
    """The files of a test: a model with dynamic dimensions, samples, labels; recipes are written as they are needed."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder, self.out, self.data = folder, folder / "out", folder / "samples.npz"
        self._files: dict[str, object] = {"M": model, "OUT": self.out, "OUT.tosa": folder / "out.tosa"}
        self._files |= {"D": self.data, "L": folder / "labels.npy"}
        np.savez(self.data, x=np.random.default_rng(0).standard_normal((6, 3, 12, 12)).astype(np.float32))
        np.save(folder / "labels.npy", np.zeros(6, np.int64))

    def __call__(self, arguments: tuple[str, ...] | list[str]) -> list[object]:
        found: list[object] = []
        for argument in arguments:
            if found[-1:] == ["--recipe"]:
                path = self.folder / "recipe.yaml"
                path.write_text(f"inlay-recipe: 1\nrules:\n  - {argument}\n")
                found.append(path)
            else:
                found.append(self._files.get(argument, argument))
        return found


@pytest.fixture
def place(save: SaveModel, tmp_path: Path) -> Place:
    b = Builder()
    x = b.conv("first", b.input("x", ("N", 3, "H", 12)), 4, relu=True)
    b.output(b.conv("second", x, 4))
    return Place(tmp_path, save(b.model()))


def test_images(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (8, 4)).save(folder / "a.png")
    b = Builder()
    b.output(b.node("relu", "Relu", [b.input("x", (1, 3, 4, 6))]))
    model, out = save(b.model()), tmp_path / "q.onnx"
    quantize = ("quantize", model, "-o", out, "--target", "null", "--recipe", "full-int8")
    told = tmp_path / "preprocess.yaml"
    told.write_text("mean: [0.5, 0.4, 0.3]\nfit: crop\ntop: 255\n")
    assert run(*quantize, "--data", folder, "--preprocess", told).code == 0
    whole = out.read_bytes()
    code, _, said = run(*quantize, "--data", folder, "--mean", "0.5,0.4,0.3", "--fit", "crop", "--pixel-max", "255")
    assert code == 0
    assert "--fit goes in 1.2: use --preprocess 'fit=crop'" in said
    assert out.read_bytes() == whole, "what each option said, the file says"
    for wrong, word in (
        ("mean=0.5,0.2", "mean=0.5,0.2: give one number, or 3"),
        ("maen=0.5", "there is no maen; did you mean mean?"),
        ("top=much", "top takes a number, not much"),
        (str(tmp_path / "absent.yaml"), "no such file"),
    ):
        failed(run(*quantize, "--data", folder, "--preprocess", wrong), 2 if "absent" not in wrong else 1, word)
    failed(run(*quantize, "--preprocess", "mean=0.5"), 2, "--data FOLDER")

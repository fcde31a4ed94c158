"""Trained models in FP16 with INT8 products keep 20 dB by the numeric reference, which rounds each result to halves."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.calibrate.tables import CalibrationChoice
from inlay.model.passes.half import rounded_halves
from inlay.prepare.halves import find_wide, keep_wide
from inlay.space.recipe import WEIGHTED
from inlay.targets.base import Capabilities, Feed
from inlay.targets.tensorrt.rules import RULES
from inlay.testing import run_reference
from tests.prepare.test_halves import planted, some
from tests.support.workspace import Workspace

BOUND_DB, CLEAR_DB = 20.0, 0.5  # which integers beside float32 keep, and by how much more
FORM = "fp16"
CALIBRATION, UNSEEN = 4, 2  # samples, from different sources
NAMES = (
    "mnist",
    "stm_mbv2_flowers",
    "ppocr_cls",
    "ultraface_rfb320_simplified",
    "fastestdet",
    "g2p_bert",
    "nnsplit_en",
    "basic_pitch",
    "yolox_nano",
    "deeplab_v3_mnv2",
)


class Judge:
    """SQNR of the worst output of a placement, over all samples, against the model in float32."""

    def __init__(self, space: Workspace, feeds: Sequence[Feed]) -> None:
        self._space, self._feeds = space, feeds
        self._table = CalibrationChoice("mse").table(space.prepared, space.observed)
        self._exact = self._outputs({})

    def _outputs(self, labels: Mapping[str, str]) -> list[dict[str, np.ndarray]]:
        model = rounded_halves(self._space.emit(self._space.prepared.label(labels), self._table))
        return [run_reference(model, feed) for feed in self._feeds]

    def db(self, labels: Mapping[str, str]) -> float:
        """With these precisions of units by name."""
        return self.of(self._outputs(labels))

    def of(self, found: Sequence[Mapping[str, np.ndarray]]) -> float:
        """Of these outputs."""
        worst = np.inf
        for name, first in self._exact[0].items():
            if first.dtype.kind == "f":
                want, got = (np.concatenate([o[name].ravel() for o in outputs]) for outputs in (self._exact, found))
                noise, signal = (float(np.square(x, dtype=float).sum()) for x in (want - got, want))
                worst = min(worst, 10.0 * np.log10(signal / max(noise, 1e-30 * signal)))
        return float(worst)


def opened(model: onnx.ModelProto, feeds: Sequence[Feed], folder: Path) -> Workspace:
    """Prepared as a run would for TensorRT, with what loses too much in FP16 left in float32."""
    space = Workspace(model, folder, Capabilities(RULES.on_base(FORM)), feeds=tuple(feeds))
    space.prepared = keep_wide(space.prepared, find_wide(space.prepared, space.feeds, BOUND_DB))
    return space


@pytest.mark.real_model
@pytest.mark.matrix
@pytest.mark.parametrize("name", NAMES)
def test_int8_beside_fp16_keeps_the_bound(name: str, real_models: Path, tmp_path: Path) -> None:
    """As many products in INT8 as the bound allows with float32 around them; FP16 around them keeps it as well."""
    calibration, unseen = importlib.import_module("feeds").feeds(name)
    model = onnx.load(real_models / f"{name}.onnx")
    space = opened(model, [dict(feed) for feed in calibration[:CALIBRATION]], tmp_path)
    judge = Judge(space, [dict(feed) for feed in unseen[:UNSEEN]])
    half = {u.name: FORM for u in space.prepared.units if FORM in u.forms}
    assert len(half) > len(space.prepared.kept_wide), "most of it computes in halves"
    alone = judge.db(half)
    assert alone >= BOUND_DB + 10.0, "nine tenths of the noise are left to integers"
    products = [u.name for u in space.prepared.selectable if u.op_type in WEIGHTED]
    np.random.default_rng(1).shuffle(products)
    beside_float = 0.0
    while products and beside_float < BOUND_DB + CLEAR_DB:
        static = dict.fromkeys(products, "static")
        beside_float = judge.db(static)
        products = products[: len(products) * 3 // 4]
    assert beside_float >= BOUND_DB + CLEAR_DB, "some products are in INT8"
    beside_half = judge.db({**half, **static})
    print(f"{name}: {beside_half:.1f} dB beside FP16 ({alone:.1f} dB alone), {beside_float:.1f} beside float32")
    assert beside_half >= BOUND_DB


def test_numbers_beyond_halves_lose_the_bound_where_they_are_not_kept_wide(tmp_path: Path) -> None:
    """The control: the reference shows an overflow, so that what it says of trained models is worth something."""
    space = opened(planted(60.0), [{"x": array} for array in some()], tmp_path)
    judge = Judge(space, space.feeds)
    half = {u.name: FORM for u in space.prepared.units if FORM in u.forms}
    assert space.prepared.kept_wide
    assert judge.db(half) >= BOUND_DB
    careless = Workspace(planted(60.0), tmp_path / "careless", Capabilities(RULES.on_base(FORM)), feeds=space.feeds)
    everything = careless.emit(careless.prepared.label({u.name: FORM for u in careless.prepared.units}))
    with np.errstate(invalid="ignore"):
        spoiled = judge.of([run_reference(rounded_halves(everything), feed) for feed in space.feeds])
    assert not spoiled >= BOUND_DB

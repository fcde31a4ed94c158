"""Runtimes compute random models as their files say, node by node; ``python -m tests.attack kernels`` draws more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.targets.base import Capabilities, Feed, TargetSpec
from inlay.targets.registry import create
from tests.attack.kernels import KINDS, difference, runs_on
from tests.support.runtime import run_plain

COUNT = 25


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("name", "options"), [("ort-cpu", {}), ("openvino-cpu", {"precision": "f32"})])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_random_models_are_computed_as_they_are_written(
    name: str, options: dict[str, str], kind: str, tmp_path: Path
) -> None:
    if name == "openvino-cpu":
        pytest.importorskip("openvino", reason="the extra openvino is not installed")
    target = create(TargetSpec(name, options))
    capabilities, runs = Capabilities.of(target), runs_on(target)
    found = [difference(seed, tmp_path / str(seed), capabilities, runs, KINDS[kind]) for seed in range(COUNT)]
    assert not any(found), "\n".join(filter(None, found))


def test_what_is_off_is_noticed(tmp_path: Path) -> None:
    """The control: a runtime that makes everything a fifth larger, and one that fails."""

    def larger(path: Path, feed: Feed) -> dict[str, np.ndarray]:
        return {name: 1.2 * array for name, array in run_plain(onnx.load(path), feed).items()}

    def failing(path: Path, feed: Feed) -> dict[str, np.ndarray]:
        raise ValueError("no")

    capabilities = Capabilities.of(create(TargetSpec("ort-cpu")))
    assert all("node by node" in difference(seed, tmp_path / f"a{seed}", capabilities, larger) for seed in range(5))
    assert "it fails" in difference(0, tmp_path / "b", capabilities, failing)

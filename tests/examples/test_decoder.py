"""The example of a decoder with a cache: perplexity and token agreement as metrics, caches in and out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from examples.decoder import evaluate, make, perplexity

import inlay

COUNT = 8


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decoder")
    make.main(folder, COUNT)
    return folder


def test_perplexity_is_the_inverse_of_the_geometric_mean_of_the_odds() -> None:
    odds = np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]])
    outputs = [{"logits": np.log(each)[None, None] + 7.0} for each in odds]
    assert perplexity.negative(outputs, np.array([0, 2])) == pytest.approx(-1 / np.sqrt(0.5 * 0.8))


def test_samples_hold_what_the_cache_really_held(made: Path) -> None:
    """Each sample's cache is that of the one before, one position on: the newest one is new."""
    samples = np.load(made / "samples.npz")
    keys = samples["past_key_values.0.key"]
    assert keys.shape[:1] == samples["input_ids"].shape[:1] == (COUNT,)
    np.testing.assert_array_equal(keys[1:, :, :, :-1], keys[:-1, :, :, 1:])
    np.testing.assert_array_equal(samples["input_ids"][1:].ravel(), np.load(made / "tokens.npy")[:-1])


@pytest.mark.parametrize(
    ("metric", "labels", "drop"),
    [("examples.decoder.perplexity:negative", "tokens.npy", 5), ("token-agreement", "", 0.5)],
)
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_a_run_goes_by_the_metric_and_its_model_feeds_on_its_own_cache(
    metric: str, labels: str, drop: float, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = inlay.tune(
        made / "decoder.onnx",
        out=tmp_path / "out",
        data=made / "samples.npz",
        labels=made / labels if labels else None,
        metric=metric,
        max_drop=drop,
        strategy="anchors",
        budget="none",
        max_measurements=2,
        cost_db=False,
    )
    verified = result.best.verification
    assert verified is not None
    assert verified.metric is not None
    assert verified.metric < 0.0 if labels else 0.0 <= verified.metric <= 1.0
    assert any(name.startswith("present.") for name in (o.name for o in verified.outputs)), "caches count for the SQNR"
    evaluate.main([str(made / "decoder.onnx"), str(result.model_path)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "100.0% of greedy tokens" in lines[0]

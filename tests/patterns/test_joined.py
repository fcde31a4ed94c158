"""Pattern caches over runs: every run leaves one, and a given one is tried before the budget can end."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from inlay.autotune import regions
from inlay.patterns.cache import PatternCache
from inlay.testing import small_model
from tests.run.test_end_to_end import cost, samples, tune
from tests.support.branches import branches
from tests.support.fixtures import SaveModel


@pytest.mark.parametrize("strategy", ["anchors", "auto"])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_every_run_leaves_a_cache(save: SaveModel, tmp_path: Path, strategy: str) -> None:
    """Also one whose budget ends before evolution has its turn."""
    model = small_model()
    tune(save(model), tmp_path / "out", data=samples(model), strategy=strategy, max_measurements=3)
    cache = PatternCache.load(tmp_path / "out" / "pattern_cache.yaml")
    patterns = [p for p in regions(save(model), target="null").patterns.values() if p.points]
    assert set(cache) == {p.signature for p in patterns}
    assert all(cache.entries(s)[0].speedup > 0 and cache.kinship(s).structure for s in cache)


@pytest.mark.exhaustive
def test_a_given_cache_is_tried_before_the_budget_can_end(save: SaveModel, tmp_path: Path) -> None:
    small, large = _at_side(16), _at_side(24)
    tune(save(small, "small.onnx"), tmp_path / "first", data=samples(small), strategy="evolve", max_measurements=30)
    cache = tmp_path / "first" / "pattern_cache.yaml"
    path = save(large, "large.onnx")
    result, data = tune(path, tmp_path / "second", data=samples(large), pattern_cache=cache, max_measurements=1)
    found = data["search"]["patterns"]
    assert found["known"] == found["total"]
    assert 0 < found["related"] <= found["known"]
    (note,) = (n for n in result.notes if n.startswith("pattern cache"))
    assert f"{found['known']} of {found['total']} patterns known, {found['related']} by structure" in note
    # node names are equal in both models, and so are the planted costs: the best of the one is the best of the other
    assert cost(result.model_path) <= cost(tmp_path / "first" / "model.onnx") * 1.0001


@pytest.mark.exhaustive
def test_what_a_cache_has_of_other_models_stays(save: SaveModel, tmp_path: Path) -> None:
    model, other = small_model(), branches()
    tune(save(other, "other.onnx"), tmp_path / "other", data=samples(other), strategy="anchors")
    given = tmp_path / "other" / "pattern_cache.yaml"
    tune(save(model), tmp_path / "out", data=samples(model), strategy="anchors", pattern_cache=given)
    assert set(PatternCache.load(given)) <= set(PatternCache.load(tmp_path / "out" / "pattern_cache.yaml"))


def _at_side(side: int) -> onnx.ModelProto:
    model = branches()
    for dimension in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dimension.dim_value = side
    return model

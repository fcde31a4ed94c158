"""What a user's function raises is told: a broken one ends the workflow, an accident is retried and counted."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from inlay.autotune import Config, QDQAutotuner, region_pattern_autotuning_workflow
from inlay.errors import RunFailed, UsageError
from tests.autotune.test_classic_loop import pairs
from tests.support.branches import branches

CONFIG = Config(schemes_per_region=6, confirmations=2)


def faster(path: Path) -> float:
    return 10.0 - 0.1 * pairs(path.read_bytes())


def failures_of(tuner: QDQAutotuner) -> set[str]:
    return {r.reason for region in tuner.regions for r in tuner.records_of(region) if r.failed}


@pytest.mark.parametrize("well", [1, 9])
@pytest.mark.exhaustive
def test_a_broken_function_ends_the_workflow_and_nothing_is_held_against_the_schemes(well: int, tmp_path: Path) -> None:
    calls = itertools.count(1)

    def broken(path: Path) -> float:
        if next(calls) <= well:
            return faster(path)
        return latencyy(path)  # type: ignore[name-defined, no-any-return]  # noqa: F821

    with pytest.raises(UsageError, match="NameError: name 'latencyy' is not defined") as caught:
        region_pattern_autotuning_workflow(branches(), tmp_path, broken, config=CONFIG)
    assert isinstance(caught.value.__cause__, NameError)
    assert next(calls) < well + 20, "it ends early"
    mended = region_pattern_autotuning_workflow(branches(), tmp_path, faster, config=CONFIG)
    assert mended.failed_readings == {}
    whole = region_pattern_autotuning_workflow(branches(), tmp_path / "whole", faster, config=CONFIG)
    assert mended.speedup == pytest.approx(whole.speedup)


@pytest.mark.parametrize("value", [None, "fast", [1.0, 2.0]])
def test_a_function_that_returns_no_number_is_broken(value: object, tmp_path: Path) -> None:
    calls = itertools.count()
    with pytest.raises(UsageError, match=r"measure returned .* where milliseconds are needed"):
        region_pattern_autotuning_workflow(
            branches(),
            tmp_path,
            lambda path: value if next(calls) else 10.0,  # type: ignore[arg-type, return-value]
            config=CONFIG,
        )


@pytest.mark.exhaustive
def test_the_first_reading_is_taken_as_all_are(tmp_path: Path) -> None:
    found = region_pattern_autotuning_workflow(
        branches(),
        tmp_path / "text",
        lambda path: str(faster(path)),  # type: ignore[arg-type, return-value]
        config=CONFIG,
    )
    assert found.speedup is not None
    assert found.speedup > 1
    with pytest.raises(UsageError, match="measure returned None where milliseconds are needed"):
        region_pattern_autotuning_workflow(branches(), tmp_path / "none", lambda path: None, config=CONFIG)  # type: ignore[arg-type, return-value]


def test_schemes_that_all_fail_do_not_end_the_workflow_where_float_runs(tmp_path: Path) -> None:
    """Negative control: the exceptions are the models', and are told with every scheme."""

    def only_float(path: Path) -> float:
        if pairs(path.read_bytes()):
            raise OSError(5, "the board hung")
        return 10.0

    with pytest.warns(UserWarning, match=r"readings failed: \d+ x OSError: .* the board hung"):
        tuner = region_pattern_autotuning_workflow(branches(), tmp_path, only_float, config=CONFIG)
    assert failures_of(tuner) == {"OSError: [Errno 5] the board hung"}
    assert "OSError: [Errno 5] the board hung" in (tmp_path / "state.yaml").read_text()
    assert tuner.speedup == 1.0


def test_declared_failures_are_not_retried(tmp_path: Path) -> None:
    seen: list[bytes] = []

    def declares(path: Path) -> float:
        seen.append(path.read_bytes())
        if pairs(seen[-1]):
            raise RunFailed("no kernel for it")
        return 10.0

    with pytest.warns(UserWarning, match="no kernel for it"):
        tuner = region_pattern_autotuning_workflow(branches(), tmp_path, declares, config=CONFIG)
    assert failures_of(tuner) == {"no kernel for it"}
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.exhaustive
def test_a_gain_is_found_though_half_of_the_readings_fail(seed: int, tmp_path: Path) -> None:
    rng, calls, failed = np.random.default_rng(seed), itertools.count(), 0

    def unreliable(path: Path) -> float:
        nonlocal failed
        if next(calls) and rng.random() < 0.5:
            failed += 1
            raise TimeoutError("no answer")
        return faster(path)

    with pytest.warns(UserWarning, match=r"\d+ readings failed: \d+ x TimeoutError: no answer"):
        tuner = region_pattern_autotuning_workflow(branches(), tmp_path, unreliable, config=CONFIG)
    assert tuner.speedup is not None
    assert tuner.speedup > 1.1
    assert tuner.failed_readings["TimeoutError: no answer"] > 0.8 * failed > 0
    assert tuner.speedup_low is not None


def test_what_fails_for_the_float_model_comes_through(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        region_pattern_autotuning_workflow(branches(), tmp_path, lambda _: 1 / 0, config=CONFIG)

"""What a machine says of heat is believed: a block during which it held the processor back does not count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inlay.data import save_feed
from inlay.measure import throttling
from inlay.measure.paired import Timing
from inlay.measure.throttling import Thermometer
from inlay.measure.worker import Service
from inlay.testing import random_feed, small_model
from tests.support.fixtures import SaveModel


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n")


X86 = "devices/system/cpu/cpu0/thermal_throttle/package_throttle_count"
FAN, CLOCK = "class/thermal/cooling_device0", "class/thermal/cooling_device1"
PI = "devices/platform/soc/soc:firmware/get_throttled"


@pytest.mark.parametrize(
    ("cool", "hot"),
    [
        ({X86: "3"}, {X86: "4"}),
        ({f"{CLOCK}/type": "thermal-cpufreq-0", f"{CLOCK}/cur_state": "0"}, {f"{CLOCK}/cur_state": "2"}),
        ({PI: "50000"}, {PI: "50004"}),
    ],
)
def test_each_way_in_which_systems_tell(cool: dict[str, str], hot: dict[str, str], tmp_path: Path) -> None:
    write(tmp_path, {**cool, f"{FAN}/type": "pwm-fan", f"{FAN}/cur_state": "3"})
    thermometer = Thermometer(tmp_path)
    before = thermometer.heat()
    assert not thermometer.heat().since(before), "a fan that runs, and what was before, are no reason"
    write(tmp_path, hot)
    assert thermometer.heat().since(before)


def test_clock_governor_and_temperature_are_told(tmp_path: Path) -> None:
    assert Thermometer(tmp_path).state() == {}
    policy = "devices/system/cpu/cpufreq/policy0"
    write(
        tmp_path,
        {
            f"{policy}/scaling_cur_freq": "1500000",
            f"{policy}/cpuinfo_max_freq": "2400000",
            f"{policy}/scaling_governor": "ondemand",
            "class/thermal/thermal_zone0/temp": "81234",
        },
    )
    assert Thermometer(tmp_path).state() == {
        "clock": "1.50 of 2.40 GHz",
        "governor": "ondemand",
        "temperature": "81 °C",
    }


@pytest.mark.parametrize("name", ["ort-cpu", "null"])
def test_a_block_that_was_held_back_is_discarded(
    name: str, save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a real runtime: an estimate does not depend on heat."""
    write(tmp_path, {f"{CLOCK}/type": "thermal-cpufreq-0", f"{CLOCK}/cur_state": "0"})
    monkeypatch.setattr(throttling.Thermometer.__init__, "__defaults__", (tmp_path,))
    model, feed = save(small_model()), tmp_path / "feed.npz"
    save_feed(feed, random_feed(small_model(), 0))
    service = Service()

    def ask(do: str, **given: Any) -> dict[str, Any]:
        answer = service.handle({"do": do, "with": given})
        assert "error" not in answer
        return answer

    ask("target", name=name, options={})
    ask("load", key="k", path=str(model), digest="k")
    time = {"keys": ["k"], "feed": str(feed), "slot_ns": 1000, "seed": 0}
    cool = ask("time", **time)
    assert "throttled" not in cool
    write(tmp_path, {f"{CLOCK}/cur_state": "1"})
    hot = ask("time", **time)
    exact = name == "null"
    assert ("throttled" in hot) == (not exact)
    quiet = Timing.of([{**each, "drift": 0.0} for each in (cool, hot)], exact).is_quiet
    assert bool(quiet[1]) == exact
    assert np.isfinite(hot["ns"]).all()

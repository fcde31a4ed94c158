"""What ``ort-web`` measures in Node runs in a browser as well, with the same numbers."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from benchmarks.chromium import browser, chromium

import inlay
from inlay.errors import UsageError
from inlay.model.load import file_sha256
from inlay.targets.base import Artifact
from inlay.targets.ort_web.install import packages
from inlay.targets.ort_web.target import OrtWebTarget
from inlay.testing import random_feed, small_model, sqnr


@pytest.mark.parametrize("threads", [1, 2])
def test_a_browser_computes_what_node_does(threads: int, tmp_path: Path) -> None:
    try:
        packages()
    except UsageError as error:
        pytest.skip(str(error))
    if browser() is None:
        pytest.skip("no browser: install Debian's chromium, or set INLAY_BROWSER to a Chromium")
    model = small_model()
    feeds = [dict(random_feed(model, seed)) for seed in range(4)]
    given, quantized = tmp_path / "given.onnx", tmp_path / "quantized.onnx"
    onnx.save(model, given)
    inlay.quantize(given, quantized, target="ort-web", data=feeds, recipe="full-int8")
    found = OrtWebTarget(threads).compile(Artifact(quantized, file_sha256(quantized)))
    in_node = found.run(feeds[0])
    found.close()
    with chromium({"given": given, "quantized": quantized}, threads) as page:
        in_browser = page.run("quantized", feeds[0])
        assert page.page.evaluate("crossOriginIsolated"), "else it has one thread, and a clock of 100 microseconds"
        exact = page.run("given", feeds[0])
        times = page.speedup("given", "quantized", feeds[0], blocks=8, block_ms=10.0)
    assert in_browser.keys() == in_node.keys()
    for name, array in in_node.items():
        assert sqnr(array, in_browser[name]) > 60.0
        assert sqnr(exact[name], in_browser[name]) < 60.0, "the two models are told apart"
    assert 0.0 < times.low <= times.value <= times.high

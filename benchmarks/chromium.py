"""ONNX Runtime Web in headless Chromium: a page served on the loopback, its outputs and its times.

What ``ort-web`` measures in Node is checked where it will run: the same package in a browser.
"""

from __future__ import annotations

import base64
import functools
import os
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright

from inlay.data import Feed
from inlay.errors import UsageError
from inlay.measure.paired import Series, speedup
from inlay.targets.ort_web.install import packages
from inlay.trial import Interval

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")
PAGE = Path(__file__).with_name("chromium.html")
_LIMIT_MS = 300_000.0
"""Milliseconds for one call into the page."""


def browser() -> str | None:
    """The system's Chromium: ``INLAY_BROWSER``, or the first of its usual names on the path."""
    return os.environ.get("INLAY_BROWSER") or next((found for n in NAMES if (found := shutil.which(n))), None)


@dataclass(frozen=True)
class Chromium:
    """A page that holds models by name."""

    page: Page

    def run(self, name: str, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs of one inference, by name."""
        told = self.page.evaluate("([name, feed]) => run(name, feed)", [name, _encoded(feed)])
        return {
            output: np.frombuffer(base64.b64decode(data), dtype).reshape(shape)
            for output, (dtype, shape, data) in told.items()
        }

    def speedup(self, before: str, after: str, feed: Feed, blocks: int, block_ms: float = 200.0) -> Interval:
        """Latency of one model over that of another, from blocks of both in turn and back (``ABBA``)."""
        pairs = self.page.evaluate(
            "([names, feed, blocks, ms]) => race(names, feed, blocks, ms)",
            [[before, after], _encoded(feed), blocks, block_ms],
        )
        old, new = np.asarray(pairs, float).T
        return speedup(Series(old), Series(new))


@contextmanager
def chromium(models: Mapping[str, Path], threads: int = 1) -> Iterator[Chromium]:
    """A page with these models built.

    Raises:
        UsageError: there is no browser, or ``ort-web``'s packages are not installed.
    """
    path, runtime = browser(), packages() / "node_modules" / "onnxruntime-web" / "dist"
    if path is None:
        raise UsageError("there is no Chromium: install Debian's chromium, or set INLAY_BROWSER")
    with TemporaryDirectory() as name, _served(Path(name)) as address, sync_playwright() as playwright:
        (Path(name) / "index.html").write_bytes(PAGE.read_bytes())
        (Path(name) / "ort").symlink_to(runtime)
        for number, model in enumerate(models.values()):
            (Path(name) / f"{number}.onnx").symlink_to(model.resolve())
        launched = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            page = launched.new_page()
            page.set_default_timeout(_LIMIT_MS)
            page.goto(address)
            page.wait_for_function("window.ready === true")
            page.evaluate(
                "([names, threads]) => build(names, threads)",
                [{model: f"{number}.onnx" for number, model in enumerate(models)}, threads],
            )
            yield Chromium(page)
        finally:
            launched.close()


class _Handler(SimpleHTTPRequestHandler):
    """Files with the headers that a page needs for several threads, and for clocks of 5 microseconds."""

    def guess_type(self, path: str | os.PathLike[str]) -> str:
        known = {".mjs": "text/javascript", ".wasm": "application/wasm"}
        return known.get(Path(path).suffix) or super().guess_type(path)

    def end_headers(self) -> None:
        self.send_header("Cross-Origin-Opener-Policy", "same-origin")
        self.send_header("Cross-Origin-Embedder-Policy", "require-corp")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def _served(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/index.html"
        finally:
            server.shutdown()


def _encoded(feed: Feed) -> Sequence[Any]:
    return [
        [name, str(array.dtype), list(array.shape), base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()]
        for name, array in feed.items()
    ]

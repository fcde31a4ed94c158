"""Response times of a model that serves: several streams, and requests at their own rate or one after another."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Load:
    """What is asked of a server."""

    streams: int  # inferences at once, at most
    requests: int  # how many are answered
    rate: float = 0.0  # requests a second, at random moments (a Poisson process); 0 for one as soon as a stream is free
    seed: int = 0  # of the moments: models that are compared get requests at the same ones


@dataclass(frozen=True)
class Served:
    """How one model served: response times from the arrival of a request, and requests a second."""

    p50_ms: float
    p99_ms: float
    per_second: float

    @classmethod
    def of(cls, ns: np.ndarray, seconds: float) -> Served:
        """From response times in nanoseconds, shape (requests,), all answered within so many seconds."""
        p50, p99 = np.quantile(ns, [0.5, 0.99]) / 1e6
        return cls(float(p50), float(p99), len(ns) / seconds)

    def and_then(self, other: Served) -> Served:
        """The means of two turns."""
        mine, others = (np.array(astuple(s)) for s in (self, other))
        return Served(*((mine + others) / 2.0).tolist())

    def __str__(self) -> str:
        within = f"half of them within {self.p50_ms:.2f} ms, 99 % within {self.p99_ms:.2f} ms"
        return f"{self.per_second:.0f} requests a second, {within}"


def answer_all(answer: Callable[[], Any], load: Load) -> Served:
    """Answer requests as ``load`` says. What ``answer`` raises is raised."""
    rng, turn = np.random.default_rng(load.seed), threading.Lock()
    waits = rng.exponential(1e9 / load.rate, load.requests) if load.rate else np.zeros(load.requests)
    arrivals = np.cumsum(waits).astype(np.int64).tolist()
    response, following = np.empty(load.requests), iter(range(load.requests))
    begun = time.perf_counter_ns()

    def stream() -> None:
        while True:
            with turn:
                request = next(following, None)
            if request is None:
                return
            now = time.perf_counter_ns() - begun
            if now < arrivals[request]:
                time.sleep((arrivals[request] - now) / 1e9)
            since = arrivals[request] if load.rate else time.perf_counter_ns() - begun
            answer()
            response[request] = time.perf_counter_ns() - begun - since

    with ThreadPoolExecutor(load.streams, "stream") as pool:
        for running in [pool.submit(stream) for _ in range(load.streams)]:
            running.result()
    return Served.of(response, (time.perf_counter_ns() - begun) / 1e9)

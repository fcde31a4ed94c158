"""Processors of a cluster observe samples together: the same bytes as one alone, whoever of them is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import inlay
from inlay.calibrate import observe as calibrator
from inlay.calibrate.observe import observe
from inlay.data import Samples
from inlay.errors import RunFailed
from inlay.model import pool as model_pool
from inlay.model.pool import WorkerPool, each, pooled
from inlay.ray.helper import VERSIONS, Helper
from inlay.ray.pool import helper_pool
from inlay.testing import random_feed, small_model
from tests.ray.test_local import found
from tests.support.fixtures import SaveModel
from tests.support.workspace import Workspace


class _Lost(Exception):
    """An actor that died."""


class _Ray:
    """The few names of Ray that helpers use, in one process.

    Args:
        cpus: that are free.
        failing: raised by each call of an actor that is not sound.
        versions: what actors say of themselves.
        gone: once a call of it failed, an actor does not come back.
        sound: so many are, the first ones.
    """

    def __init__(
        self,
        cpus: float,
        failing: Exception | None = None,
        versions: tuple[str, str] = VERSIONS,
        gone: bool = False,
        sound: int = 1,
    ) -> None:
        self.cpus, self.failing, self.versions, self.gone, self.sound = cpus, failing, versions, gone, sound
        self.actors, self.killed, self.calls = list[Helper](), 0, list[int]()
        self.exceptions = SimpleNamespace(RayError=_Lost)
        self.starting: Exception | None = None  # what the first answer of an actor raises

    def available_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus} if self.cpus else {}

    def put(self, data: Any) -> Any:
        return data

    def get(self, answer: Any) -> Any:
        if self.starting is not None:
            raise self.starting
        return answer.result() if isinstance(answer, Future) else answer

    def wait(self, answers: Sequence[Future[Any]], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        return [*answers][:num_returns], []

    def kill(self, actor: Any) -> None:
        self.killed += 1

    def remote(self, kind: type[Helper]) -> Any:
        def make(*arguments: Any) -> Any:
            self.actors.append(kind(*arguments))
            number, helper = len(self.actors) - 1, self.actors[-1]

            def method(name: str) -> Any:
                def call(*arguments: Any) -> Any:
                    answer: Future[Any] = Future()
                    self.calls += [number] * (name == "call")
                    failed = number >= self.sound and self.failing is not None
                    if failed and (name == "call" or (self.gone and number in self.calls)):
                        answer.set_exception(cast(Exception, self.failing))
                    else:
                        answer.set_result(self.versions if name == "hello" else getattr(helper, name)(*arguments))
                    return _Answer(answer)

                return SimpleNamespace(remote=call, options=lambda **_: SimpleNamespace(remote=call))

            return SimpleNamespace(**{name: method(name) for name in ("hello", "call", "close")})

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=make))


class _Answer(Future[Any]):
    """What a call gives: Ray's reference, whose ``future`` is the standard library's."""

    def __init__(self, done: Future[Any]) -> None:
        self._done = done

    def future(self) -> Future[Any]:
        return self._done

    def result(self, timeout: float | None = None) -> Any:
        return self._done.result(timeout)


def observed(ray: _Ray | None, folder: Path, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> str:
    """The digest of what is observed of a small model, with that Ray or without any."""
    model = small_model()
    folder.mkdir()
    prepared = Workspace(model, folder).prepared
    samples = Samples(tuple(dict(random_feed(model, seed)) for seed in range(12)), "feeds", "test")
    if ray is None:
        return observe(prepared, samples).digest
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(model_pool, "POOLED_FROM_S", 0.0)
    with pooled(lambda: helper_pool(ray, str(folder), said.append)):
        return observe(prepared, samples).digest


def test_helpers_observe_the_same_and_are_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    alone = observed(None, tmp_path / "alone", monkeypatch, said)
    ray = _Ray(2.5)
    assert observed(ray, tmp_path / "two", monkeypatch, said) == alone
    assert (len(ray.actors), ray.killed, {*ray.calls}) == (2, 2, {0, 1})
    assert said == ["2 helpers of the cluster prepare the model"]
    assert not [*(tmp_path / "two").glob("inlay-*")], "folders are removed"
    assert not [*(tmp_path / "two").rglob("handed-*")]


def test_what_a_lost_helper_was_to_observe_is_observed_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = observed(None, tmp_path / "alone", monkeypatch, [])
    ray = _Ray(3, failing=_Lost("the node died"))
    assert observed(ray, tmp_path / "lost", monkeypatch, []) == alone
    assert {*ray.calls} - {0}, "some were lost"


@pytest.mark.parametrize(("sound", "gone"), [(1, False), (1, True), (0, True)])
def test_who_is_lost_is_asked_again_only_where_it_comes_back(sound: int, gone: bool) -> None:
    """Where all are gone, nobody is waited for."""
    ray = _Ray(3, failing=_Lost("the node died"), gone=gone, sound=sound)
    with helper_pool(ray, None, print) as pool, pooled(lambda: contextlib.nullcontext(pool), 1e9):
        assert [o.result() for o in each(abs, [(-n,) for n in range(30)])] == [*range(30)]
    asked = Counter(ray.calls)
    assert asked[2] == 1 if gone else asked[2] > 1
    assert asked[0] >= 10 if sound else asked[0] == 1


def test_what_fails_in_a_helper_fails_as_it_would_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = RuntimeError("in the actor")
    error.cause = RunFailed("the runtime cannot run the model")  # type: ignore[attr-defined]  # as Ray's has it
    with pytest.raises(RunFailed, match="cannot run the model"):
        observed(_Ray(3, failing=error), tmp_path / "failing", monkeypatch, [])


def test_other_versions_and_busy_clusters_do_not_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    alone = observed(None, tmp_path / "alone", monkeypatch, said)
    for name, ray in {"old": _Ray(2, versions=("0.0", "0.0")), "busy": _Ray(0)}.items():
        assert observed(ray, tmp_path / name, monkeypatch, said) == alone
        assert not ray.calls
        assert ray.killed == len(ray.actors)
    (told,) = said
    assert told.startswith("2 processors of the cluster do not help: they have Inlay and ONNX Runtime 0.0 and 0.0, not")


def test_helpers_that_do_not_start_are_named_and_mistakes_are_raised() -> None:
    said: list[str] = []
    ray = _Ray(2)
    ray.starting = _Lost("no space left on its node\nand more")
    with helper_pool(cast(Any, ray), None, said.append) as pool:
        assert pool is not None
        assert pool.width == 0
    assert said == ["2 processors of the cluster do not help: no space left on its node"]
    ray.starting = NameError("name 'helper' is not defined")
    with helper_pool(cast(Any, ray), None, said.append) as pool, pytest.raises(NameError):
        print(cast(Any, pool).width)


def test_what_fails_in_a_helper_alone_is_told() -> None:
    error = RuntimeError("in the actor")
    error.cause = TypeError("'NoneType' object is not iterable")  # type: ignore[attr-defined]  # as Ray's has it
    said: list[str] = []
    with (
        helper_pool(_Ray(2, failing=error, sound=0), None, said.append) as pool,
        pooled(lambda: contextlib.nullcontext(pool), 1e9),
    ):
        assert [o.result() for o in each(abs, [(-n,) for n in range(2)])] == [0, 1]
    failed = "a helper of the cluster failed, and its work is done here: TypeError: 'NoneType' object is not iterable"
    assert {*said[1:]} == {failed}


def test_with_ray_itself_a_run_ends_as_one_without_though_a_helper_is_killed(
    save: SaveModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed")
    model = small_model()
    path, feeds = save(model), [dict(random_feed(model, seed)) for seed in range(96)]
    options: dict[str, Any] = {"target": "null", "data": feeds, "min_sqnr": 10.0, "budget": None}
    options["strategy"] = "anchors"
    plain = inlay.tune(path, out=tmp_path / "plain", **options)
    monkeypatch.setattr(model_pool, "POOLED_FROM_S", 0.0)
    monkeypatch.setattr(calibrator, "HELPER_S", 1e-9)  # one sample at a time
    helped = calibrator._Some._helped
    widths, killed = list[int](), list[int]()

    def watched(some: Any, helpers: WorkerPool, *arguments: Any) -> int:
        widths.append(helpers.width)
        threading.Thread(target=lambda: killed.append(_kill_one())).start()
        return helped(some, helpers, *arguments)

    monkeypatch.setattr(calibrator._Some, "_helped", watched)
    far = inlay.tune(path, out=tmp_path / "far", ray="local", **options)
    assert widths
    assert any(killed)
    assert found(tmp_path / "far") == found(tmp_path / "plain")
    assert far.model_path.read_bytes() == plain.model_path.read_bytes()


def _kill_one() -> int:
    """Kill a helper's process, by the name that Ray gives it; its number, or 0 where there was none."""
    until = time.monotonic() + 10.0
    while time.monotonic() < until:
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                line = (folder / "cmdline").read_bytes()
            except OSError:
                continue
            if line.startswith(b"ray::Helper"):
                os.kill(int(folder.name), signal.SIGKILL)
                return int(folder.name)
        time.sleep(0.01)
    return 0

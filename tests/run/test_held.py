"""A given model is written over while a command works on it: what was measured is delivered, and people are told."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import inlay
from inlay.autotune import QDQAutotuner
from inlay.cli import render
from inlay.data import input_specs, workload_of
from inlay.errors import ModelError
from inlay.measure.client import Limit, Worker
from inlay.measure.lab import HERE
from inlay.model.held import changed_since, held
from inlay.model.load import ModelFile, file_sha256, load
from inlay.run import compare
from inlay.run.instant.one_shot import OneShot
from inlay.run.progress import SearchStep
from inlay.targets.base import TargetSpec
from inlay.testing import random_feed, run_reference, small_model, sqnr
from inlay.tosa import command as tosa
from inlay.tosa.lowering import lower

pytestmark = pytest.mark.usefixtures("null_in_process")

STAGES = ("as it is", "confirm")
HOWS = ("in place", "half", "rename", "truncate", "remove")


def emptied(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same network with other weights: what an exporter writes next."""
    other = onnx.ModelProto()
    other.CopyFrom(model)
    for tensor in other.graph.initializer:
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.float32:
            tensor.CopyFrom(numpy_helper.from_array(np.full_like(array, 0.123), tensor.name))
    return other


@dataclass
class Given:
    """A model on disk, and the way in which it is written over: as a whole, or its external data in place."""

    path: Path
    old: onnx.ModelProto
    new: onnx.ModelProto
    external: bool

    def write(self) -> None:
        self._save(self.old, self.path)

    def replace(self) -> None:
        """As an exporter does: a new file under the old name; or the bytes of the data, in place."""
        if not self.external:
            fresh = self.path.with_name("fresh")
            self._save(self.new, fresh)
            os.replace(fresh, self.path)
            return
        beside = self.path.parent / "new"
        beside.mkdir()
        self._save(self.new, beside / self.path.name)
        data = (beside / "weights.bin").read_bytes()
        with (self.path.parent / "weights.bin").open("r+b") as file:
            assert file.seek(0, os.SEEK_END) == len(data)
            file.seek(0)
            file.write(data)

    def _save(self, model: onnx.ModelProto, path: Path) -> None:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        onnx.save(copy, path, save_as_external_data=self.external, location="weights.bin", size_threshold=64)


@pytest.fixture(params=["a file", "external data"])
def given(request: pytest.FixtureRequest, tmp_path: Path) -> Given:
    model = small_model()
    (tmp_path / "model").mkdir()
    made = Given(tmp_path / "model" / "m.onnx", model, emptied(model), request.param == "external data")
    made.write()
    return made


@dataclass
class At:
    """Does something once, as the first stage begins whose name holds a word."""

    word: str
    do: Callable[[], None]
    done: bool = False

    def stage(self, text: str) -> None:
        if self.word in text and not self.done:
            self.done = True
            self.do()

    def doing(self, text: str) -> None:
        """Nothing."""

    def trial(self, step: SearchStep) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def samples(model: onnx.ModelProto, count: int = 12) -> list[dict[str, np.ndarray]]:
    return [dict(random_feed(model, seed)) for seed in range(count)]


def same_function(path: Path, given: Given) -> bool:
    """Whether a delivered file computes what the old model does, and not what the new one does."""
    feed = random_feed(given.old, 99)
    got = run_reference(path, feed)
    near, far = ({k: sqnr(v, got[k]) for k, v in run_reference(m, feed).items()} for m in (given.old, given.new))
    assert max(far.values()) < 10.0, "the control: the new model is another function"
    return min(near.values()) > 15.0


@pytest.mark.parametrize("word", STAGES)
@pytest.mark.parametrize("only_float", [False, True], ids=["quantized", "as given"])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_tune_delivers_what_it_measured(word: str, only_float: bool, given: Given, tmp_path: Path) -> None:
    before, at = load(given.path).sha256, At(word, given.replace)
    done = inlay.tune(
        given.path,
        data=samples(given.old),
        out=tmp_path / "out",
        target="null",
        max_measurements=4,
        progress=at,
        min_sqnr=290.0 if only_float else None,  # which nothing but the given model keeps
    )
    assert at.done
    assert done.model[1] == before
    assert done.best.output_sha256 == file_sha256(tmp_path / "out" / "model.onnx")
    assert same_function(tmp_path / "out" / "model.onnx", given)
    (note,) = [n for n in done.notes if "changed during the run" in n]
    assert str(given.path) in note
    assert before[:16] in note


@pytest.mark.matrix
@pytest.mark.exhaustive
def test_nothing_is_said_of_a_model_that_stays(given: Given, tmp_path: Path) -> None:
    done = inlay.tune(given.path, data=samples(given.old), out=tmp_path / "out", target="null", max_measurements=2)
    assert not [n for n in done.notes if "changed" in n]


@pytest.mark.exhaustive
def test_a_baseline_is_delivered_as_it_was_measured(tmp_path: Path) -> None:
    model = small_model()
    onnx.save(model, tmp_path / "m.onnx")
    inlay.quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", data=samples(model), target="null")
    before = file_sha256(tmp_path / "q.onnx")
    at = At("confirm", lambda: onnx.save(emptied(onnx.load(tmp_path / "q.onnx")), tmp_path / "q.onnx"))
    done = inlay.tune(
        tmp_path / "m.onnx",
        data=samples(model),
        out=tmp_path / "out",
        target="null",
        max_measurements=3,
        qdq_baseline=tmp_path / "q.onnx",
        progress=at,
    )
    assert at.done
    assert file_sha256(tmp_path / "q.onnx") != before
    assert [n for n in done.notes if "q.onnx changed during the run" in n]
    assert same_function(done.model_path, Given(tmp_path / "m.onnx", model, emptied(model), False))


@pytest.mark.matrix
def test_quantize_writes_what_it_read(given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = OneShot.open

    def late(*words: object, **named: object) -> OneShot:
        given.replace()
        return begin(*words, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(OneShot, "open", late)
    done = inlay.quantize(given.path, tmp_path / "q.onnx", data=samples(given.old), target="null")
    assert same_function(tmp_path / "q.onnx", given)
    assert "changed during the run" in done.warning


def test_bench_times_what_it_read(given: Given) -> None:
    """The process that times finds the models as they were loaded, whatever lies at their paths by then."""

    def start(spec: TargetSpec, folder: Path, limit: Limit) -> Worker:
        for path in given.path.parent.iterdir():
            path.unlink()
        return HERE.start(spec, folder, limit)

    files = [load(given.path)] * 2
    workload = workload_of([dict(random_feed(given.old))], input_specs(files[0].model), (), ())
    rows = compare.compare(
        files, TargetSpec("null"), workload, 1, 1, np.random.default_rng(0), replace(HERE, start=start)
    )
    assert [row.path for row in rows] == [given.path] * 2
    assert not given.path.exists()


def test_bench_says_which_file_changed(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(spec: TargetSpec, folder: Path, limit: Limit) -> Worker:
        given.replace()
        return HERE.start(spec, folder, limit)

    other = given.path.with_name("other.onnx")
    onnx.save(given.old, other)
    files = [load(given.path), load(other)]
    workload = workload_of([dict(random_feed(given.old))], input_specs(files[0].model), (), ())
    lab, rng = replace(HERE, start=start), np.random.default_rng(0)
    rows = compare.compare(files, TargetSpec("null"), workload, 1, 1, rng, lab)
    assert [bool(row.changed) for row in rows] == [True, False]
    (line,) = [line for line in render.benched(rows) if isinstance(line, str)]
    assert f"WARNING: {given.path} changed during the run" in line


@pytest.mark.matrix
def test_lower_writes_what_it_read_and_says_that_it_changed(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inlay.quantize(given.path, tmp_path / "old.onnx", data=samples(given.old), target="null")
    quantized = onnx.load(tmp_path / "old.onnx")
    pair = Given(given.path, quantized, emptied(quantized), given.external)
    given.path.with_name("weights.bin").unlink(missing_ok=True)  # a second model would be appended
    pair.write()
    want = tosa.lower_file(given.path, tmp_path / "want.tosa")
    assert want.changed == ""

    def late(*words: Any, **named: Any) -> Any:
        pair.replace()
        return lower(*words, **named)

    monkeypatch.setattr(tosa, "lower", late)
    got = tosa.lower_file(given.path, tmp_path / "got.tosa")
    assert "changed during the run" in got.changed
    assert got.lines()[-1] == f"WARNING: {got.changed}"
    assert (tmp_path / "got.tosa").read_bytes() == (tmp_path / "want.tosa").read_bytes()


def test_lower_refuses_what_changes_while_it_is_read(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(path: Path) -> ModelFile:
        file = load(path)
        given.replace()
        return file

    monkeypatch.setattr(tosa, "load", late)
    with pytest.raises(ModelError, match="changed while it was read"):
        tosa.lower_file(given.path, tmp_path / "m.tosa")


@pytest.mark.matrix
def test_the_step_by_step_tuner_goes_on_with_what_it_read(given: Given) -> None:
    tuner = QDQAutotuner(given.path, samples=samples(given.old))
    tuner.initialize()
    given.replace()
    tuner.submit(2.0)
    tuner.set_profile_region(tuner.regions[0])
    assert tuner.generate() is not None
    tuner.submit(1.0)
    with pytest.warns(UserWarning, match="changed during the run"):
        tuner.export_best(given.path.with_name("best.onnx"))
    assert same_function(given.path.with_name("best.onnx"), given)


def test_a_model_that_is_written_between_reading_and_copying_is_refused(given: Given, tmp_path: Path) -> None:
    file = load(given.path)
    given.replace()
    with pytest.raises(ModelError, match="changed while it was read: run the command again"):
        held(file, tmp_path / "held")


class BeforeOpen:
    """Does something once, before a file in a folder is opened for the n-th time."""

    def __init__(self, folder: Path, number: int, do: Callable[[], None]) -> None:
        self.folder, self.left, self.do = str(folder), number, do

    @property
    def done(self) -> bool:
        return self.left <= 0

    def hear(self, path: object) -> None:
        if not self.done and isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(self.folder):
            self.left -= 1
            if self.left == 0:
                self.do()


LISTENING: list[BeforeOpen] = []


def hear(event: str, arguments: tuple[Any, ...]) -> None:
    for each in LISTENING if event == "open" else ():
        each.hear(arguments[0])


@pytest.fixture(scope="session")
def audited() -> None:
    """A hook, which stays as long as the process."""
    sys.addaudithook(hear)


def spoil(path: Path, content: bytes, how: str) -> None:
    if how == "rename":
        path.with_name("fresh").write_bytes(content)
        path.with_name("fresh").replace(path)
    elif how == "remove":
        path.unlink()
    elif how == "truncate":
        os.truncate(path, len(content) // 2)
    else:
        with path.open("r+b") as file:
            file.write(content[: len(content) // 2 if how == "half" else None])


@pytest.mark.matrix(every=3)
@pytest.mark.usefixtures("audited")
@pytest.mark.parametrize("how", HOWS)
def test_whenever_it_is_written_over_the_copy_is_what_was_read_or_it_is_refused(
    how: str, given: Given, tmp_path: Path
) -> None:
    """At every moment: before each time that one of its files is opened, until all is read and copied."""
    names = sorted(p.name for p in given.path.parent.iterdir())
    old = {name: (given.path.parent / name).read_bytes() for name in names}
    given.replace()
    new = {name: (given.path.parent / name).read_bytes() for name in names}
    outcomes = set()
    moments = [(name, number) for name in names for number in range(1, 99)]
    while moments:
        name, number = moments.pop(0)
        shutil.rmtree(given.path.parent)
        given.path.parent.mkdir()
        for each, content in old.items():
            (given.path.parent / each).write_bytes(content)
        at = BeforeOpen(given.path.parent, number, partial(spoil, given.path.parent / name, new[name], how))
        LISTENING[:] = [at]
        try:
            copy = held(load(given.path), tmp_path / f"{name}-{number}")
        except ModelError as error:
            outcomes.add("refused" if at.done and str(given.path) in str(error) else str(error))
            continue
        finally:
            LISTENING.clear()
        again = load(copy.content)
        assert again.sha256 == copy.sha256
        for key, value in copy.model.graph.initializers.items():
            want, got = again.model.graph.initializers[key].const_value, value.const_value
            assert want is not None
            assert got is not None
            np.testing.assert_array_equal(got.numpy(), want.numpy())
        if not at.done:
            outcomes.add("all moments")
            moments = [m for m in moments if m[0] != name]
    assert outcomes == {"refused", "all moments"}


def test_a_copy_has_its_own_data(given: Given, tmp_path: Path) -> None:
    copy = held(load(given.path), tmp_path / "held")
    assert changed_since(copy) == ""
    given.replace()
    again = load(copy.content)
    assert again.sha256 == copy.sha256
    want = {t.name: numpy_helper.to_array(t) for t in given.old.graph.initializer}
    for name, value in copy.model.graph.initializers.items():
        assert value.const_value is not None
        np.testing.assert_array_equal(value.const_value.numpy(), want[name])
    assert "changed during the run" in changed_since(copy)


def test_links_and_folders_of_external_data_are_copied_as_the_model_names_them(tmp_path: Path) -> None:
    model = small_model()
    (tmp_path / "m" / "deep").mkdir(parents=True)
    onnx.save(model, tmp_path / "m" / "m.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "m" / "w.bin").rename(tmp_path / "m" / "deep" / "w.bin")
    (tmp_path / "m" / "w.bin").symlink_to("deep/w.bin")
    copy = held(load(tmp_path / "m" / "m.onnx"), tmp_path / "held")
    assert load(copy.content).sha256 == copy.sha256
    assert not (tmp_path / "held" / "w.bin").is_symlink()

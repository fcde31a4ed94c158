"""The run's side of a device, with a cluster of one process that loses actors on demand."""

from __future__ import annotations

import datetime
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from inlay.data import save_feed
from inlay.errors import NoDevice, RunFailed, TargetError, UsageError
from inlay.measure import policy
from inlay.measure.client import Worker
from inlay.measure.lab import measuring
from inlay.measure.remote.device import Device, digest_of
from inlay.measure.remote.held import RemoteDevice
from inlay.measure.remote.transfer import ranges_of_model
from inlay.measure.remote.worker import RemoteWorker
from inlay.ray.cluster import ray_library
from inlay.ray.lab import chosen, resource_of
from inlay.ray.remote import RayDevice
from inlay.targets.base import Artifact, TargetSpec
from inlay.testing import random_feed, small_model
from tests.support.ray_cluster import Cluster

SPEC = TargetSpec("null", {})


@pytest.fixture
def stored(tmp_path: Path) -> tuple[Artifact, Path]:
    """A model whose weights are all in another file, and a feed."""
    model = small_model()
    folder = tmp_path / "here"
    folder.mkdir()
    ir.save(ir.from_proto(model), folder / "model.onnx", external_data="weights.bin", size_threshold_bytes=0)
    save_feed(folder / "feed.npz", random_feed(model, 0))
    return Artifact(folder / "model.onnx", "0123"), folder / "feed.npz"


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[Callable[[Cluster], RemoteWorker]]:
    devices = list[RayDevice]()
    (tmp_path / "there").mkdir()

    def join(cluster: Cluster) -> RemoteWorker:
        name = resource_of(SPEC)
        devices.append(RayDevice(cluster, name, str(tmp_path / "there")))
        return RemoteWorker(SPEC, tmp_path, lambda: 60.0, device=devices[-1], expected=name.rpartition(":")[2])

    yield join
    for device in devices:
        device.close()
    assert not list((tmp_path / "there").iterdir())


Join = Callable[[Cluster], RemoteWorker]


def _moment(line: str, *, device: str) -> float:
    """Seconds from now until the time of day that a line on a device says, within a day."""
    found = re.fullmatch(rf"wait for device {device} until (\d\d):(\d\d):(\d\d) at most: .*", line)
    assert found is not None, line
    now = datetime.datetime.now()
    then = now.replace(hour=int(found[1]), minute=int(found[2]), second=int(found[3]), microsecond=0)
    return (then - now).total_seconds() % 86_400


@pytest.mark.exhaustive
def test_a_wait_is_told_with_its_device_and_its_end(stored: tuple[Artifact, Path], tmp_path: Path) -> None:
    """Once, and then that it is over; nothing of one that nobody would notice."""
    artifact, feed = stored
    cluster, lines = Cluster(), list[str]()
    name = resource_of(SPEC)
    device = RayDevice(cluster, name, str(tmp_path), lines.append)
    with RemoteWorker(SPEC, tmp_path, lambda: 100.0, device=device, expected=name.rpartition(":")[2]) as worker:
        worker.load(artifact)
        assert not lines
        device.drop()
        cluster.late = True
        worker.run(artifact, [feed])
        worker.run(artifact, [feed])
        first, over = lines
        assert _moment(first, device=name) == pytest.approx(policy.RETURN_LIMITS * 100.0, abs=3.0)
        assert re.fullmatch(rf"device {name} answers after \d+ s", over)
        device.drop()
        cluster.away = True
        with pytest.raises(NoDevice):
            worker.run(artifact, [feed])
        assert len(lines) == 3
        cluster.away = cluster.late = False
    device.close()
    assert set(cluster.looked) == {policy.UNSEEN_S}


def test_a_device_answers_as_a_worker_does(stored: tuple[Artifact, Path], joined: Join, tmp_path: Path) -> None:
    artifact, feed = stored
    with Worker(SPEC, tmp_path) as near, joined(Cluster()) as far:
        assert (far.fingerprint, far.deterministic, far.lacks) == (near.fingerprint, near.deterministic, near.lacks)
        ours, theirs = near.run(artifact, [feed, feed]), far.run(artifact, [feed, feed])
        assert len(ours) == len(theirs) == 2
        for a, b in zip(ours, theirs, strict=True):
            assert set(a) == set(b)
            assert all(np.array_equal(a[name], b[name]) for name in a)
        timings = [w.time([artifact], feed, blocks=3, slot_ns=1000, seed=5) for w in (near, far)]
        assert np.array_equal(timings[0].ns, timings[1].ns)
        assert near.profile(artifact, feed, 2) == far.profile(artifact, feed, 2)


@pytest.mark.exhaustive
def test_weights_travel_once(stored: tuple[Artifact, Path], joined: Join) -> None:
    """Of a second model with the same weights only the model itself travels."""
    artifact, _ = stored
    other = onnx.load(artifact.path, load_external_data=False)
    other.doc_string = "another candidate"
    second = artifact.path.with_name("second.onnx")
    onnx.save(other, second)
    cluster = Cluster()
    with joined(cluster) as worker:
        worker.load(artifact)
        first = cluster.asked.count("put")
        assert first == len(other.graph.initializer) + 1
        worker.load(Artifact(second, "4567"))
        assert cluster.asked.count("put") == first + 1


def test_external_data_out_of_the_folder_stays_here(stored: tuple[Artifact, Path], tmp_path: Path) -> None:
    artifact, _ = stored
    (tmp_path / "secret").write_bytes(bytes(1000))
    proto = onnx.load(artifact.path, load_external_data=False)
    for location in ("../secret", str(tmp_path / "secret")):
        for tensor in proto.graph.initializer:
            tensor.external_data[0].value = location
        onnx.save(proto, artifact.path)
        _, ranges = ranges_of_model(artifact.path)
        assert [p.source for p in ranges] == [artifact.path]


@pytest.mark.exhaustive
def test_a_refused_model_is_an_error_with_its_type_and_culprit(joined: Join, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with joined(Cluster()) as worker, pytest.raises(TargetError) as far:
        worker.load(Artifact(tmp_path / "bad.onnx", "bad"))
    with Worker(SPEC, tmp_path) as worker, pytest.raises(TargetError) as near:
        worker.load(Artifact(tmp_path / "bad.onnx", "bad"))
    assert (type(far.value), far.value.culprit) == (type(near.value), near.value.culprit)
    assert far.value.culprit == "bad"


def test_a_lost_device_does_the_call_again(stored: tuple[Artifact, Path], joined: Join) -> None:
    """On a new actor, which knows neither files nor models: all of them travel again."""
    artifact, feed = stored
    dies = [False, False, True, False, False, True]  # at the third and sixth message to a process
    cluster = Cluster(lambda method: method == "ask" and bool(dies) and dies.pop(0))
    with joined(cluster) as worker:
        worker.load(artifact)
        before = worker.run(artifact, [feed])
        after = worker.run(artifact, [feed])
        assert len(cluster.actors) == 2
        worker.time([artifact], feed, blocks=1, slot_ns=1000, seed=0)
        assert len(cluster.actors) == 3
    assert all(np.array_equal(before[0][name], after[0][name]) for name in before[0])


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.matrix
def test_outputs_are_computed_meanwhile_also_where_the_device_is_lost(
    lost: bool, stored: tuple[Artifact, Path], joined: Join
) -> None:
    artifact, feed = stored
    gate, dies = threading.Event(), [lost]
    gate.set()

    def fails(method: str) -> bool:
        return method == "ask" and (not gate.wait(60.0) or (bool(outputs) and bool(dies) and dies.pop()))

    outputs = list[Future[list[dict[str, np.ndarray]]]]()
    cluster = Cluster(fails)
    with joined(cluster) as worker, ThreadPoolExecutor(1) as other:
        want = worker.run(artifact, [feed])
        gate.clear()
        outputs.append(worker.running(artifact, [feed]))
        besides = other.submit(worker.load, artifact)
        assert not outputs[0].done()
        gate.set()
        (found,) = outputs[0].result(60.0)
        besides.result(60.0)
    assert all(np.array_equal(want[0][name], found[name]) for name in want[0])
    assert len(cluster.actors) == 1 + lost


@pytest.mark.exhaustive
def test_a_worker_that_is_closed_meanwhile_starts_no_other_process(stored: tuple[Artifact, Path], joined: Join) -> None:
    artifact, feed = stored
    gate = threading.Event()
    gate.set()
    cluster = Cluster(lambda method: method == "ask" and not gate.wait(60.0))
    with joined(cluster) as worker:
        worker.load(artifact)
        gate.clear()
        outputs = worker.running(artifact, [feed])
    gate.set()
    assert outputs.exception(60.0) is not None
    with pytest.raises(NoDevice, match="let go"):
        worker.run(artifact, [feed])
    assert cluster.asked.count("start") == 1


@pytest.mark.parametrize("method", ["hello", "start"])
@pytest.mark.matrix
def test_a_device_lost_before_it_measures_anything_begins_again(
    stored: tuple[Artifact, Path], joined: Join, method: str
) -> None:
    """A run starts processes until its end: for each of them the device may be lost before there is one."""
    artifact, feed = stored
    dies = [True, False]
    cluster = Cluster(lambda called: called == method and bool(dies) and dies.pop(0))
    worker = joined(cluster)
    with worker:
        assert len(cluster.actors) == 2
        assert worker.run(artifact, [feed])
        with pytest.raises(NoDevice, match=r"was lost 3 times in one call: .*; no model was at work"):
            RemoteWorker(SPEC, worker._folder, worker._limit, device=_always_lost(worker._device, cluster), expected="")


def _always_lost(device: RemoteDevice, cluster: Cluster) -> RemoteDevice:
    device.drop()
    cluster.fails = lambda method: True
    return device


@pytest.mark.exhaustive
def test_a_device_that_is_lost_again_and_again_is_taken_out(stored: tuple[Artifact, Path], joined: Join) -> None:
    artifact, _ = stored
    cluster = Cluster(lambda method: method == "ask")
    with joined(cluster) as worker:
        with pytest.raises(RunFailed, match="was lost 3 times in one call") as failed:
            worker.load(artifact)
        assert failed.value.culprit == artifact.digest
        with pytest.raises(NoDevice, match=r"inlay:null:\w+ was lost 6 times in a row and is taken out"):
            worker.load(artifact)
        assert len(cluster.actors) == policy.LOSSES_IN_A_ROW
        with pytest.raises(NoDevice, match="is taken out"):
            worker.load(artifact)
        assert len(cluster.actors) == policy.LOSSES_IN_A_ROW


@pytest.mark.parametrize(("limit_s", "wait_s"), [(600.0, 1200.0), (2.0, policy.DEVICE_WAIT_S)])
@pytest.mark.matrix
def test_a_device_that_is_away_ends_the_run_and_blames_no_model(
    stored: tuple[Artifact, Path], joined: Join, limit_s: float, wait_s: float
) -> None:
    """It is waited for once, longer than at first, and no error of a target is raised, which a journal would keep."""
    artifact, feed = stored
    cluster = Cluster(lambda method: method == "ask" and cluster.away)
    worker = joined(cluster)
    with worker:
        assert cluster.waited[0] == pytest.approx(policy.DEVICE_WAIT_S, abs=1.0)
        worker.load(artifact)
        worker._limit = lambda: limit_s
        worker._device.drop()
        cluster.away, before = True, len(cluster.waited)
        with pytest.raises(NoDevice, match="goes on with what was measured") as gone:
            worker.run(artifact, [feed])
        assert not isinstance(gone.value, TargetError)
        assert cluster.waited[before:] == pytest.approx([wait_s], abs=1.0)
        cluster.away = False
        assert worker.run(artifact, [feed])


@pytest.mark.exhaustive
def test_every_loss_counts_and_none_is_foreign_to_the_run(
    stored: tuple[Artifact, Path], joined: Join, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model is freed, and memory measured, where the device is lost: neither hides it, nor ends the run with it."""
    artifact, feed = stored
    start = Device.start
    monkeypatch.setattr(Device, "start", lambda *given: {**start(*given), "lacks": []})  # it can tell of memory
    dies = [False, True, True, True, False]
    cluster = Cluster(lambda method: method == "ask" and bool(dies) and dies.pop(0))
    worker = joined(cluster)
    with worker:
        worker.load(artifact)
        worker.drop(artifact)
        assert worker._device._losses == 1
        worker.memory(artifact, feed)
        assert not dies
        assert worker._device._losses == 0


def test_a_device_with_another_fingerprint_is_refused(tmp_path: Path) -> None:
    device = RayDevice(Cluster(), "inlay:null:0000", str(tmp_path))
    with pytest.raises(NoDevice, match="announce it again"):
        RemoteWorker(SPEC, tmp_path, lambda: 60.0, device=device, expected="0000")
    device.close()


def test_one_device_is_chosen() -> None:
    nodes = {"CPU": 1.0, "inlay:null:aa11": 1.0, "inlay:null:bb22": 1.0, "inlay:ort-cpu:cc33": 1.0}
    assert chosen("ort-cpu", "", nodes) == "inlay:ort-cpu:cc33"
    assert chosen("null", "bb", nodes) == "inlay:null:bb22"
    with pytest.raises(TargetError, match="inlay:null:aa11, inlay:null:bb22: choose one"):
        chosen("null", "", nodes)
    with pytest.raises(TargetError, match="no node of the cluster announces a device for openvino-cpu"):
        chosen("openvino-cpu", "", nodes)


def test_without_ray_one_line_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'inlay\[ray\]'"):
        ray_library()
    with pytest.raises(UsageError, match=r"pip install 'inlay\[ray\]'"), measuring("local", [SPEC], print):
        pass
    with measuring(None, [SPEC], print) as lab:
        assert lab.start is Worker


def test_a_hostile_name_does_not_leave_the_device_folder(tmp_path: Path) -> None:
    device = Device(str(tmp_path))
    sent, other = np.frombuffer(b"x", np.uint8), np.frombuffer(b"y", np.uint8)
    digest = digest_of(b"x")
    assert not device.put("../outside", 0, sent, digest)
    assert not device.put("inside", 0, other, digest)
    assert device.put("inside", 0, sent, digest)
    assert not (tmp_path / "outside").exists()
    device.close()

"""What else is said to run on a board: OpenVINO, several targets, a fleet, and the rules of the board's processor."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import inlay
from inlay.portfolio.fleet import fleet
from inlay.run.progress import Silent
from inlay.testing import random_feed, small_model
from inlay.testing.models import Builder
from tests.measure.ssh.test_runs import options
from tests.portfolio.test_fleet import delivered, write
from tests.support import emulated_arm, ssh_server
from tests.support.fixtures import SaveModel
from tests.support.ssh_server import SSHD, Board, board

pytestmark = pytest.mark.exhaustive


def test_openvino_on_a_board(bare: Board, save: SaveModel, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    path, data = save(small_model()), options(1)["data"]
    site = os.pathsep.join(place for place in sys.path if "site-packages" in place)
    there = bare.url(python=f"env PYTHONPATH={site} {sys.executable}")
    written = {}
    for device in (None, there):
        written[device] = tmp_path / f"{device is None}.onnx"
        inlay.quantize(
            path,
            written[device],
            data=data,
            recipe="full-int8",
            target="openvino-cpu",
            device=device,
            progress=Silent(),
        )
    assert written[there].read_bytes() == written[None].read_bytes()
    rows = inlay.bench([path, written[there]], data=data, blocks=2, processes=1, target="openvino-cpu", device=there)
    assert all(row.latency_ms > 0.0 for row in rows)


def test_several_targets_and_a_fleet_on_a_board(bare: Board, save: SaveModel, tmp_path: Path) -> None:
    asked = {**options(3), "target": ["null", "ort-cpu"], "budget": "40s"}
    found = inlay.tune(save(small_model()), out=tmp_path / "both", device=bare.url(), progress=Silent(), **asked)
    assert {on for _, on in found.table} == {"null", "ort-cpu"}
    models = [str(save(small_model(), f"{name}/model.onnx")) for name in "ab"]
    plan = write(tmp_path, models, constraints=[{"min-sqnr": 10}])
    for name, device in (("far", bare.url()), ("near", None)):
        fleet(plan, out=tmp_path / name, progress=Silent(), device=device)
    assert delivered(tmp_path / "far") == delivered(tmp_path / "near")
    assert len(delivered(tmp_path / "far")) == 2


@pytest.mark.parametrize("cpu", emulated_arm.CPUS[:2])
def test_the_placement_follows_the_processor_of_the_board(cpu: str, tmp_path: Path) -> None:
    """Two activations are multiplied in int8 where there are dot products; in a file from here they are uint8."""
    machine = emulated_arm.emulated()
    if SSHD is None or machine is None:
        pytest.skip(ssh_server.MISSING if SSHD is None else emulated_arm.MISSING)
    b, path, out = Builder(), tmp_path / "model.onnx", tmp_path / "out.onnx"
    x = b.node("first", "MatMul", [b.input("x", (8, 16)), b.constant("w", b.rng.normal(size=(16, 16)).astype("f4"))])
    b.output(b.node("both", "MatMul", [x, b.node("turned", "Transpose", [x], perm=[1, 0])]))
    onnx.save(b.model(), path)
    data = [random_feed(path, seed) for seed in range(2)]
    with board(tmp_path / "server", python=" ".join(machine.command(cpu))) as there:
        inlay.quantize(path, out, data=data, recipe="full-int8", device=there.url())
        assert not there.runs()
    answer = machine.ask({"out": emulated_arm.Job(out)}, tmp_path / "jobs", cpu)["out"]
    assert answer.operators.count("MatMul") == (cpu == "cortex-a72")
    model = onnx.load(out)
    zeros = {n.input[2] for n in model.graph.node if n.op_type == "QuantizeLinear"}
    types = {onnx.numpy_helper.to_array(t).dtype for t in model.graph.initializer if t.name in zeros}
    assert types == {np.dtype(np.int8)}

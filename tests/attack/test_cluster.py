"""A kill of each kind in every suite; ``python -m tests.attack cluster`` makes as many as it is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")
ROOT = Path(__file__).parents[2]
FALSE_ALARMS = """
import sys
from pathlib import Path
from tests.attack import stand_in
from tests.attack.cluster import Cluster, ClusterGround

sys.modules["ray"] = stand_in
folder = Path(sys.argv[1])
with Cluster(folder / "cluster") as cluster:
    ground = ClusterGround(folder, cluster)
    ground.outputs["recipe.yaml"] = b"another"
    for node in cluster.nodes:
        cluster.nodes[node].kill()
        cluster.nodes[node].wait()
    print(ground.attacked(folder / "out", "", 0.0)[1])
    for node in cluster.nodes:
        cluster.start(node)
    print(ground.attacked(folder / "out", "", 0.0)[1])
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize("cluster", [[], ["--real"]], ids=["stand-in", "ray"])
@pytest.mark.exhaustive  # tests/ray loses devices in every suite
def test_a_lost_node_device_or_command_loses_nothing_and_the_run_ends_the_same(cluster: list[str]) -> None:
    if cluster:
        pytest.importorskip("ray")
    done = python("-m", "tests.attack", "cluster", "--count", "3", *cluster)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "3 attacks (1 command, 1 device, 1 node), 0 faults"


@pytest.mark.exhaustive
def test_a_fleet_ends_the_same_however_often_something_of_it_is_killed() -> None:
    done = python("-m", "tests.attack", "fleet", "--count", "3", "--fleets", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "1 fleets, 3 attacks (1 command, 1 device, 1 node), 0 faults"


@pytest.mark.exhaustive
def test_a_run_that_does_not_end_and_another_result_are_noticed(tmp_path: Path) -> None:
    """Negative control: no node answers, and then the result is another than the undisturbed run's."""
    done = python("-c", FALSE_ALARMS, str(tmp_path))
    first, second = done.stdout.splitlines()[-2:]
    assert "it does not end well: 1" in first, done.stderr
    assert "no Ray cluster answers there" in first
    assert second == str(["recipe.yaml differs"])

"""A handful of kills in every suite; ``python -m tests.attack kills`` makes as many as it is told.

Commands are forks, so they start from an interpreter of their own: one that has run nothing, and has no threads.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are found through /proc")
ROOT = Path(__file__).parents[2]
FALSE_ALARMS = """
import signal, sys
from pathlib import Path
from tests.attack.kills import Attack, Ground

ground = Ground(Path(sys.argv[1]))
ground.outputs["recipe.yaml"] = b"another"
Path(sys.argv[1], "temp", "left").touch()
print(ground.faults(Attack(0, "normalize", 0.0, signal.SIGHUP, "command")))
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize(
    ("first", "count"), [pytest.param(150, 1, id="SIGKILL in the search"), pytest.param(1, 4, id="signals before it")]
)
@pytest.mark.exhaustive
def test_a_killed_run_loses_nothing_and_ends_the_same(first: int, count: int) -> None:
    """In every run of the tests one kill is ``tests/run/test_end_to_end.py::test_a_killed_run_is_continued``."""
    done = python("-m", "tests.attack", "kills", "--count", str(count), "--first", str(first))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": fine") == count


@pytest.mark.exhaustive
def test_what_is_lost_or_left_is_noticed(tmp_path: Path) -> None:
    """Negative control: another result than the undisturbed run's, and a file that stays."""
    done = python("-c", FALSE_ALARMS, str(tmp_path))
    wanted = ["recipe.yaml differs from the undisturbed run's", "left behind or missing: temp/left"]
    assert done.stdout.splitlines()[-1:] == [str(wanted)], done.stderr

"""A file or two written over in every suite; ``python -m tests.attack replaced`` does it as often as it is told.

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
import sys
from pathlib import Path
from tests.attack.replaced import Attack, Ground

ground = Ground(Path(sys.argv[1]))
attack = Attack(0, False, "samples", "rename", 0, "confirm")
for changed in (False, True):
    ground.calm(attack, changed)["digest"] = "another"
print(ground.faults(attack))
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [1, 12])
def test_what_is_written_over_is_noticed_or_changes_nothing(count: int) -> None:
    """In every run of the tests single moments are tried by ``tests/run/test_held.py``."""
    done = python("-m", "tests.attack", "replaced", "--count", str(count), "--seed", str(count))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": fine") == count


@pytest.mark.exhaustive
def test_a_mixture_is_noticed(tmp_path: Path) -> None:
    """Negative control: another digest than the undisturbed runs have."""
    done = python("-c", FALSE_ALARMS, str(tmp_path))
    assert done.stdout.splitlines()[-1:] == ["[\"it is a mixture: ['digest']\"]"], done.stderr

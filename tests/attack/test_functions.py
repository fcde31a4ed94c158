"""A few misbehaving functions in every suite; ``python -m tests.attack functions`` tries all.

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
from tests.attack.functions import Attack, Ground

ground = Ground(Path(sys.argv[1]))
ground.expected("metric")["recipe.yaml"] = b"another"
print(ground.faults(Attack(0, "metric", "change", 0)))
ground.around["given/labels.npy"] = "100666 7"
print([fault.partition(":")[0] for fault in ground.faults(Attack(1, "generator", "exit", 0))])
"""


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=ROOT)


@pytest.mark.parametrize("only", ["generator_interrupt_2", "metric_fork_0"])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_a_function_that_misbehaves_is_named_and_changes_nothing(only: str) -> None:
    done = python("-m", "tests.attack", "functions", "--only", only)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": fine") == 1


@pytest.mark.exhaustive
def test_many_functions_that_misbehave() -> None:
    done = python("-m", "tests.attack", "functions", "--count", "30")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": fine") == 30


@pytest.mark.exhaustive
def test_what_a_function_must_not_do_is_noticed(tmp_path: Path) -> None:
    """Negative control: another result than with a function that behaves, and a file around that changed."""
    done = python("-c", FALSE_ALARMS, str(tmp_path))
    assert done.stdout.splitlines()[-2:] == ["['recipe.yaml differs']", "['outside the output']"], done.stderr

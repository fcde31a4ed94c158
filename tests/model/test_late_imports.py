"""Commands and workers start without what they do not need; whoever needs it gets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

REPORT = """
import sys
print("sympy.core" in sys.modules)
import onnx_ir as ir
print(ir.SymbolicDim("N") == ir.SymbolicDim("N"), "sympy.core" in sys.modules)
print(ir.SymbolicDim("N") + 1, "sympy.core" in sys.modules)
"""
COMMAND = "import inlay.cli.commands"
WORKER = """
import sys
from inlay.measure import worker
worker.serve = lambda answer: None
sys.argv = ["worker", "0", "0", "1"]
worker.main()
import inlay.targets.null
"""


def report(start: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", start + "\n" + REPORT], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("start", [COMMAND, WORKER], ids=["command", "worker"])
@pytest.mark.exhaustive
def test_what_is_not_needed_is_loaded_when_it_is_used(start: str) -> None:
    if report("import onnx_ir")[0] == "False":
        pytest.skip("this version of onnx-ir loads no sympy")
    assert report(start) == ["False", "True False", "N + 1 True"]

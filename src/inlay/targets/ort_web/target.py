"""ONNX Runtime Web, in WebAssembly with SIMD, as a target."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from inlay.errors import UsageError
from inlay.targets.base import Artifact, Capabilities, Fingerprint, Lack, StatesCapabilities
from inlay.targets.command.protocol import Description, Program
from inlay.targets.command.target import CommandExecutable
from inlay.targets.machine import cpu_name
from inlay.targets.ort_web.install import HERE, node, packages, version
from inlay.targets.ort_web.install import install as _install

if TYPE_CHECKING:
    import onnx

_COSTS = Path(__file__).parent / "costs.json"  # A cost table, as `inlay calibrate-machine` wrote it
_LIMIT_S = 600.0  # seconds that one request may take
_MACHINE = "wasm32"  # neither x86 nor Arm: no kernel of the CPU's own, and no sums that saturate


class OrtWebTarget(StatesCapabilities):
    """ONNX Runtime Web in Node: WebAssembly with SIMD, as browsers run it.

    Each resident model has a Node process of its own, which answers until it is dropped.

    Args:
        threads: of WebAssembly; 1 is what a page without cross-origin isolation gets.

    Raises:
        UsageError: it is less than 1.
    """

    name = "ort-web"
    heading = ("runtime", "cpu")
    deterministic = False
    lacks: frozenset[Lack] = frozenset({"profile", "memory"})
    remark = "Measured in Node, whose engine is that of Chromium; no browser was run"

    def __init__(self, threads: int = 1) -> None:
        if threads < 1:
            raise UsageError(f"threads must be 1 or more, not {threads}")
        self.threads = threads

    @staticmethod
    def install() -> str:
        """Install the packages that the lock file pins. Raises UsageError, TargetError."""
        return str(_install())

    def fingerprint(self) -> Fingerprint:
        """Versions of the runtime and of Node, CPU and threads.

        Raises:
            UsageError: there is no Node, or the packages are not installed; says what to do.
        """
        facts = {"runtime": f"onnxruntime-web {version()}", "cpu": cpu_name()}
        return Fingerprint(self.name, {**facts, **self._description.facts})

    def capabilities(self) -> Capabilities:
        """The rules of ONNX Runtime on a CPU without kernels of its own: the graph is optimized by the same code.

        What is in integers only as the CPU's rewrites write it stays in float. Of the rewrites, measured on the CPU's
        kernels, those are left that keep operators in float, and tables from being dequantized whole.
        """
        from inlay.targets.onnxruntime.rewrites import FloatKernel, FloatWeight, QuantizedTable
        from inlay.targets.onnxruntime.rules import WRITTEN_AS, rules_for

        rules = rules_for(_MACHINE, frozenset(), version=version())
        own = {op_type: row for op_type, row in rules.ops.items() if op_type not in WRITTEN_AS}
        return Capabilities(replace(rules, ops=own), (), (FloatWeight(), FloatKernel(), QuantizedTable()))

    def compile(self, model: Artifact) -> CommandExecutable:
        """Have a Node process of its own build the model. Raises CompileFailed, UsageError."""
        return CommandExecutable(model, self._program, self._description)

    def micro_models(self) -> list[onnx.ModelProto]:
        """All of :mod:`~inlay.targets.ort_web.micro_models`."""
        from inlay.targets.ort_web.micro_models import micro_models

        return micro_models()

    def shipped_costs(self) -> Path | None:
        """What kernels cost in one thread; how they compare depends little on the processor beneath WebAssembly."""
        return _COSTS if self.threads == 1 and _COSTS.exists() else None

    @cached_property
    def _program(self) -> Program:
        words = [str(node()), str(HERE / "worker.mjs"), str(packages()), str(self.threads)]
        return Program(shlex.join(words), _LIMIT_S)

    @cached_property
    def _description(self) -> Description:
        return self._program.describe()

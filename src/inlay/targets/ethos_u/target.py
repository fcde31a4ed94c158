"""Ethos-U as a target: time is an estimate (Vela, a stated host model, the cost of crossing), results are exact."""

from __future__ import annotations

import importlib.metadata
from functools import partial

import numpy as np
import onnx

from inlay.errors import CompileFailed, InlayError, RunFailed, TargetError
from inlay.lower import Lowered, Reference
from inlay.lower.extras import require
from inlay.targets.base import Artifact, Feed, Fingerprint, KernelTime, Rules
from inlay.targets.ethos_u import hostcost, vela
from inlay.targets.ethos_u.partitions import Cost, compile_partitions
from inlay.targets.ethos_u.rules import RULES
from inlay.targets.ethos_u.vela import Accelerator


class EthosUTarget:
    """An Ethos-U NPU with a microcontroller-class host.

    All times are estimates, deterministic within one version of Vela: Vela's cycles for what runs on the NPU, the
    model of :mod:`.hostcost` for the rest and for crossing between the two.

    Args:
        accelerator: one of ``ethos-u55-{32,64,128,256}``, ``ethos-u65-{256,512}`` and
            ``ethos-u85-{128,256,512,1024,2048}``.
        system_config, memory_mode: sections of Vela's ``Arm/vela.ini``; empty for the family's usual ones.
    """

    deterministic = True

    def __init__(self, accelerator: str = "ethos-u55-128", system_config: str = "", memory_mode: str = "") -> None:
        self.accelerator = Accelerator.of(accelerator, system_config, memory_mode)
        self.name = accelerator

    def fingerprint(self) -> Fingerprint:
        """Vela's and TOSA tools' versions, configuration, memory mode, and the figures of the host model.

        Raises:
            UsageError: the extra ``arm`` is not installed.
        """
        figures = (
            hostcost.PRODUCT, hostcost.ELEMENTWISE, hostcost.FUNCTION, hostcost.MOVEMENT, hostcost.CONVERSION,
            hostcost.NODE_CALL, hostcost.NPU_CALL, hostcost.CROSSING_BYTE, hostcost.PERMUTED,
        )  # fmt: skip
        require("tosa_serializer")
        return Fingerprint(
            self.name,
            {
                "kind": "estimate",
                "vela": vela.version(),
                "tosa-tools": importlib.metadata.version("tosa-tools"),
                "system_config": self.accelerator.system_config,
                "memory_mode": self.accelerator.memory_mode,
                "host_model": " ".join(str(f) for f in figures),
            },
        )

    def rules(self) -> Rules:
        """What becomes integer operators."""
        return RULES

    def compile(self, model: Artifact) -> EthosUExecutable:
        """Lower, partition and compile through Vela. Raises CompileFailed."""
        try:
            proto = onnx.load(str(model.path))
        except Exception as error:  # protobuf and the file system raise several types
            raise CompileFailed(f"{model.path.name} cannot be read: {error}") from error
        try:
            lowered, cost = compile_partitions(proto, self.accelerator)
            return EthosUExecutable(lowered, cost)
        except TargetError as error:
            raise CompileFailed(str(error)) from error
        except InlayError as error:
            if error.exit_code == 2:
                raise  # the extra is missing: not the model's fault
            raise CompileFailed(str(error)) from error


class EthosUExecutable:
    """A lowered and costed model; runs bit for bit as the NPU would, on the TOSA reference model."""

    def __init__(self, lowered: Lowered, cost: Cost) -> None:
        self.lowered, self.cost = lowered, cost
        self._reference: Reference | None = Reference(lowered)

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name, from the real integer arithmetic. Raises RunFailed."""
        if self._reference is None:
            raise RunFailed("the model was closed")
        try:
            values = self._reference.run(feed)
        except InlayError as error:
            raise RunFailed(str(error)) from error
        return {i.name: v for i, v in zip(self.lowered.graph.outputs, values, strict=True)}

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """The estimate in nanoseconds, ``repeats`` times: shape (repeats,), int64."""
        if self._reference is None:
            raise RunFailed("the model was closed")
        return np.full(repeats, round(self.cost.ns), np.int64)

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """Estimated time of every NPU layer, host operator and NPU call; they add up to :meth:`time`."""
        return list(self.cost.kernels)

    def close(self) -> None:
        """Drop the host partitions' sessions."""
        self._reference = None


TARGETS = {name: partial(EthosUTarget, name) for name in vela.ACCELERATORS}
"""A constructor for each accelerator, which the entry points name."""


def __getattr__(name: str) -> partial[EthosUTarget]:
    """``ethos_u55_128`` and so on: the constructors by a name that an entry point can spell."""
    found = TARGETS.get(name.replace("_", "-"))
    if found is None:
        raise AttributeError(name)
    return found

"""Vela in memory: one TOSA flatbuffer in, estimated cycles out, in total and per layer.

All figures are Vela's estimates, deterministic within one version of it and not comparable across versions.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from inlay.errors import CompileFailed, UsageError
from inlay.tosa.extras import require

ACCELERATORS: Mapping[str, tuple[str, int, int]] = {
    **{f"ethos-u55-{m}": ("EthosU55", m, 1) for m in (32, 64, 128, 256)},
    "ethos-u65-256": ("EthosU65", 256, 1),
    "ethos-u65-512": ("EthosU65", 256, 2),
    **{f"ethos-u85-{m}": ("EthosU85", m, 1) for m in (128, 256, 512, 1024, 2048)},
}
"""Accelerator by name: Vela's architecture, multiply-accumulates per cycle and core, cores."""

_DEFAULTS: Mapping[str, tuple[str, str]] = {
    "EthosU55": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
    "EthosU65": ("Ethos_U65_High_End", "Shared_Sram"),
    "EthosU85": ("Ethos_U85_SYS_DRAM_Mid", "Shared_Sram"),
}
"""System configuration and memory mode of ``Arm/vela.ini`` used for each family: one memory mode for all, so that
their estimates can be compared. Dedicated memory modes charge the model's own inputs and outputs to DRAM."""

_INI = "Arm/vela.ini"


@dataclass(frozen=True)
class Accelerator:
    """An NPU with its system configuration."""

    name: str  # one of `ACCELERATORS`
    # system_config, memory_mode: sections of Vela's `Arm/vela.ini`
    system_config: str
    memory_mode: str

    @classmethod
    def of(cls, name: str, system_config: str = "", memory_mode: str = "") -> Accelerator:
        """The accelerator called ``name``, with its family's usual configuration unless given.

        Raises:
            UsageError: there is no such accelerator.
        """
        if name not in ACCELERATORS:
            raise UsageError(f"unknown accelerator {name!r}: choose one of {', '.join(ACCELERATORS)}")
        system, memory = _DEFAULTS[ACCELERATORS[name][0]]
        return cls(name, system_config or system, memory_mode or memory)


@dataclass(frozen=True)
class LayerCycles:
    """Estimate of one NPU operator: its name and kind in Vela, and its cycles."""

    name: str
    op: str
    cycles: float


@dataclass(frozen=True)
class Estimate:
    """Vela's estimate of one flatbuffer."""

    cycles: float  # NPU cycles of one inference
    layers: tuple[LayerCycles, ...]  # cycles per NPU operator, in order


def version() -> str:
    """Version of the installed Vela (UsageError when there is none)."""
    require("ethosu.vela")
    return importlib.metadata.version("ethos-u-vela")


@lru_cache
def _architecture(accelerator: Accelerator) -> tuple[Any, str]:
    """Vela's view of the accelerator, and the text of its configuration file."""
    features = require("ethosu.vela.architecture_features")
    ini = Path(features.CONFIG_FILES_PATH) / _INI
    try:
        arch = features.ArchitectureFeatures(
            vela_config_files=[str(ini)],
            system_config=accelerator.system_config,
            memory_mode=accelerator.memory_mode,
            accelerator_config=accelerator.name,
            max_blockdep=features.ArchitectureFeatures.MAX_BLOCKDEP,
            verbose_config=False,
            arena_cache_size=None,
        )
    except Exception as error:  # Vela's exceptions share no base class but this
        raise UsageError(
            f"{accelerator.name} with system config {accelerator.system_config!r} and memory mode "
            f"{accelerator.memory_mode!r}: {error}"
        ) from error
    return arch, ini.read_text()


def clock_hz(accelerator: Accelerator) -> float:
    """Core clock of the accelerator's system configuration."""
    return float(_architecture(accelerator)[0].core_clock)


def compile_raw(flatbuffer: bytes, accelerator: Accelerator) -> Any:
    """Compile a TOSA flatbuffer in memory: Vela's own object with command stream, constants and performance report.

    Raises:
        CompileFailed: Vela refuses the graph; TOSA input has no CPU fallback.
        UsageError: the extra ``arm`` is not installed, or the configuration does not exist.
    """
    regor = require("ethosu.regor")
    arch, ini = _architecture(accelerator)
    family, macs, cores = ACCELERATORS[accelerator.name]
    system = (
        f"[architecture]\nmacs={macs}\ncores={cores}\n[vela]\n"
        f"system_config_name={accelerator.system_config}\nmemory_mode_name={accelerator.memory_mode}\n{ini}"
    )
    options = (
        "[compiler]\nenable_db=true\noutput_format=Raw\ncop_format=COP1\n"
        f"[scheduler]\noptimize=Performance\narena_size_limit={arch.arena_cache_size}\n"
        "cpu_tensor_alignment=16\n[graph]\n"
    )
    try:
        return regor.compile(family, flatbuffer, "TOSA", system, options=options, verbose=False)
    except Exception as error:  # regor raises bare RuntimeError and ValueError
        raise CompileFailed(f"Vela refuses the graph for {accelerator.name}: {error}") from error


def estimate(flatbuffer: bytes, accelerator: Accelerator) -> Estimate:
    """Compile a TOSA flatbuffer in memory and read Vela's performance report. Raises as :func:`compile_raw`."""
    compiled = compile_raw(flatbuffer, accelerator)
    table = compiled.opt_database.tables["perf"]
    name, op, cycles = (table.header.index(c) for c in ("name", "operator", "op_cycles"))
    layers = tuple(LayerCycles(str(row[name]), str(row[op]), float(row[cycles])) for row in table.data)
    return Estimate(float(compiled.perf_report.totalCycles), layers)

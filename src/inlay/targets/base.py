"""What a target is: a runtime that compiles, runs and times models, and the rules of what it runs in low precision."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Union, runtime_checkable

import numpy as np

from inlay.errors import UsageError
from inlay.types import AUTO, FP32

if TYPE_CHECKING:  # a worker, which runs models and changes none, starts without the graph library behind these
    import onnx

    from inlay.model.normalize import FloatRewrite
    from inlay.quant.plain.graph import IntegerOperator
    from inlay.quant.rewrite import Rewrite
    from inlay.space.rules import Rules

Feed = Mapping[str, np.ndarray]
"""Input arrays by input name, for one inference."""


@dataclass(frozen=True)
class Fingerprint:
    """What a measurement depends on besides the model: two runs with the same digest may be compared."""

    target: str
    facts: Mapping[str, str]

    @property
    def digest(self) -> str:
        """16 hexadecimal digits over all facts."""
        text = "\n".join([self.target, *(f"{k}={v}" for k, v in sorted(self.facts.items()))])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def named_facts(self) -> dict[str, str]:
        """The facts, with the target's name among them, as recipes record them."""
        return {"target": self.target, **self.facts}

    @property
    def identity(self) -> str:
        """What a journal knows the target by: its name and the digest."""
        return f"{self.target} {self.digest}"

    @property
    def gives_times(self) -> bool:
        """Whether its figures are times: otherwise the fact ``unit`` names what is counted in their place."""
        return not self.facts.get("unit")


def is_estimate(facts: Mapping[str, str]) -> bool:
    """Whether a target with these facts computes its figures and measures none: its fact ``kind`` is ``estimate``."""
    return facts.get("kind") == "estimate"


def unit_of(facts: Mapping[str, str]) -> str:
    """The unit of the figures of a target with these facts: milliseconds, where its fact ``unit`` says nothing else."""
    return facts.get("unit") or "ms"


@dataclass(frozen=True)
class Artifact:
    """A model file for a target: its path and the digest of its content."""

    path: Path
    digest: str


KernelKind = Literal["compute", "quantize", "dequantize", "layout"]
QDQ_KINDS: Mapping[str, KernelKind] = {"QuantizeLinear": "quantize", "DequantizeLinear": "dequantize"}
"""What a kernel is there for; ``layout`` is an inserted reorder or transpose."""


_QUANTIZED = ("int4", "uint4", "int8", "uint8", "int16", "uint16")
_FLOATING = ("float", "bfloat", "double", "f16", "f32", "bf16")


@dataclass(frozen=True)
class KernelTime:
    """Time that one kernel takes in one inference."""

    name: str  # the runtime's name for the kernel's node
    op_type: str  # the runtime's operator
    ns: float  # typical nanoseconds per inference
    precision: str = ""  # element type it computes in (`float32`, `uint8`, …); empty where unknown
    nodes: tuple[str, ...] = ()  # names of the model's nodes that it stands for, as far as known
    # the model's values whose boundary it serves; of a `compute` kernel, whose Q or DQ it takes in; as far as known
    values: tuple[str, ...] = ()
    kind: KernelKind = "compute"  # what it is there for

    @property
    def family(self) -> Literal["int8", "float", "other"]:
        """What it computes in: quantized integers, floating point, or neither (indices), or it is unknown."""
        if self.precision.startswith(_QUANTIZED):
            return "int8"
        return "float" if self.precision.startswith(_FLOATING) else "other"

    @property
    def attributed(self) -> bool:
        """Whether its cause is known."""
        return bool(self.nodes or self.values)


class Executable(Protocol):
    """A model that a target has built; it may be :class:`Simulated`, :class:`TimedElsewhere` and the like besides."""

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name. Raises RunFailed."""
        ...

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """Nanoseconds of each of ``repeats`` inferences, shape (repeats,), int64. Raises RunFailed."""
        ...

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """Every kernel with its typical time over ``repeats`` inferences. Raises RunFailed."""
        ...

    def close(self) -> None:
        """Free what the executable holds; calling it twice is fine."""
        ...


@runtime_checkable
class Simulated(Protocol):
    """An executable whose noise is drawn from a seed: without a new one, every process would show the same noise."""

    def reseed(self, seed: int) -> None:
        """Draw the noise of the readings to come from ``seed``."""
        ...


@runtime_checkable
class TimedElsewhere(Protocol):
    """An executable whose times may be those of another process or device: what happens to this one says nothing."""

    measured_elsewhere: bool


@runtime_checkable
class WarmsUp(Protocol):
    """An executable whose ``time`` may run the model before its first reading: it is spared calls that only warm up."""

    warms_up: bool


@runtime_checkable
class StatesMemory(Protocol):
    """An executable for a device that is not here, where a session takes the target's fact ``memory``."""

    def memory(self, feed: Feed) -> int:
        """Bytes. Raises RunFailed."""
        ...


@runtime_checkable
class ProfilesAsBuilt(Protocol):
    """An executable that may build nothing for a profile: where builds are counted, a profile costs none."""

    is_profiled: bool


@runtime_checkable
class RunsAtOnce(Protocol):
    """An executable whose ``run`` may be called by several threads at once, so that it can be timed as a server."""

    runs_at_once: bool


Lack = Literal["profile", "accuracy", "latency", "memory"]
"""What a target may be unable to tell: times of kernels, outputs of its own, times of inferences, memory of a session
(as it takes it on a device or in another process: the process that measures tells nothing of it)."""


class Target(Protocol):
    """A runtime on a device, with its options.

    What it can do besides is said by further protocols below, such as :class:`LacksSome` or :class:`Calibrates`: a
    target has the ability whose members it has. ``docs/targets.md`` lists them.

    Attributes:
        name: as it stands in the entry point.
    """

    name: str

    @property
    def deterministic(self) -> bool:
        """Its times are estimates without noise, so one reading is enough."""
        ...

    def fingerprint(self) -> Fingerprint:
        """What measurements on this target depend on."""
        ...

    def rules(self) -> Rules:
        """What it runs in low precision."""
        ...

    def float_rewrites(self) -> Sequence[FloatRewrite]:
        """Rewrites of the float model that suit its kernels, for normalization; in order."""
        ...

    def rewrites(self) -> Sequence[Rewrite[Any]]:
        """Rewrites of quantized operators that suit its kernels, for emission; in order."""
        ...

    def compile(self, model: Artifact) -> Executable:
        """Build the model. Raises CompileFailed."""
        ...


@runtime_checkable
class LacksSome(Protocol):
    """A target that cannot tell everything; the search adapts.

    What it lacks is known at the latest once :meth:`Target.fingerprint` was called. Where that is accuracy,
    :meth:`Executable.run` gives outputs that were computed elsewhere.
    """

    @property
    def lacks(self) -> frozenset[Lack]:
        """What it cannot tell."""
        ...


def lacks_of(target: Target) -> frozenset[Lack]:
    """What a target cannot tell."""
    return frozenset(target.lacks) if isinstance(target, LacksSome) else frozenset()


@runtime_checkable
class HasOwnPrecision(Protocol):
    """A target that may compute float32 operators in fewer bits: accuracy is against the reference, if they differ."""

    @property
    def own_precision(self) -> OwnPrecision | None:
        """In what; None where it computes in float32."""
        ...


@runtime_checkable
class Identifies(Protocol):
    """A target that knows what its runtime makes of a model: models of which it makes the same are measured once."""

    def compile_identified(self, model: Artifact) -> tuple[Executable, str]:
        """Build the model as :meth:`Target.compile` does, with a digest of what the runtime made of it."""
        ...


@runtime_checkable
class ReadsIntegers(Protocol):
    """A target whose runtime has operators on integers: by them quantized models of other origin are read."""

    def integer_operators(self) -> Sequence[IntegerOperator]:
        """A row for each of them."""
        ...


@runtime_checkable
class Calibrates(Protocol):
    """A target whose kernels ``inlay calibrate-machine`` can measure."""

    def micro_models(self) -> Sequence[onnx.ModelProto]:
        """Small float models that hold its kernels as they usually stand."""
        ...


@runtime_checkable
class ShipsCosts(Protocol):
    """A target that comes with measured costs of its kernels: ``inlay quantize`` chooses by them."""

    def shipped_costs(self) -> Path | None:
        """The table for processors like the one that measures, or None."""
        ...


@runtime_checkable
class ShowsRun(Protocol):
    """A target that says how a delivered model is run as it was measured."""

    def run_with(self) -> str:
        """A program that runs ``model.onnx`` with the options of the target."""
        ...


@runtime_checkable
class Installs(Protocol):
    """A target class that needs more than Python packages: ``inlay targets --install`` calls it."""

    @staticmethod
    def install() -> str:
        """Install it, and say where. Raises UsageError, TargetError."""
        ...


@runtime_checkable
class Remarks(Protocol):
    """A target class with something to say in the list of targets."""

    remark: str


@runtime_checkable
class HasHeading(Protocol):
    """A target class that says which facts stand beside its name in headings of results; else all short ones do."""

    heading: tuple[str, ...]


@dataclass(frozen=True)
class Capabilities:
    """What preparing a model needs to know of a target.

    Attributes:
        rules: what it runs in low precision.
        float_rewrites: rewrites of the float model that suit its kernels.
        rewrites: rewrites of quantized operators that suit its kernels.
        max_opset: the newest opset that written models may have; None for any.
    """

    rules: Rules
    float_rewrites: tuple[FloatRewrite, ...] = ()
    rewrites: tuple[Rewrite[Any], ...] = ()
    max_opset: int | None = None

    def __post_init__(self) -> None:
        selectable = frozenset(r.name for r in self.rewrites if r.selectable)
        object.__setattr__(self, "rules", replace(self.rules, rewrites=selectable))

    @classmethod
    def of(cls, target: Target, quant_type: str = AUTO, max_opset: int | None = None, base: str = FP32) -> Capabilities:
        """Those of ``target`` for :meth:`Rules.in_type`, :meth:`Rules.on_base` and :meth:`Rules.up_to`, as these raise.

        A base that is too new is left out only where it is not asked for by name.
        """
        rules = target.rules().on_base(base).up_to(max_opset).in_type(quant_type)
        if base in rules.too_new:
            raise UsageError(f"--base {base}: {rules.too_new[base]}")
        passes = (r for r in target.float_rewrites() if max_opset is None or r.opset <= max_opset)
        return cls(rules, tuple(passes), tuple(target.rewrites()), max_opset)


class StatesCapabilities(ABC):
    """A target that states what it runs and its rewrites as one value."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What it runs in low precision, and its rewrites."""

    def rules(self) -> Rules:
        """What it runs in low precision."""
        return self.capabilities().rules

    def float_rewrites(self) -> tuple[FloatRewrite, ...]:
        """Rewrites of the float model that suit its kernels."""
        return self.capabilities().float_rewrites

    def rewrites(self) -> tuple[Rewrite[Any], ...]:
        """Rewrites of quantized operators that suit its kernels."""
        return self.capabilities().rewrites


OptionValue = Union[str, int, float, bool]  # noqa: UP007  (boards may have Python 3.9)
"""What an option of a target can be."""


@dataclass(frozen=True)
class TargetSpec:
    """A target by name and options: plain data that a worker process can be sent."""

    name: str  # entry point in the group ``inlay.targets``
    options: Mapping[str, OptionValue] = field(default_factory=dict)  # keyword arguments of its constructor
    reading: str = "latency"  # what its readings are, as of :mod:`inlay.measure.readings`


@dataclass(frozen=True)
class OwnPrecision:
    """What a target computes float32 operators in, where that is fewer bits."""

    name: str  # of the type
    exact: Mapping[str, OptionValue]  # options of the target with which it computes them in float32

    def __str__(self) -> str:
        options = " ".join(f"--target-option {name}={value}" for name, value in self.exact.items())
        return f"in {self.name}; {options} computes in float32"

    @classmethod
    def of(cls, target: Target) -> OwnPrecision | None:
        """That of a target; None where it computes in float32."""
        return target.own_precision if isinstance(target, HasOwnPrecision) else None

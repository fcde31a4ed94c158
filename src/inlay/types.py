"""The frozen values that the whole system passes around: ``QType``, ``Port``, ``QParams``, ``Placement``.

A :class:`Placement` says *where* Q/DQ nodes go; a :class:`QParams` gives their scale and zero point. Neither knows what
was measured of it: that is a :class:`~inlay.trial.Trial`.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

AUTO = "auto"
"""In place of the name of a type: the target's own choice."""

FP32 = "fp32"
"""Name of the base precision in which everything that is not quantized is float32."""

ANY_INT8 = 128
"""The largest magnitude of an int8."""

GRAPH_OUTPUT = ""
"""Name of the pseudo node whose input slots are the graph's outputs."""


class QType(enum.Enum):
    """How the elements of a quantized tensor are stored; the value is its name in recipes and results.

    They are integers, or floats of 8 bits (:attr:`floating`), which have no zero point. An operator whose ports have a
    :attr:`half` type reads its values cast to it, and computes in it. In a *dynamic* type an
    activation is quantized by the range that it has in this very inference (DynamicQuantizeLinear): it needs no
    calibration. In a type of *blocks* a weight has one scale for so many neighbors along the axis that products are
    summed over.
    """

    INT4 = "int4"
    INT8 = "int8"
    UINT8 = "uint8"
    INT16 = "int16"
    UINT16 = "uint16"
    INT32 = "int32"  # biases only
    FP8 = "fp8"  # E4M3: finite values only, up to 448
    FP16 = "fp16"  # no steps: what reads it computes in it, and so do the scales of what it reads from integers
    BF16 = "bf16"
    DYNAMIC = "dynamic uint8"  # activations only
    INT4_32 = "int4/32"  # weights only, as all types of blocks
    INT4_128 = "int4/128"
    INT8_32 = "int8/32"
    INT8_128 = "int8/128"

    @property
    def bits(self) -> int:
        """Width in bits."""
        if self.half:
            return 16
        return 8 if self.floating else int(self.element.removeprefix("u").removeprefix("int"))

    @property
    def element(self) -> str:
        """ONNX's name for the type of one element."""
        if self.half:
            return "float16" if self is QType.FP16 else "bfloat16"
        return "float8e4m3fn" if self.floating else self.value.split()[-1].split("/")[0]

    @property
    def block(self) -> int:
        """Elements that share a scale; 0 where that is not a matter of the type."""
        return int(self.value.partition("/")[2] or 0)

    @property
    def dynamic(self) -> bool:
        """Whether the range is that of each inference."""
        return self is QType.DYNAMIC

    @property
    def floating(self) -> bool:
        """Whether an element is a float: its steps are relative to it."""
        return self is QType.FP8

    @property
    def half(self) -> bool:
        """Whether it is a float of 16 bits, which takes neither scale nor zero point."""
        return self in (QType.FP16, QType.BF16)

    @property
    def takes_bias(self) -> bool:
        """Whether products with such activations go with a bias of 32-bit integers; beside floats it is one of them."""
        return self.bits >= 8 and not self.floating and not self.half

    @property
    def opset(self) -> int:
        """First opset in which Q/DQ nodes take it, where that is later than what every Q/DQ model has."""
        if self is QType.BF16:
            return 22  # convolutions and pools in it
        if self.floating or self.half:
            return 19
        return 21 if self.bits in (4, 16) or self.block else 0

    @property
    def signed(self) -> bool:
        """Whether the type holds negative numbers."""
        return not self.element.startswith("u")

    @property
    def qmin(self) -> int:
        """Smallest representable number of steps."""
        if self.floating:
            return -self.qmax
        return -(1 << (self.bits - 1)) if self.signed else 0

    @property
    def qmax(self) -> int:
        """Largest representable number of steps."""
        if self.floating:
            return 448
        return (1 << (self.bits - 1)) - 1 if self.signed else (1 << self.bits) - 1


class Port(NamedTuple):
    """One consumer input slot: input number ``slot`` of ``node``. A graph output has the node ``""``."""

    node: str
    slot: int

    def __str__(self) -> str:
        return f"{self.node or 'graph output'}[{self.slot}]"


class PortRewrite(NamedTuple):
    """A rewrite of the target (:class:`inlay.quant.rewrite.Rewrite`) that a placement selects at one of its ports."""

    port: Port
    name: str


@dataclass(frozen=True)
class QParams:
    """Scale and zero point of one quantized tensor.

    Attributes:
        qtype: type of the elements.
        scale: one number per tensor (length 1), per channel, or per block in the order of the tensor. Exact float32
            values.
        zero_point: as many as ``scale``.
        axis: channel axis, that of the blocks for a type of blocks, or None for per-tensor qparams (written as ONNX
            scalars).
    """

    qtype: QType
    scale: tuple[float, ...]
    zero_point: tuple[int, ...]
    axis: int | None = None

    def __post_init__(self) -> None:
        if len(self.scale) != len(self.zero_point) or (self.axis is None and len(self.scale) != 1):
            raise ValueError(f"{len(self.scale)} scales, {len(self.zero_point)} zero points, axis {self.axis}")


class Placement:
    """A frozen set of ``(port, qtype)``: these consumers read ``DQ(Q(value))``. The one currency of the system.

    Attributes:
        rewrites: those of the target's selectable rewrites that are applied, each at one of these ports. They change
            how an operator is written, and so its kernel, but no result.
    """

    __slots__ = ("_digest", "_sites", "rewrites")

    def __init__(self, sites: Iterable[tuple[Port, QType]] = (), rewrites: Iterable[PortRewrite] = ()) -> None:
        table: dict[Port, QType] = {}
        for port, qtype in sites:
            if table.setdefault(port, qtype) is not qtype:
                raise ValueError(f"port {port} is given two types: {table[port].value} and {qtype.value}")
        self._sites: dict[Port, QType] = dict(sorted(table.items()))
        self.rewrites = frozenset(rewrites)
        bare = next((r for r in sorted(self.rewrites) if r.port not in table), None)
        if bare is not None:
            raise ValueError(f"rewrite {bare.name} is selected at port {bare.port}, which is not quantized")
        self._digest: str | None = None

    def __iter__(self) -> Iterator[tuple[Port, QType]]:
        return iter(self._sites.items())

    def __len__(self) -> int:
        return len(self._sites)

    def __contains__(self, port: object) -> bool:
        return port in self._sites

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Placement) and self._sites == other._sites and self.rewrites == other.rewrites

    def __hash__(self) -> int:
        return hash(self.digest)

    def __or__(self, other: Placement) -> Placement:
        return Placement([*self, *other], self.rewrites | other.rewrites)

    def __repr__(self) -> str:
        return f"Placement({len(self)} ports, {self.digest})"

    def qtype(self, port: Port) -> QType | None:
        """The type that ``port`` reads, or None where it reads the original value."""
        return self._sites.get(port)

    def without(self, ports: Iterable[Port]) -> Placement:
        """This placement less ``ports``."""
        gone = set(ports)
        return Placement(((p, q) for p, q in self if p not in gone), (r for r in self.rewrites if r.port not in gone))

    def without_halves(self) -> Placement:
        """This placement with the operators that compute in half precision in float32."""
        return self.without([p for p, q in self if q.half])

    def with_rewrites(self, rewrites: Iterable[PortRewrite]) -> Placement:
        """The same sites with those of ``rewrites`` whose ports are among them, and no others."""
        return Placement(self, (r for r in rewrites if r.port in self))

    def as_json(self) -> list[list[str | int]]:
        """Plain data; see :meth:`from_json`."""
        names: dict[Port, list[str]] = {}
        for port, name in sorted(self.rewrites):
            names.setdefault(port, []).append(name)
        return [[p.node, p.slot, q.value, *names.get(p, ())] for p, q in self]

    @classmethod
    def from_json(cls, data: Iterable[Sequence[str | int]]) -> Placement:
        """The placement that gave ``data``. Raises ValueError where none did."""
        rows = [(Port(str(node), int(slot)), QType(qtype), names) for node, slot, qtype, *names in data]
        if any(port.slot < 0 for port, _, _ in rows):
            raise ValueError("a slot is negative")
        strange = next((n for _, _, names in rows for n in names if not isinstance(n, str) or not n), None)
        if strange is not None:
            raise ValueError(f"{strange!r} is no name of a rewrite")
        return cls(((p, q) for p, q, _ in rows), (PortRewrite(p, str(n)) for p, _, names in rows for n in names))

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that identify the set, whatever order it was built in."""
        if self._digest is None:
            lines = [f"{port.node}\t{port.slot}\t{qtype.value}" for port, qtype in self]
            text = "\n".join([*lines, *(f"{port.node}\t{port.slot}\t{name}" for port, name in sorted(self.rewrites))])
            self._digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return self._digest

"""The rewrite seam: a target's own way to write a quantized operator so that a faster kernel takes it.

A rewrite changes nodes, never results: every output stays the same integer. It belongs to the target whose kernels it
serves. ``emit`` applies a target's rewrites last, in their order, and notes on each new node what stood in its place
(:mod:`inlay.quant.notes`); ``extract`` undoes them by these notes, so that a model read back has the placement it was
written with. A *selectable* rewrite is applied only to the operators at whose weight a placement names it
(:attr:`inlay.types.Placement.rewrites`), because whether it pays depends on the machine: the search measures it.
"""

from __future__ import annotations

import hashlib
import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from types import CodeType, FunctionType
from typing import ClassVar, Generic, TypeVar

from inlay.model.graph import Graph, Node
from inlay.quant.qdq_graph import QDQGraph

Form = TypeVar("Form")  # what one operator becomes: whatever `apply` needs to know of it


class Rewrite(ABC, Generic[Form]):
    """One rewrite of a target; subclasses are frozen dataclasses whose fields are their thresholds."""

    name: ClassVar[str]  # identifies it in placements, recipes and journals
    # the results are the same to the bit; otherwise up to the order of float operations, and to rounding that the
    # target's operator does inside
    exact: ClassVar[bool] = True
    selectable: ClassVar[bool] = False  # applied only where a placement names it, rather than wherever it applies
    reason: ClassVar[str]  # for people: why the rewritten operator is faster
    source: ClassVar[str]  # where the thresholds come from, or what measures whether it pays

    @property
    def digest(self) -> str:
        """16 hexadecimal digits over the name and the thresholds; the same in every process."""
        return hashlib.sha256(f"{self.name} {stated(self)}".encode()).hexdigest()[:16]

    @abstractmethod
    def applies(self, graph: Graph, node: Node) -> Form | None:
        """What ``node`` of the float model becomes once it is quantized, or None where the rewrite does not apply."""

    @abstractmethod
    def apply(self, qdq: QDQGraph, forms: Mapping[str, Form]) -> None:
        """Rewrite, in place, those nodes among the keys of ``forms`` that the Q/DQ nodes around them make integer.

        A constant that is changed (:meth:`~inlay.quant.qdq_graph.QDQGraph.set_constant`) comes with the steps that
        give the original back; nodes need no such care.
        """


def stated(value: object) -> str:
    """``repr``, but the same in every process: no order of sets, no address of a function, but what it is made of.

    Of any other object whose ``repr`` holds its address, no two processes say the same.
    """
    if isinstance(value, (set, frozenset)):
        return f"{{{', '.join(sorted(map(stated, value)))}}}"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{stated(key)}: {stated(item)}' for key, item in value.items())}}}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(stated, value))})"
    if is_dataclass(value) and not isinstance(value, type):
        parts = ", ".join(f"{f.name}={stated(getattr(value, f.name))}" for f in fields(value))
        return f"{type(value).__name__}({parts})"
    if isinstance(value, FunctionType):
        held = inspect.getclosurevars(value).nonlocals  # what tells the functions apart that another one makes
        more = stated([value.__code__, value.__defaults__, {k: v for k, v in held.items() if v is not value}])
        return f"{value.__module__}.{value.__qualname__}{more}"
    if isinstance(value, partial):
        return stated([value.func, value.args, value.keywords])
    if isinstance(value, CodeType):
        return f"{value.co_code.hex()} {value.co_names} {stated(value.co_consts)}"
    return repr(value)

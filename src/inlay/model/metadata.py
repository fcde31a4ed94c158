"""Metadata of nodes and values, which the graph library makes where it is only asked for.

Each empty store is four objects of half a kilobyte together. In a large model they would be a quarter of the memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import onnx_ir as ir

_STORES = {"meta": "_metadata", "metadata_props": "_metadata_props"}
"""Where the library keeps what each of its properties shows: None until somebody asks."""


def has_entries(holder: ir.Node | ir.Value, name: Literal["meta", "metadata_props"]) -> bool:
    """Whether the property ``name`` of ``holder`` is not empty; nothing is made."""
    missing = object()
    store = getattr(holder, _STORES[name], missing)
    return bool(getattr(holder, name) if store is missing else store)


def cloned(model: ir.Model) -> ir.Model:
    """A copy, without the empty stores that copying makes in both."""
    copy = model.clone()
    for each in (model, copy):
        for graph in each.graphs():
            _forget(graph.initializers.values())
            _forget(graph.inputs)
            for node in graph:
                _forget((node, *node.outputs))
    return copy


def _forget(holders: Iterable[ir.Node | ir.Value]) -> None:
    for holder in holders:
        for store in _STORES.values():
            found = getattr(holder, store, None)
            if found is not None and not found:
                setattr(holder, store, None)

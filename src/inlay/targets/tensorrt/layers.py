"""A profile of TensorRT's layers as kernels of the model, by what the engine inspector says of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from inlay.targets.attribution import Names
from inlay.targets.base import KernelTime
from inlay.targets.tensorrt.reports import Layer

_REFORMATS = ("Reformat", "NoOp")
"""Kinds of layers that change the layout or the type of one tensor."""
_COPIES = "Reformatting CopyNode"
"""How the names of such layers begin."""


def kernels_of(profile: Mapping[str, float], layers: Sequence[Layer], names: Names) -> list[KernelTime]:
    """Kernels: by the ONNX nodes that the parser noted for a layer, else by its name, else by its tensors.

    Args:
        profile: milliseconds of each layer by name.
        layers: of the engine; without details, names are all there is.
        names: of the model that the engine was built from.
    """
    known = {layer.name: layer for layer in layers}
    return [_kernel(name, ms * 1e6, known.get(name, Layer(name, "")), names) for name, ms in profile.items()]


def _kernel(name: str, ns: float, layer: Layer, names: Names) -> KernelTime:
    kind, precision = layer.kind or "layer", "int8" if "int8" in layer.types else next(iter(layer.types), "")
    if layer.kind in _REFORMATS or name.startswith(_COPIES):
        values = names.known((*layer.inputs, *layer.outputs))
        return KernelTime(name, kind, ns, precision, values=values, kind="layout")
    joined = " + ".join(layer.nodes) if layer.nodes else name
    found = names.layer(joined, kind, ns, precision)
    if not found.attributed:
        found = names.layer(" + ".join(layer.outputs), kind, ns, precision)
    return replace(found, name=name, op_type=kind)

"""A ``ConvTranspose`` as a ``Conv`` that computes blocks of pixels: the form that has an integer kernel.

A runtime may have no ``ConvTranspose`` in 8 bits. Each block of ``s x s`` pixels that it makes, at stride ``s``, comes
from the same few inputs, so a convolution of stride 1 with ``s*s`` times as many outputs computes it, and
``DepthToSpace`` puts the pixels in their places, as bytes (:class:`inlay.model.windows.Spread`). The products are the
same ones. In float (ONNX Runtime 1.31, x86-64 with AVX512) this takes 1.0 to 2.0 times as long as ``ConvTranspose``
does, which is why the form is for low precision only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import onnx

from inlay.model.windows import Spread
from inlay.quant.draft import Draft, set_window, until_quantized

FROM_BLOCKS = "DepthToSpace"


def spread_transposed(draft: Draft, spreads: Mapping[str, Spread], absorbed: Collection[str]) -> None:
    """Write transposed convolutions between DQ and Q as ``DQ -> Conv [-> Relu] -> Q -> DepthToSpace -> DQ``.

    Args:
        draft: the candidate; is changed.
        spreads: by node, the transposed convolutions that may.
        absorbed: activations that the target folds into the convolution before them.
    """
    after = {v: n for n in draft.graph.node for v in n.input}
    stale: set[str] = set()
    for node in list(draft.graph.node):
        form = spreads.get(node.name)
        parameters = [draft.dequantizer(v) for v in node.input]
        if form is None or None in parameters:
            continue
        constants = [p for p in parameters[1:] if p is not None]
        if not all(draft.owns(p) for p in constants):
            continue
        between, q = until_quantized(node, after, draft, absorbed)
        if q is None:
            continue
        node.op_type = "Conv"
        set_window(node, {"kernel_shape": form.kernel, "pads": form.pads, "strides": (1, 1)}, keep=False)
        for slot, dq in enumerate(constants):
            _spread_constant(dq, form, draft, weight=slot == 0)
        stale.update(n.output[0] for n in (node, *between))
        whole, blocks = q.output[0], draft.free(f"{node.name}_blocks_quantized")
        q.output[0] = blocks
        move = onnx.helper.make_node(
            FROM_BLOCKS, [blocks], [whole], draft.free(f"{node.name}_{FROM_BLOCKS}"), blocksize=form.size
        )
        draft.insert([move], before=after[whole])
    draft.finish(set())
    draft.forget(stale)


def _spread_constant(dq: onnx.NodeProto, form: Spread, draft: Draft, weight: bool) -> None:
    """Give the constant behind ``dq``, and scales where each output has its own, the order of the Conv's outputs."""
    if weight:
        draft.rearrange(dq, form.weight, form.channels, FROM_BLOCKS)
    else:
        draft.put(dq.input[0], partial(form.channels, draft.numbers(dq.input[0])), FROM_BLOCKS)
    for name in dq.input[1:]:
        numbers = draft.numbers(name)
        if numbers.ndim:
            draft.put(name, partial(form.channels, numbers), FROM_BLOCKS)
    if weight and dq.attribute:
        set_window(dq, {}, keep=False)
        dq.attribute.append(onnx.helper.make_attribute("axis", 0))

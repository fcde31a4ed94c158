"""Quantized graphs of any origin in their plain form: float operators between Q/DQ nodes.

:mod:`~inlay.quant.plain.form` walks over a graph and replaces operators on integers by rows of
:mod:`~inlay.quant.plain.graph`: ONNX's own are in :mod:`~inlay.quant.plain.operators`, a runtime's in its target's
folder. Nothing here imports what stands behind it in ``quant``; :mod:`inlay.quant.extract` reads what comes out.
"""

__all__ = ["fakes", "form", "graph", "moves", "operators"]

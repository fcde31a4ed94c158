"""Q/DQ ONNX to integer graphs and TOSA 1.0 flatbuffers, proven bit for bit.

:func:`inlay.tosa.lowering.lower` does it all: a model with static shapes (``static_model``), the integer graph
(``ir``, ``integer_graph``, and one of ``rules`` per operator family), partitions (``partition``: ONNX
models for the host) and their flatbuffers (``layout``, ``serialize``). ``command`` writes them to disk
(``sidefile``). ``oracle`` computes integer operators in numpy, ``reference`` runs a lowered model there or on the TOSA
reference model; ``ethos_u`` are the targets that compile it. A wing, which a reader who does not deploy on NPUs may
skip: the targets and ``inlay lower`` are entry points. The packages of the extra ``arm`` are imported only through
``extras``, when they are first needed.
"""

__all__ = ["command", "ethos_u", "ir", "layout", "lowering", "oracle", "reference", "rules", "sidefile"]

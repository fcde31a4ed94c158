"""TensorRT as two targets: through its Python bindings (``target``), and through its tool ``trtexec``.

``rules`` is the table, ``reports`` reads what the tool writes as JSON, ``layers`` traces a profile to the model by the
engine inspector, ``remote`` is about engines that are timed on another machine. ``bindings`` imports the libraries,
``engine`` is what they build. Written after the documentation of TensorRT 11; none of it has run on a device so far.
"""

__all__ = ["bindings", "engine", "reports", "rules", "target", "trtexec"]

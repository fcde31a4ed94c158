"""Measuring on a board over SSH, with Python, numpy and a runtime there, and nothing of Inlay.

A wing, which joins as the executor of ``--device``. In the order of its flow: ``address`` reads what the option says,
``archive`` gathers the modules that a worker needs, ``connection`` starts them there through the system's ``ssh``, and
``held`` is the run's side of the board; ``lab`` puts them together. On the board, ``board`` answers, in ``frames``;
``standin`` reads models there in place of the package ``onnx``.
"""

__all__ = ["address", "archive", "board", "connection", "frames", "held", "lab", "standin"]

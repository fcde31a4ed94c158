"""What runs in a recorded program: it keeps a fair sample of what each session of ONNX Runtime is fed.

It is loaded by its path into the program's own Python, which may be another than Inlay's, and need not have Inlay:
nothing is imported but the standard library, and numpy once a session runs. What it keeps lies on disk at once, each
feed as a whole file, and counts lie in mapped memory: however the program ends, nothing is lost. Where recording fails,
the program goes on, and a note says why.

A folder for each process, ``0``, ``1``, …, holds one for each model, with ``model.json``, ``counts``, and a file for
each feed that is named for what choosing among them takes (:class:`~inlay.recording.hook.keep.Kept`).
"""

__all__ = ["keep", "recorder"]

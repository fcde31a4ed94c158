"""What a model is for, found by its outputs, and how far another model does the same, in those terms.

:mod:`~inlay.quant.tasks.recognize` says what a model looks like, or nothing where that is not sure.
:mod:`~inlay.quant.tasks.task` holds what is told of a task, as :class:`~inlay.quant.metrics.Agreement` values;
``detections``, ``layouts``, ``sequences``, ``maps`` and ``vectors`` compute them.
"""

__all__ = ["detections", "layouts", "maps", "recognize", "sequences", "task", "vectors"]

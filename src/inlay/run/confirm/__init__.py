"""What the search found, measured again as it is delivered, and judged on samples that neither it nor calibration saw.

:mod:`~inlay.run.confirm.contenders` chooses what is worth it, :mod:`~inlay.run.confirm.fresh_readings` measures in
fresh processes, :mod:`~inlay.run.confirm.verification` judges, and :mod:`~inlay.run.confirm.decision` decides. Behind
it, :mod:`~inlay.run.confirm.crossfit` judges the delivered model on every sample. The folder imports what a run works
with (``session``, ``plan``, ``facts``, ``evaluate``, ``result``), and offers its decision to :mod:`inlay.run.tune`.
"""

__all__ = ["contenders", "crossfit", "decision", "delivered", "fresh_readings", "verification"]

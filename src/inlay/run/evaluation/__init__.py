"""The user's own evaluation of whole models: asked seldom, since it takes seconds to minutes.

:mod:`~inlay.run.evaluation.evaluator` asks the user's function or program, and makes a value of whatever comes back;
:mod:`~inlay.run.evaluation.judging` holds others against the given model, within a share of the budget, and keeps what
was found in the journal; :mod:`~inlay.run.evaluation.relation` says which SQNR the scores ask for, by which the search
goes.
"""

__all__ = ["evaluator", "judging", "relation"]

"""The accuracy constraint that a call asks for: by SQNR, by a metric of outputs, or by the user's own evaluation."""

from __future__ import annotations

from inlay.errors import UsageError
from inlay.prepare.options import DEFAULT_MIN_SQNR_DB, check_sqnr, parse_limits, parse_share
from inlay.quant.bound import DEFAULT_DROP, Bound, EvaluationBound
from inlay.quant.tasks.task import MOST_LOST
from inlay.run.evaluation.evaluator import ModelEvaluator
from inlay.run.options import TuneOptions


def bound_of(options: TuneOptions, evaluator: ModelEvaluator | None) -> Bound:
    """The constraint. Raises UsageError where options contradict each other."""
    metric, max_drop, min_sqnr = options.metric, options.max_drop, options.min_sqnr
    if metric is not None and not isinstance(metric, str):
        metric = str(getattr(metric, "__name__", metric))
    evaluation = _evaluation_bound(options, evaluator)
    named = options.task if options.task in MOST_LOST else None if metric in (None, "sqnr") else metric
    if evaluation is not None and named is not None:
        raise UsageError("give --evaluate, --metric or --task, one of them: each says what is accurate enough")
    if options.no_bound:
        if max_drop is not None or min_sqnr is not None or options.at_least or options.at_most:
            raise UsageError("--no-bound contradicts --max-drop, --min-sqnr, --min and --max")
        return Bound(metric=named, evaluation=evaluation)
    if max_drop is not None and named is None and evaluation is None:
        raise UsageError("--max-drop needs --metric, --task or --evaluate: it bounds the fall of a metric")
    drop = None if max_drop is None else parse_share(str(max_drop))
    if named is None:
        if min_sqnr is None and evaluation is None:
            return Bound(DEFAULT_MIN_SQNR_DB, is_usual=True)
        return Bound(check_sqnr(min_sqnr), evaluation=evaluation)
    usual = MOST_LOST.get(options.task, DEFAULT_DROP)
    return Bound(check_sqnr(min_sqnr), named, usual if drop is None else drop)


def _evaluation_bound(options: TuneOptions, evaluator: ModelEvaluator | None) -> EvaluationBound | None:
    least, most = parse_limits("--min", options.at_least), parse_limits("--max", options.at_most)
    higher, lower = options.higher_is_better, options.lower_is_better
    if evaluator is None:
        given = {"--min": least, "--max": most, "--higher-is-better": higher, "--lower-is-better": lower}
        idle = next((name for name, value in given.items() if value), None)
        if idle is not None:
            falls = "; how far --metric or --task falls below float is bounded by --max-drop"
            raise UsageError(
                f"{idle} needs --evaluate: it is about the scores of that{falls if idle in ('--min', '--max') else ''}"
            )
        return None
    if higher and lower:
        raise UsageError("give --higher-is-better or --lower-is-better; of single scores, --min and --max say which")
    both = next((name for name, _ in least if name in dict(most)), None)
    if both is not None:
        raise UsageError(
            f"--min {both} and --max {both}: give one of the two, which says in which direction it is better"
        )
    return EvaluationBound(
        evaluator.name,
        None if options.max_drop is None else parse_share(str(options.max_drop)),
        least,
        most,
        True if higher else False if lower else None,
        options.no_bound,
    )

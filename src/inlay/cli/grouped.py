"""Help with options in groups: those that matter most come first, and each command ends with an example."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand

_EXAMPLE = "Example:\n"
MANY = 14  # options from which on they are shown in groups
FIRST = "The options that matter most"
MOST_USED = (
    "out", "data", "preprocess", "labels", "metric", "evaluate", "max_drop", "min_sqnr", "target", "budget",
)  # fmt: skip
"""Of ``tune``; other commands have some of them."""
GROUPS: Mapping[str, tuple[str, ...]] = {
    "Data": ("mask", "bind", "fix", "freeze_shapes", "shape", "batch", "augment"),
    "Accuracy": (
        *("task", "min", "max", "higher_is_better", "lower_is_better", "no_bound", "accept_unproven"),
        *("qdq_baseline", "keep_qparams"),
    ),
    "Search": (
        *("effort", "max_measurements", "strategy", "schemes_per_region", "pattern_cache", "nodes", "recipe"),
        *("no_cost_db", "costs", "objective", "streams", "seed", "restart"),
    ),
    "Target": ("target_option", "threads", "base", "quant_type", "max_opset", "ray", "device", "for"),
    "Output": ("repair", "quiet", "json", "json_log", "dry_run", "explain", "all", "config", "help"),
}
"""Options by their first long flag. Those that are not named here stand in a last group."""
OTHER = "Other"


def group_of(option: str) -> str:
    """The heading that an option stands under, by its first long flag without dashes, with underscores."""
    if option in MOST_USED:
        return FIRST
    return next((group for group, names in GROUPS.items() if option in names), OTHER)


class Grouped(TyperCommand):
    """A command whose help shows options in groups, where there are many, and keeps the lines of its examples."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then groups of options."""
        parameters = [(each, row) for each in self.get_params(ctx) if (row := each.get_help_record(ctx)) is not None]
        arguments = [row for each, row in parameters if each.param_type_name == "argument"]
        options = [(_name(each), row) for each, row in parameters if each.param_type_name != "argument"]
        grouped: dict[str, list[Any]] = {FIRST: [], **{group: [] for group in GROUPS}, OTHER: []}
        for name, row in options:
            grouped[group_of(name)].append(row)
        if len(options) < MANY:
            grouped = {"Options": [row for _, row in options]}
        else:
            order = {name: place for place, name in enumerate(MOST_USED)}
            first = sorted((order[name], row) for name, row in options if name in order)
            grouped[FIRST] = [row for _, row in first]
        for title, rows in ({"Arguments": arguments} | grouped).items():
            if rows:
                with formatter.section(title):
                    formatter.write_dl(rows)

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the command does, without its examples."""
        whole = self.help
        self.help = (whole or "").partition(_EXAMPLE)[0].rstrip()
        try:
            super().format_help_text(ctx, formatter)
        finally:
            self.help = whole

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the examples, a line each, to be copied as they are."""
        if examples := (self.help or "").partition(_EXAMPLE)[2].split("\n"):
            lines = [line.strip() for line in examples if line.strip()]
            with formatter.section("Example" if len(lines) == 1 else "Examples"):
                formatter.write("".join(f"  {line}\n" for line in lines))


def _name(option: Any) -> str:
    flag = next((flag for flag in option.opts if flag.startswith("--")), option.opts[0])
    return str(flag).lstrip("-").replace("-", "_")

"""Measuring programs of a few lines of shell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

EXAMPLE = Path(__file__).parents[3] / "examples" / "command_target"

LATENCIES = """
case $INLAY_DO in
describe) echo '{"inlay": 1, "gives": ["latency"], "deterministic": true, "facts": {"clock": "none"}}' ;;
time) n=$(grep -o -a DequantizeLinear "$INLAY_MODEL" | wc -l)
      awk -v n="$n" -v readings="$INLAY_READINGS" 'BEGIN {
        printf "{\\"latencies_ms\\": ["
        for (i = 0; i < readings; i++) printf "%s%f", i ? ", " : "", 8 / (1 + n)
        print "]}" }' ;;
esac
"""
"""The more there is in low precision, the faster; no outputs, no profile."""

Script = Callable[..., str]
"""Writes a shell script with this body; returns the command that runs it."""


def write_script(folder: Path, body: str, name: str = "measure.sh") -> str:
    """A shell script; the command that runs it."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)

"""Attacks that follow from a seed and a number: their options, and a loop that prints what broke."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare which attacks are made."""
    parser.add_argument("--count", type=int, default=200, help="attacks (default 200)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one, to go on or to repeat one")
    parser.add_argument("--seed", type=int, default=0, help="every attack follows from it and its number (default 0)")


def numbers(given: argparse.Namespace) -> range:
    """Of the attacks that are made."""
    return range(given.first, given.first + given.count)


def can_run() -> bool:
    """Whether processes can be found here; says so where not."""
    if sys.platform != "linux":
        print("processes are found through /proc: this needs Linux")
    return sys.platform == "linux"


def work(attacks: Iterable[T], faults_of: Callable[[T], list[str]]) -> int:
    """Make ``attacks``, and print what broke. Returns 1 where something did."""
    broken, count = Counter[str](), 0
    for attack in attacks:
        faults = faults_of(attack)
        print(f"{attack}: {'; '.join(faults) or 'fine'}", flush=True)
        broken.update(faults)
        count += 1
    print(f"{count} attacks, {sum(broken.values())} faults")
    return int(bool(broken))

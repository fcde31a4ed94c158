"""A mistake in the module of another package's target is told as what it is."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from inlay.errors import TargetError
from inlay.installed import TARGETS
from inlay.targets import registry
from inlay.targets.base import TargetSpec


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import no_such_module", "no_such_module"),
        ("Target = undefined_name", "NameError: name 'undefined_name'"),
        ("def broken(:", "SyntaxError"),
        ("Other = 1", "AttributeError"),
    ],
)
def test_the_reason_is_told(source: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = f"broken_target_{abs(hash(source))}"
    (tmp_path / f"{module}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint("broken", f"{module}:Target", TARGETS)
    monkeypatch.setattr(registry, "available", lambda: {"broken": entry})
    with pytest.raises(TargetError, match="target broken cannot be loaded") as told:
        registry.create(TargetSpec("broken"))
    assert words in str(told.value)


def test_a_mistake_in_what_a_target_writes_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    null = registry.available()["null"]
    source = "class Target:\n    def integer_operators(self):\n        return undefined_name\n"
    (tmp_path / "mistaken_target.py").write_text(source)
    (tmp_path / "absent_target.py").write_text("import no_such_module")
    monkeypatch.syspath_prepend(tmp_path)
    entries = {name: EntryPoint(name, f"{name}_target:Target", TARGETS) for name in ("absent", "mistaken")}
    monkeypatch.setattr(registry, "available", lambda: {**entries, "null": null})
    registry.known_operators.cache_clear()
    try:
        with pytest.warns(UserWarning, match=r"target mistaken .*NameError: name 'undefined_name'") as told:
            registry.known_operators()
    finally:
        registry.known_operators.cache_clear()
    assert len(told) == 1, "what is not installed is no mistake"

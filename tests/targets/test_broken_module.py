"""A mistake in the module of another package's target is told as what it is."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from inlay.errors import TargetError
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
    entry = EntryPoint("broken", f"{module}:Target", registry.GROUP)
    monkeypatch.setattr(registry, "available", lambda: {"broken": entry})
    with pytest.raises(TargetError, match="target broken cannot be loaded") as told:
        registry.create(TargetSpec("broken"))
    assert words in str(told.value)

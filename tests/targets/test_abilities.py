"""What a target can do besides what every target must: by protocols, which the docs list, and by nothing else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from inlay.targets import base, preconditions, registry
from inlay.targets.base import Calibrates, LacksSome, lacks_of
from inlay.targets.null import NullTarget
from inlay.targets.onnxruntime.target import OrtCpuTarget
from inlay.targets.preconditions import COMMON, ExplainsFusion, preconditions_of

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \| (?:target|class|executable) \| \S.* \|$", re.MULTILINE)


def abilities() -> dict[str, str]:
    """The optional protocols, each with its one member."""
    found = {}
    for module in (base, preconditions, registry):
        for name, kind in vars(module).items():
            if getattr(kind, "_is_runtime_protocol", False) and kind.__module__ == module.__name__:
                members = {*vars(kind).get("__annotations__", ()), *(m for m in vars(kind) if not m.startswith("_"))}
                (found[name],) = members
    return found


def by_name(source: str) -> list[str]:
    """Members of abilities that code looks up by their names."""
    known = set(abilities().values())
    calls = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Call) and len(n.args) > 1]
    asked = [n.args[1] for n in calls if isinstance(n.func, ast.Name) and n.func.id in ("getattr", "hasattr")]
    return [a.value for a in asked if isinstance(a, ast.Constant) and a.value in known]


def test_the_docs_list_every_ability() -> None:
    assert dict(ROW.findall((ROOT / "docs" / "targets.md").read_text(encoding="utf8"))) == abilities()
    assert len(abilities()) > 10


def test_no_ability_is_looked_up_by_its_name() -> None:
    files = sorted((ROOT / "src").rglob("*.py"))
    assert {f.name: names for f in files if (names := by_name(f.read_text(encoding="utf8")))} == {}


@pytest.mark.parametrize("code", ["getattr(t, 'lacks', ())", "hasattr(self._target, 'micro_models')"])
def test_a_member_that_is_looked_up_by_its_name_is_found(code: str) -> None:
    assert len(by_name(code)) == 1


def test_a_target_has_the_abilities_whose_members_it_has() -> None:
    plain, able = NullTarget(), OrtCpuTarget()
    assert not isinstance(plain, (Calibrates, ExplainsFusion, LacksSome))
    assert isinstance(able, Calibrates)
    assert isinstance(able, ExplainsFusion)
    assert preconditions_of(plain) == COMMON != preconditions_of(able)
    assert lacks_of(plain) == frozenset()

    class Blind(NullTarget):
        lacks = frozenset({"profile"})

    assert lacks_of(Blind()) == {"profile"}

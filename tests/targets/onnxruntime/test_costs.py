"""Which cost table a processor starts from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inlay.run.machine_costs import read_costs
from inlay.targets.onnxruntime.target import _COSTS, OrtCpuTarget, nearest_costs

TABLES = ["x86_64-avx2", "x86_64-avx2-avx512f-avx512_vnni", "aarch64-asimddp"]


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("x86_64 avx2", "x86_64-avx2"),
        ("x86_64 avx2 avx_vnni", "x86_64-avx2"),
        ("x86_64 avx2 avx512f avx512_vnni", "x86_64-avx2-avx512f-avx512_vnni"),
        ("x86_64 avx2 avx512f avx512_vnni avx_vnni amx_int8", "x86_64-avx2-avx512f-avx512_vnni"),
        ("x86_64 avx2 avx512f", "x86_64-avx2"),
        ("aarch64 asimddp i8mm", "aarch64-asimddp"),
        ("x86_64", None),
        ("aarch64", None),
        ("riscv64", None),
    ],
)
def test_the_nearest_table_needs_nothing_that_the_processor_lacks(flags: str, name: str | None) -> None:
    assert nearest_costs(flags.split(), TABLES) == name
    assert nearest_costs(flags.split(), []) is None


@pytest.mark.parametrize("path", sorted(_COSTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_table_that_ships_is_named_by_what_it_was_measured_on(
    path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    facts = json.loads(path.read_text(encoding="utf8"))["facts"]
    assert path.stem == "-".join([facts["machine"], *facts["isa"].split()])
    assert facts["threads"] == "1"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(OrtCpuTarget, "shipped_costs", lambda self: path)
    known = read_costs(target := OrtCpuTarget(), target.fingerprint())
    assert known.table is not None
    assert not known.own
    assert not known.warning

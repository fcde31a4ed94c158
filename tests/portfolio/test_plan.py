"""``fleet.yaml``: the product of its lists, and one line for whatever is wrong with it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from inlay.data import Images
from inlay.errors import InlayError
from inlay.portfolio.plan import FleetPlan, read_plan


def plan(folder: Path, text: str) -> FleetPlan:
    path = folder / "fleet.yaml"
    path.write_text(text)
    return read_plan(path)


def test_models_times_targets_times_constraints(tmp_path: Path) -> None:
    found = plan(
        tmp_path,
        """
        budget: 1h30m
        defaults: {threads: 2, min-sqnr: 25, image-size: 32, bind: n=1}
        models: [a/net.onnx, {model: b/net.onnx, min_sqnr: 40, effort: instant, no-bound: false}]
        targets: [null, {target: ort-cpu, threads: 1}]
        constraints: [{}, {metric: top1-agreement, max-drop: 1%}]
        """.replace("[null", "['null'"),
    )
    assert found.budget_s == 5400.0
    assert [e.name for e in found.entries] == [
        f"{model}-net-{target}-{n}" for model in "ab" for target in ("null", "ort-cpu") for n in (1, 2)
    ]
    first, last = found.entries[0], found.entries[-1]
    assert dict(first.options) == {
        "target": "null", "threads": 2, "min_sqnr": 25, "images": Images(size=32), "bind": ["n=1"],  # type: ignore[arg-type]
        "model": "a/net.onnx",
    }  # fmt: skip
    assert (first.most_s, last.most_s) == (math.inf, 30.0)
    assert (last.options["threads"], last.options["min_sqnr"], last.options["max_drop"]) == (1, 40, "1%")


def test_the_digest_changes_with_options_and_files_but_not_with_the_budget(tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"1")
    (one,) = plan(tmp_path, f"models: [{model}]").entries
    (same,) = plan(tmp_path, f"models: [{{model: {model}, budget: 5s}}]\nbudget: 9s").entries
    (other,) = plan(tmp_path, f"models: [{{model: {model}, seed: 1}}]").entries
    assert one.digest == same.digest != other.digest
    before = one.digest
    model.write_bytes(b"22")
    assert one.digest != before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not a fleet: expected models"),
        ("[1]", "is not a fleet: expected models"),
        ("models: []", "is not a fleet: expected models"),
        ("models: a.onnx", "models is a list"),
        ("models: [3]", "models, number 1: expected options"),
        ("models: [{data: x}]", "models, number 1: give the model by name"),
        ("models: [a]\ntargets: []", "targets is a list"),
        ("models: [a]\nbudgt: 3s", "a fleet has no budgt; did you mean budget?"),
        ("models: [a]\nbudget: soon", "soon"),
        ("models: [a]\nbudget: [1]", "budget is a time"),
        ("models: [a]\nbudget: true", "budget is a time"),
        ("models: [a]\ndefaults: 3", "defaults: expected options"),
        ("models: [a]\ndefaults: {min-sqrn: 3}", "defaults: tune has no option min-sqrn; did you mean min-sqnr?"),
        ("models: [a]\ndefaults: {out: b}", "defaults: tune has no option out"),
        ("models: [a]\ndefaults: {ray: local}", "defaults: tune has no option ray"),
        ("models: [a]\ndefaults: {progress: b}", "defaults: tune has no option progress"),
        ("models: [{model: a, threads: many}]", "a: inlay.tune: threads takes int"),
        ("models: [{model: a, schemes-per-region: 0}]", "a: inlay.tune: schemes_per_region is 0; the least is 1"),
        ("models: [{model: a, restart: true}]", "tune has no option restart"),
        ("models: [{model: a, effort: much}]", "a: effort much: choose from instant"),
        ("models: [{model: a, effort: [1]}]", "a: effort [1]: choose from instant"),
        ("models: [{model: a, budget: x}]", "a: "),
        ("models: [a]\ntargets: [auto]", "a: one target for each run"),
        ("models: [a]\nconstraints: [fast]", "constraints, number 1: expected options"),
        ("models: [{model: a, data: {b: 1}}]", "a: data takes one value"),
        ("models: [{model: a, min-sqnr: null, min_sqnr: 1, 3: 4}]", "tune has no option 3"),
    ],
)
def test_whatever_is_wrong_is_one_line_that_names_it(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InlayError) as caught:
        plan(tmp_path, text)
    assert said in str(caught.value)
    assert "fleet.yaml" in str(caught.value)

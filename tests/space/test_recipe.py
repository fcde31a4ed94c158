"""Recipes: the last rule wins, every decision says why, nothing is matched in vain, and files keep their meaning."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from benchmarks.generated_graphs import FAMILIES, GraphBuilder

from inlay import OpConfig, Recipe
from inlay.calibrate.observe import observe
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import Samples
from inlay.errors import NoSuchFile, UsageError
from inlay.model.graph import Graph
from inlay.model.load import load
from inlay.patterns.search_space import find_search_space
from inlay.prepare.model import PreparedModel, prepare
from inlay.quant.qparams import QParamsTable
from inlay.space import recipe_file
from inlay.space.recipe import BUILTIN
from inlay.space.resolve import DEFAULT, Decision, recipe_of, resolve
from inlay.space.units import STATIC, Unit, find_units, placement_from_labels, placement_from_precisions
from inlay.targets.base import Capabilities, Feed
from inlay.targets.onnxruntime.rules import rules_for
from inlay.types import Placement, Port, PortRewrite, QType
from tests.support.branches import branches

RULES = rules_for("x86_64", frozenset({"avx512_vnni"}))
REWRITING = replace(RULES, rewrites=frozenset({"off zero"}))
INT = OpConfig()


def net() -> Graph:
    """backbone/c1 → backbone/r1 → backbone/pool → neck/c2 → head/add (with the pool) → head/sub."""
    b = GraphBuilder()
    x = b.input((1, 8, 8, 8), "x")
    w = b.const((8, 8, 1, 1))
    y = b.node("Conv", [x, w], name="backbone/c1")
    y = b.node("Relu", [y], name="backbone/r1")
    p = b.node("MaxPool", [y], name="backbone/pool", kernel_shape=(1, 1))
    c = b.node("Conv", [p, b.const((8, 8, 1, 1))], name="neck/c2")
    a = b.node("Add", [c, p], name="head/add")
    b.node("Sub", [a, p], name="head/sub")
    return b.graph()


GRAPH = net()
UNITS = find_units(GRAPH, RULES)


def table(recipe: Recipe, graph: Graph = GRAPH) -> dict[str, Decision]:
    found = resolve(recipe, graph, find_units(graph, RULES), RULES)
    return {d.node: d for d in found.decisions}


def precisions(recipe: Recipe) -> dict[str, str]:
    return {name: d.precision for name, d in table(recipe).items()}


def labeled(graph: Graph, units: Collection[Unit], names: Collection[str]) -> Placement:
    """The units of these names in low precision."""
    return placement_from_labels(graph, units, RULES, lambda u: u.name in names)


def test_last_rule_wins() -> None:
    one = Recipe().set_op_type("Conv", None).set_module("backbone/", INT)
    assert precisions(one)["backbone/c1"] == "uint8"
    assert precisions(one)["neck/c2"] == "float"
    other = Recipe().set_module("backbone/", INT).set_op_type("Conv", None)
    assert precisions(other)["backbone/c1"] == "float"


def test_recipes_compose() -> None:
    both = Recipe().set_global(INT) | Recipe().set_name("head/*", None)
    assert precisions(both)["head/add"] == "float"
    assert precisions(both)["neck/c2"] == "uint8"


def test_every_decision_names_its_rule_and_reason() -> None:
    rows = table(Recipe().set_name("neck/*", None))
    assert rows["neck/c2"].rule == "set_name('neck/*', float)"
    assert rows["neck/c2"].reason == "the recipe keeps it float"
    assert rows["backbone/c1"].rule == DEFAULT
    assert rows["backbone/r1"].reason == "it is folded into backbone/c1"
    assert "follows backbone/r1" in rows["backbone/pool"].reason
    assert all(r.reason for r in rows.values())


def test_rejected_wishes_say_why() -> None:
    row = table(Recipe().set_op_type("Sub", INT))["head/sub"]
    assert row.precision == "float"
    assert row.reason == "rejected: Sub has no low-precision form on this target"


def test_a_rule_for_a_folded_activation_decides_about_its_unit() -> None:
    found = precisions(Recipe().set_op_type("Relu", None))
    assert found["backbone/c1"] == found["backbone/r1"] == "float"


@pytest.mark.parametrize(
    ("recipe", "hint"),
    [
        (Recipe().set_op_type("conv", INT), "did you mean Conv"),
        (Recipe().set_op_type("MaxPol", None), "did you mean MaxPool"),
        (Recipe().set_name("neck/c3", None), "did you mean neck/c2"),
        (Recipe().set_name("*pol*", None), "backbone/"),
        (Recipe().set_module("bakbone/", None), "backbone/"),
        (Recipe().set_io(None, "y"), "model input or output of the model; the model has, for instance, x"),
        (Recipe().set_port(Port("neck/c2", 7), None), "did you mean neck/c2"),
    ],
)
def test_a_rule_that_matches_nothing_names_near_misses(recipe: Recipe, hint: str) -> None:
    with pytest.raises(UsageError, match="matches no") as caught:
        resolve(recipe, GRAPH, UNITS, RULES)
    assert hint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_types_that_the_target_lacks_are_refused() -> None:
    narrow = replace(RULES, other_activations=frozenset({QType.INT8}))
    with pytest.raises(UsageError, match="int8, uint8, not int16"):
        resolve(Recipe().set_global(OpConfig(QType.INT16)), GRAPH, UNITS, narrow)
    wide = replace(RULES, other_activations=frozenset({QType.INT16}))
    found = resolve(Recipe().set_name("neck/c2", OpConfig(QType.INT16)), GRAPH, find_units(GRAPH, wide), wide)
    assert found.placement.qtype(Port("neck/c2", 0)) is QType.INT16
    assert found.placement.qtype(Port("backbone/c1", 0)) is QType.UINT8


def test_activation_type() -> None:
    found = resolve(Recipe().set_global(OpConfig(QType.INT8)), GRAPH, UNITS, RULES)
    assert {q for p, q in found.placement} == {QType.INT8}


def test_per_tensor_weights() -> None:
    found = resolve(Recipe().set_name("neck/c2", OpConfig(per_channel=False)), GRAPH, UNITS, RULES)
    weight = GRAPH.node("neck/c2").inputs[1]
    assert found.per_tensor == {weight}
    qparams = QParamsTable(GRAPH, RULES, {}, per_tensor=found.per_tensor)
    assert qparams.params(weight, QType.INT8).axis is None
    assert qparams.params(GRAPH.node("backbone/c1").inputs[1], QType.INT8).axis == 0


def test_float_inputs_and_outputs_say_nothing_about_the_operators_inside() -> None:
    """An interface in float with an integer inside: the first and the last operator follow their own rules."""
    b = GraphBuilder()
    b.conv(b.relu(b.conv(b.input((1, 8, 8, 8), "x"), 8)), 8)
    graph = b.graph()
    inside = Recipe().set_global(INT).set_io(None)
    assert {d.precision for d in table(inside, graph).values()} == {"uint8"}
    found = resolve(inside, graph, find_units(graph, RULES), RULES)
    assert found.placement.qtype(Port("n0", 0)) is QType.UINT8
    assert not found.io
    assert not found.kept_float
    edges = inside.set_name("n0", None)
    assert [table(edges, graph)[n].precision for n in ("n0", "n2")] == ["float", "uint8"]


def test_global_float_quantizes_what_is_named_and_the_cluster_beside_it() -> None:
    recipe = Recipe().set_global(None).set_name("neck/c2", INT)
    found = table(recipe)
    assert [n for n, d in found.items() if d.precision != "float"] == ["backbone/pool", "neck/c2"]
    assert found["backbone/pool"].reason == "its cluster follows neck/c2"
    kept = resolve(recipe, GRAPH, UNITS, RULES).kept_float
    assert set(kept) == {"backbone/c1", "head/add"}


def test_float_for_every_name_quantizes_only_what_is_named() -> None:
    found = precisions(Recipe().set_name("*", None).set_name("neck/c2", INT))
    assert [n for n, p in found.items() if p != "float"] == ["neck/c2"]


@pytest.mark.parametrize("family", FAMILIES)
def test_builtin_recipes_are_the_usual_placements(family: str) -> None:
    graph = FAMILIES[family](40)
    units = find_units(graph, RULES)
    full = resolve(BUILTIN["full-int8"], graph, units, RULES).placement
    usual = placement_from_labels(graph, units, RULES, lambda u: True)
    assert {p for p, _ in full} <= {p for p, _ in usual}
    computing = {p for u in units if u.selectable and not u.moves_data for p in (*u.activations, *u.weights)}
    assert all(p in full for p in computing)
    weighted = resolve(BUILTIN["conv-matmul"], graph, units, RULES).placement
    assert weighted == placement_from_labels(graph, units, RULES, lambda u: u.op_type in ("Conv", "MatMul"))


def test_each_precision_is_a_rule_of_one_line() -> None:
    """Weights alone are quantized in one form, and by all others as well: a recipe must tell them apart."""
    b = GraphBuilder()
    precisions = {"p": "weight-only", "q": "dynamic", "r": STATIC, "s": "weight-only int4/32"}
    x = b.input((1, 8, 64))
    for name in precisions:
        x = b.node("MatMul", [x, b.const((64, 64))], (1, 8, 64), name=name)
    graph = b.graph()
    units = find_units(graph, RULES)
    placement = placement_from_precisions(graph, units, RULES, precisions)
    recipe = recipe_of(placement, graph, units, RULES)
    assert [str(r) for r in recipe.rules[1:]] == [
        "set_name('p', weight-only)",
        "set_name('q', dynamic)",
        "set_name('r', uint8)",
        "set_name('s', weight-only int4/32)",
    ]
    assert recipe_file.to_data(recipe)["rules"][-1] == {"name": "s", "config": {"weight": "int4", "block": 32}}
    again = recipe_file.from_data(recipe_file.to_data(recipe))
    assert resolve(again, graph, units, RULES).placement == placement
    digests = {placement_from_precisions(graph, units, RULES, {"p": f}).digest for f in units[0].forms}
    assert len(digests) == len(units[0].forms) == 4, "blocks of 128 are larger than its sums"
    assert Placement.from_json(placement.as_json()) == placement


@pytest.mark.parametrize("family", FAMILIES)
def test_recipe_of_any_placement_gives_it_back(family: str) -> None:
    graph = FAMILIES[family](30)
    units = find_units(graph, RULES)
    rng = np.random.default_rng(0)
    full = placement_from_labels(graph, units, RULES, lambda u: True)
    for share in (0.0, 0.5, 0.9, 1.0):
        by_unit = labeled(graph, units, {u.name for u in units if rng.random() < share})
        by_port = Placement((p, q) for p, q in full if rng.random() < share)
        chosen = [PortRewrite(p, "off zero") for p, q in by_port if q is QType.INT8 and rng.random() < 0.5]
        words = {u.name: str(rng.choice(["float", STATIC, *u.forms])) for u in units}
        mixed = placement_from_precisions(graph, units, RULES, words)
        for placement in (mixed, by_unit, by_port, by_unit.with_rewrites(chosen), by_port.with_rewrites(chosen)):
            recipe = recipe_of(placement, graph, units, REWRITING)
            again = recipe_file.from_data(recipe_file.to_data(recipe))
            assert resolve(again, graph, units, REWRITING).placement == placement
    assert all(r.scope.value in ("global", "name") for r in recipe_of(full, graph, units, RULES).rules)


def test_a_form_is_named_like_a_type() -> None:
    b = GraphBuilder()
    x = b.node("MatMul", [b.input((1, 8, 8)), b.const((8, 4))], (1, 8, 4), name="product")
    b.node("Sigmoid", [x], name="gate")
    graph = b.graph()
    recipe = recipe_file.from_data({"inlay-recipe": 1, "rules": [{"global": "dynamic"}]})
    found = resolve(recipe, graph, find_units(graph, RULES), RULES)
    assert [d.precision for d in found.decisions] == ["dynamic", "float"]
    assert "Sigmoid has no precision dynamic" in found.decisions[1].reason
    assert dict(found.placement) == {Port("product", 0): QType.DYNAMIC, Port("product", 1): QType.INT8}
    with pytest.raises(UsageError, match="the target has no precision 'dynamo'; give float, int"):
        resolve(Recipe().set_global(OpConfig(form="dynamo")), graph, find_units(graph, RULES), RULES)


def test_names_with_brackets_and_stars() -> None:
    b = GraphBuilder()
    x = b.input((1, 8, 8, 8))
    for name in ("a[0]", "a0", "a*", "a?"):
        x = b.node("Conv", [x, b.const((8, 8, 1, 1))], name=name)
    graph = b.graph()
    units = find_units(graph, RULES)
    for name in ("a[0]", "a0", "a*", "a?"):
        placement = labeled(graph, units, {name})
        assert resolve(recipe_of(placement, graph, units, RULES), graph, units, RULES).placement == placement


def test_yaml_round_trip(tmp_path: Path) -> None:
    recipe = (
        Recipe()
        .set_global(OpConfig(QType.INT8, per_channel=False))
        .set_op_type("Softmax", None)
        .set_name("head*", INT)
        .set_module("backbone/", OpConfig(QType.UINT8))
        .set_name("neck", OpConfig(rewrites=frozenset({"off zero"})))
        .set_io(None)
        .set_io(INT, "x*")
        .set_port(Port("", 0), None)
    ) | BUILTIN["conv-matmul"]
    (tmp_path / "r.yaml").write_text(recipe_file.to_text(recipe))
    assert recipe_file.load_recipe(tmp_path / "r.yaml") == recipe
    assert recipe_file.find_recipe("full-int8") is BUILTIN["full-int8"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "not an Inlay recipe"),
        ("inlay-recipe: 1\nrules: [{op_typ: Conv}]", "rule 1 must name exactly one"),
        ("inlay-recipe: 1\nrules: [{op_type: Conv}]", "rule 1 lacks its config"),
        ("inlay-recipe: 1\nrules: [{global: int9}]", "'int9' is not a type"),
        ("inlay-recipe: 1\nrules: [{name: a, config: float, per_chanel: 1}]", "unknown entry 'per_chanel'"),
        ("inlay-recipe: 1\nrules: [{name: a, config: {off_zero: 1.5}}]", "off_zero is 1.5; a rewrite is selected by"),
        (
            "inlay-recipe: 1\nrules: [{name: a, config: {weight: int4}}]",
            "weights are no 'int4'; give int8 alone, int4 with",
        ),
        (
            "inlay-recipe: 1\nrules: [{name: a, config: {weight: int8, block: 48}}]",
            "weights are no 'int8' with block 48",
        ),
        (
            "inlay-recipe: 1\nrules: [{name: a, config: {weight: uint8, activation: int}}]",
            "weights beside int activations are int8, not 'uint8'",
        ),
        (
            "inlay-recipe: 1\nrules: [{name: a, config: {weight: [1], block: x}}]",
            r"weights are no \[1\] with block 'x'",
        ),
        ("inlay-recipe: 1\nrule: []", "unknown entry 'rule'"),
        ("inlay-recipe: 1\nrules: [{port: conv1, config: int}]", "not a port"),
        ("rules: [", "not YAML"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(UsageError, match=message):
        recipe_file.load_recipe(tmp_path / "r.yaml")


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match=r"none\.yaml: no such file"):
        recipe_file.find_recipe(tmp_path / "none.yaml")
    known = "full-int8, conv-matmul, dynamic, weight-only, or a file"
    with pytest.raises(UsageError, match=f"no such recipe; give {known}"):
        recipe_file.find_recipe("int9")


def prepared(folder: Path, recipe: Recipe) -> tuple[PreparedModel, Feed]:
    onnx.save(branches(), folder / "m.onnx")
    feed = {"x": np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)}
    return prepare(load(folder / "m.onnx"), Capabilities(RULES), feed, folder, recipe=recipe), feed


def test_a_recipe_restricts_the_search(tmp_path: Path) -> None:
    recipe = Recipe().set_global(OpConfig(QType.INT8)).set_name("left", None)
    ready, feed = prepared(tmp_path, recipe)
    assert "left" not in {u.name for u in ready.selectable}
    assert {"right", "concat"} <= {u.name for u in ready.selectable}
    rejections = find_search_space(ready.graph, ready.rules, allowed=ready.allowed).rejections
    assert not rejections.allows(Port("left", 0))
    assert rejections.allows(Port("right", 0))
    placement = ready.label(frozenset(u.name for u in ready.selectable))
    assert placement.qtype(Port("right", 0)) is QType.INT8
    qparams = CalibrationChoice("minmax").table(ready, observe(ready, Samples((dict(feed),), "random", "")))
    assert ready.emitter.emit(placement, qparams).graph.node


def test_a_search_works_with_the_types_of_the_recipe(tmp_path: Path) -> None:
    ready, _ = prepared(tmp_path, Recipe().set_name("left", OpConfig(QType.INT8)))
    placement = ready.label(frozenset(u.name for u in ready.selectable))
    assert placement.qtype(Port("left", 0)) is QType.INT8
    assert placement.qtype(Port("right", 0)) is QType.UINT8
    with pytest.raises(UsageError, match="types of operators; x is to be int16, operators are uint8"):
        prepared(tmp_path, Recipe().set_io(OpConfig(QType.INT16), "x"))


def test_a_rewrite_that_the_target_lacks_is_an_error() -> None:
    graph = FAMILIES["residual"](10)
    recipe = Recipe().set_global(OpConfig(rewrites=frozenset({"off zero"})))
    assert resolve(recipe, graph, find_units(graph, REWRITING), REWRITING).placement.rewrites
    with pytest.raises(UsageError, match="no rewrite 'off zero'; it offers none"):
        resolve(recipe, graph, find_units(graph, RULES), RULES)

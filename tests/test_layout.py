"""The house is as its plan says: direction of imports, words and sizes; with negative controls.

``docs/layout.md`` is the plan, written by ``make layout``. Each file stands in it once, behind all that it imports.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support import house, layout

REPOSITORY = Path(__file__).parents[1]
ROOT = REPOSITORY / "src" / "inlay"
LAYOUT = (REPOSITORY / "docs" / "layout.md").read_text(encoding="utf8")

GENERIC = ("quant", "space", "search", "patterns", "calibrate", "model", "prepare", "measure", "run", "data")
"""Rooms that serve every target alike."""
SWALLOWED: Mapping[str, str] = {
    "data/images.py: _numbers (TypeError)": "values of a user that are no numbers become NaN, and are refused as such",
    "data/reading.py: blame (Exception)": "the text of a user's own error, which is told without it",
    "data/samples.py: tuned_sizes (AttributeError)": "metadata of another tool, JSON of any form",
    "model/libraries.py: silence (AttributeError)": "a C library without fflush",
    "model/load.py: _schema (TypeError)": "versions of operators in a model that the binding cannot take",
    "run/machine_costs.py: _load (AttributeError)": "a damaged file, JSON of any form",
    "run/machine_costs.py: _load (TypeError)": "a damaged file, JSON of any form",
    "tosa/static_model.py: _has_numpy (TypeError)": "element types that arrays do not have, as the library says it",
}
"""Where what a mistake in code raises may vanish, and what is expected there instead."""
_OPTIONS = "options: users set few of them, by name"
_RESULT = "a result that users read, whose attributes are public"
CROWDED: Mapping[str, str] = {
    "autotune/workflow.py: region_pattern_autotuning_workflow": "a published signature, all of it options",
    "explanation/explanation.py: Explanation": _RESULT,
    "integrations/mcp/server.py: server_of.tune": "arguments of a tool, which its protocol wants flat",
    "patterns/config.py: Config": _OPTIONS,
    "portfolio/pipeline_result.py: PipelineResult": _RESULT,
    "portfolio/runs.py: Figures": _RESULT,
    "prepare/config.py: TuneConfig": _OPTIONS,
    "prepare/declare.py: Option": "declares an option, and few say more than four of these",
    "report/gate.py: Gate": _RESULT,
    "report/gate_options.py: GateOptions": _OPTIONS,
    "run/instant/by_costs.py: ByCosts": _RESULT,
    "run/instant/quantize.py: Quantized": _RESULT,
    "run/options.py: BenchOptions": _OPTIONS,
    "run/options.py: QuantizeOptions": _OPTIONS,
    "run/options.py: TuneOptions": _OPTIONS,
    "run/result.py: Best": _RESULT,
    "run/result.py: TuneResult": _RESULT,
    "run/select.py: Selected": _RESULT,
    "space/rules.py: Rules": "a target's table, whose fields are the keys of its YAML form",
    "trial.py: Accuracy": _RESULT,
}
"""Functions with more parameters and dataclasses with more fields than others, and why."""
ORACLE = {"model/reference.py", "model/native.py"}
"""The numeric oracle is ONNX Runtime, in the process that calls it: these files of these rooms may name a runtime."""


# --- the house as it is ----------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
@pytest.mark.exhaustive
def test_the_plan_is_what_is_generated() -> None:
    assert layout.rendered(ROOT, layout.layers(), LAYOUT) == LAYOUT, "run: make layout"


def test_the_plan_names_every_file_once() -> None:
    assert sorted(house.rows(LAYOUT)) == [
        f for f in house.files(ROOT) if not f.endswith(("__init__.py", "__main__.py"))
    ]


@pytest.mark.exhaustive
def test_every_file_comes_behind_what_it_imports() -> None:
    assert house.upward(house.rows(LAYOUT), house.imports(ROOT, "inlay")) == []


@pytest.mark.exhaustive
def test_nothing_imports_in_circles() -> None:
    assert house.circles(house.imports(ROOT, "inlay")) == []


def test_generic_rooms_name_no_runtime() -> None:
    assert house.runtime_names(ROOT, GENERIC, ORACLE) == []


@pytest.mark.exhaustive
def test_the_core_names_no_wing() -> None:
    assert house.wings_named(ROOT) == []


@pytest.mark.exhaustive
def test_mistakes_in_code_do_not_vanish() -> None:
    assert house.swallowed(ROOT) == [*SWALLOWED]


def test_files_rooms_and_the_root_stay_small() -> None:
    assert house.too_large(ROOT) == []


def test_long_rows_of_arguments_have_names() -> None:
    assert house.unnamed(ROOT) == []


def test_functions_have_few_parameters_and_values_few_fields() -> None:
    assert sorted(house.crowded(ROOT)) == [*CROWDED]


def test_arguments_of_every_call_are_checked() -> None:
    assert house.unchecked(ROOT) == []


def test_every_package_says_what_it_is_for_and_offers() -> None:
    assert house.without_contents(ROOT) == []


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_pages_that_say_what_to_touch_name_files_that_exist(page: str) -> None:
    named = house.mentions((REPOSITORY / page).read_text(encoding="utf8"))
    assert len(named) > 10, "it says which files to touch"
    assert [name for name in named if not (REPOSITORY / name).exists() and not (ROOT / name).exists()] == []


# --- negative controls: a small house that breaks each rule ----------------------------------------------------------

LAYERS = ["pkg.high", "pkg.low", "pkg.types | pkg.words"]
SOUND = {
    "types.py": "",
    "low/__init__.py": '"""Low."""\n__all__ = ["a", "b"]\n',
    "low/a.py": "from pkg import types\n",
    "low/b.py": "import pkg.types\nfrom pkg.low.a import x\n",
    "high/__init__.py": '"""High."""\n\n__all__ = ["c"]\n',
    "high/c.py": "def late():\n    from ..low import b\n",
    "__init__.py": '"""All."""\n\n__all__: list[str] = ["high", "low", "types"]\n',
    "__main__.py": "import pkg.high.c\n",
}


def build(folder: Path, changes: Mapping[str, str | None] | None = None) -> Path:
    """The small house, with files of other content, or without (None)."""
    root = folder / "pkg"
    for name, text in {**SOUND, **(changes or {})}.items():
        if text is not None:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
    return root


def test_a_sound_house_passes(tmp_path: Path) -> None:
    root = build(tmp_path)
    graph = house.imports(root, "pkg")
    assert graph["low/b.py"] == {"types.py", "low/a.py"}
    assert graph["high/c.py"] == {"low/b.py"}, "relative imports inside functions count as well"
    assert house.upward(["types.py", "low/a.py", "low/b.py", "high/c.py"], graph) == []
    assert house.circles(graph) == []
    assert house.runtime_names(root, ["low", "high"]) == []
    assert house.too_large(root) == []
    assert house.without_contents(root) == []


def test_a_call_with_a_long_row_of_arguments_is_found(tmp_path: Path) -> None:
    calls = "f(1, 2, 3, 4, 5, 6, 7, 8)\nf(1, 2, 3, 4, 5, 6, 7, 8, x=9)\ng.f(1, 2, 3, 4, 5, 6, 7, 8, 9)\n"
    assert house.unnamed(build(tmp_path, {"low/b.py": calls})) == ["low/b.py: line 3: g.f with 9"]


_NARROW = """
@dataclass(frozen=True)
class Value:
    _: KW_ONLY
    LIMIT: ClassVar[int] = 3
    {}

    def grow(self, a, b, c, d, /, e, *, f, g, h): ...
"""


def test_long_rows_of_parameters_and_fields_are_found(tmp_path: Path) -> None:
    twelve = "\n    ".join(f"f{i}: int" for i in range(12))
    narrow = _NARROW.format(twelve)
    wide = narrow.replace("f11: int", "f11: int\n    f12: int = 0").replace("g, h)", "g, h, **i)")
    inside = "class Plain:\n    @staticmethod\n    def make(a, b, c, d, e, f, g, h, i):\n        def inner(*, " + (
        "a, b, c, d, e, f, g, h, i): ...\n"
    )
    root = build(tmp_path, {"low/a.py": narrow, "low/b.py": wide, "high/c.py": inside})
    assert house.crowded(root) == {
        "high/c.py: Plain.make": 9,
        "high/c.py: Plain.make.inner": 9,
        "low/b.py: Value": 13,
        "low/b.py: Value.grow": 9,
    }


def test_a_call_that_is_not_checked_is_found(tmp_path: Path) -> None:
    changes = {"low/a.py": "f(**x)  # type: ignore[arg-type]\n", "low/b.py": "f(x)  # type: ignore[misc]\n"}
    assert house.unchecked(build(tmp_path, changes)) == ["low/a.py"]


def test_what_a_page_mentions() -> None:
    assert house.mentions("see `low/a.py`, `examples/x/`, `types.py` and `a / b`") == ["low/a.py", "examples/x/"]


def test_the_plan_of_a_house_follows_its_layers_imports_and_docstrings(tmp_path: Path) -> None:
    changes = {
        "words.py": '"""Words; nobody speaks them. They are few."""\n',
        "low/__init__.py": '"""Low: :mod:`~pkg.low.c` and ``inner``.\n\nAll of it::\n\n    x\n"""\n',
        "low/a.py": '"""Ends (1.5) in ``None | b``."""\n',
        "low/b.py": "import pkg.types\nfrom pkg.low.c import x\n",
        "low/c.py": "import pkg.low.inner.z\n",
        "low/inner/__init__.py": '"""Inside."""\n',
        "low/inner/y.py": "import pkg.low.d\n",
        "low/inner/z.py": "def late():\n    import pkg.low.inner.y\n",
        "low/d.py": "",
    }
    page = layout.rendered(build(tmp_path, changes), LAYERS, f"By hand.\n\n{layout.MARK}\n\n## Old\n")
    assert (
        page
        == f"""By hand.

{layout.MARK}

## `types.py`, `words.py`

| file | what it does |
|---|---|
| `types.py` |  |
| `words.py` | Words; nobody speaks them |

## `low/`

Low: `pkg.low.c` and `inner`.

| file | what it does |
|---|---|
| `low/d.py` |  |
| `low/inner/` | Inside |
| `low/inner/y.py` |  |
| `low/inner/z.py` |  |
| `low/c.py` |  |
| `low/a.py` | Ends (1.5) in `None \\| b` |
| `low/b.py` |  |

## `high/`

High.

| file | what it does |
|---|---|
| `high/c.py` |  |
"""
    )


def test_a_room_in_no_layer_and_a_page_without_its_mark_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"in no layer of pyproject\.toml: low"):
        layout.rendered(build(tmp_path), ["pkg.high", "pkg.types"], layout.MARK)
    with pytest.raises(ValueError, match="no line '<!-- Below"):
        layout.rendered(build(tmp_path), LAYERS, "By hand.\n")


def test_an_import_of_what_comes_later_is_reported(tmp_path: Path) -> None:
    root = build(tmp_path, {"low/a.py": "def f():\n    import pkg.high.c\n"})
    assert house.upward(["types.py", "low/a.py", "low/b.py", "high/c.py"], house.imports(root, "pkg")) == [
        "low/a.py imports high/c.py, which comes after it"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "from pkg.high import c",
        "import pkg.high.c",
        "def f():\n    from ..high import c",
        "if TYPE_CHECKING:\n    from pkg.high.c import x",
        'import_module("pkg.high.c")',
        'HOME = "pkg.high:c"',
    ],
)
def test_a_wing_that_the_core_names_is_reported(text: str, tmp_path: Path) -> None:
    root = build(tmp_path, {"low/a.py": f"{text}\n"})
    found = house.wings_named(root, ("high",))
    assert [line.partition(" names ")[0] for line in found if not line.startswith("__main__")] == ["low/a.py"]
    assert house.wings_named(root, ("low", "high")) == ["__main__.py names high"]


@pytest.mark.parametrize(
    ("changes", "circle"),
    [
        ({"low/a.py": "import pkg.low.b\n"}, ["low/a.py", "low/b.py"]),
        ({"types.py": "from pkg.high import c\n"}, ["high", "low", "types.py"]),
    ],
)
def test_circles_are_reported(changes: Mapping[str, str], circle: list[str], tmp_path: Path) -> None:
    assert house.circles(house.imports(build(tmp_path, changes), "pkg")) == [circle]


@pytest.mark.parametrize(
    "text",
    [
        "# ONNX Runtime does it",
        "import onnxruntime as rt",
        "import ort",
        'DEFAULT = "ort-cpu"',
        "run_ort(model)",
        "openvino = None",
        "# as TensorRT",
        "# Ethos-U85",
        "# asks Vela",
        "QNN_TYPES = ()",
    ],
)
def test_names_of_runtimes_are_reported(text: str, tmp_path: Path) -> None:
    root = build(tmp_path, {"low/a.py": f"x = 1\n{text}\n", "low/b.py": "# sort a report by velocity, onnx\n"})
    assert house.runtime_names(root, ["low"]) == [f"low/a.py:2: {text}"]
    assert house.runtime_names(root, ["high"]) == []
    assert house.runtime_names(root, ["low"], {"low/a.py"}) == []


def test_what_is_too_large_is_reported(tmp_path: Path) -> None:
    large = {f"p{i}/__init__.py": "" for i in range(20)} | {f"m{i}.py": "" for i in range(8)}
    large |= {f"high/inner/n{i}.py": "" for i in range(31)}
    root = build(tmp_path, {"low/a.py": "\n" * 401, **large})
    wanted = ["low/a.py has 401 lines", "11 modules in the root", "22 rooms", "31 files in high/inner"]
    assert house.too_large(root) == wanted


def test_packages_without_docstring_or_contents_are_reported(tmp_path: Path) -> None:
    changes = {
        "low/__init__.py": "",
        "high/__init__.py": '"""High."""\n',
        "__init__.py": '"""All."""\n__all__ = ["old", "low"]\n',
    }
    assert house.without_contents(build(tmp_path, changes)) == [
        ".: __all__ names old, which does not exist",
        "high: no __all__",
        "low: no docstring",
        "low: no __all__",
    ]


_CAUGHT = """
def lost(call):
    try:
        call()
    except (ValueError, TypeError):
        pass
    with contextlib.suppress(Exception):
        call()

def bare(call):
    try:
        call()
    except:
        return None

def heard(call):
    try:
        call()
    except Exception as error:
        print(error)
    except (TypeError, ValueError):
        raise ModelError("no") from None
    except OSError:
        pass
    with suppress(ValueError):
        call()
"""


def test_where_mistakes_vanish_is_reported(tmp_path: Path) -> None:
    assert house.swallowed(build(tmp_path, {"low/a.py": _CAUGHT})) == [
        "low/a.py: lost (TypeError)",
        "low/a.py: lost (Exception)",
        "low/a.py: bare (BaseException)",
    ]

"""The programs in the documentation run as they are written.

Only the clock is replaced: of a function that measures, by one that counts Q/DQ nodes.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static
from PIL import Image

import inlay
from inlay.autotune import QDQAutotuner, RegionType
from inlay.cli import commands
from inlay.measure.ssh.address import address_of
from inlay.portfolio.plan import read_plan
from inlay.recording.pipeline import read_pipeline
from inlay.space.recipe_file import load_recipe
from inlay.targets.machine import cpu_flags
from inlay.testing import TargetTestCase
from tests.support.branches import branches

ROOT = Path(__file__).parents[1]
DIGITS = ROOT / "examples" / "digits"
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])

_FENCE = re.compile(r"^```(python|yaml|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """Page and text of every program and file that the documentation shows; code for another library is left out."""
    found = []
    for page in PAGES:
        text = page.read_text(encoding="utf8")
        for match in _FENCE.finditer(text):
            if text[: match.start()].rstrip().rpartition("\n")[2] != "Old:":
                found.append((page.name, match.group(2)))
    return found


def block(page: str, start: str) -> str:
    """The one program on ``page`` that begins with ``start``."""
    (found,) = [text for where, text in blocks() if where == page and text.startswith(start)]
    return found


def faster_with_pairs(model: bytes | str | Path) -> float:
    data = model if isinstance(model, bytes) else Path(model).read_bytes()
    return 10.0 - 0.05 * sum(n.op_type == "DequantizeLinear" for n in onnx.load_from_string(data).graph.node)


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, images: np.ndarray) -> None:
        self._left = [{"x": image[None]} for image in images]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self._left.pop() if self._left else None


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the documentation names."""
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).standard_normal((8, 3, 8, 8)).astype(np.float32)
    np.savez("samples.npz", x=images)
    onnx.save(branches(), "model.onnx")
    quantize_static("model.onnx", "qdq.onnx", _Reader(images), quant_format=QuantFormat.QDQ)
    return tmp_path


def test_every_program_is_run_here() -> None:
    run = {(page, start) for page, start in RUN if block(page, start)}
    missed = [(page, text.splitlines()[0]) for page, text in blocks() if not _starts(run, page, text)]
    assert not missed, "add a test that runs it, and a line to RUN"


def _starts(run: set[tuple[str, str]], page: str, text: str) -> bool:
    return any(page == where and text.startswith(start) for where, start in run)


FOR_VNNI = "model_qint8_avx512_vnni.onnx"
RUN = (
    ("migrate.md", "import statistics"),
    ("migrate.md", "from inlay.autotune import Config, region"),
    ("migrate.md", "from inlay.autotune import placement_of"),
    ("migrate.md", "from inlay.autotune import measurer"),
    ("migrate.md", "autotuner.initialize(regions"),
    ("guide.md", "from inlay.autotune import Config"),
    ("guide.md", "data: samples.npz"),
    ("guide.md", "import inlay\nfrom mine"),
    ("guide.md", "import inlay\n\nresult"),
    ("guide.md", "from sentence_transformers"),
    ("guide.md", "from ultralytics"),
    ("guide.md", "size: 480x640"),
    ("guide.md", "inlay-recipe: 1"),
    ("guide.md", "models:"),
    ("fleets.md", "budget: 4h"),
    ("tools.md", "import inlay\n\ninlay.quantize(module"),  # these four in tests/integrations/test_snippets.py
    ("tools.md", "from ultralytics"),
    ("tools.md", "from sentence_transformers"),
    ("tools.md", "from optimum"),
    ("devices.md", "pi5:"),
    ("devices.md", "print(inlay.check("),
    ("targets.md", "case $INLAY_DO"),
    ("targets.md", "inlay-rules: 1"),
    ("targets.md", "from inlay.targets.command"),
    ("README.md", "import inlay"),
)


@pytest.mark.exhaustive
def test_the_ported_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("digits.onnx", "data.npz"):
        shutil.copy(DIGITS / name, name)
    head, line, rest = block("migrate.md", "import statistics").partition("samples = ")
    names: dict[str, Any] = {}
    exec(head, names)
    assert names["measure"](Path("digits.onnx").read_bytes()) > 0.0, "the clock of the program runs, too"
    names["measure"] = faster_with_pairs
    exec(line + rest, names)
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"\d+ regions, \d+ schemes measured", said[0])
    assert re.fullmatch(r"10 ms -> .* ms, 1\.\d\dx \[.*\] in \d+ pairs of readings", said[1])
    assert re.fullmatch(r"(\d+) of \1 patterns known", said[2])
    assert faster_with_pairs("optimized_final.onnx") == pytest.approx(names["autotuner"].latency_ms)
    onnx.checker.check_model(onnx.load("optimized_final.onnx"), full_check=True)


@pytest.mark.usefixtures("here")
@pytest.mark.exhaustive
def test_the_ported_workflow(capsys: pytest.CaptureFixture[str]) -> None:
    exec(block("migrate.md", "from inlay.autotune import Config, region"), {"measure": faster_with_pairs})
    assert "pairs of readings" in capsys.readouterr().out
    assert faster_with_pairs("results/model.onnx") < 10.0


@pytest.mark.usefixtures("here")
def test_the_report_of_an_import(capsys: pytest.CaptureFixture[str]) -> None:
    exec(block("migrate.md", "from inlay.autotune import placement_of"), {})
    assert re.match(r"\d+ Q/DQ sites: \d+ imported", capsys.readouterr().out)


@pytest.mark.usefixtures("here")
def test_a_ready_measure(capsys: pytest.CaptureFixture[str]) -> None:
    program = block("migrate.md", "from inlay.autotune import measurer")
    exec(program.replace('"trtexec"', '"null"').replace(', timing_cache="timing.cache", warm_up=100', ""), {})
    assert float(capsys.readouterr().out) > 0.0


def test_regions_of_ones_own() -> None:
    model = branches()
    for node in model.graph.node:
        node.name = {"stem": "conv1", "stem.relu": "relu1", "left": "conv2", "right": "conv3"}.get(node.name, node.name)
        node.name = "relu3" if node.name == "right.relu" else node.name
    autotuner = QDQAutotuner(model)
    exec(block("migrate.md", "autotuner.initialize(regions"), {"autotuner": autotuner})
    leaves = [set(r.direct_nodes) for r in autotuner.all_regions if r.type is RegionType.LEAF]
    assert all(named in leaves for named in ({"conv1", "relu1"}, {"conv2"}, {"conv3", "relu3"}))


@pytest.mark.usefixtures("here")
def test_the_loop_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    exec(block("guide.md", "from inlay.autotune import Config"), {"latency_of": faster_with_pairs})
    assert "pairs of readings" in capsys.readouterr().out
    assert faster_with_pairs("best.onnx") < 10.0


@pytest.mark.usefixtures("here")
def test_the_preparation_of_images() -> None:
    Path("preprocess.yaml").write_text(block("guide.md", "size: 480x640"), encoding="utf8")
    Path("images").mkdir()
    image = np.random.default_rng(0).integers(0, 256, (50, 80, 3), np.uint8)
    Image.fromarray(image).save("images/a.png")
    shape = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [1, 3, "h", "w"])
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"])]
    x, y = (onnx.helper.make_value_info(name, shape) for name in "xy")
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y])), "any.onnx")
    words = ["quantize", "any.onnx", "--data", "images", "--preprocess", "preprocess.yaml", "--target", "null"]
    words += ["--recipe", "full-int8", "-o", "q.onnx", "--bind", "h=480", "--bind", "w=640"]
    assert commands.run(lambda: commands.app(words, standalone_mode=False)) == 0


def test_the_program_of_the_readme(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}
    tune = inlay.tune

    def quickly(model: str, **options: Any) -> Any:
        asked.update(options)
        return tune(model, **options, target="null", max_measurements=4)

    monkeypatch.setattr(inlay, "tune", quickly)
    exec(block("README.md", "import inlay"), {})
    assert asked["min_sqnr"] == 25
    assert (here / "out" / "model.onnx").exists()


def test_the_call_for_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """What becomes of a module and its loader is tested where torch is installed."""
    asked: list[Any] = []
    monkeypatch.setattr(inlay, "tune", lambda *given, **options: asked.append((given, options)))
    exec(block("guide.md", "import inlay\n\nresult"), {"module": "a module", "loader": "a loader"})
    assert asked == [(("a module",), {"data": "a loader", "out": "out"})]


@pytest.mark.parametrize(
    ("package", "name", "asked"),
    [
        ("sentence_transformers", "SentenceTransformer", {"model_kwargs": {"file_name": FOR_VNNI}, "backend": "onnx"}),
        ("ultralytics", "YOLO", {"task": "detect"}),
    ],
)
def test_the_calls_of_other_libraries(
    package: str, name: str, asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they make of what Inlay wrote is tested where they are installed (``tests/integrations``)."""
    made: list[dict[str, Any]] = []

    def stand_in(path: str, **options: Any) -> Any:
        made.append(options)
        return SimpleNamespace(val=lambda **_: None)

    monkeypatch.setitem(sys.modules, package, SimpleNamespace(**{name: stand_in}))
    exec(block("guide.md", f"from {package}"), {})
    assert made == [asked]


def test_the_calibration_reader_of_the_guide(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with np.load("samples.npz") as archive:
        images = archive["x"]
    mine = SimpleNamespace(Reader=lambda: _Reader(images))
    monkeypatch.setitem(sys.modules, "mine", mine)
    exec(block("guide.md", "import inlay\nfrom mine"), {})
    onnx.checker.check_model(onnx.load(here / "model.int8.onnx"))


def test_the_check_of_the_docs(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inlay.quantize("model.onnx", "model.amx.onnx", data="samples.npz", processors=["amx"])
    exec(block("devices.md", "print(inlay.check("), {"inlay": inlay})
    assert "amx" in capsys.readouterr().out or "amx_int8" in cpu_flags()


def test_the_recipe_of_the_guide_says_what_it_shows(here: Path) -> None:
    text = block("guide.md", "inlay-recipe: 1")
    (here / "recipe.yaml").write_text(text, encoding="utf8")
    assert len(load_recipe(here / "recipe.yaml").rules) == text.count("  - {")


@pytest.mark.exhaustive
def test_the_settings_of_the_guide(here: Path) -> None:
    (here / "config.yaml").write_text(block("guide.md", "data: samples.npz"), encoding="utf8")
    words = ["tune", "model.onnx", "--config", "config.yaml", "--target", "null", "--dry-run", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "inlay", *words], capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    (here / "config.yaml").write_text("min-snqr: 25\n", encoding="utf8")
    wrong = subprocess.run(
        [sys.executable, "-m", "inlay", *words], capture_output=True, text=True, timeout=500, check=False
    )
    assert wrong.returncode == 2, "a name that no option has is refused: the file above is read"


def test_the_pipeline_of_the_guide(here: Path) -> None:
    (here / "pipeline.yaml").write_text(block("guide.md", "models:"), encoding="utf8")
    encoder, decoder = read_pipeline(here / "pipeline.yaml").parts
    assert (encoder.model, encoder.seconds) == (here / "encoder.onnx", 0.06)
    assert (decoder.data, decoder.runs) == (str(here / "decoder.npz"), 15.0)


def test_the_fleet_of_the_guide(here: Path) -> None:
    for name in ("resnet", "bert"):
        (here / name).mkdir()
        shutil.copy("model.onnx", here / name / "model.onnx")
    (here / "fleet.yaml").write_text(block("fleets.md", "budget: 4h"), encoding="utf8")
    plan = read_plan(here / "fleet.yaml")
    assert plan.budget_s == 4 * 3600
    assert len(plan.entries) == 2 * 2 * 2
    assert {e.most_s for e in plan.entries} == {math.inf, 1800.0}


def test_the_devices_of_the_docs(here: Path) -> None:
    (here / "devices.yaml").write_text(block("devices.md", "pi5:"), encoding="utf8")
    assert str(address_of("pi5")) == "pi5"
    graviton = address_of("graviton")
    assert (graviton.user, graviton.host, graviton.folder) == ("ec2-user", "10.0.0.8", "/var/tmp")
    assert graviton.words == ["/opt/py/bin/python3"]


def test_the_program_and_the_rules_for_a_device_of_ones_own(here: Path) -> None:
    for name, text in (("measure.sh", block("targets.md", "case $INLAY_DO")), ("bench.sh", 'seq "$2"\n')):
        (here / name).write_text(f"#!/bin/sh\n{text}")
        (here / name).chmod(0o755)
    example = ROOT / "examples" / "command_target" / "latency_only.sh"
    assert example.read_text(encoding="utf8").endswith(block("targets.md", "case $INLAY_DO"))
    environment = {**os.environ, "INLAY_DO": "time", "INLAY_MODEL": "m.onnx", "INLAY_READINGS": "3"}
    words = ["./measure.sh", "./bench.sh"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"latencies_ms": [1, 2, 3]}
    (here / "rules.yaml").write_text(block("targets.md", "inlay-rules: 1"), encoding="utf8")
    names: dict[str, Any] = {}
    exec(block("targets.md", "from inlay.targets.command"), names)
    assert issubclass(names["TestMyProgram"], TargetTestCase)
    target = names["TestMyProgram"]().target()
    assert target.description.gives == {"latency"}
    assert {"Conv", "Add", "MaxPool"} <= set(target.rules().ops)

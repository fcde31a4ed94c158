"""The rules on ARM64, row by row, asked of ONNX Runtime's ARM64 build under emulation: what fuses, and how it rounds.

What only a clock can tell is not here: times under emulation mean nothing. Every row of the table of x86 holds there,
with int8 and with uint8 activations; the tests fail where the runtime stops doing it. The oracle of the numbers is the
same file with each node run as it is written, in float32 between its pairs, and for products integers of numpy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import inlay
from inlay.targets.onnxruntime.rules import OPS
from inlay.targets.onnxruntime.target import OrtCpuTarget, capabilities_for
from inlay.testing.models import run_reference
from tests.support.emulated_arm import CPUS, MISSING, VERSION, Answer, Emulated, Job, emulated
from tests.support.workspace import Workspace
from tests.targets.onnxruntime.test_exact_form import COLUMNS, ROWS, SUM, expected, product
from tests.targets.onnxruntime.test_rules import CASES, FORM_CASES, KERNELS, build, float_forms

FLAGS = frozenset({"asimddp"})
ROWS_OF_TABLE = [(op, variant) for op, variants in CASES.items() for variant in variants]
ROWS_OF_FORMS = [(*row, variant) for row, cases in FORM_CASES.items() for variant in cases]
OLD_RULES = capabilities_for("aarch64", FLAGS, version=VERSION).rules  # of the version that is emulated
QUICK = ("Conv", "MatMul", "Gemm", "Add", "Concat", "Softmax", "MaxPool")
DOTPROD = "armv8.2-dotprod"
MODELS = (
    *("mnist", "ultraface_rfb320_simplified", "fastestdet", "yolox_nano", "deeplab_v3_mnv2", "ppocr_cls", "g2p_bert"),
    *("basic_pitch", "nnsplit_en", "stm_mbv2_flowers"),
)
TYPES = ("int8", "uint8")
EMULATED = (
    MODELS if os.environ.get("INLAY_EMULATED") == "all" else ("mnist", "ppocr_cls", "nnsplit_en", "stm_mbv2_flowers")
)
"""Models that are run: larger ones take minutes each."""
SAMPLES = 4


@pytest.fixture(scope="session")
def arm() -> Emulated:
    """The emulated machine."""
    found = emulated()
    if found is None:
        pytest.skip(MISSING)
    return found


Asked = dict[str, tuple[Workspace, onnx.ModelProto, Answer]]


@pytest.fixture(scope="module")
def asked(request: pytest.FixtureRequest, arm: Emulated, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """The operators of the rows that are tested, placed by the rules of ARM64, and what the runtime makes of them.

    One process answers for all.
    """
    cases = (item.callspec.params.values() for item in request.session.items if hasattr(item, "callspec"))
    tested = {tuple(case) for case in cases if all(isinstance(each, str) for each in case)}
    folder = tmp_path_factory.mktemp("arm")
    target, made = capabilities_for("aarch64", FLAGS), dict[str, tuple[Workspace, onnx.ModelProto]]()

    def put(name: str, case: Any, label: Any, quant_type: str = "int8") -> None:
        typed = replace(target, rules=target.rules.in_type(quant_type))
        space = Workspace(build(case), folder / name.replace(" ", "-").replace("/", "-"), typed)
        made[name] = space, space.emit(space.prepared.label(label))

    for op_type, variant in ROWS_OF_TABLE:
        for quant_type in TYPES:
            if (op_type, variant, quant_type) in tested:
                put(f"{op_type} {variant} {quant_type}", CASES[op_type][variant], {"op"}, quant_type)
    for form, op_type, variant in ROWS_OF_FORMS:
        if (form, op_type, variant) in tested:
            put(f"{form} {op_type} {variant}", FORM_CASES[form, op_type][variant], {"op": form})
    jobs = {str(i): Job(model, tuple(space.feeds[:1])) for i, (space, model) in enumerate(made.values())}
    answers = arm.ask(jobs, folder / "jobs")
    return {name: (*made[name], answers[str(i)]) for i, name in enumerate(made)}


def _steps_apart(space: Workspace, model: onnx.ModelProto, answer: Answer) -> float:
    """The largest difference to the float arithmetic between the pairs, in steps of the coarsest output scale."""
    want = run_reference(model, dict(space.feeds[0]))
    read = {n.input[1] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    scales = [numpy_helper.to_array(t) for t in model.graph.initializer if t.name in read]
    step = max(float(s) for s in scales if s.ndim == 0)
    apart = (np.abs(want[n].astype(float) - answer.outputs[0][n]).max(initial=0.0) for n in want)
    return float(max(apart)) / step


def _some(rows: Sequence[tuple[str, ...]], quick: Callable[[tuple[str, ...]], bool]) -> list[Any]:
    return [row if quick(row) else pytest.param(*row, marks=pytest.mark.exhaustive) for row in rows]


@pytest.mark.parametrize(
    ("op_type", "variant", "quant_type"),
    _some([(*row, t) for row in ROWS_OF_TABLE for t in TYPES], lambda row: row[0] in QUICK and row[2] == "int8"),
)
@pytest.mark.exhaustive
def test_a_row_runs_on_integers(op_type: str, variant: str, quant_type: str, asked: Asked) -> None:
    space, model, answer = asked[f"{op_type} {variant} {quant_type}"]
    if quant_type == "int8" and op_type not in OLD_RULES.ops:
        assert "DepthToSpace" in answer.error, "there is a kernel by now: the rules may have the row"
        return
    assert answer.graph is not None, answer.error
    assert float_forms(answer.graph, op_type) == []
    assert _steps_apart(space, model, answer) <= 1.001


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize(("form", "op_type", "variant"), _some(ROWS_OF_FORMS, lambda row: row[0] == "dynamic"))
def test_a_form_runs_in_its_kernel(form: str, op_type: str, variant: str, asked: Asked) -> None:
    space, model, answer = asked[f"{form} {op_type} {variant}"]
    kernel = KERNELS.get((form, op_type)) or KERNELS.get((form, ""), "MatMulNBits")
    assert kernel in answer.operators, answer.error or answer.operators
    want = run_reference(model, dict(space.feeds[0]))
    for name, array in want.items():
        signal, noise = np.square(array).sum(), np.square(array - answer.outputs[0][name]).sum()
        assert noise <= 1e-2 * signal, (name, signal, noise)


DEPTH = 64
"""Products of a sum: without dot products, each is added to the one 8 places on in 16 bits, and only then in 32."""


def _ends(op_type: str, x_type: Any, w_type: Any) -> tuple[Job, np.ndarray]:
    """A product at the ends of its types, -127 for weights, and what it is in integers of numpy."""
    rng, limits, ends = np.random.default_rng(0), np.iinfo(x_type), np.iinfo(w_type)
    lowest = max(-127, int(ends.min))
    rows = [np.full(DEPTH, limits.max), np.full(DEPTH, limits.min), rng.choice([limits.min, limits.max], DEPTH)]
    x, weight = np.stack(rows), rng.choice([lowest, ends.max], (DEPTH, COLUMNS)).astype(w_type)
    weight[:, 0], weight[:, 1] = ends.max, lowest
    feed = x.T.reshape(1, DEPTH, 1, ROWS) if op_type == "Conv" else x
    return Job(product(op_type, x_type, weight), ({"x": feed.astype(np.float32)},)), expected(x, weight, x_type)


def _in_pairs_of_16_bits(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The oracle of the kernel of int8 without dot products: each sum of two is taken in int16, 8 apart in 16."""
    products = x.astype(np.int64)[:, :, None] * weight.astype(np.int64)[None]
    halves = products.reshape(len(x), -1, 2, 8, weight.shape[1])
    found: np.ndarray = halves.sum(axis=2).astype(np.int16).astype(np.int64).sum(axis=(1, 2))
    return found


def _full(op_type: str, least: int) -> tuple[Job, np.ndarray, np.ndarray]:
    """A product of int8 down to ``least`` on both sides, its exact integers, and those of :func:`_in_pairs_of_16_bits`.

    A ``MatMul2`` has two activations.
    """
    rng = np.random.default_rng(1)
    x, weight = (rng.choice([least, 127], shape, p=[0.7, 0.3]) for shape in ((ROWS, DEPTH), (DEPTH, COLUMNS)))
    weight = weight.astype(np.int8)
    feed, exact = {"x": x.astype(np.float32)}, x.astype(np.int64) @ weight.astype(np.int64)
    model = product(op_type.rstrip("2"), np.int8, weight)
    if op_type == "Conv":
        feed["x"] = feed["x"].T.reshape(1, DEPTH, 1, ROWS)
    if op_type == "MatMul2":
        dequantized = next(n for n in model.graph.node if n.output[0] == "wd")
        dequantized.CopyFrom(helper.make_node("DequantizeLinear", ["wq", "one", "zero"], ["wd"]))
        model.graph.node.insert(0, helper.make_node("QuantizeLinear", ["w", "one", "zero"], ["wq"]))
        kept = [t for t in model.graph.initializer if t.name != "w"]
        del model.graph.initializer[:]
        model.graph.initializer.extend(kept)
        model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, weight.shape))
        feed["w"] = weight.astype(np.float32)
    return Job(model, (feed,)), exact, _in_pairs_of_16_bits(x, weight)


def _written(exact: np.ndarray) -> np.ndarray:
    step = SUM * DEPTH
    found: np.ndarray = np.clip(np.rint(exact / step), -128, 127) * step
    return found


def _found(op_type: str, answer: Answer) -> np.ndarray:
    assert op_type not in answer.operators, answer.operators
    got = answer.outputs[0]["y"]
    return got.reshape(COLUMNS, ROWS).T if op_type == "Conv" else got


def _float16(op_type: str) -> Job:
    shape, weight = ((1, 16, 8, 8), (16, 16, 3, 3)) if op_type == "Conv" else ((4, 16), (16, 16))
    graph = helper.make_graph(
        [helper.make_node(op_type, ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT16, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, None)],
        [numpy_helper.from_array(np.ones(weight, np.float16), "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return Job(model, ({"x": np.ones(shape, np.float16)},))


PAIRS = {"s8s8": (np.int8, np.int8), "u8s8": (np.uint8, np.int8), "u8u8": (np.uint8, np.uint8)}
PRODUCTS = ("Conv", "MatMul", "Gemm")


@pytest.fixture(
    scope="module", params=[CPUS[1], *(pytest.param(c, marks=pytest.mark.exhaustive) for c in (CPUS[0], CPUS[2]))]
)
def on_a_processor(
    request: pytest.FixtureRequest, arm: Emulated, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Answer]:
    """What the runtime makes of all products on one processor."""
    jobs = {f"{op}-{pair}": _ends(op, *types)[0] for op in PRODUCTS for pair, types in PAIRS.items()}
    jobs |= {f"{op}{least}": _full(op, least)[0] for op in (*PRODUCTS, "MatMul2") for least in (-128, -127)}
    jobs |= {f"{op}-float16": _float16(op) for op in ("Conv", "MatMul")}
    return arm.ask(jobs, tmp_path_factory.mktemp("products") / "jobs", request.param)


@pytest.mark.matrix(every=3)
@pytest.mark.parametrize("op_type", PRODUCTS)
@pytest.mark.parametrize("pair", PAIRS)
def test_no_product_saturates(op_type: str, pair: str, on_a_processor: dict[str, Answer]) -> None:
    """To the last integer those of numpy, with dot products, without them, and with products of matrices."""
    _, want = _ends(op_type, *PAIRS[pair])
    np.testing.assert_array_equal(_found(op_type, on_a_processor[f"{op_type}-{pair}"]), want)
    assert np.unique(want).size > 2


@pytest.mark.parametrize("least", [-128, -127])
@pytest.mark.parametrize("op_type", [*PRODUCTS, "MatMul2"])
def test_without_dot_products_sums_of_minus_128_wrap_around(
    op_type: str, least: int, on_a_processor: dict[str, Answer], request: pytest.FixtureRequest
) -> None:
    """Why weights are written from -127 on, and why two activations are not multiplied there: to the last integer."""
    _, exact, wrapped = _full(op_type, least)
    assert (_written(wrapped) == _written(exact)).all() == (least == -127)
    wraps = request.node.callspec.params["on_a_processor"] == CPUS[0]
    found = _found(op_type.rstrip("2"), on_a_processor[f"{op_type}{least}"])
    np.testing.assert_array_equal(found, _written(wrapped if wraps else exact))


@pytest.mark.parametrize("op_type", ["Conv", "MatMul"])
def test_which_products_of_float16_there_are(
    op_type: str, on_a_processor: dict[str, Answer], request: pytest.FixtureRequest
) -> None:
    """Convolutions run in float16 as such, where the processor has it; products are cast to float32, as on x86."""
    operators = on_a_processor[f"{op_type}-float16"].operators
    has_float16 = request.node.callspec.params["on_a_processor"] != CPUS[0]
    assert ("Cast" in operators) == (op_type == "MatMul" or not has_float16), operators


@pytest.mark.parametrize("variant", ["weight", "two activations"])
@pytest.mark.parametrize("processor", ["armv8", "armv8+armv8.2-dotprod", "armv8+amx", DOTPROD])
def test_two_activations_are_multiplied_in_float_where_that_wraps(processor: str, variant: str, tmp_path: Path) -> None:
    """In uint8, which a file for x86 as well has, nothing does."""
    target = OrtCpuTarget(processor=processor).capabilities()
    units = Workspace(build(CASES["MatMul"][variant]), tmp_path, target).prepared.units
    (unit,) = (unit for unit in units if unit.op_type == "MatMul")
    wraps = variant == "two activations" and processor in ("armv8", "armv8+armv8.2-dotprod")
    assert ("wrap around" in unit.rejection) == (not unit.selectable) == wraps


def test_every_row_has_a_case() -> None:
    assert {op for op, _ in ROWS_OF_TABLE} == OPS.keys()


def test_the_rules_follow_the_version_of_the_device() -> None:
    facts = dict(OrtCpuTarget(processor="armv8.2-dotprod").fingerprint().facts)
    lacking = {"DepthToSpace", "ConvTranspose"}
    for version, lacks in (("1.26.0", True), ("1.28.0", False), ("1.31.1", False)):
        rules = OrtCpuTarget().on_device({**facts, "onnxruntime": version}).rules()
        assert OPS.keys() - rules.ops.keys() == (lacking if lacks else set())
        there = OrtCpuTarget().on_device({**facts, "onnxruntime": version}).capabilities()
        assert any(each.name == "space to depth" for each in there.rewrites) != lacks
    x86 = {**facts, "machine": "x86_64", "onnxruntime": "1.26.0"}
    assert OrtCpuTarget().on_device(x86).rules().ops.keys() == OPS.keys(), "of uint8 there always was one"
    for version, lacks in (("1.23.2", True), ("1.27.0", True), ("1.28.0", False)):
        there = OrtCpuTarget().on_device({**x86, "onnxruntime": version}).capabilities()
        assert any(each.name == "space to depth" for each in there.rewrites) != lacks


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", EMULATED)
def test_trained_models_keep_the_bound_in_the_emulated_runtime(
    name: str, real_models: Path, arm: Emulated, tmp_path: Path
) -> None:
    """Quantized by the rules of ARM64 on this machine, and run there: the SQNR that was told, and 20 dB."""
    import feeds  # type: ignore[import-not-found]

    calibration = feeds.feeds(name)[0]
    out, model = tmp_path / "out.onnx", real_models / f"{name}.onnx"
    older = {"version": VERSION}
    done = inlay.quantize(model, out, data=calibration, processors=[DOTPROD], target_options=older, min_sqnr=20.0)
    some = tuple(calibration[:SAMPLES])
    answer = arm.ask({"model": Job(out, some), "float": Job(model, some)}, tmp_path / "jobs")
    assert answer["model"].graph is not None, answer["model"].error
    found = dict.fromkeys(answer["float"].outputs[0], 0.0)
    noise, signal = dict(found), dict(found)
    for want, got in zip(answer["float"].outputs, answer["model"].outputs, strict=True):
        for key in want:
            signal[key] += float(np.square(want[key].astype(np.float64)).sum())
            noise[key] += float(np.square(want[key].astype(np.float64) - got[key]).sum())
    told = [10.0 * np.log10(signal[k] / noise[k]) for k in found if noise[k] and signal[k] and k not in done.silent]
    assert min(told, default=np.inf) >= 20.0

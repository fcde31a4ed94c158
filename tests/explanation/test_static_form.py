"""What a repair tries of files whose operators quantize in each inference, and when it counts as no less accurate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.data import Samples
from inlay.explanation.mended import static_recipe, write_static
from inlay.explanation.repair import less_accurate
from inlay.model.load import load
from inlay.prepare.strip_qdq import strip_qdq
from inlay.quant.accuracy import Bound, Judge
from inlay.targets.base import TargetSpec
from inlay.targets.onnxruntime.target import capabilities_for
from inlay.testing import Builder, run_reference, small_model
from inlay.testing.models import recurrent_model
from inlay.trial import Accuracy, TaskFigure
from tests.support.runtime_quantizer import quantize_dynamically

pytestmark = pytest.mark.filterwarnings("ignore")  # the runtime's quantizer warns about this and that

RULES = capabilities_for("x86_64").rules


def _feeds(model: onnx.ModelProto, count: int) -> tuple[dict[str, np.ndarray], ...]:
    rng = np.random.default_rng(0)
    (given,) = model.graph.input
    shape = [d.dim_value for d in given.type.tensor_type.shape.dim]
    return tuple({given.name: rng.standard_normal(shape).astype(np.float32)} for _ in range(count))


def test_convolutions_get_static_scales_and_products_go_on_to_find_theirs(tmp_path: Path) -> None:
    b = Builder()
    x = b.conv("first", b.input("x", (1, 8, 12, 12)), 8, 3, relu=True)
    x = b.conv("second", x, 8, 3, relu=True)
    b.output(b.classifier("scores", x, 10))
    model = b.model()
    feeds = _feeds(model, 8)
    file = load(quantize_dynamically(model, tmp_path))
    apart = strip_qdq(file, feeds, tmp_path)
    assert apart is not None
    recipe = static_recipe(apart, RULES)
    assert recipe is not None
    told = {str(r) for r in recipe.rules}
    assert "set_op_type('Conv', int)" in told
    assert any("dynamic" in t for t in told), "what the target fuses as it is stays"
    samples, out = Samples(feeds, "feeds", "samples"), tmp_path / "static.onnx"
    assert write_static(file, apart, TargetSpec("ort-cpu"), RULES, samples, out)
    kinds = [n.op_type for n in onnx.load(out).graph.node]
    assert "ConvInteger" not in kinds
    assert kinds.count("QuantizeLinear") >= 2
    want, got = (next(iter(run_reference(m, feeds[0]).values())) for m in (model, onnx.load(out)))
    assert np.abs(want - got).max() < 0.2 * np.abs(want).max()


def test_files_of_products_and_lstms_alone_have_no_such_form(tmp_path: Path) -> None:
    model = recurrent_model()
    file = load(quantize_dynamically(model, tmp_path))
    apart = strip_qdq(file, _feeds(model, 1), tmp_path)
    assert apart is not None
    assert any(qtype.dynamic for _, qtype in apart.placement), "the control: it has operators that find their ranges"
    assert static_recipe(apart, RULES) is None


def test_the_task_decides_where_decibels_say_nothing() -> None:
    model = small_model()
    feeds = _feeds(model, 4)
    outputs = [run_reference(model, feed) for feed in feeds]
    judge = Judge(outputs, Samples(feeds, "feeds", "samples"), Bound())
    noisy = judge.judge([{n: -a for n, a in each.items()} for each in outputs])
    worse = judge.judge([{n: -1.1 * a for n, a in each.items()} for each in outputs])
    figure = TaskFigure("cosine", 0.9, 0.1, None, 0, 0, "mean cosine 0.9")
    better, lower = replace(figure, value=0.95), replace(figure, value=0.8, said="mean cosine 0.8")
    assert "dB" in less_accurate(worse, noisy), "without a task, decibels are all there is"
    assert less_accurate(replace(worse, figures=(better,)), replace(noisy, figures=(figure,))) == ""
    assert "0.8" in less_accurate(replace(worse, figures=(lower,)), replace(noisy, figures=(figure,)))
    assert less_accurate(noisy, worse) == ""
    exact = judge.judge(outputs)
    assert less_accurate(replace(noisy, figures=(better,)), replace(exact, figures=(figure,))), "above, decibels decide"


@pytest.mark.parametrize(
    ("less", "of", "refused"),
    [(0.0, 0, False), (0.001, 0, False), (0.004, 0, True), (0.011, 100, False), (0.03, 100, True)],
)
def test_a_task_is_done_no_less_well_at_the_same_decibels(less: float, of: int, refused: bool) -> None:
    """A twentieth of what the task may lose at all is the same; where something is counted, one more near miss."""
    given = TaskFigure("kept", 0.98, 0.02, 0.05, round(0.98 * of), of, "98 % kept")
    made = replace(given, value=0.98 - less, lost=0.02 + less, said="fewer kept")
    accuracies = [Accuracy(True, 12.0, figures=(figure,)) for figure in (made, given)]
    assert bool(less_accurate(*accuracies)) == refused
    told = [replace(a, figures=tuple(replace(f, most=None) for f in a.figures)) for a in accuracies]
    assert not less_accurate(*told), "what is only told refuses nothing"

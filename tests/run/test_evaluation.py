"""The user's own evaluation decides which model is delivered; whatever it does, a run ends in what can be said."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import inlay
from inlay.cli import render
from inlay.deadline import Deadline
from inlay.errors import DataError, JournalError, UsageError
from inlay.measure.journal import Journal
from inlay.model.user_code import source_sha256
from inlay.prepare.options import DEFAULT_MIN_SQNR_DB
from inlay.quant.bound import EvaluationBound
from inlay.quant.evaluation import Evaluation, Score
from inlay.report.page import accuracy_words
from inlay.run.confirm.crossfit import CrossFit
from inlay.run.confirm.evidence import Evidence
from inlay.run.evaluation.evaluator import ModelEvaluator, evaluator_of
from inlay.run.evaluation.judging import (
    EVALUATED_DB,
    EVALUATION,
    STEERING_DB,
    EvaluationJudge,
    ScoreFound,
    Verdict,
    evaluated_fall,
)
from inlay.run.evaluation.relation import Point, fitted
from inlay.run.schedule import EVALUATING
from inlay.testing import Builder
from inlay.trial import Failed, noise_of
from tests.support.runtime import run_plain

null = pytest.mark.usefixtures("null_in_process")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    b = Builder()
    y = b.conv("a", b.input("x", (1, 3, 12, 12)), 8, relu=True)
    b.output(b.conv("b", y, 4))
    onnx.save(b.model(), path := tmp_path / "m.onnx")
    return path


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    """Four layers, whose noise adds up."""
    b = Builder()
    y = b.input("x", (1, 3, 12, 12))
    for name in "abc":
        y = b.conv(name, y, 8, relu=True)
    b.output(b.conv("d", y, 8))
    onnx.save(b.model(), path := tmp_path / "deep.onnx")
    return path


def samples(count: int = 6) -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    return [{"x": rng.random((1, 3, 12, 12), np.float32)} for _ in range(count)]


def pairs_in(path: str) -> int:
    """How many activations a model quantizes."""
    return sum(n.op_type == "QuantizeLinear" for n in onnx.load(path).graph.node)


def outputs_of(path: str | Path) -> np.ndarray:
    """Of all samples, each node run as it is written."""
    loaded = onnx.load(path)
    return np.stack([next(iter(run_plain(loaded, feed).values())) for feed in samples()])


def tuned(model: Path, evaluate: Any, **more: Any) -> tuple[inlay.TuneResult, dict[str, Any]]:
    out = more.pop("out", model.parent / "out")
    options: dict[str, Any] = {"target": "null", "max_measurements": 6, "augment": "none", "budget": None, **more}
    result = inlay.tune(model, data=samples(), out=out, evaluate=evaluate, **options)
    return result, json.loads((out / "result.json").read_text())


# --- one evaluation -------------------------------------------------------------------------------------------------


def program(folder: Path, body: str) -> ModelEvaluator:
    script = folder / "mine.py"
    script.write_text("import json, os, sys, time\nmodel = sys.argv[1]\n" + textwrap.dedent(body))
    found = evaluator_of(f"{sys.executable} {script} {{model}}")
    assert found is not None
    return found


def test_a_program_prints_its_scores(model: Path, tmp_path: Path) -> None:
    asked = program(tmp_path, "print('at work', file=sys.stderr)\nprint(json.dumps({'bytes': os.path.getsize(model)}))")
    found = asked.run(model, 60.0)
    assert isinstance(found, Evaluation), found
    assert found.scores["bytes"].value == model.stat().st_size
    assert not found.remark


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("print('all fine')", "must print a number or a JSON object on the last line"),
        ("print(float('nan'))", "finite"),
        ("sys.exit('no such voice')", "failed with exit code 1: no such voice"),
        ("os.kill(os.getpid(), 9)", "failed with signal SIGKILL"),
        (
            "open(model, 'ab')if os.chmod(model, 0o600)else open(model, 'ab').write(b'x'); print(1.0)",
            "changed the model",
        ),
    ],
)
def test_a_program_that_misbehaves_is_one_line(model: Path, tmp_path: Path, body: str, why: str) -> None:
    before = model.read_bytes()
    found = program(tmp_path, body).run(model, 60.0)
    assert isinstance(found, Failed)
    assert why in found.message
    assert "\n" not in found.message
    assert "--evaluate" in found.message
    assert model.read_bytes() == before


def test_a_program_that_hangs_is_ended_with_all_that_it_started(model: Path, tmp_path: Path) -> None:
    body = "import subprocess\np = subprocess.Popen(['sleep', '60'])\n"
    body += f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid))\np.wait()"
    found = program(tmp_path, body).run(model, 3.0)
    assert isinstance(found, Failed)
    assert "took more than 3 s and was ended" in found.message
    pid, until = int((tmp_path / "pid").read_text()), time.monotonic() + 30.0
    while time.monotonic() < until and _lives(pid):
        time.sleep(0.05)
    assert not _lives(pid)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/status")
        return not status.exists() or "State:\tZ" not in status.read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_a_file_that_it_deletes_is_a_copy(model: Path, tmp_path: Path) -> None:
    found = program(tmp_path, "os.remove(model)\nprint(1.0)").run(model, 60.0)
    assert isinstance(found, Evaluation)
    assert "deleted its copy" in found.remark
    assert model.exists()


@pytest.mark.exhaustive
def test_a_function_in_a_module_runs_elsewhere(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_evaluation.py").write_text(
        "import os, time\n"
        "def f1(model): return {'f1': 0.5, 'pid': {'value': os.getpid(), 'higher_is_better': True}}\n"
        "def hangs(model): time.sleep(600)\n"
        "def ends(model): os._exit(3)\n"
        "def text(model): return 'good'\n"
    )
    monkeypatch.chdir(tmp_path)

    def asked(name: str, limit_s: float = 60.0) -> Evaluation | Failed:
        found = evaluator_of(f"their_evaluation:{name}")
        assert found is not None
        return found.run(model, limit_s)

    found = asked("f1")
    assert isinstance(found, Evaluation)
    assert found.scores["pid"].value != os.getpid()
    for name, why in (("text", "'good'"), ("ends", "ended its process")):
        failed = asked(name)
        assert isinstance(failed, Failed)
        assert why in failed.message
    failed = asked("hangs", 2.0)
    assert isinstance(failed, Failed)
    assert "took more than 2 s" in failed.message
    assert isinstance(asked("f1"), Evaluation), "a new process takes its place"


def test_a_folder_of_several_files_is_given_as_one(model: Path, tmp_path: Path) -> None:
    (tmp_path / "pipeline").mkdir()
    for name in ("encoder.onnx", "decoder.onnx"):
        (tmp_path / "pipeline" / name).write_bytes(model.read_bytes())
    asked = evaluator_of(lambda folder: len(os.listdir(folder)))
    assert asked is not None
    found = asked.run(tmp_path / "pipeline", 60.0)
    assert isinstance(found, Evaluation)
    assert next(iter(found.scores.values())).value == 2.0


@pytest.mark.parametrize(
    "given", ["no-such-program-at-all {model}", "python evaluate.py", "'python {model}", "no_module:f"]
)
def test_what_names_no_evaluation_is_a_usage_error(given: str) -> None:
    with pytest.raises(UsageError, match="--evaluate"):
        evaluator_of(given)


# --- noise and scores -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [1.0, 0.5])
def test_the_relation_of_noise_and_scores_is_found(exponent: float) -> None:
    """The interval holds the truth, and so does the SQNR that is asked for."""
    rng = np.random.default_rng(0)
    truth = {db: 2.0 * noise_of(db) ** exponent for db in (10.0, 14.0, 18.0, 24.0, 30.0)}
    found = fitted("top1", [Point(db, fall * rng.normal(1.0, 0.02)) for db, fall in truth.items()])
    assert found is not None
    assert found.exponent == exponent
    fall, half = found.fall(20.0)
    assert abs(fall - 2.0 * noise_of(20.0) ** exponent) <= half
    assert half < fall
    assert noise_of(found.least_db(0.02)) ** exponent * 2.0 == pytest.approx(0.02, rel=0.1)


def test_one_model_says_how_much_but_not_how_sure() -> None:
    found = fitted("top1", [Point(20.0, 0.02)])
    assert found is not None
    assert found.told(0.01) == (
        "top1 gets worse by 0.02 at 20 dB, by one evaluated model; the 0.01 that is allowed asks for about 23 dB"
    )
    assert fitted("top1", []) is None
    better = fitted("top1", [Point(20.0, -0.01)])
    assert better is not None
    assert better.least_db(0.01) == -np.inf


# --- a run ----------------------------------------------------------------------------------------------------------


@null
def test_a_run_keeps_to_the_evaluation(deep: Path) -> None:
    """It refuses full INT8, and what is delivered without it: more stays in float, not all."""
    float_outputs, asked = outputs_of(deep), dict[int, float]()

    def mse(path: str | Path) -> float:
        error = outputs_of(path) - float_outputs
        return 1e3 * float(np.square(error).mean() / np.square(float_outputs).mean())

    def evaluate(path: str) -> dict[str, float]:
        asked[pairs_in(path)] = mse(path)
        return {"mse": asked[pairs_in(path)]}

    options = {"task": "none", "max_measurements": 8}
    free, _ = tuned(deep, None, out=deep.parent / "free", **options)
    most = 0.7 * mse(free.model_path)
    result, data = tuned(deep, evaluate, max_drop=most, **options)
    given, full = list(asked)[:2]
    assert (given, full) == (0, max(asked)), "the given model, and full INT8 before the search"
    assert asked[full] > most
    assert 0 < pairs_in(str(result.model_path)) < pairs_in(str(free.model_path)) <= full
    assert result.best.speedup.low > 1.0
    found = data["best"]["evaluation"]
    assert found["scores"][0]["fall"] == pytest.approx(mse(result.model_path))
    assert found["scores"][0]["fall"] <= most
    assert "mse" in result.summary()
    assert any("mse " in str(line) for line in render.verdict(result))
    asked.clear()
    again, _ = tuned(deep, evaluate, max_drop=most, **options)
    assert not asked, "the journal knows all of it"
    assert again.best.output_sha256 == result.best.output_sha256


@null
@pytest.mark.exhaustive
def test_what_the_evaluation_refuses_is_not_delivered(model: Path) -> None:
    """Whatever is quantized is refused, before any is searched for; the same command says so again."""

    def wer(path: str) -> dict[str, float]:
        return {"WER": 0.1 if not pairs_in(path) else 0.3}

    for _ in range(2):
        result, _ = tuned(model, wer, max_drop=0.05)
        assert pairs_in(str(result.model_path)) == 0
        assert any("full-int8: WER gets worse by 0.2, from 0.1 to 0.3" in note for note in result.notes)
    free, _ = tuned(model, None, out=model.parent / "free", min_sqnr=10.0)
    assert pairs_in(str(free.model_path)) > 0, "without the evaluation it is not"


@null
def test_samples_give_an_interval(model: Path) -> None:
    hits = np.ones(400)
    result, data = tuned(model, lambda path: {"top1": hits * (np.arange(400) >= (pairs_in(path) > 0))}, max_drop=0.05)
    said = data["best"]["evaluation"]["scores"][0]["statement"]
    assert (said["method"], said["hits"]["lost"], said["keeps_bound"]) == ("exact", 1, True)
    assert said["sentence"] in "\n".join(map(str, render.verdict(result)))
    assert result.exit_code == 0


@null
def test_few_samples_do_not_show_the_bound(model: Path) -> None:
    result, _ = tuned(model, lambda path: {"top1": [1.0] * 10}, max_drop=0.01)
    assert result.best.unproven.startswith("BOUND NOT SHOWN")
    assert result.exit_code == 3


def noisy_model(folder: Path) -> Path:
    """The difference of two nearly equal values: it has less than 20 dB in 8 bits."""
    b, rng = Builder(), np.random.default_rng(0)
    x, w = b.input("x", (1, 3, 12, 12)), rng.normal(size=(8, 8, 3, 3)).astype(np.float32)
    x = b.conv("two", b.conv("one", x, 8, relu=True), 8, relu=True)
    other = (w + 0.02 * rng.normal(size=w.shape)).astype(np.float32)
    one, two = (b.node(f"c{i}", "Conv", [x, b.constant(f"w{i}", each)]) for i, each in enumerate((w, other)))
    b.output(b.node("difference", "Sub", [one, two]))
    onnx.save(b.model(), path := folder / "m.onnx")
    return path


@null
@pytest.mark.parametrize(("count", "is_noisy"), [(400, True), (10, False)])
def test_what_is_noisier_than_usual_is_for_those_whose_samples_show_the_bound(
    tmp_path: Path, count: int, is_noisy: bool
) -> None:
    """The evaluation finds nothing lost."""
    path = noisy_model(tmp_path)
    result, data = tuned(path, lambda path: {"top1": [1.0] * count}, max_drop=0.01, max_measurements=8)
    assert (data["best"]["sqnr_db"] < DEFAULT_MIN_SQNR_DB) == is_noisy
    journal = Journal(tmp_path / "out" / "run.sqlite", None)
    asked = journal.fact(STEERING_DB)
    journal.close()
    assert asked is not None
    assert (asked < DEFAULT_MIN_SQNR_DB) == is_noisy, "the search looks for what will be delivered"
    assert result.best.speedup.low > 1.0


@null
def test_a_relation_that_few_models_suggest_lowers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search goes by it; but of ten samples, which show nothing, no less than usual is delivered."""
    usual: list[float] = []
    real = CrossFit.evaluated

    def noted(fitted: CrossFit, *given: Any) -> Evidence | None:
        found = real(fitted, *given)
        usual.extend([] if found is None or found.evaluated is None else [found.usual_db])
        return found

    monkeypatch.setattr(CrossFit, "evaluated", noted)
    lost = lambda path: {"top1": [float(pairs_in(path) < 4)] + [1.0] * 9}  # noqa: E731
    _, data = tuned(noisy_model(tmp_path), lost, max_drop=0.05, max_measurements=8)
    journal = Journal(tmp_path / "out" / "run.sqlite", None)
    asked = journal.fact(STEERING_DB)
    journal.close()
    assert asked is not None
    assert asked < DEFAULT_MIN_SQNR_DB, "the relation suggests less"
    assert usual
    assert {*usual} == {DEFAULT_MIN_SQNR_DB}
    assert data["best"]["sqnr_db"] >= DEFAULT_MIN_SQNR_DB


@null
@pytest.mark.parametrize(
    ("evaluate", "error", "why"),
    [
        (lambda path: "good", DataError, "must return numbers"),
        (lambda path: float("nan"), DataError, "finite"),
        (lambda path: {}[path], DataError, "KeyError"),
        (lambda path: 1.0, UsageError, "--higher-is-better"),
    ],
)
def test_without_scores_of_the_given_model_nothing_is_begun(
    model: Path, evaluate: Callable[[str], Any], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why) as found:
        tuned(model, evaluate)
    assert "\n" not in str(found.value)
    assert not (model.parent / "out" / "result.json").exists()


@null
def test_an_evaluation_that_fails_on_what_is_found_leaves_the_given_model(model: Path) -> None:
    def top1(path: str) -> float:
        if pairs_in(path):
            raise RuntimeError("no kernel")
        return 0.9

    result, data = tuned(model, top1)
    assert pairs_in(str(result.model_path)) == 0
    assert any("no kernel" in note for note in result.notes)
    assert data["best"]["evaluation"]["failure"] is None, "it is the given model's"


def drawn(values: Sequence[float]) -> Callable[[str], dict[str, float]]:
    """Gives one value after the other, whatever the model."""
    left = list(values)
    return lambda path: {"top1": left.pop(0) if len(left) > 1 else left[0]}


@null
def test_an_evaluation_that_changes_its_mind_is_told(model: Path) -> None:
    with pytest.raises(UsageError, match=r"differ by 0\.05 for one and the same model"):
        tuned(model, drawn([0.9, 0.85]), max_drop=0.01)
    result, data = tuned(model, drawn([0.9, 0.91]), max_drop=0.05, out=model.parent / "narrower")
    assert data["best"]["evaluation"]["scores"][0]["allowed"] == pytest.approx(0.04)
    assert any("changes its mind" in note for note in result.notes)


@null
@pytest.mark.exhaustive
def test_an_evaluation_that_was_edited_does_not_go_on(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores of before and after are of two measures; what its program reads besides its source is its own affair."""
    monkeypatch.chdir(model.parent)
    script, by = Path("mine.py"), f"{sys.executable} mine.py {{model}}"
    script.write_text("print(0.9)")
    tuned(model, by, max_drop=0.01, higher_is_better=True)
    Path("data.txt").write_text("nothing that it is given by name")
    result, _ = tuned(model, by, max_drop=0.01, higher_is_better=True)
    assert result.best is not None
    script.write_text("print(0.8)")
    with pytest.raises(JournalError, match=r"what --evaluate runs, which was edited since.*--restart to begin anew"):
        tuned(model, by, max_drop=0.01, higher_is_better=True)
    tuned(model, by, max_drop=0.01, higher_is_better=True, restart=True)


def test_what_is_edited_is_told_by_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def f(path):\n    return 1.0\n")
    Path("weights.bin").write_bytes(b"\0" * 64)
    named, words, other = (
        source_sha256(each) for each in ("mine:f", "python mine.py {model} weights.bin", "true {model}")
    )
    assert named == words
    assert other == "", "a program that is no text"
    Path("mine.py").write_text("def f(path):\n    return 2.0\n")
    assert source_sha256("mine:f") == source_sha256("python mine.py {model}") != named
    assert source_sha256("no_such:f") == source_sha256(len) == ""
    one = source_sha256(lambda path: 1.0)
    other = source_sha256(lambda path: 2.0)
    assert one != other


@null
def test_a_metric_that_changes_its_mind_is_told(model: Path) -> None:
    """Of the same outputs, asked twice: by more than may be lost it decides nothing, by less the bound is narrower."""

    def metric(values: list[float]) -> Callable[..., float]:
        return lambda outputs, labels: values.pop(0) if len(values) > 1 else values[0]

    with pytest.raises(
        DataError, match=r"--metric <lambda> changes its mind: of the same outputs it gave 0\.9 and 0\.85"
    ):
        tuned(model, None, metric=metric([0.9, 0.85]), max_drop=0.01)
    out = model.parent / "narrower"
    result, data = tuned(model, None, metric=metric([0.9, 0.91]), max_drop=0.05, out=out)
    assert data["bound"] == "<lambda> at most 0.04 below float"
    assert any("changes its mind" in note for note in result.notes)
    result, data = tuned(model, None, metric=metric([0.9]), max_drop=0.05, out=model.parent / "sure")
    assert data["bound"] == "<lambda> at most 0.05 below float", "negative control"


@null
def test_a_name_that_is_missing_later(model: Path) -> None:
    result, _ = tuned(model, lambda path: {"F1": 0.9} if pairs_in(path) else {"F1": 0.9, "AUC": 0.9})
    assert pairs_in(str(result.model_path)) == 0
    assert any("no longer returns AUC" in note for note in result.notes)


def test_a_score_whose_name_begins_like_another_has_a_relation_of_its_own(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "run.sqlite", {"version": "test"})
    for name, value in (("given", 0.9), ("some", 0.8)):
        journal.record_fact(EVALUATION.of(name), Evaluation({"top1": Score(value), "top1 accuracy": Score(0.9)}))
    journal.record_fact(EVALUATED_DB.of("some"), 20.0)
    evaluator = evaluator_of(lambda path: 0.9)
    assert evaluator is not None
    judge = EvaluationJudge(
        evaluator=evaluator,
        bound=EvaluationBound("mine"),
        given=tmp_path,
        place=tmp_path,
        journal=journal,
        budget_s=np.inf,
        clock=time.monotonic,
        seed=0,
    )
    judge.recall("some")
    falls = {relation.name: [p.fall for p in relation.points] for relation, _ in judge.relations()}
    assert falls == {"top1": [pytest.approx(0.1)], "top1 accuracy": [0.0]}
    journal.close()


def test_time_for_evaluations_goes_by_the_latest_and_lasts_for_the_confirmation(tmp_path: Path) -> None:
    """The first one of all may prepare what others find; what recipes take before the search is theirs no more."""
    journal = Journal(tmp_path / "run.sqlite", {"version": "test"})
    journal.record_fact(EVALUATION.of("given"), Evaluation({"top1": Score(0.9)}, seconds=12.0))
    evaluator, now = evaluator_of(lambda path: {"top1": 0.7}), [0.0]
    assert evaluator is not None
    judge = EvaluationJudge(
        evaluator=evaluator,
        bound=EvaluationBound("mine"),
        given=tmp_path,
        place=tmp_path,
        journal=journal,
        budget_s=90.0,
        clock=lambda: now[0],
        seed=0,
    )
    end = Deadline(90.0, judge.clock)
    assert judge.affords(end) == 1
    judge.asked.append(4.0)
    assert judge.seconds == 4.0
    assert judge.planned_s == 8.0, "one, and one for what takes its place"
    judge.asked.append(12.0)
    assert judge.affords(end) == int((EVALUATING * 90.0 - 16.0 - 12.0) / 12.0)
    assert judge.planned_s >= judge.seconds, "one in any case"
    now[0] = 85.0
    assert not judge.affords(end)
    assert judge.known("some") is None
    journal.record_fact(EVALUATION.of("some"), Evaluation({"top1": Score(0.7)}))
    assert judge.known("some") is False
    journal.close()


def test_the_journal_tells_select_how_far_scores_fell(tmp_path: Path) -> None:
    """In the direction that was recorded; scores without one do not count."""
    journal = Journal(tmp_path / "run.sqlite", {"version": "test"})
    of = {"given": (0.9, 0.10, 1.0), "some": (0.92, 0.13, 9.0)}
    for name, (top1, wer, seconds) in of.items():
        scores = {"top1": Score(top1, higher_is_better=True), "WER": Score(wer, higher_is_better=False)}
        journal.record_fact(EVALUATION.of(name), Evaluation({**scores, "seconds": Score(seconds)}))
    assert evaluated_fall(journal, "some") == pytest.approx(0.03)
    assert evaluated_fall(journal, "another") is None
    journal.close()


def test_the_page_says_what_the_evaluation_found() -> None:
    verdict = Verdict(
        evaluator="mine:f",
        scores=(ScoreFound(name="top1", value=0.8, of_float=0.9, fall=0.1, allowed=0.2, statement=None),),
    )
    best = {"origin": "cut", "sqnr_db": 20.0, "evaluation": verdict.as_json()}
    assert "By --evaluate mine:f: top1 0.8 (float 0.9)" in accuracy_words({"best": best})
    assert "--evaluate" not in accuracy_words({"best": {**best, "evaluation": None}})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"metric": "top1-agreement"}, "one of them"),
        ({"higher_is_better": True, "lower_is_better": True}, "--higher-is-better or --lower-is-better"),
        ({"at_least": ["top1"]}, "--min top1: give name=value"),
        ({"at_least": {"a": 1.0}, "at_most": {"a": 2.0}}, "one of the two"),
        ({"no_bound": True, "at_most": {"a": 2.0}}, "--no-bound contradicts"),
        ({"evaluate": None, "at_least": {"a": 1.0}}, r"--min needs --evaluate.*--metric or --task.*by --max-drop"),
    ],
)
def test_options_that_contradict_each_other(model: Path, options: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        tuned(model, options.pop("evaluate", lambda path: 1.0), **options)

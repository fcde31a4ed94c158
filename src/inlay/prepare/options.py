"""The options of Inlay's commands, each declared once: what it means, and how it looks on the command line.

Options values (:mod:`inlay.run.options`), the functions of :mod:`inlay.api` and the fields of
:class:`~inlay.prepare.config.TuneConfig` annotate their types with these: ``seed: Annotated[int, SEED] = 0``. See
:mod:`inlay.prepare.declare`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from inlay import installed
from inlay.data import Images
from inlay.errors import UsageError
from inlay.prepare.declare import Option
from inlay.quant.accuracy import EXACT_DB

DEFAULT_MIN_SQNR_DB = 20.0
"""Bound where neither a metric nor a bound is given: noise of 1 % of the signal's power."""
DEFAULT_BUDGET_S = 120.0
"""Seconds of search where no budget is given."""
EFFORTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"instant": {"budget": "30s"}, "normal": {"budget": "2m"}, "thorough": {"budget": "15m"}}
)
"""What each effort stands for. All else follows from the budget: phases share it by a plan."""
EXPLAIN_BUDGET_S = 60.0
"""Seconds after which no further experiment of an explanation is begun, where no budget is given."""
CALIBRATION_BUDGET_S = 60.0
"""Seconds of measuring a processor's kernels."""
BY_COSTS = "auto"
"""Stands for a recipe where costs say what is quantized."""
_LARGEST_SIZE = 2**31 - 1  # runtimes index with 32 bits in places
_LONGEST_SIZE = 12  # more digits than the largest size has; Python refuses to read thousands
STRATEGIES = ("auto", "guided", *installed.joined(installed.STRATEGIES), "refine", "anchors")

MODEL = Option("The ONNX model.", metavar="MODEL", type=Path, positional=True, show_default=False)
TUNED = Option(
    "The ONNX model; or the models of one program, as several files or as a pipeline.yaml.",
    metavar="MODEL...",
    type=Path,
    positional=True,
    repeated=True,
    show_default=False,
)
MODELS = Option(
    "Two or more models; ratios are to the first.", metavar="MODEL...", type=Path, positional=True, repeated=True
)
TARGET = Option("Where the model will run; see `inlay targets`.", "A name, or a name with options.")
TARGETS = Option(
    "Where the model will run; repeat it for one file that suits several; auto chooses the fastest.",
    "A name, or a name with options, or several of these.",
    repeated=True,
)
TARGET_OPTIONS = Option(
    "An option of the target, as listed by `inlay targets`; repeatable. With several targets: TARGET.NAME=VALUE.",
    "As a mapping, or as ``name=value``.",
    flags=("--target-option",),
    metavar="NAME=VALUE",
    repeated=True,
)
DATA = Option(
    "Samples: a .npz (an array per input, first axis = samples), .jsonl (tokens), .csv, a folder of such files or of "
    "images, a saved data set, waveform:FOLDER or log-mel:FOLDER of .wav files, or module:function.",
    "Or feeds ({input: array}), arrays, a calibration reader, a data set, or a loader; None for random inputs.",
    metavar="SAMPLES",
    show_default=False,
)
IMAGES = Option(
    "How your program turns images into inputs: a YAML file with size, mean, std, top, layout, order and fit, or these "
    "themselves, such as 'size=224; mean=0.5; std=0.5; fit=crop'.",
    "An :class:`~inlay.data.images.Images`; by default as the model's input says.",
    flags=("--preprocess",),
    metavar="FILE",
    type=Images,
    show_default=False,
    fields=(
        ("size", Option("", flags=("--image-size",))),
        ("mean", Option("", flags=("--mean",))),
        ("std", Option("", flags=("--std",))),
        ("top", Option("", flags=("--pixel-max",), type=float)),
        ("layout", Option("", flags=("--layout",))),
        ("order", Option("", flags=("--color-order",))),
        ("fit", Option("", flags=("--fit",))),
    ),
    fields_go="1.2",
)
LABELS = Option("One label per sample: .npy, .npz or text.", "Or an array.", metavar="FILE", type=Path)
MASK = Option(
    "The input whose zeros mark padding, which the accuracy ignores; none; or auto, to find it.",
    "See :mod:`inlay.data.padding`.",
    metavar="INPUT",
)
BIND = Option(
    "Size of a dynamic dimension; a written model accepts no other.",
    "As a mapping, or as ``name=N``.",
    metavar="NAME=N",
    repeated=True,
)
FIX = Option(
    "Value of an input, such as sr=16000: decides what depends on it alone; the written model works for it only.",
    "As a mapping, or as ``name=value``; of an array, one number for all or as many as it holds.",
    metavar="INPUT=VALUE",
    repeated=True,
)
FREEZE_SHAPES = Option(
    "Fix dynamic dimensions that have one size in all samples, as --bind does: the written model accepts no other.",
    type=bool,
)
SHAPES = Option(
    "A shape to measure latency on, with a weight; repeatable. By default, a few that represent the samples.",
    "``input=AxB:weight``, further inputs after commas.",
    flags=("--shape",),
    metavar="INPUT=AxB[:WEIGHT]",
    repeated=True,
)
BATCH = Option(
    "Batch sizes to measure latency on, such as 1,8, each equally often: one placement for all.",
    "A number, or several.",
    metavar="N[,N…]",
)
THREADS = Option("Threads of the runtime; 0 lets it choose.", type=int, least=0)
OBJECTIVE = Option(
    "What to minimize: latency, throughput (time per inference of many at once) or cpu-time (of all cores together).",
    metavar="latency|throughput|cpu-time",
)
STREAMS = Option("Inferences at once, for throughput; 0 for as many as keep all cores busy.", type=int, least=0)
RATE = Option(
    "Also report how each model answers that many requests a second at random moments: 50th and 99th percentiles.",
    metavar="PER_SECOND",
    type=float,
    least=0,
)
NODES = Option("Quantize only nodes whose names match; repeatable.", metavar="GLOB", repeated=True)
QUANT_TYPE = Option(
    "Type of quantized activations: int8, uint8, int16, uint16 or fp8, if the target has it; auto lets it choose.",
    metavar="TYPE",
)
BASE = Option(
    "Precision of everything that is not quantized: fp16, bf16 or fp32, if the target has kernels; auto: fp16 if so.",
    "What loses too much in it on the samples stays in fp32.",
    metavar="TYPE",
)
MAX_OPSET = Option(
    "Newest opset that written models may use, for older runtimes; anything that needs a newer one is left out.",
    "Q/DQ nodes with a scale for each channel need 13.",
    metavar="N",
    type=int,
    least=13,
)
AUGMENT = Option(
    "Variations of the samples, which ranges should suit and whose losses are reported: none, auto, or "
    "module:function(sample, rng), which returns samples by name.",
    "auto varies images, series and tokens, and leaves alone what it cannot tell.",
    metavar="HOW",
)
SEED = Option("Seed of every random choice.", type=int, least=0)
OUT = Option("Output folder.", flags=("--out", "-o"), metavar="OUT", type=Path)
METRIC = Option(
    "top1, top1-agreement, token-agreement, cosine, sqnr, or module:function(outputs, labels).", "Larger is better."
)
TASK = Option(
    "What the model is for: auto (only where its outputs say so), none, detector, classifier, text, tokens, embedding, "
    "masks or sound. Accuracy is reported in these terms beside the SQNR; a task that you name replaces its bound.",
    "The guide says what each may lose.",
)
MAX_DROP = Option(
    "How far the metric may fall, or each score of --evaluate get worse: 0.5% or 0.005.",
    "1 % where only a metric or an evaluation is given.",
    metavar="DROP",
)
MIN_SQNR = Option(
    f"Least SQNR of the worst output; {DEFAULT_MIN_SQNR_DB:g} when no other bound is given. At 20 dB the error is "
    "10 % of the output's size, at 30 dB 3 %, at 40 dB 1 %.",
    "In dB.",
    metavar="DB",
    type=float,
    show_default=False,
)
EVALUATE = Option(
    "Your own evaluation of a whole model: module:function of a path, or a program with {model} in place of the path; "
    "it returns one score, or several by name.",
    "Or a function. See :mod:`inlay.quant.evaluation`.",
    metavar="EVALUATION",
    show_default=False,
)
AT_LEAST = Option(
    "The least that a score of --evaluate may be; larger is better. Repeatable.",
    "As a mapping, or as ``name=value``.",
    flags=("--min",),
    metavar="NAME=VALUE",
    repeated=True,
)
AT_MOST = Option(
    "The most that a score of --evaluate may be; smaller is better. Repeatable.",
    "As a mapping, or as ``name=value``.",
    flags=("--max",),
    metavar="NAME=VALUE",
    repeated=True,
)
HIGHER_IS_BETTER = Option("Larger is better, for scores of --evaluate whose names do not tell.", type=bool)
LOWER_IS_BETTER = Option("Smaller is better, for scores of --evaluate whose names do not tell.", type=bool)
NO_BOUND = Option("Set no bound on the accuracy.", type=bool)
ACCEPT_UNPROVEN = Option(
    "Exit with code 0, not 3, if the samples do not show the bound for new ones; the verdict still says so.",
    "Only :attr:`~inlay.run.result.TuneResult.exit_code` depends on it.",
    type=bool,
)
BUDGET = Option(
    "Time for the whole command, interrupted sessions included: 90s, 10m, 1h30m, or none.",
    "Or seconds; None for no limit.",
    metavar="TIME",
)
FLEET = Option("Models, targets, constraints.", metavar="FLEET.yaml", type=Path, positional=True, show_default=False)
FLEET_BUDGET = Option(
    "Time for all runs together, earlier sessions included; overrides the budget in the file.",
    metavar="TIME",
    show_default=False,
)
EXPLAIN_BUDGET = Option(
    "Time for proving reasons, and as much again for the search of --repair: 90s, 10m, or none.",
    "Or seconds; None for no limit. Reasons that are untried by then are predictions.",
    metavar="TIME",
)
REPAIR = Option(
    "Also repair the model, and write the result if it is faster and at least as accurate.",
    flags=("--repair",),
    metavar="OUT.onnx",
    type=Path,
)
MAX_MEASUREMENTS = Option("Maximum number of candidates to time.", type=int, least=1)
MAX_BUILDS = Option("Maximum number of models to build during the search, probes and profiles included.", type=None)
QDQ_BASELINE = Option("A Q/DQ model to start from and to beat.", metavar="FILE", type=Path)
KEEP_QPARAMS = Option("Use the scales and zero points that came with a Q/DQ model.", type=bool)
COST_DB = Option(
    "Neither use nor keep costs learned on this target by other runs.",
    "Start from the costs that earlier runs on this target learned, and add this one's.",
    flags=("--no-cost-db",),
    type=bool,
    negated=True,
)
STRATEGY = Option(
    f"{', '.join(STRATEGIES)}.",
    "``guided`` goes by a cost model, ``evolve`` by region patterns; ``anchors`` does not search.",
)
SCHEMES_PER_REGION = Option("Maximum number of placements to try for one region pattern.", type=int, least=1)
PATTERN_CACHE = Option("Schemes of earlier runs, tried first.", metavar="FILE", type=Path)
SEARCH_RECIPE = Option("A recipe of rules; nodes that it keeps in float stay float.", metavar="FILE")
RESTART = Option("Forget an earlier run in OUT.", type=bool)
BEFORE = Option("Seconds of the command's time that were used up before the call.", type=None)
RAY = Option(
    "Measure through Ray: local, auto, or a cluster's address; append #FINGERPRINT to choose a device.",
    "None measures without Ray. See :mod:`inlay.ray`.",
    metavar="ADDRESS",
    show_default=False,
)
DEVICE = Option(
    "Measure on a board over SSH: ssh://USER@HOST:PORT?python=PYTHON, or its name in devices.yaml.",
    "It needs Python 3.9 or later, numpy and the target's runtime there. See :mod:`inlay.measure.ssh`.",
    metavar="DEVICE",
    show_default=False,
)
PROGRESS = Option("Receives progress reports; see :class:`~inlay.run.progress.Progress`.", type=None)
BLOCKS = Option("Interleaved blocks in each process.", type=int, least=1, most=10_000)
PROCESSES = Option("Fresh processes.", type=int, least=1, most=1000)
QUANTIZED = Option("The quantized model.", flags=("--out", "-o"), metavar="OUT.onnx", type=Path)
RECIPE = Option(
    f"{BY_COSTS}: the fastest placement by the processor's cost table; full-int8, conv-matmul, dynamic, or a YAML file "
    "of rules.",
    "Or rules. Without a cost table it is full-int8.",
    metavar="RECIPE",
)
INSTANT_MIN_SQNR = Option(
    f"Least SQNR of the worst output, where --recipe is {BY_COSTS}; by default {DEFAULT_MIN_SQNR_DB:g}, or the bound "
    "of tasks that have a better measure, such as embeddings.",
    "In dB.",
    metavar="DB",
    type=float,
)
PROCESSORS = Option(
    "For a processor that is not here, such as avx2, avx512-vnni, amx, armv8.2-dotprod: its rules, costs and numerics "
    "decide, and no speed is measured. Repeatable: one file that suits all of them.",
    flags=("--for",),
    metavar="PROCESSOR",
    repeated=True,
)
COSTS = Option(
    "A cost table that inlay calibrate-machine wrote, here or on another machine with the same instructions.",
    metavar="FILE",
    type=Path,
    show_default=False,
)
WRITTEN_COSTS = Option(
    "Also write the table to this file, to be carried to another machine.",
    metavar="FILE",
    type=Path,
    show_default=False,
)
CALIBRATION_BUDGET = Option(
    "Time after which no further measurement is begun: 60s, 2m, or none.",
    "Or seconds; None for no limit.",
    metavar="TIME",
)
RUN = Option("Output folder of a run.", metavar="OUT", type=Path, positional=True, show_default=False)
SELECTED = Option(
    "The model to write; by default OUT/selected.onnx.", flags=("--to",), metavar="FILE", type=Path, show_default=False
)
SELECTED_MAX_DROP = Option("How far the metric may fall: 0.5% or 0.005.", "On the selection samples.", metavar="DROP")
SELECTED_MIN_SQNR = Option(
    "Least SQNR of the worst output.", "In dB, on the selection samples.", metavar="DB", type=float
)
SELECTED_MAX_SIZE = Option(
    "Largest size of the file with its weights: 20MB, 1.5GB, or bytes.", "A number is bytes.", metavar="SIZE"
)
SELECTED_MAX_MEMORY = Option(
    "Most memory that a session may take, measured where it is not known yet: 200MB, 1.5GB, or bytes.",
    "A number is bytes.",
    metavar="SIZE",
)
SELECTED_MINIMIZE = Option("What to minimize: latency, size or memory.", metavar="WHAT")
FASTEST = Option("The fastest, whatever its accuracy.", type=bool)
EXPORTED = Option(
    "The file to write; by default in OUT, named for the form.", metavar="FILE", type=Path, show_default=False
)
LARGEST_LEAF = Option("Maximum number of nodes in a leaf region.", type=int, least=1)
SMALLEST_SEQUENCE = Option("Minimum number of nodes in a composite sequence.", type=int, least=0)


def parse_duration(text: str) -> float:
    """Seconds from ``90``, ``90s``, ``10m``, ``1.5h`` or ``1h30m``. Raises UsageError."""
    factors = {"h": 3600.0, "m": 60.0, "s": 1.0, "": 1.0}
    parts = re.findall(r"(\d+(?:\.\d+)?)([hms]?)", text.strip())
    seconds = sum(float(n) * factors[u] for n, u in parts)
    if not parts or "".join(n + u for n, u in parts) != text.strip() or not math.isfinite(seconds):
        raise UsageError(f"--budget {text}: give a duration such as 90s, 10m or 1h30m")
    return seconds


def parse_share(text: str, option: str = "--max-drop") -> float:
    """A drop: ``0.5%`` is 0.005, ``0.005`` itself. Raises UsageError."""
    body = text.strip()
    try:
        value = float(body.removesuffix("%")) / (100.0 if body.endswith("%") else 1.0)
    except ValueError:
        raise UsageError(f"{option} {text}: give a number such as 0.005, or a share such as 0.5%") from None
    if not 0.0 <= value < float("inf"):
        raise UsageError(f"{option} {text}: it must be a number, and not negative")
    return value


def parse_size(text: str, option: str = "--max-size") -> int:
    """Bytes from ``20MB``, ``1.5GB``, ``500kB`` (powers of ten) or a number. Raises UsageError."""
    found = re.fullmatch(r"(\d{1,18}(?:\.\d{1,18})?)\s*([kmg]?)b?", text.strip().lower())
    if found is None:
        raise UsageError(f"{option} {text}: give a size such as 20MB, 1.5GB or 500kB")
    return int(float(found[1]) * {"": 1, "k": 1e3, "m": 1e6, "g": 1e9}[found[2]])


def parse_limits(option: str, limits: Sequence[str] | Mapping[str, float]) -> tuple[tuple[str, float], ...]:
    """Limits by name, from a mapping or from ``name=value`` entries. Raises UsageError."""
    entries = [f"{n}={value}" for n, value in limits.items()] if isinstance(limits, Mapping) else limits
    found: dict[str, float] = {}
    for entry in entries:
        name, _, number = entry.rpartition("=")
        try:
            value = float(number.removesuffix("%")) / (100.0 if number.endswith("%") else 1.0)
        except ValueError:
            value = math.nan
        if not name or not math.isfinite(value):
            raise UsageError(f"{option} {entry}: give name=value with a number, such as top1=0.97")
        if found.setdefault(name, value) != value:
            raise UsageError(f"{option} {entry}: {name} is {found[name]:g} already")
    return tuple(found.items())


def check_sqnr(least: float | None, option: str = "--min-sqnr") -> float | None:
    """A bound on the SQNR in dB, if it is one. Raises UsageError."""
    if least is not None and not -EXACT_DB < least < math.inf:
        raise UsageError(f"{option} {least:g}: give decibels, more than {-EXACT_DB:g}, which bounds nothing")
    return least


def parse_bind(sizes: Sequence[str] | Mapping[str, int]) -> dict[str, int]:
    """Sizes by dimension, from a mapping or from ``name=N`` entries. Raises UsageError."""
    entries = [f"{n}={size}" for n, size in sizes.items()] if isinstance(sizes, Mapping) else sizes
    bound: dict[str, int] = {}
    for entry in entries:
        name, _, number = entry.rpartition("=")
        if not name or not number.isdecimal() or not 1 <= (size := int(number[:_LONGEST_SIZE])) <= _LARGEST_SIZE:
            raise UsageError(f"--bind {entry}: give name=N with a whole number from 1 to {_LARGEST_SIZE}")
        if bound.setdefault(name, size) != size:
            raise UsageError(f"--bind {entry}: {name} is {bound[name]} already")
    return bound

"""What stays on Qualcomm's HTP of what Inlay delivers for it, at which accuracy, after how many builds.

    python -m benchmarks npu [--models DIR] [--only NAME ...] [--restart]

Nothing is timed: the provider's emulator computes what the NPU would, and says which operators it takes. An operator
that the delivered model leaves on the host or in float is either one that the target's table does not allow in low
precision, with a reason, or one that the search left there for accuracy. SQNR is the emulator's, against float, on
samples from other sources. Needs the extra ``qnn``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import inlay
from benchmarks import paired
from benchmarks.quality import BOUND_DB
from benchmarks.subjects import Subject
from inlay.model.load import file_sha256, load
from inlay.prepare.model import prepare
from inlay.targets.base import Artifact, Capabilities, TargetSpec
from inlay.targets.ort_ep.offload import Offload
from inlay.targets.registry import create
from inlay.trial import Failed

TARGET = TargetSpec("qnn-htp")
MOST_BUILDS = 14  # of the main search; a second one for more accuracy has a few of its own
EVALUATION = 4  # samples: the emulator takes seconds for each
FOR_ACCURACY = "the table allows it: within its builds, the search left it in float for accuracy"
NOT_BUILT = (
    "the table allows it: the emulator cannot build any model with Q/DQ nodes that the search tried within the bound"
)


def row(subject: Subject, folder: Path) -> dict[str, Any]:
    """Tune one model, and look at where its operators run.

    Raises:
        InlayError: the model cannot be tuned, or the extra is missing.
    """
    result = inlay.tune(
        subject.model,
        out=folder / "tune",
        target=TARGET,
        data=subject.samples,
        min_sqnr=BOUND_DB,
        budget=None,
        max_builds=MOST_BUILDS,
    )
    samples = paired.read(subject.evaluation, subject.model, EVALUATION)
    found = _offload(result.model_path, samples.feeds[0])
    reasons = _reasons(subject.model, samples.feeds[0], folder)
    failed = any(isinstance(a.outcome, Failed) for a in result.anchors)
    allowed = NOT_BUILT if result.best.is_float and failed else FOR_ACCURACY
    why = Counter(reasons.get(k.name, allowed) for k in found.kernels if k.precision == "float32")
    accuracy = paired.sqnr({"delivered": result.model_path}, subject.model, samples, {"delivered": TARGET})
    return {
        "model": subject.name,
        "trained": subject.trained,
        "operators": sum(k.kind == "compute" for k in found.kernels),
        "host": Counter(found.host.values()),
        "float": sum(k.precision == "float32" for k in found.kernels),
        "partitions": found.partitions,
        "why": why,
        "sqnr_db": accuracy["delivered"],
        "builds": result.search["builds"],
        "origin": result.best.origin,
    }


def _offload(path: Path, feed: Mapping[str, Any]) -> Offload:
    executable: Any = create(TARGET).compile(Artifact(path.resolve(), file_sha256(path)))
    try:
        executable.run(feed)
        found: Offload = executable.offload
        return found
    finally:
        executable.close()


def _reasons(model: Path, feed: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Why an operator cannot be in low precision by the target's table, by name."""
    (folder / "reasons").mkdir()
    prepared = prepare(load(model), Capabilities.of(create(TARGET)), dict(feed), folder / "reasons")
    return {name: u.rejection for u in prepared.units if not u.quantizable for name in u.nodes}


def line(row: Mapping[str, Any]) -> str:
    """A row in short."""
    found = f"{row['float']} of {row['operators']} not integer on the NPU"
    return f"{found}, {row['sqnr_db']:.1f} dB, {row['builds']} builds"


def text(table: Mapping[str, Any]) -> str:
    """The table as Markdown."""
    lines = [
        "# What stays on the NPU",
        "",
        "Tuned for `qnn-htp` at 20 dB; the provider's emulator says what it takes, and computes.",
        "It stands for a Snapdragon 8 Gen 2. Speed was not measured.",
        "SQNR on samples from other sources than those given.",
        "",
        "| model | operators | on the host | there or in float | allowed by the table | partitions | SQNR | builds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    reasons = ["", "Why, by model:", ""]
    for found in table["rows"]:
        if "error" in found:
            lines.append(f"| {found['model']} | fails: {found['error']} | | | | | | |")
            continue
        allowed = sum(found["why"].get(reason, 0) for reason in (FOR_ACCURACY, NOT_BUILT))
        cells = [found["model"], found["operators"], sum(found["host"].values()), found["float"], allowed]
        cells += [found["partitions"], f"{found['sqnr_db']:.1f} dB", found["builds"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
        reasons += [f"- {found['model']}: {count} x {reason}" for reason, count in found["why"].items()]
    return "\n".join([*lines, *reasons]) + "\n"

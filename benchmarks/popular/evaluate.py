"""The measure of a popular model as ``inlay tune --evaluate`` asks for it: on the samples that the run is given.

    python -m benchmarks.popular.evaluate NAME FOLDER MODEL

Where a measure compares with the float model, its owners have it without labels; where a task lays the truth of those
samples, they have labels, too. ``FOLDER`` is what the task laid; the float model's records are kept beside it.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path

from benchmarks.popular import models
from benchmarks.popular.task import (
    EVALUATION,
    OWN,
    SAMPLES,
    TRUTH,
    Records,
    Task,
    ratio_of_sums,
    read_records,
    save_records,
    session,
)

MEASURE = "measure"
"""The score's name."""


def options(task: Task, folder: Path) -> tuple[str, ...]:
    """What ``tune`` is told of the owners' measure; nothing where that needs more than the task laid."""
    if not task.by_float and not (folder / OWN / TRUTH).exists():
        return ()
    program = shlex.join([sys.executable, "-m", __name__, task.name, str(folder.resolve())])
    direction = "--higher-is-better" if task.higher else "--lower-is-better"
    return "--evaluate", f"{program} {{model}}", direction, "--max-drop", f"{task.bound:g}"


def main() -> None:
    """Print the measure as JSON."""
    task, folder, model = models.TASKS[sys.argv[1]], *map(Path, sys.argv[2:4])
    own = folder / OWN
    known = own / "floats.npz"
    if not known.exists():
        own.mkdir(exist_ok=True)
        shutil.copyfile(folder / SAMPLES, own / EVALUATION)
        save_records(known, task.judge(session(folder / "model.onnx"), own))
    both = zip(task.judge(session(model), own), read_records(known), strict=True)
    print(json.dumps({MEASURE: _scores(task, [task.pair(a, b) for a, b in both])}))


def _scores(task: Task, records: Records) -> float | list[float]:
    """The measure of each sample where that says what float's own outputs are worth, else of all.

    A model that agrees with float on a few pictures may not on others: how few they are shows in values of single ones.
    """
    if not (task.by_float and task.value is ratio_of_sums):
        return task.value(records)
    return [task.value([each]) if each[1] else float(task.higher) for each in records]


if __name__ == "__main__":
    main()

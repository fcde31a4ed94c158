"""All tasks, in the order of their tables."""

from __future__ import annotations

from benchmarks.popular import bge, decoder, pictures, sentences, shipped, speech, whisper, written

TASKS = {
    task.name: task for part in (pictures, written, sentences, bge, speech, whisper, decoder) for task in part.TASKS
}
SHIPPED = {task.name: task for part in (shipped.TASKS, bge.SHIPPED) for task in part}
ALL = {**TASKS, **SHIPPED}

"""All tasks, in the order of their tables."""

from __future__ import annotations

from benchmarks.popular import decoder, pictures, sentences, shipped, speech, whisper, written

TASKS = {task.name: task for part in (pictures, written, sentences, speech, whisper, decoder) for task in part.TASKS}
SHIPPED = {task.name: task for task in shipped.TASKS}
ALL = {**TASKS, **SHIPPED}

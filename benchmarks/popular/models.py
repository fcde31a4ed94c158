"""All tasks, in the order of the table."""

from __future__ import annotations

from benchmarks.popular import decoder, pictures, sentences, speech, written

TASKS = {task.name: task for part in (pictures, written, sentences, speech, decoder) for task in part.TASKS}

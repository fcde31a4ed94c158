"""All tasks, in the order of the table."""

from __future__ import annotations

from benchmarks.popular import pictures, sentences, speech, written

TASKS = {task.name: task for task in (*pictures.TASKS, *written.TASKS, *sentences.TASKS, *speech.TASKS)}

"""The limits of native code that runs on models nobody vouches for, each with its unit and its reason."""

from __future__ import annotations

CALL_SECONDS = 60.0
"""Seconds that one call may take, and each inference of a call with several. Building and running a real model once
takes seconds; on a busy machine, ten times as long. A loop without end is told after a minute."""

START_SECONDS = 120.0  # for the process itself to start: about one, and much more on a busy machine
NODE_SECONDS = 0.01  # more seconds for each node: runtimes build 100,000 nodes in minutes, not in seconds
BYTE_SECONDS = 60e-9  # more seconds for each byte of model and feed: a slow disk reads a gigabyte in a minute

CALL_BYTES = 4 << 30
"""Bytes of memory that a call may take beyond what the process has: what a small machine has, and far more than any
small model needs."""

BYTES_PER_MODEL_BYTE = 8  # more for each byte of the model: weights are copied, packed and converted
BYTES_PER_FEED_BYTE = 1024
"""More for each byte of a feed: all values of an image network together take 200 times as much as its input
(ResNet-50), and in the form that convolutions work on, several times that."""

POOLED_FROM_S = 10.0
"""Seconds of work from which on a pool is opened: a process, and a model's way to it, take a few."""

"""Measuring latency: a worker process that can be killed, interleaved blocks, paired statistics, and the journal.

It imports the targets' protocols and what trials hold. In the order of its flow: ``client`` starts a ``worker`` and
sends it messages, ``blocks`` times models in turns, ``paired`` makes ratios with intervals of the readings, ``race``
decides by them whether a candidate beats the incumbent, and ``journal`` keeps everything. ``panel`` times models on
several targets in turn, ``own_precision`` one model on a target in two precisions. ``process`` holds a worker's
process, ``remote`` workers on devices elsewhere. ``policy`` holds the constants.
"""

__all__ = [
    "blocks",
    "client",
    "journal",
    "own_precision",
    "paired",
    "panel",
    "policy",
    "process",
    "race",
    "remote",
    "worker",
]

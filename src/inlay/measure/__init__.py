"""Honest latency: a killable worker, interleaved blocks, paired statistics."""

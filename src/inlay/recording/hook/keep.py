"""Which feeds are kept, and how they lie on disk."""

from __future__ import annotations

import hashlib
import json
import mmap
import operator
import os
import struct
import threading
import time
from typing import Any, NamedTuple

COUNTS = struct.Struct("<qqq")  # runs, nanoseconds in them, and runs whose feed could not be read
NAMES = "inlay names"  # as inlay.data.archives has it
_MOST_SHAPES = 100_000  # told apart, in each process
_RANKS = 1 << 62


class Kept(NamedTuple):
    """A feed in a file."""

    rank: int  # a random number: the least are kept, so that which are does not depend on when they came
    time_ns: int  # when it was fed
    shapes: str  # digest of the shapes of its arrays
    first: bool  # the first of these shapes in its process
    size: int  # bytes of its arrays

    @property
    def file(self) -> str:
        """The name of its file."""
        return f"{self.time_ns:020d}-{self.rank:016x}-{self.shapes}-{int(self.first)}-{self.size}.npz"

    @classmethod
    def of(cls, file: str) -> Kept:
        """By the name of its file."""
        when, rank, shapes, first, size = file[: -len(".npz")].split("-")
        return cls(int(rank, 16), int(when), shapes, first == "1", int(size))


def chosen(feeds: list[Kept], most: int, most_bytes: int) -> list[Kept]:
    """Those of ``feeds`` to keep: a first one of each shape within a quarter of the limits, the others by rank alone.

    Rank by rank until a limit is reached: the choice is a fair sample of all that there ever were, if those that were
    not chosen before, of the same limits, are missing now.
    """
    ranked, seen = sorted(feeds), set()
    found: list[Kept] = []
    room = most_bytes // 4
    for feed in ranked:
        if feed.first and feed.shapes not in seen and len(found) < max(1, most // 4) and feed.size <= room:
            found.append(feed)
            seen.add(feed.shapes)
            room -= feed.size
    left, taken = most_bytes - sum(feed.size for feed in found), set(found)
    for feed in ranked:
        if feed not in taken:
            if len(found) == most or feed.size > left:
                break
            found.append(feed)
            left -= feed.size
    return found


class Limits(NamedTuple):
    """Of what is kept for each model: the most feeds, the most bytes, and the seed of the choice."""

    samples: int
    bytes: int
    seed: int


class FedModel:
    """What one process fed one model."""

    def __init__(self, folder: str, said: dict[str, Any], limits: Limits, seed: list[int]) -> None:
        import numpy as np

        os.mkdir(folder)
        write_whole(os.path.join(folder, "model.json"), json.dumps(said).encode())
        path = os.path.join(folder, "counts")
        write_whole(path, bytes(COUNTS.size))
        with open(path, "r+b") as file:
            self.counts = mmap.mmap(file.fileno(), COUNTS.size)
        self.folder, self.limits = folder, limits
        self.random = np.random.default_rng(seed)
        self.feeds: list[Kept] = []
        self.shapes: set[str] = set()
        self.bar = _RANKS  # what ranks as high was refused before

    def take(self, feed: dict[str, Any]) -> Kept | None:
        """Keep ``feed``, or do not."""
        import numpy as np

        rank = int(self.random.integers(_RANKS))
        listed = json.dumps([(name, feed[name].shape) for name in sorted(feed)])
        shapes = hashlib.sha256(listed.encode()).hexdigest()[:12]
        first = shapes not in self.shapes and len(self.shapes) < _MOST_SHAPES
        if first:
            self.shapes.add(shapes)
        elif rank >= self.bar:
            return None
        new = Kept(rank, time.time_ns(), shapes, first, sum(array.nbytes for array in feed.values()))
        keep = chosen([*self.feeds, new], self.limits.samples, self.limits.bytes)
        if new in keep:
            members = {f"arr_{i}": array for i, array in enumerate(feed.values())}
            members[NAMES] = np.frombuffer(json.dumps(list(feed)).encode(), np.uint8)
            path = os.path.join(self.folder, new.file)
            np.savez(f"{path}.part.npz", **members)
            os.replace(f"{path}.part.npz", path)
        for gone in set(self.feeds) - set(keep):
            os.unlink(os.path.join(self.folder, gone.file))
        self.bar = min([self.bar, *(feed.rank for feed in (*self.feeds, new) if feed not in keep)])
        self.feeds = keep
        return new if new in keep else None

    def drop(self, feed: Kept) -> None:
        """Forget what was fed: the session refused it."""
        self.feeds = [each for each in self.feeds if each != feed]
        os.unlink(os.path.join(self.folder, feed.file))

    def count(self, *more: int) -> None:
        """Add to the counts."""
        COUNTS.pack_into(self.counts, 0, *map(operator.add, COUNTS.unpack_from(self.counts), more))


def write_whole(path: str, content: bytes) -> None:
    """A file, whole or not at all."""
    part = f"{path}.{os.getpid()}.{threading.get_ident()}.part"
    with open(part, "wb") as file:
        file.write(content)
    os.replace(part, path)

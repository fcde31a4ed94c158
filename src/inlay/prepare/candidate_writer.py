"""Placements as files that a target can build, and that a user can deploy."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import onnx

from inlay.installed import __version__
from inlay.model.load import file_sha256
from inlay.model.nesting import nested
from inlay.model.store import WeightStore, external_bytes, save_external_data, write_embedded
from inlay.prepare.model import PreparedModel
from inlay.quant.qparams import QParamsTable
from inlay.space.recipe import Recipe
from inlay.space.resolve import recipe_of
from inlay.targets.base import Artifact, Fingerprint
from inlay.targets.registry import headings_of
from inlay.types import Placement

EMBED_BYTES = 2_000_000_000
"""Models above this keep their weights in a file beside them: a protobuf message ends at 2 GiB."""


def recipe_for(prepared: PreparedModel, placement: Placement) -> Recipe:
    """A recipe that gives ``placement`` on this model, whatever recipe restricted the search."""
    per_tensor = frozenset() if prepared.resolved is None else prepared.resolved.per_tensor
    return recipe_of(placement, prepared.graph, prepared.units, prepared.rules, per_tensor)


PLACED = "inlay.placement"  # metadata of a model whose Q/DQ nodes were placed here: the digest of its placement


TUNED_FOR = "inlay.tuned_for"  # metadata of a written model: what its placement depends on, as JSON
_BELONGS = ("target", "machine", "cpu", "isa", "processor", "threads")


def belongs(fingerprint: Fingerprint) -> dict[str, str]:
    """What a written model says that it is for: processor, threads, and what else stands in the target's heading."""
    chosen = {*_BELONGS, *headings_of(fingerprint.target)}
    return {name: text for name, text in fingerprint.named_facts.items() if name in chosen}


def tuned_for(stored: Mapping[str, str]) -> dict[str, str]:
    """What a model's metadata say that it is for; empty where they do not, or nobody can read it."""
    try:
        said = json.loads(stored.get(TUNED_FOR, "{}"))
    except (ValueError, RecursionError):
        return {}
    is_facts = isinstance(said, dict) and all(isinstance(text, str) for text in said.values()) and "target" in said
    return said if is_facts else {}


def metadata(target: str, placement: Placement, calibration: str) -> dict[str, str]:
    """What a written model says about its origin."""
    return {
        "inlay.version": __version__,
        "inlay.target": target,
        PLACED: placement.digest,
        "inlay.calibration": calibration,
    }


class CandidateWriter:
    """Placements as files that a target can build.

    The ``table`` of qparams, also an attribute, is of the origin whose digest is ``calibration``.
    """

    def __init__(self, prepared: PreparedModel, table: QParamsTable, calibration: str, target: str) -> None:
        self._prepared = prepared
        self.table = table
        self._calibration = calibration
        self._target = target

    def key(self, placement: Placement) -> str:
        """Identifies the model that ``placement`` gives with these qparams."""
        return hashlib.sha256(f"{placement.digest} {self._calibration}".encode()).hexdigest()[:16]

    def proto(self, placement: Placement) -> onnx.ModelProto:
        """The model, with weights in the store. Raises ModelError."""
        facts = metadata(self._target, placement, self._calibration) if len(placement) else {}
        if tuned := self._prepared.request.tuned_for:
            facts = {**facts, TUNED_FOR: json.dumps(dict(tuned), sort_keys=True)}
        return nested(self._prepared.emitter.emit(placement, self.table, facts))

    def write(self, placement: Placement) -> Artifact:
        """The model as a small file beside the store. Raises ModelError."""
        key = self.key(placement)
        path = self._prepared.store.folder / f"candidate-{key}.onnx"
        path.write_bytes(self.proto(placement).SerializeToString())
        return Artifact(path, key)

    def deliver(self, placement: Placement, path: Path) -> Artifact:
        """The model as a file of its own (with a data file beside it above 2 GB), digest over its bytes."""
        return deliver(self.proto(placement), self._prepared.store, path)


def deliver(proto: onnx.ModelProto, store: WeightStore, path: Path) -> Artifact:
    """Write ``proto`` to ``path`` with its weights inside, or in ``<path>.data`` when they exceed 2 GB."""
    proto = nested(proto)
    if external_bytes(proto) <= EMBED_BYTES:
        write_embedded(proto, store, path)
    else:
        data = path.with_name(path.name + ".data")
        path.write_bytes(save_external_data(proto, store, data).SerializeToString())
    return Artifact(path, file_sha256(path))

"""Every node gets a name of its own."""

from __future__ import annotations

from inlay.testing import small_model
from tests.support.fixtures import NormalizeModel


def test_names_are_made_unique(normalized: NormalizeModel) -> None:
    model = small_model()
    for node in model.graph.node:
        node.name = ""
    proto, _ = normalized(model)
    names = [n.name for n in proto.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)

"""Large models are not filled with empty stores: copies and protos of them leave none behind."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from inlay.model.metadata import cloned, has_entries
from inlay.model.serialize import to_proto
from inlay.testing import small_model


def holders(model: ir.Model) -> Iterator[ir.Node | ir.Value]:
    yield from (*model.graph.inputs, *model.graph.initializers.values())
    for node in model.graph:
        yield node
        yield from node.outputs


def stores(model: ir.Model) -> int:
    """How many stores the nodes and values of a model hold, empty or not."""
    return sum(getattr(h, name) is not None for h in holders(model) for name in ("_metadata", "_metadata_props"))


def test_copies_leave_no_empty_stores() -> None:
    model = ir.from_proto(small_model())
    assert stores(model) == 0
    assert stores(cloned(model)) + stores(model) == 0
    model.clone()
    assert stores(model) > 0, "the library leaves them, or this test looks at the wrong place"


def test_protos_leave_them_once_for_each_type_and_at_the_ends() -> None:
    """Where the library writes: the first value of each type, inputs and outputs."""
    model = ir.from_proto(small_model())
    values = [v for v in holders(model) if isinstance(v, ir.Value)]
    types = {(v.dtype, str(v.shape)) for v in values}
    ends = 2 * (len(model.graph.inputs) + len(model.graph.outputs))
    to_proto(model)
    assert stores(model) <= len(types) + ends < len(values)


def test_what_a_store_holds_is_kept() -> None:
    model = ir.from_proto(small_model())
    node = next(iter(model.graph))
    node.metadata_props["author"] = "me"
    node.outputs[0].meta["seen"] = 1
    copy = cloned(model)
    for found in (next(iter(model.graph)), next(iter(copy.graph))):
        assert has_entries(found, "metadata_props")
        assert found.metadata_props == {"author": "me"}
        assert not has_entries(found, "meta")
        assert found.outputs[0].meta["seen"] == 1
        assert has_entries(found.outputs[0], "meta")

"""Cases about the model: changed field by field, byte by byte, with weights beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.attack.case import Case
from tests.attack.choices import Choices
from tests.attack.damage import damaged
from tests.attack.protos import Model, mutate
from tests.attack.seeds import MODEL, MODELS, TUNE, Seeds, external_data, samples, serialized

COMMANDS = (
    (40, ("regions", MODEL, "--target", "null")),
    (10, ("regions", MODEL, "--target", "null", "--json")),
    (10, ("regions", MODEL)),
    (14, ("quantize", MODEL, "-o", "@/out/q.onnx", "--target", "null")),
    (4, ("quantize", MODEL, "-o", "@/out/q.onnx", "--explain")),
    (3, ("quantize", MODEL, "-o", "@/out/q.onnx", "--target", "null", "--recipe", "conv-matmul")),
    (3, ("tune", MODEL, "-o", "@/out", *TUNE)),
    (1, ("bench", MODEL, MODEL, "--target", "null", "--blocks", "2", "--processes", "1")),
)
"""How often each command gets the model; the dear ones seldom."""
LOWER = ("lower", MODEL, "-o", "@/out/m.tosa")
MEASURED = (*LOWER, "--data", "@/given/samples.npz")
BIND = ("--bind", "N=1", "--bind", "H=6", "--bind", "W=6")


def fields(choose: Choices, seeds: Seeds, folder: Path) -> Case:
    """Any field of any message, by descriptor and by meaning."""
    model, argv = _start(choose, seeds)
    mutate(model, choose)
    return _case("fields", argv, model.SerializeToString(), choose, folder)


def raw(choose: Choices, seeds: Seeds, folder: Path) -> Case:
    """The bytes of the file."""
    model, argv = _start(choose, seeds)
    other = serialized(choose.among(list(MODELS)))
    return _case("bytes", argv, damaged(model.SerializeToString(), choose, other), choose, folder)


def _start(choose: Choices, seeds: Seeds) -> tuple[Model, tuple[str, ...]]:
    argv = choose.weighted(((18, ()), (1, LOWER), (1, MEASURED))) or choose.weighted(COMMANDS)
    if argv in (LOWER, MEASURED) or choose.one_in(12):
        model = Model()
        model.CopyFrom(seeds.quantized)
        return model, argv
    name = choose.among(list(MODELS))
    return Model.FromString(serialized(name)), (*argv, *BIND) if name == "dynamic" and argv[0] != "lower" else argv


def _case(kind: str, argv: tuple[str, ...], content: bytes, choose: Choices, folder: Path) -> Case:
    if choose.one_in(20):  # the invalid UTF-8 that protobuf does not let one set
        content = content.replace(b"conv", b"c\xffnv")
    (folder / "model" / "model.onnx").write_bytes(content)
    if argv == MEASURED:
        np.savez(folder / "given" / "samples.npz", **samples(2))
    weights = external_data()
    (folder / "model" / "weights.bin").write_bytes(weights if not choose.one_in(5) else damaged(weights, choose))
    if choose.one_in(20):
        (folder / "model" / "link.bin").symlink_to("../secret.bin")
    return Case(kind, argv, encoding="ascii" if choose.one_in(15) else "utf8", real=choose.one_in(400))

"""``inlay lower MODEL -o OUT.tosa``, and the same as a function."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import onnx
import onnx_ir as ir

from inlay.cli.options import options_of
from inlay.cli.terminal import JSON, answer
from inlay.data import bound, files_of, input_specs, read_samples
from inlay.errors import ModelError, UsageError
from inlay.files import refuse_overwriting
from inlay.model.held import changed_since, require_as_read
from inlay.model.load import load
from inlay.model.onnx_library import check
from inlay.model.serialize import to_proto
from inlay.model.user_code import user_function
from inlay.prepare.declare import Option
from inlay.prepare.options import BIND, parse_bind
from inlay.quant.extract import without_rewrites
from inlay.tosa.lowering import Lowered, lower
from inlay.tosa.measured_ranges import MeasuredRanges, with_measured_ranges
from inlay.tosa.sidefile import side_of, write


@dataclass(frozen=True, eq=False)
class LowerReport:
    """What :func:`lower_file` did."""

    lowered: Lowered  # the lowered model
    files: tuple[Path, ...]  # written files, `OUT.tosa` first, `OUT.tosa.json` last
    measured: MeasuredRanges | None = None  # ranges that samples gave; None without samples
    changed: str = ""  # that the given file is no longer what was lowered; nothing where it is
    left_out: tuple[str, ...] = ()  # what of the user's data was not used, and why

    def as_json(self) -> dict[str, Any]:
        """For ``--json``: the profile, partitions by kind, files, and what is not lowered, and why."""
        kinds = Counter(p.kind for p in self.lowered.partitions)
        left = [asdict(n) for n in self.lowered.not_lowered]
        ranges = None if self.measured is None else asdict(self.measured)
        return {
            "profile": self.lowered.profile,
            "partitions": kinds,
            "files": self.files,
            "not_lowered": left,
            "measured_ranges": ranges,
            "changed": self.changed,
            "left_out": self.left_out,
        }

    def lines(self) -> list[str]:
        """The report to print: partitions, files, and each node that is not integer TOSA with its reason."""
        parts = self.lowered.partitions
        tosa = sum(p.kind == "tosa" for p in parts)
        lines = [
            f"profile {self.lowered.profile}: partitions: {tosa} TOSA, {len(parts) - tosa} host",
            *(f"wrote {file}" for file in self.files),
        ]
        if self.measured is not None:
            lines.append(str(self.measured))
        lines.extend(f"note: {said}" for said in self.left_out)
        if self.changed:
            lines.append(f"WARNING: {self.changed}")
        left = self.lowered.not_lowered
        if left:
            lines.append(f"{len(left)} node{'s' * (len(left) != 1)} not lowered to integers:")
            lines.extend(f"  {n.node} ({n.op_type}, {n.place}): {n.reason}" for n in left)
        return lines


def lower_file(
    model: Path,
    output: Path,
    profile: str = "INT",
    bind: Mapping[str, int] | None = None,
    data: str | Path | None = None,
) -> LowerReport:
    """Lower the Q/DQ model at ``model`` and write ``output`` (``….tosa``) with its side file; options as of ``lower``.

    What suits the kernels of the runtime that the model was quantized for only costs here, and is undone. With
    ``data``, samples for the model, ranges that no Q/DQ nodes state are measured on them
    (:mod:`inlay.tosa.measured_ranges`).

    Raises:
        DataError: the samples cannot be read, or do not fit.
        ModelError: the file is not a model that can be read.
        UsageError: a wrong option, nothing to lower, no write access, or the extra ``arm`` is missing.
    """
    if output.suffix != ".tosa":
        raise UsageError(f"the output must end in .tosa, not {output.name!r}")
    if not output.parent.is_dir():
        raise UsageError(f"there is no folder {output.parent}")
    given = load(model)
    inputs = [*given.files, *files_of(data)]
    refuse_overwriting([output, side_of(output)], inputs)  # before the work; the other files' names come with it
    whole = without_rewrites(ir.external_data.load_to_model(given.model))
    require_as_read(given)  # from here on all of it is in memory
    try:
        check(whole)
        proto = to_proto(whole)
    except ModelError as error:
        raise ModelError(f"{model} is not a valid ONNX model: {error}") from error
    _require_sizes(proto, bind or {})
    measured, left_out = None, tuple[str, ...]()
    if data is not None:
        samples = read_samples(data, bound(input_specs(given.model), bind or {}), find=user_function)
        proto, measured = with_measured_ranges(proto, samples.feeds, bind)
        left_out = samples.left_out
    lowered = lower(proto, profile, bind)
    return LowerReport(lowered, write(lowered, output, inputs), measured, changed_since(given), left_out)


def _require_sizes(model: onnx.ModelProto, bind: Mapping[str, int]) -> None:
    """The batch defaults to 1; any other dynamic dimension needs ``bind``, because a flatbuffer has static shapes."""
    constants = {t.name for t in model.graph.initializer}
    symbols = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim}
    for name in bind:
        if name not in symbols:
            raise UsageError(f"--bind {name}={bind[name]}: no input has the dynamic dimension {name}")
    for value in model.graph.input:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            known = dim.HasField("dim_value") and dim.dim_value > 0
            if axis > 0 and not known and value.name not in constants and dim.dim_param not in bind:
                hint = f"give --bind {dim.dim_param}=N" if dim.dim_param else "give it a size in the model"
                raise UsageError(f"input {value.name} has the dynamic dimension {dim.dim_param or axis}: {hint}")


@options_of()
def lower_model(
    *,
    model: Annotated[
        Path, Option("A Q/DQ model.", metavar="QDQ_MODEL", type=Path, positional=True, show_default=False)
    ],
    out: Annotated[Path, Option("The TOSA flatbuffer.", flags=("--out", "-o"), metavar="OUT.tosa", type=Path)],
    profile: Annotated[str, Option("INT, or INT+FP.")] = "INT",
    data: Annotated[
        str | None,
        Option(
            "Samples, to measure ranges that no Q/DQ nodes define: .npz, .npy, .jsonl, a folder, or module:function.",
            metavar="SOURCE",
            show_default=False,
        ),
    ] = None,
    bind: Annotated[Sequence[str], BIND] = (),
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Lower a Q/DQ model to integer TOSA 1.0; OUT.tosa.json beside it describes inputs, outputs and partitions.

    Example:
        inlay lower quantized.onnx -o model.tosa
    """
    done = lower_file(model, out, profile, parse_bind(bind), data)
    answer(as_json, done, done.lines)

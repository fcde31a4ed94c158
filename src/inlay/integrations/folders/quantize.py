"""A folder in, a folder out: the quantized file stands where the loaders of its libraries look for it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx

from inlay.api import tune
from inlay.data import input_specs
from inlay.errors import DataError, UsageError
from inlay.files import replacing
from inlay.integrations.folders import texts as texts_of
from inlay.integrations.folders.layout import FILES, TextFolder
from inlay.integrations.packages import required
from inlay.model.load import load
from inlay.prepare import options as declared
from inlay.prepare.declare import Option, documented
from inlay.run.options import TuneOptions
from inlay.run.progress import Progress
from inlay.run.result import TuneResult
from inlay.targets.base import TargetSpec
from inlay.targets.registry import DEFAULT_TARGET

_FOLDER = Option(
    "The folder of a text model: a sentence encoder, a cross-encoder, or what optimum exports.",
    metavar="FOLDER",
    type=Path,
    positional=True,
    show_default=False,
)
_TEXTS = Option("Texts of yours, one a line; for a cross-encoder pairs, with a tab between.", metavar="FILE", type=Path)
_FOR = Option(f"What it is for, which names the file: {', '.join(FILES)}.", flags=("--for",), metavar="PROCESSOR")
_OUT = Option("Folder to write; by default the given one, which keeps its float model.", flags=("--out", "-o"))
_CORRELATION = 0.95
"""Of the ranks, as the task ``embedding`` asks for at least."""


@dataclass(frozen=True)
class QuantizedFolder:
    """A folder with a quantized model."""

    folder: Path
    path: Path  # of the quantized file in it
    result: TuneResult  # the run that found it, in the folder `inlay` beside the model
    judged: texts_of.Judged  # on the texts, all of which the run has seen

    @property
    def exit_code(self) -> int:
        """Of the run; 3 also where ranks are not kept."""
        return self.result.exit_code or (0 if self.judged.rank_correlation >= _CORRELATION else 3)

    def as_json(self) -> dict[str, Any]:
        """Stable keys."""
        return {
            "folder": str(self.folder),
            "model": str(self.path),
            "judged": asdict(self.judged),
            "result": self.result.as_json(),
        }


@documented
def quantize_folder(
    folder: Annotated[str | Path, _FOLDER],
    *,
    texts: Annotated[str | Path | Sequence[str] | Sequence[tuple[str, str]], _TEXTS],
    processor: Annotated[str, _FOR] = "avx512_vnni",
    out: Annotated[str | Path | None, _OUT] = None,
    target: Annotated[str | TargetSpec, declared.TARGET] = DEFAULT_TARGET,
    threads: Annotated[int, declared.THREADS] = 1,
    budget: Annotated[str | float | None, declared.BUDGET] = f"{declared.DEFAULT_BUDGET_S:.0f}s",
    progress: Annotated[Progress | None, declared.PROGRESS] = None,
) -> QuantizedFolder:
    """Tune the model of a folder on texts, and write it where the loaders of its libraries look for it.

    Raises:
        InlayError: the folder, the texts or an option cannot be used.
    """
    if processor not in FILES:
        raise UsageError(f"--for {processor}: give {', '.join(FILES)}")
    given = TextFolder.read(Path(folder))
    rows = texts_of.read(Path(texts)) if isinstance(texts, (str, Path)) else [_row(text) for text in texts]
    if len(rows) < texts_of.LEAST_TEXTS:
        raise DataError(f"texts: {len(rows)} are given; give at least {texts_of.LEAST_TEXTS}")
    written = given.at(given.root if out is None else Path(out))
    place = written.model / "onnx"
    with _only_for_a_run(place / "inlay", place / "model.onnx"):
        place.mkdir(parents=True, exist_ok=True)
        model = given.onnx or _exported(given, place / "model.onnx")
        feeds = texts_of.feeds_of(given, rows, input_specs(load(model).model))
        wish = TuneOptions(
            data=feeds,
            out=place / "inlay",
            target=target,
            threads=threads,
            budget=budget,
            progress=progress,
            task="embedding",
        )
        if given.pooling != "mean":  # the task pools by the mean
            reference = texts_of.results(model, feeds, given.pooling)
            metric = texts_of.metric_of(reference, given.pooling)
            wish = replace(wish, task="auto", metric=metric, labels=np.arange(len(feeds)), max_drop=1.0 - _CORRELATION)
        result: TuneResult = tune(model, wish)
    given.copy(written.root)
    path = place / FILES[processor]
    with replacing(path) as fresh:
        fresh.write_bytes(Path(result.model_path).read_bytes())
    _write_ort_config(written.model / "ort_config.json", path)
    return QuantizedFolder(written.root, path, result, texts_of.judge(model, path, feeds, given.pooling))


@contextlib.contextmanager
def _only_for_a_run(run: Path, made: Path) -> Iterator[None]:
    """Remove what is made anew, a file and its folders, where this ends before there is a run that needs it."""
    new = [path for path in (made, *made.parents) if not path.exists()]
    try:
        yield
    except BaseException:
        if not run.exists():
            for path in new:
                with contextlib.suppress(OSError):  # it was not made; or others have written there
                    path.unlink() if path == made else path.rmdir()
        raise


def _row(text: str | Sequence[str]) -> tuple[str, ...]:
    return (text,) if isinstance(text, str) else tuple(text)


def _exported(folder: TextFolder, path: Path) -> Path:
    """The float model of the folder's weights, as ``optimum`` names inputs and outputs."""
    from inlay.integrations.torch import batches
    from inlay.integrations.torch.export import export

    transformers = required("transformers", "texts", "the export of a folder without onnx/model.onnx")
    torch = required("torch", "torch", "the export of a folder without onnx/model.onnx")
    kind = "AutoModel" if folder.pooling else "AutoModelForSequenceClassification"
    module = getattr(transformers, kind).from_pretrained(folder.model, local_files_only=True).eval()
    tokens = ("input_ids", "attention_mask", "token_type_ids")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder.model, local_files_only=True)
    names = [name for name in tokens if name in tokenizer.model_input_names]
    output = "last_hidden_state" if folder.pooling else "logits"

    class Encoder(torch.nn.Module):  # type: ignore[misc, name-defined]
        """The one output that is read, by its name."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any = None) -> Any:
            given = {"input_ids": input_ids, "attention_mask": attention_mask}
            if token_type_ids is not None:
                given["token_type_ids"] = token_type_ids
            return {output: self.inner(**given, return_dict=True)[output]}

    rows = [torch.ones((2, length), dtype=torch.int64) for length in (8, 12)]
    found = export(Encoder(), [batches.Batch(dict.fromkeys(names, row)) for row in rows], None)
    with replacing(path) as fresh:
        onnx.save(found.model, fresh)
    return path


def _write_ort_config(path: Path, model: Path) -> None:
    """What optimum's ``ORTConfig`` reads: how the model was quantized. Its keys are those of optimum-onnx 0.1."""
    proto = onnx.load(model, load_external_data=False)
    types = sorted({n.op_type for n in proto.graph.node})
    static = "QuantizeLinear" in types
    config: dict[str, Any] = {
        "opset": next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), None),
        "optimization": {},
        "quantization": {
            "is_static": static,
            "format": "QDQ",
            "mode": "QLinearOps" if static else "IntegerOps",  # it refuses others
            "per_channel": True,
            "operators_to_quantize": [],
            "nodes_to_quantize": [],
            "nodes_to_exclude": [],
        },
        "use_external_data_format": False,
        "one_external_file": True,
        "optimum_version": _version("optimum"),
        "transformers_version": _version("transformers"),
        "inlay_version": _version("inlay"),
    }
    with replacing(path) as fresh:
        fresh.write_text(json.dumps(config, indent=2) + "\n", encoding="utf8")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

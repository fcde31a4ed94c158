"""A card of the delivered model: what stands beside it on a model hub or in a release, for people and for programs.

A card is published: it holds names of files, but no folders of whoever made it. What a model calls itself is text from
a stranger, and is no markup here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from inlay.errors import JournalError
from inlay.model.load import file_sha256
from inlay.report.folder import FinishedRun, facts_of, interval_of
from inlay.report.page import accuracy_words, megabytes, verdict
from inlay.search.baselines import ORIGINAL
from inlay.targets.base import is_estimate, unit_of
from inlay.trial import shown_latency, shown_ratio, shown_use

MARK = "<!-- written by inlay card -->"
"""In every card for people: a README without it is somebody's own, and is not replaced."""

_PATH = re.compile(r"(?<![\w.])(?:~|[A-Za-z]:)?(?:[/\\][^\s/\\:;,'\"]+)*[/\\]([^\s/\\:;,'\"]+)")
_MARKUP = re.compile(r"([\\`*_{}\[\]<>#|~&$!])")


def card(run: FinishedRun) -> dict[str, Any]:
    """What is known of the delivered model, with stable keys: figures, what they rest on, and what nobody measured.

    Raises:
        JournalError: the delivered file is gone, or is no longer the one that was measured.
    """
    result, best, given, facts = run.result, run.result["best"], run.result["baseline"], facts_of(run.result)
    path = run.folder / "model.onnx"
    if not path.is_file() or file_sha256(path) != best["output_sha256"]:
        raise JournalError(f"{path} is not the file that was measured: run inlay tune again, or put it back")
    speed, metric, data = interval_of(best), best.get("metric_statement") or {}, result.get("data") or {}
    return {
        "version": result["version"],
        "file": {
            "name": path.name,
            "sha256": best["output_sha256"],
            "size_bytes": best.get("size_bytes"),
            "memory_bytes": best.get("memory_bytes"),
            "qdq_pairs": best["qdq_pairs"],
            "kind": "as given" if best["origin"] == ORIGINAL else "float" if best["is_float"] else "quantized",
        },
        "given": {
            "name": re.split(r"[/\\]", result["model"]["path"])[-1],
            "sha256": result["model"]["sha256"],
            "size_bytes": given.get("size_bytes"),
            "memory_bytes": given.get("memory_bytes"),
            "latency_ms": given["latency_ms"],
        },
        "verdict": _unplaced(verdict(result)),
        "latency": {
            "ms": best["latency_ms"],
            "speedup": best["speedup"],
            "speedup_low": best["speedup_low"],
            "speedup_high": best["speedup_high"],
            "confidence": 0.95,
            "unit": unit_of(facts),
            "estimated": is_estimate(facts),
            "confirmed": best.get("confirmed", True),
            "shown": shown_latency(best["latency_ms"], speed, unit_of(facts)),
            "speedup_shown": shown_ratio(speed),
        },
        "uses": [
            {"use": shown_use(use["use"], use["streams"]), "speedup_shown": shown_ratio(interval_of(use))}
            for use in best.get("uses") or ()
        ],
        "accuracy": {
            "sentence": _unplaced(accuracy_words(result)),
            "bound": result["bound"],
            "bound_shown": best.get("bound_shown"),
            "metric_name": metric.get("name"),
            "metric": best.get("metric"),
            "metric_drop": best.get("metric_drop"),
            "metric_most_drop": metric.get("most_drop"),
            "sqnr_db": best["sqnr_db"],
            "samples": {"kind": data.get("kind"), "all": data.get("samples"), "unseen": data.get("validation_samples")},
        },
        "target": {"name": result["target"]["name"], "facts": facts},
        "run_with": result.get("run_with") or "",
        "not_measured": [_unplaced(each) for each in _not_measured(result)],
        "notes": [_unplaced(str(note)) for note in result.get("notes") or ()],
    }


def _not_measured(result: Mapping[str, Any]) -> Iterator[str]:
    """What a reader might take for measured."""
    best, facts = result["best"], facts_of(result)
    here = facts.get("cpu") or facts.get("device") or result["target"]["name"]
    if is_estimate(facts):
        yield f"speed: the figures are estimates of {result['target']['name']}, not times"
    yield f"processors, runtimes and numbers of threads other than those above ({here}): inlay check measures there"
    if not best.get("confirmed", True):
        yield "the speed-up again in fresh processes"
    if (result.get("data") or {}).get("kind") == "random":
        yield "accuracy on real samples: there were none, and the inputs were random numbers"
    elif best["origin"] != ORIGINAL and not best.get("verified"):
        yield "accuracy on samples that the search had not seen"
    if best.get("metric") is None and not best.get("evaluation") and not best.get("task"):
        yield "a metric: accuracy is the distance of the outputs from those of the float model"
    if best.get("bound_note"):
        yield f"that the bound holds for new samples: {best['bound_note']}"
    if result.get("not_timed"):
        yield f"the usual recipes {', '.join(result['not_timed'])}: there was no time for them"
    if result.get("undecided"):
        yield str(result["undecided"])
    if best.get("memory_bytes") is None:
        yield "the memory that a session takes"


def _unplaced(text: str) -> str:
    """``text`` with names of files in place of their paths."""
    return _PATH.sub(lambda found: found[1], text)


def as_json(run: FinishedRun) -> bytes:
    """The card for programs."""
    return (json.dumps(card(run), indent=2, allow_nan=False) + "\n").encode()


def as_markdown(run: FinishedRun) -> bytes:
    """The card for people: ``README.md`` with the metadata that model hubs read."""
    return ("\n".join(_lines(card(run))) + "\n").encode()


def _lines(card: Mapping[str, Any]) -> Iterator[str]:
    file, given, latency, accuracy = card["file"], card["given"], card["latency"], card["accuracy"]
    tags = ["onnx", "inlay", *(["quantized"] if file["kind"] == "quantized" else [])]
    yield from ("---", "library_name: onnx", "tags:", *(f"- {tag}" for tag in tags), "---", MARK, "")
    yield from (f"# {_text(Path(given['name']).stem)}, tuned for {_text(card['target']['name'])}", "")
    yield from (f"**{_text(card['verdict'])}**", "")
    yield from _table(
        ("", "this file", "the given model"),
        [
            ("file", file["name"], given["name"]),
            ("latency", latency["shown"], f"{given['latency_ms']:.3f} {latency['unit']}"),
            ("speed-up, 95 % interval", latency["speedup_shown"], "1.00x"),
            *((use["use"], use["speedup_shown"], "1.00x") for use in card["uses"]),
            ("size with weights", megabytes(file["size_bytes"]), megabytes(given["size_bytes"])),
            ("memory of a session", megabytes(file["memory_bytes"]), megabytes(given["memory_bytes"])),
            ("Q/DQ pairs", str(file["qdq_pairs"]), ""),
            ("SHA-256", file["sha256"], given["sha256"]),
        ],
    )
    yield from ("", "## Accuracy", "", _text(accuracy["sentence"]), "", f"Bound: {_text(accuracy['bound'])}.", "")
    yield from ("## Measured on", "")
    yield from _table(("", ""), [("target", card["target"]["name"]), *sorted(card["target"]["facts"].items())])
    if card["run_with"]:
        fence = "`" * (3 + max(map(len, re.findall("`{3,}", card["run_with"])), default=0))
        yield from ("", "## Run it as it was measured", "", f"{fence}python", card["run_with"].rstrip(), fence)
    yield from ("", "## Not measured", "", *(f"- {_text(each)}" for each in card["not_measured"]))
    if card["notes"]:
        yield from ("", "## Notes", "", *(f"- {_text(each)}" for each in card["notes"]))
    yield from ("", f"Made with inlay {_text(card['version'])}.")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows that say something, as Markdown."""
    for cells in (head, ["---"] * len(head), *(row for row in rows if row[1])):
        yield f"| {' | '.join(cell if cell == '---' else _text(cell) for cell in cells)} |"


def _text(text: str) -> str:
    """One line in which nothing is markup."""
    return _MARKUP.sub(r"\\\1", " ".join(str(text).split()))

"""The page: what a run found, in the order in which people ask, through one template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from inlay.errors import InlayError
from inlay.files import write_text
from inlay.report.drawing import drawing
from inlay.report.folder import FinishedRun, facts_of, interval_of, read_run, refusing_damage
from inlay.report.kernels import KINDS, scale, spent, unit_rows
from inlay.report.points import front, sentinel, trace
from inlay.run.outcome.evidence import Evidence
from inlay.run.result import why_kept
from inlay.search.baselines import ORIGINAL
from inlay.targets.base import is_estimate, unit_of
from inlay.trial import LITTLE, SHOWN_AS_EXACT_DB, plain, shown_latency, shown_ratio, shown_size, shown_sqnr

REPORT = "report.html"  # name of the page in a run's folder
_CEILINGS = {"delivered": "delivered", "float, normalized": "float"}  # names of models, and where they stand
_WORST = 5  # samples that are named for being the least accurate


def write_report(folder: Path) -> Path:
    """Write the page of the finished run in ``folder`` into it, and return its path.

    Raises:
        JournalError: there is no finished run in ``folder``, or it cannot be written to.
    """
    path, run = folder / REPORT, read_run(folder)
    with refusing_damage(folder):
        text = page(run)
    write_text(path, text)
    return path


def leave_report(folder: Path) -> str:
    """Write the page; why it could not be written, for people, where it could not: no run is lost by that."""
    try:
        write_report(folder)
    except InlayError as error:
        return f"there is no {REPORT}: {error}"
    return ""


def page(run: FinishedRun) -> str:
    """The page as HTML: one document that refers to nothing outside."""
    evidence = run.evidence
    units = [] if evidence is None else unit_rows(run, evidence)
    return template("inlay.report", "page.html.j2").render(
        run=run,
        result=run.result,
        sizes=size_words(run.result),
        verdict=verdict(run.result),
        accuracy=accuracy_words(run.result),
        front=front(run),
        trace=trace(run),
        sentinel=sentinel(run),
        anchors=run.result.get("anchors", []),
        shapes=run.result["best"].get("shapes", []),
        bars=[] if evidence is None else bars(run, evidence),
        kinds=KINDS,
        ceilings=[
            (name, found) for name, key in _CEILINGS.items() if (found := (run.result.get("ceiling") or {}).get(key))
        ],
        units=units,
        unit=unit_of(facts_of(run.result)),
        evidence=evidence,
        graph=None if evidence is None else drawing(run, evidence, units),
        unit_data=[
            [r.facts.name, r.facts.op_type, r.facts.precision, r.executed, r.ns, r.saved_ns, r.why] for r in units
        ],
        profiled=evidence is not None and evidence.delivered in run.profiles,
        worst=[] if evidence is None else sorted(evidence.samples, key=lambda s: s[1])[:_WORST],
        outputs=run.result["best"].get("outputs", []),
        exact_db=SHOWN_AS_EXACT_DB,
        latency=lambda found: shown_latency(found["latency_ms"], interval_of(found), unit_of(facts_of(run.result))),
        ratio=lambda figures: shown_ratio(interval_of(figures)),
        decibels=shown_sqnr,
        megabytes=megabytes,
        style=style(),
        script=_asset("page.js"),
    )


@dataclass(frozen=True)
class Bar:
    """Kernel time of one model."""

    name: str  # of it
    parts: Mapping[str, float]  # nanoseconds by kind; where its latency was measured, their sum is that
    total: float  # the sum
    profiled: float  # that of the profile itself
    measured: bool  # whether its latency was measured


def bars(run: FinishedRun, evidence: Evidence) -> list[Bar]:
    """Kernel time of every anchor that was profiled and of what was delivered; each model once."""
    named = {evidence.floats: "float, normalized"}
    for name, key in evidence.anchors.items():
        named.setdefault(key, name)
    if evidence.delivered:
        was = named.pop(evidence.delivered, "")
        named[evidence.delivered] = f"delivered ({was})" if was else "delivered"
    found = []
    for key, name in named.items():
        if key in run.profiles:
            parts, factor = spent(run.profiles[key]), scale(run, key)
            total = sum(parts.values())
            scaled = {kind: ns * (factor or 1.0) for kind, ns in parts.items()}
            found.append(Bar(name, scaled, total * (factor or 1.0), total, factor is not None))
    return found


def megabytes(count: int | None) -> str:
    """Bytes as people read them; nothing where they are not known."""
    return "" if count is None else shown_size(count)


def size_words(result: Mapping[str, Any]) -> str:
    """How large the delivered file is, and a session of it, beside the given model's, as far as known."""
    best, given = result["best"], result["baseline"]
    found = []
    for what, key in (("The file takes", "size_bytes"), ("A session takes", "memory_bytes")):
        if best.get(key) is not None and given.get(key) is not None:
            found.append(f"{what} {megabytes(best[key])}; the given model {megabytes(given[key])}.")
    return " ".join(found)


def verdict(result: Mapping[str, Any]) -> str:
    """What came out, in one sentence for someone who knows nothing of the run."""
    best, given_ms = result["best"], result["baseline"]["latency_ms"]
    unit, estimated = unit_of(facts_of(result)), is_estimate(facts_of(result))
    sure = "" if best.get("confirmed", True) else " (not confirmed in fresh processes)"
    doubt = "below the bound" if best.get("bound_broken") else "bound not shown for new samples"
    sure += f" ({doubt})" if best.get("bound_note") else ""
    if best["origin"] == ORIGINAL:
        words = str(result["bound"]), str(result.get("undecided") or ""), bool(result.get("not_timed"))
        why = why_kept(*words, bool(best.get("confirmed", True)))
        figures = " These figures are estimates." if estimated else ""
        return f"Keep the model as it is, at {given_ms:.3f} {unit}: {why}{sure}.{figures}"
    what = "as float, normalized" if best["is_float"] else f"with {best['qdq_pairs']} Q/DQ pairs"
    low, high = best["speedup_low"], best["speedup_high"]
    gained, now = interval_of(best), shown_latency(best["latency_ms"], interval_of(best), unit)
    between = (
        "" if low is None or high is None or low == high else f", at 95 % confidence between {low:.2f} and {high:.2f}"
    )
    fast = f"{best['speedup']:.2f} times as fast as the given model{between}"
    if gained.is_wide:
        fast = f"At least {gained.low:.2f} times as fast as the given model ({LITTLE})"
    return (
        f"{fast}: {given_ms:.3f} {unit} before, {now} now, {what}{sure}.{' These figures are estimates.' * estimated}"
    )


def accuracy_words(result: Mapping[str, Any]) -> str:
    """How accurate the delivered model is, and what such a figure is good for."""
    best = result["best"]
    where = "samples that nothing in the run had seen" if best.get("verified") else "samples that the search has seen"
    if best["origin"] == ORIGINAL:
        return "Its outputs are those of the given model, since it is the given model."
    parts = []
    if best.get("metric") is not None:
        drop = best.get("metric_drop")
        parts.append(f"Metric {best['metric']:.4f}" + ("" if drop is None else f", {0.0 - drop:+.4f} against float"))
    evaluation = best.get("evaluation")
    if evaluation is not None:
        parts.append(f"By --evaluate {evaluation['evaluator']}: {evaluation['sentence']}")
    for figure in (best.get("task") or {}).get("figures", ()):
        parts.append(figure["said"])
    if best.get("task") and not evaluation:
        parts[0] = f"This looks like {best['task']['looks_like']}: {parts[0]}"
    db = best["sqnr_db"]
    if db >= SHOWN_AS_EXACT_DB:
        return "; ".join([*parts, f"outputs equal to float on {where}"]) + f".{_new_samples(best)}"
    amplitude = 100.0 * 10.0 ** (-db / 20.0)
    off = f"the outputs differ from float by {plain(amplitude, 2)} % of their size"
    parts.append(f"SQNR {db:.1f} dB: {off}, over all {where} together")
    return "; ".join(parts) + f".{_new_samples(best)}"


def _new_samples(best: Mapping[str, Any]) -> str:
    """What the samples say about new ones; empty in the results of earlier versions."""
    doubt = "It is below the bound" if best.get("bound_broken") else "The bound is not shown for new samples"
    unproven = f" {doubt}: {best['bound_note']}." if best.get("bound_note") else ""
    sentences = [(best.get(key) or {}).get("sentence", "") for key in ("statement", "metric_statement")]
    scores = (best.get("evaluation") or {}).get("scores", ())
    sentences += [(score.get("statement") or {}).get("sentence", "") for score in scores]
    return "".join(f" Of new samples: {sentence}." for sentence in sentences if sentence) + unproven


@cache
def template(package: str, name: str) -> Template:
    """A template of a package, in which all names are escaped: they are text from strangers."""
    environment = Environment(
        loader=PackageLoader(package, "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["us"] = lambda ns: "" if ns is None else f"{ns / 1e3:.1f}"
    environment.filters["json"] = _json
    return environment.get_template(name)


def _json(data: object) -> Markup:
    """JSON that no name of a model can end the script element of."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def style() -> Markup:
    """The styles of every page."""
    return _asset("page.css")


def _asset(name: str) -> Markup:
    """A file of this package, which is written into the page as it is."""
    return Markup(resources.files("inlay.report").joinpath(name).read_text(encoding="utf8"))

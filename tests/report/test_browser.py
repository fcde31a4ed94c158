"""The page in a real browser: no errors, no requests, every panel filled, and every control does what it says.

The browser is the system's Chromium, headless: ``INLAY_BROWSER`` or the first of its usual names on the path.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from benchmarks.chromium import FLAGS
from benchmarks.chromium import browser as chromium_path
from playwright.sync_api import Browser, Dialog, Page, expect, sync_playwright

import inlay
from inlay.measure.journal import Journal
from inlay.run.facts import PROFILE
from inlay.run.outcome.evidence import EVIDENCE, NodeFacts, RegionFacts, UnitFacts
from inlay.targets.base import KernelTime
from tests.report.conftest import HOSTILE


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    path = chromium_path()
    if path is None:
        pytest.skip("no browser: install Debian's chromium, or set INLAY_BROWSER to a Chromium")
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield launched
        launched.close()


class Visit:
    """A page that was opened, with what it asked the network for and complained of."""

    def __init__(self, browser: Browser, file: Path, width: int = 1200, dark: bool = False) -> None:
        scheme: Literal["dark", "light"] = "dark" if dark else "light"
        self._context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        self.page: Page = self._context.new_page()
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", self._dismiss)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())

    def _dismiss(self, dialog: Dialog) -> None:
        self.complaints.append(dialog.message)
        dialog.dismiss()

    def end(self) -> None:
        self._context.close()


@pytest.fixture
def visit(browser: Browser, finished: Path) -> Iterator[Visit]:
    """The report of a run of a model with hostile names; in the end it asked for nothing and complained of nothing."""
    file = finished / "report.html"
    opened = Visit(browser, file)
    yield opened
    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith("data:")] == [file.as_uri()]
    opened.end()


def test_every_panel_is_filled(visit: Visit) -> None:
    page = visit.page
    assert len(page.locator("#verdict .verdict").inner_text()) > 20
    assert page.locator("#verdict tbody tr").count() >= 3
    assert page.locator("#front .mark").count() >= 4
    assert page.locator("#graph-view .node").count() == 15, "13 operators, the input and the output"
    assert page.locator("#graph-view .node.int8").count() > 0, "the profile says what ran in integers"
    assert page.locator("#graph-view .edge").count() >= 15
    assert page.locator("#kernels .bar").count() >= 2
    assert page.locator("#unit-table tbody tr").count() >= 7
    assert page.locator("#search .mark").count() >= 4
    assert page.locator("#accuracy tbody tr").count() >= 2
    assert "inlay tune" in page.locator("#again pre").first.inner_text()
    for panel in page.locator("main section").all():
        assert len(panel.inner_text()) > 60, panel.get_attribute("id")


def test_a_chosen_point_shows_its_figures_and_its_command(visit: Visit) -> None:
    page, details = visit.page, visit.page.locator("#front-details")
    page.locator("#front .mark.best").click()
    expect(details).to_contain_text("SQNR")
    expect(details).to_contain_text("inlay select")
    expect(page.locator("#front .mark.chosen")).to_have_count(1)


def test_points_are_reached_by_keys(visit: Visit) -> None:
    page, details = visit.page, visit.page.locator("#front-details")
    page.locator('#front .mark[tabindex="0"]').focus()
    page.keyboard.press("Enter")
    first = details.inner_text()
    page.keyboard.press("ArrowRight")
    expect(details).not_to_have_text(first)
    assert page.locator('#front .mark[tabindex="0"]').count() == 1, "one stop of the tab key"


def test_a_chosen_node_shows_why(visit: Visit) -> None:
    page, details = visit.page, visit.page.locator("#graph-details")
    page.locator("#graph-view .node", has_text="Conv").first.dispatch_event("click")
    expect(details).to_contain_text(HOSTILE[0])
    expect(details).to_contain_text("placed")
    assert page.locator("#graph-details img, #graph-details script").count() == 0


def test_search_goes_to_what_it_finds(visit: Visit) -> None:
    page = visit.page
    page.locator("#graph-search").fill("relu3")
    expect(page.locator("#graph-view .node.found")).to_have_count(1)
    page.locator("#graph-search").press("Enter")
    expect(page.locator("#graph-details h3")).to_have_text("relu3")
    page.locator("#graph-search").fill("no such node")
    expect(page.locator("#graph-found")).to_contain_text("0 found")


def test_regions_fold_and_unfold(visit: Visit) -> None:
    page, nodes = visit.page, visit.page.locator("#graph-view .node")
    every = nodes.count()
    page.locator("#fold-all").click()
    assert nodes.count() < every
    folded = page.locator("#graph-view .node.folded")
    assert folded.count() > 0
    few = nodes.count()
    folded.first.dispatch_event("click")
    page.locator("#graph-details button").click()
    assert nodes.count() > few
    page.locator("#unfold-all").click()
    assert nodes.count() == every
    page.locator("#graph-search").fill("relu3")
    page.locator("#fold-all").click()
    page.locator("#graph-search").press("Enter")
    expect(page.locator("#graph-details h3")).to_have_text("relu3")


def test_the_graph_is_used_by_keys(visit: Visit) -> None:
    page, details = visit.page, visit.page.locator("#graph-details h3")
    page.locator("#graph-view").focus()
    page.keyboard.press("ArrowDown")
    expect(details).to_have_text("r0")
    page.keyboard.press("ArrowDown")
    expect(details).to_have_text(HOSTILE[0])
    nodes = page.locator("#graph-view .node").count()
    page.keyboard.press("f")
    assert page.locator("#graph-view .node").count() < nodes
    before = page.locator("#graph-view > g").get_attribute("transform")
    page.keyboard.press("+")
    assert page.locator("#graph-view > g").get_attribute("transform") != before


def test_units_are_sorted_and_filtered(visit: Visit) -> None:
    page = visit.page
    column = page.locator("#unit-table tbody tr td:nth-child(5)")
    heading = page.locator("#unit-table th", has_text=re.compile("^us$"))
    for direction in ("descending", "ascending"):
        heading.locator("button").press("Enter")
        expect(heading).to_have_attribute("aria-sort", direction)
        shown = [float(t) for t in column.all_inner_texts() if t]
        assert len(set(shown)) > 1
        assert shown == sorted(shown, reverse=direction == "descending")
    page.locator("#unit-filter").fill("relu")
    page.locator("#unit-filter").fill("skip")
    assert page.locator("#unit-table tbody tr:visible").count() == 1
    expect(page.locator("#unit-found")).to_contain_text("1 of")


def test_everything_that_acts_has_a_name_for_screen_readers(visit: Visit) -> None:
    nameless = visit.page.evaluate(
        """() => [...document.querySelectorAll("button, input, a, [tabindex], [role=button], svg[role]")]
            .filter((e) => !(e.textContent.trim() || e.getAttribute("aria-label") || e.closest("label")))
            .map((e) => e.outerHTML.slice(0, 80))"""
    )
    assert nameless == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_stands_out_on_light_and_dark_ground(browser: Browser, finished: Path, dark: bool) -> None:
    visit = Visit(browser, finished / "report.html", dark=dark)
    contrast = visit.page.evaluate(
        """() => {
            const light = (rgb) => rgb.match(/[\\d.]+/g).slice(0, 3).map((c) => c / 255)
                .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
                .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
            const ground = light(getComputedStyle(document.body).backgroundColor);
            return ["body", ".hint", ".key", "a[href='#front']", "td", ".details"].map((selector) => {
                const ink = light(getComputedStyle(document.querySelector(selector)).color);
                return (Math.max(ink, ground) + 0.05) / (Math.min(ink, ground) + 0.05);
            });
        }"""
    )
    assert min(contrast) >= 4.5, "WCAG 2, level AA"
    visit.end()


def test_a_wide_page_is_used_and_its_lines_stay_readable(browser: Browser, finished: Path) -> None:
    visit = Visit(browser, finished / "report.html", width=1280)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 1280
    empty, long = visit.page.evaluate(
        """() => {
            const main = document.querySelector("main").getBoundingClientRect();
            const end = (e) => e.getBoundingClientRect().right;
            const all = (e) => [...e.querySelectorAll("p, li, table, svg, pre, dd, .tools span")];
            const sections = [...document.querySelectorAll("main section")];
            const share = (s) => (Math.max(...all(s).map(end)) - main.left) / main.width;
            const size = (p) => p.getBoundingClientRect().width / parseFloat(getComputedStyle(p).fontSize);
            return [
                sections.filter((s) => share(s) < 0.8).map((s) => s.id),
                [...document.querySelectorAll("main p:not(.verdict, .key, .hint), main li")]
                    .filter((p) => size(p) > 45).map((p) => p.textContent.slice(0, 40)),
            ];
        }"""
    )
    assert empty == [], "a fifth of the page at the right is empty"
    assert long == [], "more than 90 characters a line"
    visit.end()


def test_a_phone_needs_no_sideways_scrolling(browser: Browser, finished: Path) -> None:
    visit = Visit(browser, finished / "report.html", width=390)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    visit.page.locator("#front .mark.best").click()
    expect(visit.page.locator("#front-details")).to_contain_text("SQNR")
    assert visit.complaints == []
    visit.end()


def large(finished: Path, folder: Path, blocks: int = 750) -> Path:
    """The finished run as if its model were a residual network of ``4 * blocks`` operators, profiled."""
    shutil.copytree(finished, folder)
    nodes, units, regions, kernels = [], [], [], []
    last = "x"
    for i in range(blocks):
        regions.append(RegionFacts(i + 1, 0, "2 Conv, Relu, Add"))
        names = [f"/encoder/layers.{i}/block/{part}_{i}/{op}" for part, op in PARTS]
        reads = [(last,), (f"a{i}",), (f"b{i}",), (f"c{i}", last)]
        for name, (_, op), read, value in zip(names, PARTS, reads, "abcd", strict=True):
            nodes.append(NodeFacts(name, op, read, read if op == "Conv" else (), (f"{value}{i}",), i + 1))
        for own in ((names[0], names[1]), (names[2],), (names[3],)):
            op = own[0].rpartition("/")[2]
            units.append(
                UnitFacts(
                    name=own[0],
                    op_type=op,
                    nodes=own,
                    precision="static" if op == "Conv" else "float",
                    rejection="",
                    gain_ns=900.0 + i,
                    noise_db=30.0 + i % 9,
                )
            )
            kernels.append(KernelTime(own[0], op, 5000.0 + i, "uint8" if op == "Conv" else "float32", own))
        kernels.append(
            KernelTime(
                f"q{i}", "QuantizeLinear", 700.0, precision="float32", nodes=(), values=(f"d{i}",), kind="quantize"
            )
        )
        last = f"d{i}"
    with contextlib.closing(Journal(folder / "run.sqlite", None)) as journal:
        known = journal.fact(EVIDENCE)
        assert known is not None
        known = replace(known, nodes=tuple(nodes), regions=tuple(regions), units=tuple(units))
        journal.record_fact(EVIDENCE, replace(known, inputs=("x",), outputs=(last,), quantized=()))
        journal.record_fact(PROFILE.of(known.delivered), kernels)
    inlay.write_report(folder)
    return folder / "report.html"


PARTS = (("convolution", "Conv"), ("activation", "Relu"), ("projection", "Conv"), ("residual", "Add"))


@pytest.mark.exhaustive
def test_three_thousand_nodes_open_quickly(browser: Browser, finished: Path, tmp_path: Path) -> None:
    """The promise is 2 s and 15 MB; here with room for a busy machine."""
    file = large(finished, tmp_path / "large")
    assert file.stat().st_size < 15_000_000
    visit = Visit(browser, file)
    assert visit.page.evaluate("performance.timing.loadEventEnd - performance.timing.navigationStart") < 4000
    assert visit.page.locator("#unit-table tbody tr").count() == 2250
    visit.page.locator("#graph-search").fill("residual_700/Add")
    visit.page.locator("#graph-search").press("Enter")
    expect(visit.page.locator("#graph-details h3")).to_contain_text("residual_700")
    visit.page.locator("#unfold-all").click()
    assert visit.page.locator("#graph-view .node").count() == 3002
    assert visit.complaints == []
    visit.end()

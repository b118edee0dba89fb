"""The page in a real browser; Debian's package is `chromium`."""

import json

import pytest
from chromium import EXECUTABLE, Page
from shown_runs import document_of

from ampsweep.report.html import html

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="there is no chromium on this machine"),
]

VISIBLE = "[...document.querySelectorAll('{}')].filter(one => one.checkVisibility()).length"


@pytest.fixture(scope="module")
def page():
    with Page() as page:
        yield page


@pytest.fixture
def path(write, gpu_runs, tmp_path):
    path = tmp_path / "comparison.html"
    path.write_text(html(document_of(write(gpu_runs), tmp_path)), encoding="utf-8")
    return path


def traces(page, panel, place=0):
    """(name, number of points) of what is drawn in a panel, of the first workload unless said otherwise."""
    plot = f"document.querySelectorAll('[data-key={panel}] .plot')[{place}]"
    page.evaluate(f"{plot}.scrollIntoView({{behavior: 'instant'}})")
    page.wait_until(f"'drawn' in {plot}.dataset")
    return [tuple(one) for one in page.evaluate(f"{plot}.data.map(one => [one.name ?? '', one.x.length])")]


CUT = """(() => {{
  const plot = document.querySelector('[data-key={}] .plot'), box = plot.getBoundingClientRect();
  const texts = [...plot.querySelectorAll('.xtitle, .ytitle, .textpoint text, .bartext')];
  const drawn = texts.filter((one) => one.getBoundingClientRect().width > 0);
  const ends = drawn.map((one) => [one.textContent, one.getBoundingClientRect()]);
  return ends.filter(([_, at]) => at.right > box.right + 1 || at.left < box.left - 1).map(([text, _]) => text);
}})()"""
"""Texts of a panel that do not fit on its picture."""


def test_it_draws_filters_and_prints_without_errors_or_requests(page, path):
    page.open(path)
    drawn = traces(page, "train-loss")
    assert ("fp32", 8) in drawn
    assert drawn.count(("fp32", 8)) == 4, "the mean of a band, and a line a seed"
    assert len(traces(page, "memory-categories")) == 7

    # Everything by keyboard: the arm's button is reached and pressed.
    page.evaluate("document.querySelector('[data-arm=\"amp_bf16\"].arm').focus()")
    page.press(" ", code=32, text=" ")
    assert {name for name, _ in traces(page, "train-loss", 1)} - {""} == {"fp32", "amp_fp16"}
    assert page.evaluate(VISIBLE.format(".of-runs tbody tr[data-arm=amp_bf16]")) == 0
    assert "without amp_bf16" in page.evaluate("document.getElementById('filter-state').textContent")
    page.evaluate("document.getElementById('show-all').click()")
    page.settle()
    assert page.evaluate(VISIBLE.format("article")) == 2

    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.evaluate("document.getElementById('theme').click()")
    assert page.evaluate(ground) != light
    assert page.pdf().startswith(b"%PDF")

    page.resize(400, 800)
    page.settle()
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    boxes = "[...document.querySelectorAll('article .scroll')]"
    assert page.evaluate(f"{boxes}.filter((box) => box.scrollWidth > box.clientWidth).length") == 0, "rows are cards"
    assert page.evaluate(f"{boxes}[0].querySelector('td').dataset.title") == "verdict"
    for panel in ("front", "memory-categories", "speedup", "samples-per-sec"):
        traces(page, panel)
        page.wait_until(f"{CUT.format(panel)}.length === 0")
    page.resize(1400, 1000)
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]


def test_it_follows_the_theme_of_the_system(page, path):
    page.evaluate("localStorage.clear()")
    page.prefer(dark=True)
    page.open(path)
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert page.evaluate("document.getElementById('theme').textContent") == "Light theme"


def test_hostile_names_stay_text(page, write, gpu_runs, tmp_path):
    hostile = "<img src=x onerror=document.title='run'>"
    for _, record in gpu_runs:
        record.identity.model = hostile
        record.arm = record.arm.replace("amp_fp16", hostile)
    path = tmp_path / "comparison.html"
    path.write_text(html(document_of(write(gpu_runs), tmp_path)), encoding="utf-8")
    page.open(path)
    traces(page, "step-time")
    page.settle()
    legend = "[...document.querySelectorAll('[data-key=step-time] .legendtext')].map(one => one.textContent)"
    labels = page.evaluate(legend)
    assert json.dumps(labels).count(hostile) == 1
    assert page.evaluate("document.title") == "Precision compared with fp32"
    assert page.evaluate("document.images.length") == 0
    assert page.errors == []

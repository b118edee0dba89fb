"""Pages in a real browser; Debian's package is `chromium`."""

import pytest
from chromium import EXECUTABLE, browser
from shown_diagnoses import diagnosis, numerics

from ampsweep.doctor.diagnosis_document import diagnosis_document
from ampsweep.report.html import html

pytestmark = [pytest.mark.slow, pytest.mark.skipif(EXECUTABLE is None, reason="there is no chromium here")]

VISIBLE = "[...document.querySelectorAll('{}')].filter(element => element.checkVisibility()).length"
CUT = """(() => {{
  const plot = document.querySelector('[data-key={}] .plot'), box = plot.getBoundingClientRect();
  const texts = [...plot.querySelectorAll('.xtitle, .ytitle, .ytick text, .textpoint text, .bartext')];
  const drawn = texts.map((text) => [text.textContent, text.getBoundingClientRect()]).filter(([_, at]) => at.width > 0);
  return drawn.filter(([_, at]) => at.right > box.right + 1 || at.left < box.left - 1).map(([text, _]) => text);
}})()"""
"""Texts of a panel that its picture cuts."""
OVERLAPPING = """(() => {
  const labels = [...document.querySelectorAll('[data-key=activation] .ytick text')];
  const boxes = labels.map((text) => text.getBoundingClientRect()).sort((first, second) => first.top - second.top);
  return boxes.filter((box, index) => index > 0 && box.top < boxes[index - 1].bottom - 3).length;
})()"""


@pytest.fixture(scope="module")
def page():
    with browser() as page:
        yield page


@pytest.fixture
def opened(page, tmp_path):
    def opened(document):
        path = tmp_path / "page.html"
        path.write_text(html(document), encoding="utf-8")
        page.open(path)

    yield opened
    assert page.errors == []
    requests = [url for url in page.requests if not url.startswith(("data:", "blob:"))]
    assert requests == [(tmp_path / "page.html").as_uri()]


def traces(page, panel, place=0):
    """(name, number of points) of the traces in a panel."""
    plot = f"document.querySelectorAll('[data-key={panel}] .plot')[{place}]"
    page.evaluate(f"{plot}.scrollIntoView({{behavior: 'instant'}})")
    page.wait_until(f"'drawn' in {plot}.dataset")
    return [tuple(trace) for trace in page.evaluate(f"{plot}.data.map(trace => [trace.name ?? '', trace.x.length])")]


def test_it_draws_and_filters_without_errors_or_requests(page, opened, gpu_document):
    opened(gpu_document)
    assert traces(page, "train-loss").count(("fp32", 8)) == 4, "the mean of a band, and a line for each seed"
    assert len(traces(page, "memory-categories")) == 7
    page.evaluate("document.querySelector('[data-arm=\"amp_bf16\"].arm').click()")
    assert {name for name, _ in traces(page, "train-loss", 1)} - {""} == {"fp32", "amp_fp16"}
    assert page.evaluate(VISIBLE.format(".of-runs tbody tr[data-arm=amp_bf16]")) == 0
    assert "without amp_bf16" in page.evaluate("document.getElementById('filter-state').textContent")
    page.evaluate("document.getElementById('show-all').click()")
    page.settle()
    assert page.evaluate(VISIBLE.format("article")) == 2


@pytest.mark.nightly
def test_themes_paper_and_a_phone(page, opened, gpu_document):
    opened(gpu_document)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.evaluate("document.getElementById('theme').click()")
    assert page.evaluate(ground) != light
    page.call("Page.printToPDF")
    page.look(400, 800)
    page.settle()
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    boxes = "[...document.querySelectorAll('article .scroll')]"
    assert page.evaluate(f"{boxes}.filter((box) => box.scrollWidth > box.clientWidth).length") == 0, "rows are cards"
    assert page.evaluate(f"{boxes}[0].querySelector('td').dataset.title") == "verdict"
    for panel in ("front", "memory-categories", "speedup", "samples-per-sec"):
        traces(page, panel)
        page.wait_until(f"{CUT.format(panel)}.length === 0")
    page.evaluate("localStorage.clear()")
    page.look(dark=True)
    opened(gpu_document)
    assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "dark"
    assert page.evaluate("document.getElementById('theme').textContent") == "Light theme"


@pytest.mark.nightly
@pytest.mark.parametrize(("width", "dark"), [(1400, False), (400, True)])
def test_a_diagnosis_is_readable_and_its_code_can_be_copied(page, opened, width, dark):
    page.look(width, dark=dark)
    opened(diagnosis_document(diagnosis(), numerics(70, scale=4096.0)))
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for panel in ("losses", "error-growth", "activation", "activation_gradient", "weight", "update"):
        traces(page, panel)
        page.settle()
        assert page.evaluate(CUT.format(panel)) == []
    assert page.evaluate(OVERLAPPING) == 0
    map_drawn = "document.querySelector('[data-key=activation] .plot').data[0]"
    assert page.evaluate(f"{map_drawn}.reversescale") is not dark, "the least is near the background"
    lines = "document.querySelectorAll('[data-key=weight] .scatterlayer .trace').length"
    before = page.evaluate(lines)
    plot = "document.querySelector('[data-key=weight] .plot')"
    float8 = f"{plot}.data.findIndex((trace) => trace.name === 'float8_e4m3fn')"
    page.evaluate(f"Plotly.restyle({plot}, {{visible: true}}, [{float8}]).then(() => 0)")
    assert page.evaluate(lines) == before + 1
    button = "document.querySelector('[data-copy]')"
    page.evaluate(f"{button}.click()")
    page.wait_until(f"{button}.textContent !== 'Copy'")
    if page.evaluate(f"{button}.textContent") == "Chosen":
        assert page.evaluate("getSelection().toString()") == "hidden = hidden.to(self.head.weight.dtype)"

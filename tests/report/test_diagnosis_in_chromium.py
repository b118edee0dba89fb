"""The page of a diagnosis in a real browser; Debian's package is `chromium`."""

import pytest
from chromium import EXECUTABLE, Page
from shown_diagnoses import diagnosis, numerics

from ampsweep.doctor.diagnosis_document import diagnosis_document
from ampsweep.report.html import html

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(EXECUTABLE is None, reason="there is no chromium on this machine"),
]

OVERLAPPING = """(() => {{
  const boxes = [...document.querySelectorAll('[data-key={}] .ytick text')].map((one) => one.getBoundingClientRect());
  boxes.sort((one, other) => one.top - other.top);
  return boxes.filter((box, index) => index > 0 && box.top < boxes[index - 1].bottom - 3).length;
}})()"""
"""Names of layers that lie over the one before, by more than the room that a line of text leaves."""
CUT = """(() => {{
  const plot = document.querySelector('[data-key={}] .plot'), box = plot.getBoundingClientRect();
  const texts = [...plot.querySelectorAll('.ytick text, .xtick text, .textpoint text')];
  return texts.filter((one) => one.getBoundingClientRect().left < box.left - 1).map((one) => one.textContent);
}})()"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "diagnosis.html"
    path.write_text(html(diagnosis_document(diagnosis(), numerics(70, scale=4096.0))), encoding="utf-8")
    return path


def draw(page, panel):
    plot = f"document.querySelector('[data-key={panel}] .plot')"
    page.evaluate(f"{plot}.scrollIntoView({{behavior: 'instant'}})")
    page.wait_until(f"'drawn' in {plot}.dataset && {plot}.querySelectorAll('.ytick text').length > 1")
    page.settle()


@pytest.mark.parametrize("width", [1400, 400])
@pytest.mark.parametrize("dark", [False, True])
def test_it_is_readable_in_both_themes_and_widths(path, width, dark):
    with Page(width=width, dark=dark) as page:
        page.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        for panel in ("losses", "error-growth", "activation", "activation_gradient", "update"):
            draw(page, panel)
            assert page.evaluate(CUT.format(panel)) == []
        assert page.evaluate(OVERLAPPING.format("activation")) == 0
        map_drawn = "document.querySelector('[data-key=activation] .plot').data[0]"
        assert page.evaluate(f"{map_drawn}.reversescale") is not dark, "the least is near the ground"
        assert page.errors == []
        assert [url for url in page.requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]


def test_a_format_is_drawn_when_it_is_chosen(path):
    with Page() as page:
        page.open(path)
        draw(page, "weight")
        drawn = "document.querySelectorAll('[data-key=weight] .scatterlayer .trace').length"
        before = page.evaluate(drawn)
        page.evaluate(
            "(() => { const plot = document.querySelector('[data-key=weight] .plot');"
            " const index = plot.data.findIndex((one) => one.name === 'float8_e4m3fn');"
            " return Plotly.restyle(plot, {visible: true}, [index]).then(() => index); })()"
        )
        assert page.evaluate(drawn) == before + 1
        assert page.errors == []


def test_code_is_copied_or_chosen_by_its_button(path):
    with Page() as page:
        page.open(path)
        button = "document.querySelector('[data-copy]')"
        page.evaluate(f"{button}.click()")
        page.wait_until(f"{button}.textContent !== 'Copy'")
        if page.evaluate(f"{button}.textContent") == "Chosen":
            assert page.evaluate("getSelection().toString()") == "hidden = hidden.to(self.head.weight.dtype)"

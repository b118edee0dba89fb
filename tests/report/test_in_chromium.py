"""The page in a real browser; Debian's package is `chromium`."""

import json
import statistics

import pytest
from chromium import EXECUTABLE, Page
from shown_runs import dashboard_of

from ampsweep.report.page.document import html

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
    path.write_text(html(dashboard_of(write(gpu_runs), tmp_path)), encoding="utf-8")
    return path


def traces(page, panel):
    """(name, number of points) of what is drawn in a panel."""
    plot = f"document.querySelector('#{panel} .plot')"
    page.evaluate(f"{plot}.scrollIntoView({{behavior: 'instant'}})")
    page.wait_until(f"'drawn' in {plot}.dataset")
    return [tuple(one) for one in page.evaluate(f"{plot}.data.map(one => [one.name ?? '', one.x.length])")]


CUT = """(() => {{
  const plot = document.querySelector('#w0-{} .plot'), box = plot.getBoundingClientRect();
  const texts = [...plot.querySelectorAll('.xtitle, .ytitle, .textpoint text, .bartext')];
  const drawn = texts.filter((one) => one.getBoundingClientRect().width > 0);
  const ends = drawn.map((one) => [one.textContent, one.getBoundingClientRect()]);
  return ends.filter(([_, at]) => at.right > box.right + 1 || at.left < box.left - 1).map(([text, _]) => text);
}})()"""
"""Texts of a panel that do not fit on its picture."""


def choose(page, **values):
    """Choose in the selects of the filters."""
    page.evaluate(
        f"for (const [name, value] of {json.dumps(list(values.items()))}) {{"
        "  const select = document.querySelector(`select[name=${name}]`);"
        "  select.value = value; select.dispatchEvent(new Event('change', {bubbles: true})); }"
    )


def test_it_draws_filters_and_prints_without_errors_or_requests(page, path):
    page.open(path)
    drawn = traces(page, "w0-train-loss")
    assert ("fp32", 8) in drawn
    assert drawn.count(("fp32", 8)) == 4, "the mean of a band, and a line a seed"
    assert len(traces(page, "w0-memory-categories")) == 7

    # Seed: what is drawn of all seeds goes, the verdict stays; batch: the other workload goes.
    choose(page, seed="1", batch_size="16")
    assert traces(page, "w1-train-loss") == [("fp32", 8), ("amp_bf16", 8), ("amp_fp16", 8)]
    assert page.evaluate(VISIBLE.format("article")) == 1
    assert page.evaluate(VISIBLE.format(".runs tbody tr")) == 3
    assert "seed 1" in page.evaluate("document.getElementById('filter-state').textContent")

    # Everything by keyboard: the arm's button is reached and pressed.
    page.evaluate("document.querySelector('[data-arm=\"amp_bf16\"].arm').focus()")
    page.press(" ", code=32, text=" ")
    assert [name for name, _ in traces(page, "w1-train-loss")] == ["fp32", "amp_fp16"]
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
    for panel in ("front", "memory-categories", "memory-changes", "speedup", "samples-per-sec"):
        traces(page, f"w0-{panel}")
        page.wait_until(f"{CUT.format(panel)}.length === 0")
    page.resize(1400, 1000)
    assert page.errors == []
    assert [url for url in page.requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]


def test_a_chosen_seed_has_bars_of_its_own(page, path, gpu_runs):
    def bars():
        traces(page, "w0-samples-per-sec")
        drawn = "document.querySelector('#w0-samples-per-sec .plot').data.filter(one => one.type === 'bar')"
        return dict(page.evaluate(f"{drawn}.map(one => [one.name, one.x[0]])"))

    def measured(arm, *seeds):
        return statistics.median(
            record.summary["perf/samples_per_sec"]
            for _, record in gpu_runs
            if (record.arm, record.identity.batch_size) == (arm, 8) and record.identity.seed in seeds
        )

    page.open(path)
    assert bars()["fp32"] == pytest.approx(measured("fp32", 0, 1, 2))
    choose(page, seed="2")
    assert bars() == pytest.approx({arm: measured(arm, 2) for arm in ("fp32", "amp_bf16")}), "amp_fp16 ran two seeds"
    memory = "document.querySelector('#w0-memory-categories .plot').data[0]"
    traces(page, "w0-memory-categories")
    assert page.evaluate(f"{memory}.x.map(one => one !== null)") == [True] * 4 + [False] * 2
    said = page.evaluate("document.getElementById('filter-state').textContent")
    assert said == "Showing seed 2 (in pictures and runs; the verdict and the tables of figures are of all seeds)"
    page.evaluate("document.getElementById('show-all').click()")
    page.settle()
    assert bars()["fp32"] == pytest.approx(measured("fp32", 0, 1, 2))
    assert page.errors == []


def test_a_chosen_seed_has_a_line_of_its_own_over_sizes(page, path):
    """Its points have their markers; the intervals are those of all seeds."""
    page.open(path)
    plot = "document.querySelector('#a0-speedup-against-size .plot')"
    assert ("amp_bf16", 2) in traces(page, "a0-speedup-against-size")
    assert page.evaluate(f"{plot}.data[0].error_y !== undefined")
    of_all = page.evaluate(f"{plot}.data[0].y")
    choose(page, seed="2")
    traces(page, "a0-speedup-against-size")
    assert page.evaluate(f"{plot}.data[0].error_y === undefined")
    assert page.evaluate(f"{plot}.data[0].marker.symbol") == ["diamond", "diamond"]
    assert page.evaluate(f"{plot}.data[0].y") != of_all
    assert page.errors == []


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
    path.write_text(html(dashboard_of(write(gpu_runs), tmp_path)), encoding="utf-8")
    page.open(path)
    traces(page, "w0-step-time")
    page.settle()
    legend = "[...document.querySelectorAll('#w0-step-time .legendtext')].map(one => one.textContent)"
    labels = page.evaluate(legend)
    assert json.dumps(labels).count(hostile) == 1
    assert page.evaluate("document.title") == "Precision compared with fp32"
    assert page.evaluate("document.images.length") == 0
    assert page.errors == []

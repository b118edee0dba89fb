import pytest
from page_reader import panel, read_page
from shown_runs import document_of

from ampsweep.metrics import METRICS
from ampsweep.report.dashboard import OF_SERIES, OF_WORKLOAD
from ampsweep.report.html import html
from ampsweep.report.markdown import markdown
from ampsweep.report.panels import PANELS, SECTIONS, Panel


def test_every_panel_has_a_question_and_metrics_that_exist():
    keys = [one.key for one in PANELS]
    assert len(keys) == len(set(keys))
    for one in PANELS:
        assert one.key == one.key.lower()
        assert one.question.endswith("?")
        assert one.section in SECTIONS
        assert set(one.metrics) <= set(METRICS)
        assert len({METRICS[key].unit for key in one.metrics}) == 1 or one.kind == "front"
        assert (one.kind in OF_WORKLOAD) != (one.kind in OF_SERIES)


@pytest.mark.parametrize("kind", ["by_arm", "stack", "curves"])
def test_a_panel_is_added_by_an_entry(write, gpu_runs, tmp_path, kind):
    key = "train/grad_norm" if kind == "curves" else "device/utilization_pct"
    added = Panel(
        key="mine", title="Mine & only mine", question="Is it shown?", section="device", kind=kind, metrics=(key,)
    )
    document = document_of(write(gpu_runs), tmp_path, (*PANELS, added))
    element, figure = panel(read_page(html(document)), "mine")
    assert element.one("figcaption").text == "Mine & only mine Is it shown?"
    assert figure["traces"]
    assert "Mine \\& only mine" in markdown(document)


def test_an_added_panel_over_sizes_stands_with_the_others(write, gpu_runs, tmp_path):
    added = Panel(
        key="mine",
        title="Mine",
        question="Is it shown?",
        section="device",
        kind="against",
        metrics=("device/power_w",),
    )
    page = read_page(html(document_of(write(gpu_runs), tmp_path, (added,))))
    _, figure = panel(page, "mine")
    assert figure["traces"][0]["y"] == [400.0, 400.0]
    assert len(page.all("figure")) == 1

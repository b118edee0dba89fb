"""The front, the pitfalls and what decided, as page, document and console show them."""

import pytest
from page_reader import panel, read_page
from shown_runs import document_of  # first: it makes the analysis's records importable
from synthetic_records import sweep

from ampsweep.analysis.comparison import compare
from ampsweep.record import find_records
from ampsweep.report.compare import Compared
from ampsweep.report.comparison_document import comparison_document
from ampsweep.report.document import Items
from ampsweep.report.histories import read_histories
from ampsweep.report.html import html

LOSSES = [2.00, 2.02, 1.98]
WIDE = {"compute": "float32", "parameters": "float32", "gradients": "float32", "optimizer_state": "float32"}
NARROW = dict.fromkeys(WIDE, "bfloat16")


ADAM = {"optimizer": {"weight_decay": 0.0, "beta2": 0.999}}


def arm(name, step_ms, dtypes, *, losses=LOSSES, **more):
    steps = [step_ms, step_ms + 1, step_ms - 1]
    return sweep(name, steps, val_loss=losses, dtypes=dtypes, config=ADAM, **more)


FP32 = arm("fp32", 150.0, WIDE)
AMP = arm("amp_bf16", 90.0, WIDE | {"compute": "bfloat16"}, peak_mib=800.0)
PURE = arm("pure_bf16", 75.0, NARROW, losses=[2.1, 2.12, 2.08], peak_mib=500.0)
THREE = [*FP32, *AMP, *PURE]
FRONT = "on the front: amp_bf16, pure_bf16; beaten: fp32 by amp_bf16 (slower and more memory)"


def verdict(entries, memory_gib=None):
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0, memory_gib=memory_gib).workloads
    return workload.verdict


def test_the_front_in_a_line():
    assert verdict(THREE).front.sentence == FRONT
    assert verdict(FP32 + PURE).front.sentence == "on the front: fp32, pure_bf16; none is beaten"


def test_arms_beaten_alike_are_named_together():
    entries = THREE + arm("tf32", 120.0, WIDE)
    assert verdict(entries).front.sentence.endswith("beaten: fp32, tf32 by amp_bf16 (slower and more memory)")


@pytest.fixture
def shown(write, tmp_path):
    return document_of(write(THREE), tmp_path)


def test_the_page_has_the_front_as_a_picture(shown):
    page = read_page(html(shown))
    element, figure = panel(page, "front")
    assert "Which arms does no other beat?" in element.text
    markers = {trace["meta"]["arm"]: trace for trace in figure["traces"] if trace["mode"] == "markers"}
    symbols = {arm: trace["marker"]["symbol"] for arm, trace in markers.items()}
    assert symbols == {"fp32": "circle-open", "amp_bf16": "circle", "pure_bf16": "triangle-up"}
    assert markers["amp_bf16"]["x"] == [pytest.approx(90.0, rel=0.001)]
    assert markers["amp_bf16"]["y"] == [800.0]
    assert element.one("table").rows()[0]["front"] == "beaten by amp_bf16 (slower and more memory)"
    assert "on the front: amp_bf16, pure_bf16" in page.one("article").text.lower()


def test_the_memory_given_is_a_line_in_the_picture(write, tmp_path):
    def shapes(memory_gib):
        entries = write(THREE) if memory_gib is None else find_records(tmp_path).records
        given = compare(entries, baseline="fp32", margin_pct=1.0, memory_gib=memory_gib)
        document = comparison_document(Compared(given, entries, read_histories(entries, [])), tmp_path)
        return panel(read_page(html(document)), "front")[1]["layout"]["shapes"]

    assert shapes(None) == []
    (shape,) = shapes(0.6)
    assert shape["y0"] == pytest.approx(0.6 * 1024)


def test_pitfalls_stand_beside_their_arm_with_their_source(shown):
    told = [item.text for item in shown_items(shown) if (item.label, item.arm) == ("pitfall", "pure_bf16")]
    assert told == [
        "updates of less than 0.20% of a weight vanish, as bfloat16 parameters are rounded (P. Zamirai et al., "
        "Revisiting BFloat16 Training, arXiv:2010.06192).",
        "the optimizer's second moment cannot fall: a step takes 0.10% off it, and bfloat16 loses changes of less than "
        "0.20% (8 binary digits, torch.finfo).",
    ]
    assert {one.arms for one in verdict(THREE).pitfalls} == {("pure_bf16",)}


def shown_items(document):
    card = document.sections[0].blocks[0]
    return [item for block in card.blocks if isinstance(block, Items) for item in block.items]


def test_the_memory_given_is_told():
    nothing = verdict(FP32 + AMP, memory_gib=0.1)
    assert nothing.sentence == (
        "Not decidable yet: no arm that could be recommended fits into the 102 MiB given; allow more memory "
        "(report.memory_gib), or compare modes that need less."
    )

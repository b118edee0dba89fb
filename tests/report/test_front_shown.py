"""The front, the steps away from float32, the pitfalls and what decided, as page, document and console show them."""

import io
from dataclasses import replace

import pytest
from page_reader import panel, read_page
from shown_runs import dashboard_of  # first: it makes the analysis's records importable
from synthetic_records import sweep

from ampsweep.analysis.comparison import compare
from ampsweep.analysis.goal import Goal
from ampsweep.report.console import print_comparison
from ampsweep.report.figures import OF_WORKLOAD, Style
from ampsweep.report.figures.front import _text_places
from ampsweep.report.markdown import markdown
from ampsweep.report.page.document import html
from ampsweep.report.sentences.dtype_steps import changes
from ampsweep.report.sentences.front import front_line
from ampsweep.report.sentences.pitfalls import pitfall
from ampsweep.report.sentences.recommending import goes_by, recommendation, to_decide
from ampsweep.report.terminal import Terminal

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


def verdict(entries, **goal):
    (workload,) = compare(entries, baseline="fp32", margin_pct=1.0, goal=Goal(**goal)).workloads
    return workload.verdict


def test_the_front_in_a_line():
    assert front_line(verdict(THREE).front) == FRONT
    assert front_line(verdict(FP32 + PURE).front) == "on the front: fp32, pure_bf16; none is beaten"


def test_arms_beaten_alike_are_named_together():
    entries = THREE + arm("tf32", 120.0, WIDE)
    assert front_line(verdict(entries).front).endswith("beaten: fp32, tf32 by amp_bf16 (slower and more memory)")


@pytest.fixture
def shown(write, tmp_path):
    return dashboard_of(write(THREE), tmp_path)


def test_the_page_has_the_front_as_a_picture(shown):
    page = read_page(html(shown))
    element, figure = panel(page, "w0-front")
    assert "Which arms does no other beat?" in element.text
    markers = {trace["meta"]["arm"]: trace for trace in figure["traces"] if trace["mode"] == "markers+text"}
    assert {arm: trace["text"] for arm, trace in markers.items()} == {arm: [arm] for arm in markers}
    symbols = {arm: trace["marker"]["symbol"] for arm, trace in markers.items()}
    assert symbols == {"fp32": "circle-open", "amp_bf16": "circle", "pure_bf16": "triangle-up"}
    assert markers["amp_bf16"]["x"] == [pytest.approx(90.0, rel=0.001)]
    assert markers["amp_bf16"]["y"] == [800.0]
    (line,) = [trace for trace in figure["traces"] if trace["mode"] == "lines"]
    assert line["meta"]["arms"] == ["amp_bf16"], "the worse one is on the front, but nobody has to train in it"
    assert element.one("table").rows()[0]["front"] == "beaten by amp_bf16 (slower and more memory)"
    assert "On the front: amp_bf16, pure_bf16" in page.one("div", class_="answer").text


def test_many_arms_have_numbers_that_the_legend_explains(write, tmp_path):
    others = [arm(f"amp_bf16+init_scale={n}", 90.0 + n, WIDE, peak_mib=800.0 - n) for n in range(12)]
    _, figure = panel(
        read_page(html(dashboard_of(write([*THREE, *(entry for one in others for entry in one)]), tmp_path))),
        "w0-front",
    )
    markers = [trace for trace in figure["traces"] if trace["mode"] == "markers+text"]
    assert [trace["text"] for trace in markers] == [[str(number)] for number in range(1, 16)]
    assert [trace["name"] for trace in markers] == [
        f"{number}  {trace['meta']['arm']}" for number, trace in enumerate(markers, start=1)
    ]
    assert figure["layout"]["showlegend"]


def test_names_beside_markers_keep_off_each_other():
    alike = [(1.0, 1.0), (1.001, 1.0), (5.0, 5.0)]
    places = _text_places(alike, ["amp_bf16", "amp_fp16", "fp32"], [[0.0, 6.0], [0.0, 6.0]])
    assert places[0] != places[1]


def test_the_memory_given_is_a_line_in_the_picture(write, tmp_path):
    dashboard = dashboard_of(write(THREE), tmp_path)
    (workload,) = dashboard.workloads
    _, without = panel(read_page(html(dashboard)), "w0-front")
    assert without["layout"]["shapes"] == []
    goal = Goal(memory_gib=0.6)
    limited = compare(
        [(run.directory, run.record) for run in workload.data.runs], baseline="fp32", margin_pct=1.0, goal=goal
    )
    data = replace(workload.data, workload=limited.workloads[0])
    front = next(item for item, _ in workload.shown if item.key == "front")
    (shape,) = OF_WORKLOAD["front"](front, data, Style(dashboard.styles)).layout["shapes"]
    assert shape["y0"] == pytest.approx(0.6 * 1024)


def test_page_and_document_have_the_steps_away_from_float32(shown):
    rows = [
        ("fp32", "amp_bf16", "compute float32 to bfloat16", "1.67x [1.65, 1.69]", "200 MiB (20.0%)", "0"),
        (
            "amp_bf16",
            "pure_bf16",
            "parameters, accumulation, optimizer state float32 to bfloat16",
            "1.200x [1.193, 1.207]",
            "300 MiB (37.5%)",
            "+0.10",
        ),
    ]
    (table,) = [one for one in read_page(html(shown)).all("table") if "changes" in one.one("thead").text]
    assert [tuple(row.values()) for row in table.rows()] == rows
    text = markdown(shown.comparison)
    assert all(f"| {' | '.join(row)} |" in text for row in rows)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("amp_fp16", "compute float32 to float16; grad_scaler=true"),
        ("tf32", "tf32=true"),
        ("fp32+eval=autocast", "eval=autocast"),
        ("custom", "how it computes, no dtype"),
    ],
)
def test_what_a_step_changes_in_words(name, told):
    dtypes = WIDE | {"compute": "float16"} if name == "amp_fp16" else WIDE
    (step,) = verdict(FP32 + arm(name, 120.0, dtypes)).steps
    assert changes(step) == told


def test_pitfalls_stand_beside_their_arm_with_their_source(shown):
    card = read_page(html(shown)).one("section", class_="arm-verdict", data_arm="pure_bf16")
    for text in (
        "Updates of less than 0.20% of a weight vanish, as bfloat16 parameters are rounded (P. Zamirai et al., "
        "Revisiting BFloat16 Training, arXiv:2010.06192).",
        "The optimizer's second moment cannot fall: a step takes 0.10% off it, and bfloat16 loses changes of less than "
        "0.20% (8 binary digits, torch.finfo).",
    ):
        assert text in card.text
    assert {arm for arm, _ in verdict(THREE).pitfalls} == {"pure_bf16"}


def test_pitfalls_that_need_several_micro_batches_or_a_scaler():
    half = dict.fromkeys(WIDE, "float16")
    told = [
        pitfall(one) for _, one in verdict(FP32 + arm("pure_fp16", 75.0, half, facts={"grad_accum_steps": 8})).pitfalls
    ]
    assert told[1:] == [
        "gradients below 3.0e-08 become zero in float16, and no scaler lifts them (P. Micikevicius et al., Mixed "
        "Precision Training, arXiv:1710.03740)",
        "the gradients of 8 micro-batches are added up in float16, which loses what is less than 0.024% of a sum "
        "(N. J. Higham, The Accuracy of Floating Point Summation, SIAM J. Sci. Comput. 14 (1993))",
    ]


def test_the_console_tells_front_pitfalls_and_what_decided():
    stream = io.StringIO()
    print_comparison(compare(THREE, baseline="fp32", margin_pct=1.0), Terminal(file=stream, width=400))
    text = " ".join(stream.getvalue().split())
    assert FRONT in text
    assert "goes by the step time, among arms whose final loss is not worse; not by the time to the loss" in text
    assert "pitfall pure_bf16 updates of less than 0.20% of a weight vanish" in text


def test_the_memory_given_is_told():
    found = verdict(THREE, memory_gib=0.9)
    assert "not worse, within 922 MiB; not by" in goes_by(found)
    nothing = verdict(FP32 + AMP, memory_gib=0.1)
    assert recommendation(nothing) == (
        "Not decidable yet: no arm that could be recommended fits into the 102 MiB given; allow more memory "
        "(report.memory_gib), or compare modes that need less."
    )


def test_energy_that_nobody_counted_is_told():
    found = verdict(THREE, objective="energy")
    assert recommendation(found) == (
        "Not decidable yet: no device counted the energy of any arm; compare on a device that counts its energy, or by "
        "time (report.objective)."
    )
    assert goes_by(found) is None
    assert len(to_decide(found)) == 1

"""A change of precision in the middle of a training, in words."""

from dataclasses import replace

import pytest

from ampsweep.analysis.seam_comparison import NotCarriedOver, Seam, SeamComparison
from ampsweep.analysis.statistics import Spread

SCALER = "the checkpoint has no GradScaler state; a fresh one starts at scale 65536"


def seam(saved_in, resumed_in, jump=0.0, gap=0.0, *, n=3, where="inside", **more):
    figures = {
        "num_runs": n,
        "statuses": {"completed": n},
        "error": None,
        "loss_jump": Spread(mean=jump, n=n, sd=0.0),
        "largest_jump": jump,
        "val_loss_jump": Spread(mean=0.0, n=n, sd=0.0),
        "final_gap": Spread(mean=gap, n=n, sd=0.0),
        "final_position": where if n > 2 else None,
        "margin": 0.02,
        "skipped_steps": None,
        "notes": (),
    }
    return Seam(saved_in=saved_in, resumed_in=resumed_in, **(figures | more))


def of(*seams, **more):
    arms = ("fp32", "amp_bf16", "amp_fp16")
    facts = {"step": 20, "steps": 40, "margin_pct": 1.0, "loss": 2.0, "saved_in": arms, "resumed_in": arms}
    return SeamComparison(title="gpt_tiny", facts={}, seams=seams, runs=(), **(facts | more))


SAME = seam("fp32", "fp32")
BITWISE = "resumed in the precision it was saved in, every run goes on bitwise."


@pytest.mark.parametrize(
    ("seams", "said"),
    [
        ((SAME,), "No jump of the loss was measured between two precisions."),
        ((SAME, seam("fp32", "amp_bf16")), f"No change of precision moves the training loss; {BITWISE}"),
        (
            (SAME, seam("fp32", "amp_bf16", 0.001), seam("fp32", "amp_fp16", -0.002)),
            "No change of precision moves the training loss by 1% or more: the largest jump is -0.0020 (0.10%), from "
            f"fp32 to amp_fp16; {BITWISE}",
        ),
        (
            (SAME, seam("fp32", "amp_bf16", 0.5), seam("fp32", "amp_fp16", 0.02)),
            "2 of 2 changes of precision move the training loss by 1% or more: the largest jump is +0.50 (25.0%), from "
            f"fp32 to amp_bf16; {BITWISE}",
        ),
        (
            (seam("fp32", "fp32", 1e-7), seam("fp32", "amp_bf16", 0.001)),
            "No change of precision moves the training loss by 1% or more: the largest jump is +0.0010 (0.050%), from "
            "fp32 to amp_bf16; even resumed in the precision it was saved in, not every run goes on bitwise (fp32).",
        ),
        (
            (seam("fp32", "amp_fp16", 0.001, 0.9, where="above"),),
            "No change of precision moves the training loss by 1% or more: the largest jump is +0.0010 (0.050%), from "
            "fp32 to amp_fp16; 20 steps later the validation loss is more than 1% off after 1 of 1 (most from fp32 to "
            "amp_fp16, +0.90); no run went on in the precision it was saved in.",
        ),
    ],
)
def test_the_answer_names_the_largest_jump(seams, said):
    assert of(*seams).sentence == said


def test_one_seed_beyond_the_margin_is_told_of_too():
    assert (
        "more than 1% off after 1 of 2"
        in of(seam("fp32", "amp_fp16", 0.001, 0.9, n=1), seam("fp32", "amp_bf16", 0.001, 0.001, n=1)).sentence
    )


@pytest.mark.parametrize(
    ("seams", "said"),
    [
        (
            (seam("fp32", "amp_bf16", gap=0.01),),
            "20 steps later the validation loss of every resumed run is within 1% of the uninterrupted run's: no gap "
            "that counts is left",
        ),
        (
            (seam("fp32", "amp_bf16", gap=0.01), seam("fp32", "amp_fp16", gap=0.1, where="above")),
            "20 steps later the validation loss is within 1% of the uninterrupted run's for 1 of 2 changes; still "
            "worse by more than that: fp32 to amp_fp16 (+0.10)",
        ),
        (
            (seam("fp32", "amp_bf16", gap=0.01, n=1),),
            "20 steps later the largest gap of the validation loss is +0.010 (fp32 to amp_bf16, n=1); a verdict takes "
            "3 seeds",
        ),
    ],
)
def test_what_became_of_the_gap_is_told(seams, said):
    assert of(*seams).lines[0] == said


def test_what_did_not_carry_over_is_told_once():
    note = NotCarriedOver(cause=SCALER, seeds=(0,))
    told = of(
        seam("fp32", "amp_fp16", notes=(note,), skipped_steps=4),
        seam("amp_bf16", "amp_fp16", notes=(note,), skipped_steps=0),
        seam("tf32", "amp_fp16", statuses={"unsupported": 1}, error="tf32 needs a GPU", final_gap=None),
    ).lines
    assert told[1:] == [
        "Steps skipped in the first 10 after the change: fp32 to amp_fp16 4 in 3 runs",
        f"fp32, amp_bf16 to amp_fp16: {SCALER}",
        "tf32 to amp_fp16: unsupported: tf32 needs a GPU",
    ]


def test_a_table_says_what_its_cells_are():
    found = of(SAME)
    assert found.heading == "gpt_tiny, from the checkpoint of step 20 of 40"
    assert found.explanation == (
        "Training loss of step 21 (where it is 2.0000), minus that of the uninterrupted run in the precision of the "
        "row: the same batch, the same checkpoint; mean over 3 seeds, sd over them"
    )
    assert of(seam("fp32", "fp32", n=1)).explanation.endswith("; one seed")


def test_a_gap_is_closed_only_if_it_was_tested():
    assert SAME.closed_text == "closed"
    assert replace(SAME, final_position=None).closed_text == "exact"
    assert seam("fp32", "amp_bf16", gap=0.01, n=2).closed_text == "3 seeds are needed"
    assert seam("fp32", "amp_bf16", gap=0.1, where="open").closed_text == "undecided"

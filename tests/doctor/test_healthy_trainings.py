"""Trainings in which nothing is wrong, in float32, or that end with an error: nothing is found."""

import planted_memory
import planted_numerics
import planted_types
import pytest
from planted import examined_of
from planted_loss import DATA, net

from ampsweep.doctor.examine import examine

GPT = ("model=gpt_tiny", "model.num_layers=2", "model.hidden_size=32", "model.num_heads=2", "data=synthetic_tokens")
WORKLOADS = {
    "gpt": (*GPT, "data.vocab_size=64", "data.seq_len=16", "data.batch_size=8"),
    "gpt in its warm-up": (*GPT, "data.batch_size=8", "data.seq_len=16", "scheduler.num_warmup_steps=2000"),
    "mlp": ("model=mlp_small", "model.hidden_size=64", *DATA),
    "gan": ("experiment=gan", "model.hidden_size=32", "data.batch_size=32"),
    "resnet": ("model=resnet18", "data=synthetic_images", "data.image_size=16", "data.batch_size=4"),
    "padded attention": net("infinite_mask", "fp32", num_layers=3),
    "attention": planted_types.net("attention", "fp32"),
}
EXAMINED = ("types", "loss", "numerics")


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *(("gpt", mode) for mode in ("amp_bf16", "amp_fp16", "pure_bf16")),
        ("gpt in its warm-up", "pure_bf16"),
        *(("mlp", mode) for mode in ("amp_fp16", "pure_bf16")),
        *(("gan", mode) for mode in ("amp_bf16", "pure_bf16")),
        pytest.param("gan", "amp_fp16", marks=pytest.mark.nightly),
        pytest.param("resnet", "amp_bf16", marks=pytest.mark.nightly),
        ("padded attention", "amp_fp16"),
        ("attention", "pure_bf16"),
    ],
)
def test_nothing_is_found_in_a_healthy_training(name, mode):
    examined = examined_of(*WORKLOADS[name], f"precision={mode}", "tracking=disabled", num_steps=10, seconds=1000.0)
    assert examine(examined, EXAMINED) == ([], [])
    steps = examined.facts["loss/steps"]
    assert [step["step"] for step in steps] == [*range(1, 11)]
    assert all(step["own"] == pytest.approx(step["baseline"], rel=0.1) for step in steps)


def test_float32_itself_has_nothing_to_compare_with():
    examined = examined_of(*planted_memory.net("cast_to_float", precision="fp32"))
    found, (unexamined,) = examine(examined, (*EXAMINED, "memory"))
    assert (found, unexamined.complaint) == ([], "numerics")
    assert unexamined.reason == "it computes in float32 itself, and has nothing to be compared with"
    assert examined.numerics.steps, "its magnitudes are measured all the same"


def test_a_step_that_raises_an_error_is_a_complaint_of_types():
    examined = examined_of(*planted_types.net("refusing_bfloat16", "amp_bf16"), num_steps=2)
    (found,), unexamined = examine(examined, ("types", "loss", "memory", "speed"))
    assert (found.kind(), found.error) == ("stops_with_error", "ValueError: no bfloat16 here")
    assert "planted_types.py, line " in found.place
    assert {one.reason for one in unexamined} == {"its steps end with an error (ValueError)"}


ODD = ("model=gan_digits", "data.batch_size=17", "model.latent_size=7", "optimizer=adam")
"""CPUs draw float32 by another method than bfloat16, where the number of elements is no multiple of 16."""


@pytest.mark.parametrize(
    ("workload", "mode"),
    [
        (ODD, "pure_bf16"),
        (planted_numerics.net("normed_twice", batch_size=512), "amp_fp16"),
        (planted_numerics.net("sorted_rows", batch_size=512), "amp_bf16"),
    ],
)
def test_differences_that_are_no_error_are_no_finding(workload, mode):
    assert examine(examined_of(*workload, f"precision={mode}", num_steps=1), ["numerics"]) == ([], [])

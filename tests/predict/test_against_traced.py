"""A prediction for the CPU is the step that the CPU takes, to the byte, in every category."""

import pytest
from steps import GPT, MLP, REGRESSION, RESNET, measured, predicted

ADAMW = ("optimizer=adamw",)
SGD_ACCUMULATED = (
    *("optimizer=sgd", "optimizer.momentum=0.9", "trainer.max_grad_norm=null", "trainer.grad_accum_steps=3"),
)
CHECKPOINTED = ("trainer.activation_checkpointing=true",)
NOT_FUSED = ("optimizer.fused=false",)
COSINE = ("scheduler=cosine", "scheduler.num_warmup_steps=2")

CASES = [
    *((MLP, mode, ADAMW) for mode in ("fp32", "amp_bf16", "amp_fp16", "pure_bf16", "pure_fp16")),
    *((GPT, mode, ADAMW) for mode in ("fp32", "amp_bf16", "amp_fp16", "pure_bf16")),
    *((GPT, mode, SGD_ACCUMULATED) for mode in ("fp32", "amp_fp16")),
    *((GPT, mode, CHECKPOINTED) for mode in ("fp32", "amp_bf16")),
    (REGRESSION, "fp32", SGD_ACCUMULATED),
    (REGRESSION, "amp_bf16", CHECKPOINTED),
    (REGRESSION, "amp_fp16", NOT_FUSED),
    (REGRESSION, "amp_fp16", COSINE),
    (RESNET, "fp32", CHECKPOINTED),
    (RESNET, "amp_bf16", ADAMW),
    (RESNET, "pure_bf16", SGD_ACCUMULATED),
]


def named(case):
    workload, mode, settings = case
    return f"{workload[0].partition('=')[2]}-{mode}-{settings[0]}"


@pytest.mark.parametrize("case", CASES, ids=named)
def test_to_the_byte(case):
    workload, mode, settings = case
    overrides = (*workload, f"precision={mode}", *settings)

    truth, timeline = measured(*overrides), predicted(*overrides)

    peak = timeline.peak()
    assert peak.categories == truth.peak
    assert peak.num_bytes == truth.peak_bytes
    assert timeline.at(timeline.end_of_forward) == truth.end_of_forward


def test_text_from_a_file_is_counted_though_the_cpu_maps_it():
    overrides = ("model=gpt_tiny", "data=text", "data.batch_size=4")

    truth, peak = measured(*overrides), predicted(*overrides).peak()

    batch = 2 * 4 * 64 * 8
    assert peak.num_bytes - truth.peak_bytes == batch
    assert {key: value for key, value in peak.categories.items() if key != "other"} == {
        key: value for key, value in truth.peak.items() if key != "other"
    }

"""A prediction for the CPU is the step that the CPU takes, to the byte, in every category."""

import pytest
from steps import GPT, MLP, REGRESSION, RESNET, composed, measured, predicted

from ampsweep.launch.signals import StopRequest
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice
from ampsweep.search.probe import probe_batch

ADAMW = ("optimizer=adamw",)
SGD_ACCUMULATED = (
    *("optimizer=sgd", "optimizer.momentum=0.9", "trainer.max_grad_norm=null", "trainer.grad_accum_steps=3"),
)
CLIPPED = ("trainer.max_grad_value=0.001", "trainer.grad_accum_steps=2")
CHECKPOINTED = ("trainer.activation_checkpointing=true",)
NOT_FUSED = ("optimizer.fused=false",)
FP32_FEED_FORWARD = ("precision.fp32_modules=[blocks.*.feed_forward, norm]",)
PENALIZED = ("task.gradient_penalty=0.5",)
COSINE = ("scheduler=cosine", "scheduler.num_warmup_steps=2")

GAN = ("model=gan_digits", "model.hidden_size=8", "data.batch_size=16")
WGAN = (*GAN, "task=wgan_gp", "task.critic_steps=2")
TWO_HEADED = ("model=two_headed", "model.hidden_size=64", "data.batch_size=16")

CASES = [
    *((GAN, mode, ADAMW) for mode in ("fp32", "amp_bf16", "amp_fp16")),
    *((WGAN, mode, ("optimizer=adam",)) for mode in ("fp32", "amp_bf16", "amp_fp16")),
    *((TWO_HEADED, mode, ADAMW) for mode in ("fp32", "amp_fp16")),
    *((MLP, mode, ADAMW) for mode in ("fp32", "amp_bf16", "amp_fp16", "pure_bf16", "pure_fp16")),
    *((GPT, mode, ADAMW) for mode in ("fp32", "amp_bf16", "amp_fp16", "pure_bf16")),
    *((GPT, mode, SGD_ACCUMULATED) for mode in ("fp32", "amp_fp16")),
    *((GPT, mode, CHECKPOINTED) for mode in ("fp32", "amp_bf16")),
    *((MLP, mode, CLIPPED) for mode in ("fp32", "amp_fp16")),
    *((GPT, mode, FP32_FEED_FORWARD) for mode in ("fp32", "amp_bf16", "amp_fp16")),
    *((GPT, mode, ADAMW) for mode in ("bf16_sr", "master_bf16", "master_fp16")),
    *((MLP, mode, SGD_ACCUMULATED) for mode in ("bf16_sr", "master_fp16")),
    (MLP, "amp_bf16", ("optimizer.state_dtype=bfloat16", "trainer.accumulate_dtype=bfloat16")),
    (MLP, "pure_bf16", ("optimizer.state_dtype=float32", "trainer.accumulate_dtype=float32")),
    (GPT, "amp_bf16", (*FP32_FEED_FORWARD, *CHECKPOINTED)),
    (REGRESSION, "fp32", SGD_ACCUMULATED),
    (REGRESSION, "amp_bf16", CHECKPOINTED),
    (REGRESSION, "amp_fp16", NOT_FUSED),
    (REGRESSION, "amp_fp16", COSINE),
    *((MLP, mode, PENALIZED) for mode in ("fp32", "amp_bf16", "amp_fp16", "pure_bf16")),
    (MLP, "amp_fp16", (*SGD_ACCUMULATED, *PENALIZED)),
    *((RESNET, mode, PENALIZED) for mode in ("fp32", "amp_bf16")),
    (RESNET, "fp32", (*CHECKPOINTED, *PENALIZED)),
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


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16", "amp_fp16", "pure_bf16"])
@pytest.mark.parametrize("workload", [MLP, GPT, REGRESSION], ids=lambda workload: workload[0])
def test_fresh_resumed_and_predicted_peaks_agree(workload, mode, tmp_path):
    overrides = (*workload, f"precision={mode}", *ADAMW)

    fresh, continued, timeline = measured(*overrides), measured(*overrides, resumed=tmp_path), predicted(*overrides)

    assert fresh.peak == continued.peak == timeline.peak().categories
    assert fresh.end_of_forward == continued.end_of_forward == timeline.at(timeline.end_of_forward)
    assert fresh.peak["optimizer_state"] > fresh.peak["parameters"]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_text_from_a_file_to_the_byte_too(batch_size):
    overrides = ("model=gpt_tiny", "data=text", f"data.batch_size={batch_size}")

    truth, peak = measured(*overrides), predicted(*overrides).peak()

    assert truth.peak["other"] >= 2 * batch_size * 64 * 8, "the batch counts, though it was read by NumPy"
    assert (peak.num_bytes, peak.categories) == (truth.peak_bytes, truth.peak)


PROBED = [
    ("data=text", "model=gpt_tiny", "data.batch_size=3", "precision=amp_fp16"),
    ("model=mlp_small", "data=synthetic", "data.in_features=32", "data.out_features=32", "precision=fp32"),
    ("model=mlp_small", "data=digits", "data.batch_size=64", "precision=pure_bf16"),
]


@pytest.mark.parametrize("overrides", PROBED, ids=lambda overrides: overrides[-1])
def test_all_that_a_memory_limit_counts_is_predicted(overrides):
    config = composed(*overrides, "trainer.memory_limit_gib=1")

    with StopRequest() as stop:
        found = probe_batch(config, send=lambda message: None, stop=stop)

    timeline = FakeTraining(config, TargetDevice("cpu")).trace(config.data["batch_size"], evaluates=True)
    counts = 4 * 8 if config.precision.grad_scaler else 0  # which a row may keep from one step to the next
    assert abs(found.probe.peak_bytes - timeline.peak().num_bytes) <= counts

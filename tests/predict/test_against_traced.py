"""A prediction for the CPU is the step that the CPU takes, to the byte, in every category."""

import pytest
from steps import GPT, MLP, REGRESSION, RESNET, assert_to_the_byte, composed, measured, predicted

from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice
from ampsweep.search.probe import probe_batch

ADAM, ADAMW = ("optimizer=adam",), ("optimizer=adamw",)
ACCUMULATED = (
    *("optimizer=sgd", "optimizer.momentum=0.9", "trainer.max_grad_norm=null", "trainer.grad_accum_steps=3"),
)
CLIPPED = ("trainer.max_grad_value=0.001", "trainer.grad_accum_steps=2")
CHECKPOINTED = ("trainer.activation_checkpointing=true",)
FP32_MODULES = ("precision.fp32_modules=[blocks.*.feed_forward, norm]",)
PENALIZED = ("task.gradient_penalty=0.5",)
COSINE = ("scheduler=cosine", "scheduler.num_warmup_steps=2")
GAN = ("model=gan_digits", "model.hidden_size=8", "data.batch_size=16")
WGAN = (*GAN, "task=wgan_gp", "task.critic_steps=2")
TWO_HEADED = ("model=two_headed", "model.hidden_size=64", "data.batch_size=16")
TABLE = [
    (GAN, "fp32 amp_bf16 amp_fp16", ADAMW),
    (WGAN, "amp_fp16", ADAM),
    (TWO_HEADED, "amp_bf16", ADAMW),
    (MLP, "fp32 amp_bf16 amp_fp16 pure_bf16 pure_fp16 master_bf16", ADAMW),
    (MLP, "amp_fp16", CLIPPED),
    (MLP, "bf16_sr master_fp16", ACCUMULATED),
    (MLP, "fp32 pure_bf16", PENALIZED),
    (MLP, "amp_fp16", (*ACCUMULATED, *PENALIZED)),
    (MLP, "amp_bf16", ("optimizer.state_dtype=bfloat16", "trainer.accumulate_dtype=bfloat16")),
    (MLP, "pure_bf16", ("optimizer.state_dtype=float32", "trainer.accumulate_dtype=float32")),
    (GPT, "amp_bf16 pure_bf16 bf16_sr master_fp16", ADAMW),
    (GPT, "fp32 amp_fp16", ACCUMULATED),
    (GPT, "fp32", CHECKPOINTED),
    (GPT, "amp_bf16", (*FP32_MODULES, *CHECKPOINTED)),
    (GPT, "amp_fp16", FP32_MODULES),
    (REGRESSION, "fp32", ACCUMULATED),
    (REGRESSION, "amp_bf16", CHECKPOINTED),
    (REGRESSION, "amp_fp16", ("optimizer.fused=false", *COSINE)),
    (RESNET, "fp32", (*CHECKPOINTED, *PENALIZED)),
    (RESNET, "amp_bf16", ADAMW),
    (RESNET, "pure_bf16", ACCUMULATED),
]
CASES = [(workload, mode, settings) for workload, modes, settings in TABLE for mode in modes.split()]


def named(case):
    workload, mode, settings = case
    return f"{workload[0].partition('=')[2]}-{mode}-{settings[0]}"


@pytest.mark.parametrize("case", CASES, ids=named)
def test_a_prediction_is_exact(case):
    workload, mode, settings = case
    assert_to_the_byte(*workload, f"precision={mode}", *settings)


@pytest.mark.parametrize(
    ("workload", "mode"), [(MLP, "fp32"), (GPT, "amp_bf16"), (REGRESSION, "amp_fp16"), (MLP, "pure_bf16")]
)
def test_fresh_resumed_and_predicted_peaks_agree(workload, mode, tmp_path):
    overrides = (*workload, f"precision={mode}", *ADAMW)
    fresh, continued = assert_to_the_byte(*overrides), measured(*overrides, resumed=tmp_path)
    assert fresh.peak == continued.peak
    assert fresh.end_of_forward == continued.end_of_forward
    assert fresh.peak["optimizer_state"] > fresh.peak["parameters"]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_text_from_a_file_counts_as_a_batch(batch_size):
    truth = assert_to_the_byte("model=gpt_tiny", "data=text", f"data.batch_size={batch_size}")
    assert truth.peak["other"] >= 2 * batch_size * 64 * 8, "though NumPy has read it"


@pytest.mark.parametrize(
    "overrides",
    [
        ("data=text", "model=gpt_tiny", "data.batch_size=3", "precision=amp_fp16"),
        ("model=mlp_small", "data=synthetic", "data.in_features=32", "data.out_features=32", "precision=fp32"),
        ("model=mlp_small", "data=digits", "data.batch_size=64", "precision=pure_bf16"),
    ],
    ids=lambda overrides: overrides[-1],
)
def test_all_that_a_memory_limit_counts_is_predicted(overrides):
    config = composed(*overrides, "trainer.memory_limit_gib=1")
    with StopRequest() as stop:
        found = probe_batch(config, send=lambda message: None, stop=stop)
    timeline = FakeTraining(config, TargetDevice("cpu")).trace(config.data["batch_size"], evaluates=True)
    counts = 4 * 8 if config.precision.grad_scaler else 0  # which a row may keep from one step to the next
    assert abs(found.probe.peak_bytes - timeline.peak().num_bytes) <= counts


def test_a_penalty_on_gradients_is_predicted_for_a_gpu():
    plain, penalized = (
        predicted(*MLP, "precision=amp_fp16", *settings, target=TargetDevice("cuda")) for settings in ((), PENALIZED)
    )
    before, after = (step.at(step.end_of_forward)["activations"] for step in (plain, penalized))
    assert after > before + 4 * (65 * 64 + 65 * 64 + 65 * 10), "a gradient of every parameter"

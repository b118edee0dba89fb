"""What the collectives of a step are handed: nothing before the last micro-batch, in which dtype, how many bytes."""

import pytest
from trainings import GPT, STRATEGIES, composed

ITEM_BYTES = {"float": 4, "bfloat16": 2, "half": 2}
GAN = ("model=gan_digits", "optimizer=adam", "data.batch_size=8", "model.hidden_size=4")


def handed(pair, *overrides_of_each):
    """dtypes and bytes that gloo was handed in a step, and the bytes by our own count, by configuration."""
    configs = [composed(*overrides) for overrides in overrides_of_each]
    found = []
    for reduced, counted in pair.run("cases.collectives_of_a_step", configs=configs)[0]:
        found.append(({dtype for dtype, _ in reduced}, sum(ITEM_BYTES[d] * size for d, size in reduced), counted))
    return found


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("policy", marks=pytest.mark.nightly)])
def test_micro_batches_before_the_last_reduce_nothing(pair, strategy):
    base = (*GPT, *STRATEGIES[strategy], "precision=amp_bf16")
    single, several = handed(pair, base, (*base, "trainer.grad_accum_steps=3"))
    assert single == several
    assert single[1] == single[2] > 0


@pytest.mark.parametrize("strategy", ["ddp", "policy", pytest.param("autocast", marks=pytest.mark.nightly)])
def test_gradients_are_reduced_in_the_dtype_asked_for(pair, strategy):
    names = {"float32": "float", "bfloat16": "bfloat16", "float16": "half"}
    cases = [("fp32", "bfloat16"), ("amp_fp16", "float16"), ("pure_bf16", "float32")]
    cases = [case for case in cases if strategy != "autocast" or case[0].startswith("amp")]
    overrides = [
        (*GPT, *STRATEGIES[strategy], f"precision={mode}", f"parallel.reduce_dtype={dtype}") for mode, dtype in cases
    ]
    for (_, dtype), (dtypes, num_bytes, counted) in zip(cases, handed(pair, *overrides), strict=True):
        assert dtypes == {names[dtype]}
        assert num_bytes == counted > 0


def test_the_bytes_of_all_turns_of_a_step_are_counted(pair):
    gan, wgan = (*GAN, "task=gan"), (*GAN, "task=wgan_gp", "task.critic_steps=2")
    cases = [(gan, "ddp"), (gan, "policy"), (wgan, "ddp")]
    found = handed(pair, *((*game, *STRATEGIES[strategy], "precision=fp32") for game, strategy in cases))
    assert all(num_bytes == counted > 0 for _, num_bytes, counted in found)
    assert found[2][1] > found[0][1]

"""What the collectives of a step are handed, and the time that it waits for them, beside what torch's profiler sees."""

import time
from threading import Thread

import pytest
import torch
from trainings import GPT, MLP, STRATEGIES, Training, composed

from ampsweep.parallel.communication_time import until_released

SLOW_S = 0.2
ITEM_BYTES = {"float": 4, "bfloat16": 2, "half": 2}


def handed(pair, *overrides_of_each):
    """dtypes and bytes that gloo was handed in a step, by configuration; our own count of the bytes is the same."""
    configs = [composed(*overrides) for overrides in overrides_of_each]
    found = []
    for reduced, counted in pair.run("collectives_of_a_step", configs=configs)[0]:
        assert counted == sum(ITEM_BYTES[dtype] * size for dtype, size in reduced) > 0
        found.append(({dtype for dtype, _ in reduced}, counted))
    return found


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("policy", marks=pytest.mark.nightly)])
def test_micro_batches_before_the_last_reduce_nothing(pair, strategy):
    base = (*GPT, *STRATEGIES[strategy], "precision=amp_bf16")
    one, several = handed(pair, base, (*base, "trainer.grad_accum_steps=3"))
    assert one == several


@pytest.mark.parametrize("strategy", ["ddp", "policy", pytest.param("autocast", marks=pytest.mark.nightly)])
def test_gradients_are_reduced_in_the_dtype_asked_for(pair, strategy):
    cases = {"fp32": ("bfloat16", "bfloat16"), "amp_fp16": ("float16", "half"), "pure_bf16": ("float32", "float")}
    modes = ["amp_fp16"] if strategy == "autocast" else cases
    base = (*GPT, *STRATEGIES[strategy])
    found = handed(pair, *((*base, f"precision={mode}", f"parallel.reduce_dtype={cases[mode][0]}") for mode in modes))
    assert [dtypes for dtypes, _ in found] == [{cases[mode][1]} for mode in modes]


def test_the_bytes_of_all_turns_of_a_step_are_counted(pair):
    base = ("model=gan_digits", "optimizer=adam", "data.batch_size=8", "model.hidden_size=4", "precision=fp32")
    gan, wgan = ("task=gan",), ("task=wgan_gp", "task.critic_steps=2")
    cases = [(gan, "ddp"), (gan, "policy"), (wgan, "ddp")]
    found = handed(pair, *((*base, *game, *STRATEGIES[strategy]) for game, strategy in cases))
    assert found[2][1] > found[0][1]


@pytest.mark.parametrize("strategy", ["ddp", "policy"])
def test_all_wait_for_a_slow_rank_that_itself_waits_little(pair, strategy):
    config = composed(*GPT, *STRATEGIES[strategy], "precision=fp32")
    fast, slow = pair.run("waits_of_steps", config=config, slow_s=SLOW_S)
    # The step that other processes disturb least: a wrong figure is wrong in all steps.
    waited = max(ms for ms, _, _ in fast)
    assert waited > 500 * SLOW_S
    assert min(ms for ms, _, _ in slow) < waited / 2
    assert all(num_waits > 0 for _, _, num_waits in fast)
    not_busy_ms = [waited_ms - 1.1 * busy_ms for waited_ms, busy_ms, _ in fast]
    assert min(not_busy_ms) <= 20, "nothing is waited for but collectives"


def test_rows_and_summary_have_the_wait_of_a_rank(pair):
    config = composed(*MLP, *STRATEGIES["ddp"], "precision=fp32", "trainer.steps=6")
    (rows, _, summary), (_, _, of_slow) = pair.run("train", config=config, slow_s=SLOW_S)
    assert summary["perf/communication_ms"] > 500 * SLOW_S > of_slow["perf/communication_ms"]
    timed = [row for row in [summary, *rows] if "perf/step_ms" in row]
    assert len(timed) > 1
    assert all(row["perf/communication_ms"] <= row["perf/step_ms"] for row in timed)


def test_one_process_has_no_communication():
    training = Training(composed(*MLP, "precision=fp32")).train()
    rows = [*training.rows, training.trainer.instruments.summary()]
    assert not any("perf/communication_ms" in row for row in rows)


def test_a_collective_ends_when_its_thread_drops_the_tensors():
    ours, began_s = torch.zeros(8), time.monotonic()
    kept = ours[2:]  # held before, and after
    with until_released(ours):
        thread = Thread(target=lambda view: time.sleep(0.02), args=(ours.view(-1),))
        thread.start()
    assert time.monotonic() - began_s >= 0.02
    thread.join()
    assert kept.untyped_storage().data_ptr() == ours.untyped_storage().data_ptr()


@pytest.mark.parametrize(("device", "least_s", "most_s"), [("cpu", 0.1, 5), ("meta", 0, 0.1)])
def test_a_tensor_that_is_kept_is_not_waited_for_long(device, least_s, most_s):
    ours, kept = torch.zeros(8, device=device), []
    began_s = time.monotonic()
    with until_released(ours):
        kept.append(ours[2:])
    assert least_s <= time.monotonic() - began_s < most_s

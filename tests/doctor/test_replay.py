import math
import weakref
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import planted_loss
import planted_memory
import planted_numerics
import planted_speed
import planted_types
import pytest
import torch
from planted import CPU, Net, examined_of
from torch.nn.modules.module import register_module_forward_pre_hook

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.examine import examine
from ampsweep.doctor.replay import KeptBatches
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.components.built import build, build_data

SMALL = ("model=mlp_small", "data=synthetic", "data.batch_size=16", "data.in_features=8", "model.hidden_size=16")
GPT = ("model=gpt_tiny", "data.batch_size=4", "data.seq_len=16", "model.dropout=0.2")
RESNET = ("model=resnet18", "data=synthetic_images", "data.image_size=16", "data.num_classes=4", "data.batch_size=4")
GAN = ("model=gan_digits", "data.batch_size=8", "optimizer=adam", "trainer.max_grad_norm=null")
SCHEDULE = (*SMALL, "scheduler=cosine", "scheduler.num_warmup_steps=2", "trainer.steps=8")
TORCHAO = ("model=mlp_small", "model.hidden_size=128", "data=digits", "optimizer=adamw_8bit")


def taken(replay, number):
    return [replay.step() for _ in range(number)]


def parameters(replay):
    return {name: value.clone() for name, value in replay.model.state_dict().items()}


@pytest.mark.parametrize(
    ("mode", "workload"),
    [
        ("amp_fp16", SMALL),
        ("amp_bf16", GPT),
        ("amp_fp16", GAN),
        ("pure_bf16", (*SMALL, "trainer.grad_accum_steps=3")),
        ("amp_bf16", TORCHAO),
        ("fp32", SCHEDULE),
        *(pytest.param("pure_bf16", workload, marks=pytest.mark.nightly) for workload in (RESNET, TORCHAO)),
    ],
)
def test_steps_are_repeated_bitwise(mode, workload):
    """And they are those of the training."""
    if workload is TORCHAO:
        pytest.importorskip("torchao", reason="needs torchao, of the extra `modes`")
    examined = examined_of(f"precision={mode}", *workload)
    replay = examined.replay()
    initial = replay.state()
    begun = taken(replay, 2)
    state = replay.state()
    first, end = taken(replay, 2), parameters(replay)
    replay.restore(state)
    assert taken(replay, 2) == first
    torch.testing.assert_close(parameters(replay), end, rtol=0, atol=0)
    replay.restore(initial)
    assert replay.trainer.step == 0
    assert taken(replay, 2) == begun
    built = build(examined.config, CPU, build_data(examined.config, CPU))
    trainer = assemble_trainer(examined.config, built, CPU)
    trainer.model.train()
    with built.precision.flags():
        for expected in begun + first:
            assert sum(map(float, trainer.train_step().losses.values())) == expected.loss


def test_another_precision_goes_on_from_a_state():
    examined = examined_of("precision=fp32", *SMALL)
    baseline, half = examined.replay(), examined.replay(PRECISION_MODES["pure_bf16"])
    taken(baseline, 2)
    half.restore(baseline.state())
    assert half.trainer.step == 2
    expected = {name: value.bfloat16() for name, value in parameters(baseline).items()}
    torch.testing.assert_close(parameters(half), expected, rtol=0, atol=0)
    assert taken(half, 1)[0].loss == pytest.approx(taken(baseline, 1)[0].loss, rel=0.05)


def test_skipped_steps_and_nonfinite_gradients_are_noted():
    step = examined_of("precision=amp_fp16", "precision.init_scale=1e30", *SMALL).replay().step()
    assert (step.number, step.is_skipped, step.scale) == (1, True, pytest.approx(1e30))
    assert not examined_of("precision=amp_fp16", *SMALL).replay().step().is_skipped
    replay = examined_of("precision=amp_bf16", *SMALL).replay()
    assert not replay.step().has_nonfinite_gradients
    next(replay.model.parameters()).register_hook(lambda gradient: gradient / 0)
    step = replay.step()
    assert (step.has_nonfinite_gradients, step.is_skipped, step.scale) == (True, False, None)


def test_steps_end_with_an_error():
    examined = examined_of("precision=amp_bf16", *SMALL)
    replay, remaining = examined.replay(), iter(range(2))
    step = replay.step
    replay.step = lambda: 1 / 0 if next(remaining, None) is None else step()
    examined.replay = lambda: replay
    assert isinstance(examined.own_steps.error, ZeroDivisionError)
    assert len(examined.own_steps.steps) == 2


@pytest.mark.parametrize(
    ("complaint", "overrides"),
    [
        ("types", planted_types.net("gated", "pure_bf16")),
        ("loss", next(fault for fault in planted_loss.PLANTED if fault.name == "softmax without maximum").overrides),
        ("numerics", planted_numerics.PLANTED[0].overrides),
        ("memory", planted_memory.net("cast_to_float")),
        ("speed", planted_speed.net("relu")),
    ],
)
def test_no_step_begins_after_the_deadline_and_findings_are_kept(complaint, overrides, monkeypatch):
    def examined_until(last):
        """The findings of an examination whose time is up during a forward pass, and the number of these passes."""
        num_passes = 0

        def note_pass(module, _):
            nonlocal num_passes
            num_passes += isinstance(module, Net)

        monkeypatch.setattr(KeptBatches, "seconds_left", property(lambda _: 60.0 if num_passes < last else -1.0))
        with ExitStack() as hooks:
            hooks.callback(register_module_forward_pre_hook(note_pass).remove)
            return (*examine(examined_of(*overrides, num_steps=2), [complaint]), num_passes)

    all_found, unexamined, num_passes = examined_until(math.inf)
    assert (complaint == "speed" or bool(all_found), unexamined) == (True, [])
    for last in (1, num_passes // 2, num_passes - 1):
        found, unexamined, num_taken = examined_until(last)
        assert num_taken == last or (complaint == "speed" and num_taken < last)
        is_cut = [(complaint, True)] if num_taken == last else []
        assert [(one.complaint, one.is_begun) for one in unexamined] == is_cut
    assert complaint in ("memory", "speed") or found


def test_batches_are_read_once_and_forgotten():
    read, facts = [], {"batch_size": 1, "num_train_batches": None, "tokens_per_batch": None, "fingerprint": ""}
    kept = KeptBatches(SimpleNamespace(train_batch=lambda index: read.append(index) or index, **facts))
    assert [kept.train_batch(index) for index in (0, 1, 0, 1)] == [0, 1, 0, 1]
    assert kept.next_unread == 2
    kept.forget_before(1)
    assert [kept.train_batch(1), kept.train_batch(0)] == [1, 0]
    assert read == [0, 1, 0]


def test_models_of_earlier_replays_are_collected(monkeypatch):
    monkeypatch.setattr("ampsweep.doctor.replay._UNCOLLECTED_BYTES", 0)
    examined, models = examined_of("precision=amp_bf16", *SMALL), []
    for _ in range(4):
        replay = examined.replay(replace(examined.config.precision, fp32_modules=["*.0"]))
        replay.step()
        models.append(weakref.ref(replay.model))
        del replay
    assert sum(model() is not None for model in models) == 1

import weakref

import pytest
import torch
from patients import CPU, patient_of

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.doctor.replay import KeptBatches
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.components.built import build, build_data

SMALL = ("model=mlp_small", "data=synthetic", "data.batch_size=16", "data.in_features=8", "model.hidden_size=16")
WORKLOADS = {
    "mlp": SMALL,
    "gpt with dropout": ("model=gpt_tiny", "data.batch_size=4", "data.seq_len=16", "model.dropout=0.2"),
    "resnet": (
        "model=resnet18",
        "data=synthetic_images",
        "data.image_size=16",
        "data.num_classes=4",
        "data.batch_size=4",
    ),
    "gan": ("model=gan_digits", "data.batch_size=8", "optimizer=adam", "trainer.max_grad_norm=null"),
    "accumulation": (*SMALL, "trainer.grad_accum_steps=3"),
    "torchao": ("model=mlp_small", "model.hidden_size=128", "data=digits", "optimizer=adamw_8bit"),
    "schedule": (*SMALL, "scheduler=cosine", "scheduler.num_warmup_steps=2", "trainer.steps=8"),
}


def taken(replay, number: int):
    return [replay.step() for _ in range(number)]


def parameters(replay):
    return [value.clone() for value in replay.model.state_dict().values()]


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16", "amp_fp16", "pure_bf16"])
@pytest.mark.parametrize("workload", WORKLOADS)
def test_steps_are_taken_again_bitwise(workload, mode):
    if workload == "torchao":
        pytest.importorskip("torchao", reason="needs torchao, of the extra `modes`")
    replay = patient_of(f"precision={mode}", *WORKLOADS[workload]).replay()
    taken(replay, 2)
    state = replay.state()
    first, end = taken(replay, 3), parameters(replay)
    replay.restore(state)
    assert taken(replay, 3) == first
    assert all(torch.equal(one, other) for one, other in zip(parameters(replay), end, strict=True))


@pytest.mark.parametrize("workload", ["mlp", "gan", "gpt with dropout"])
def test_a_replay_takes_the_steps_of_the_training(workload):
    patient = patient_of("precision=amp_bf16", *WORKLOADS[workload])
    losses = [step.losses for step in taken(patient.replay(), 4)]
    built = build(patient.config, CPU, build_data(patient.config, CPU))
    trainer = assemble_trainer(patient.config, built, CPU)
    trainer.model.train()
    with built.precision.flags():
        for expected in losses:
            assert {name: float(loss) for name, loss in trainer.train_step().losses.items()} == expected


def test_another_precision_goes_on_from_a_state():
    patient = patient_of("precision=fp32", *SMALL)
    baseline, half = patient.replay(), patient.replay(PRECISION_MODES["pure_bf16"])
    taken(baseline, 2)
    half.restore(baseline.state())
    assert half.trainer.step == 2
    expected = [value.bfloat16() for value in parameters(baseline)]
    assert all(torch.equal(one, other) for one, other in zip(parameters(half), expected, strict=True))
    assert taken(half, 1)[0].loss == pytest.approx(taken(baseline, 1)[0].loss, rel=0.05)


def test_steps_that_are_taken_back_leave_nothing():
    replay = patient_of("precision=amp_fp16", *SMALL).replay()
    state = replay.state()
    first = taken(replay, 2)
    replay.restore(state)
    assert replay.trainer.step == 0
    assert taken(replay, 2) == first


def test_a_step_that_overflows_is_skipped():
    step = patient_of("precision=amp_fp16", "precision.init_scale=1e30", *SMALL).replay().step()
    assert step.is_skipped
    assert step.scale == pytest.approx(1e30)
    assert not patient_of("precision=amp_fp16", *SMALL).replay().step().is_skipped


def test_nonfinite_gradients_are_noted_without_a_scaler():
    replay = patient_of("precision=amp_bf16", *SMALL).replay()
    assert not replay.step().has_nonfinite_gradients
    next(replay.model.parameters()).register_hook(lambda gradient: gradient / 0)
    step = replay.step()
    assert step.has_nonfinite_gradients
    assert not step.is_skipped


def test_an_error_ends_the_steps():
    patient = patient_of("precision=amp_bf16", *SMALL)
    replay = patient.replay
    patient.replay = lambda *a, **k: _raising(replay(*a, **k))
    assert isinstance(patient.own_steps.error, ZeroDivisionError)
    assert len(patient.own_steps.steps) == 2


def _raising(replay):
    step, count = replay.step, iter(range(9))

    def limited():
        if next(count) == 2:
            raise ZeroDivisionError
        return step()

    replay.step = limited
    return replay


def test_steps_end_with_their_time():
    assert len(patient_of(*SMALL, seconds=0.0).own_steps.steps) == 1


def test_batches_are_read_once_and_forgotten():
    class Counting:
        batch_size, num_train_batches, tokens_per_batch, fingerprint = 1, None, None, ""

        def __init__(self):
            self.read = []

        def train_batch(self, index):
            self.read.append(index)
            return index

        def val_batches(self):
            yield from ()

    data = Counting()
    kept = KeptBatches(data)
    assert [kept.train_batch(one) for one in (0, 1, 0, 1)] == [0, 1, 0, 1]
    kept.forget_before(1)
    assert [kept.train_batch(1), kept.train_batch(0)] == [1, 0]
    assert data.read == [0, 1, 0]


def test_replays_do_not_pile_up(monkeypatch):
    """A replay's model goes when garbage is collected, which large ones see to themselves."""
    monkeypatch.setattr("ampsweep.doctor.replay._UNCOLLECTED_BYTES", 0)
    patient = patient_of("precision=amp_bf16", *SMALL)
    models = []
    for _ in range(4):
        replay = patient.replay(fp32_modules=["*.0"])
        replay.step()
        models.append(weakref.ref(replay.model))
        del replay
    assert sum(model() is not None for model in models) == 1

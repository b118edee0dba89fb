"""Figures are of ordinary steps alone, in rows read together, and of batches that vary in size or form."""

import math
import time
from collections import namedtuple

import pytest
import torch
import torch._dynamo  # a process that compiles in warm-up has loaded it
from assembled import CPU, LOGGED, MLP, assemble, composed
from torch.utils._pytree import tree_leaves, tree_structure

from ampsweep.config.identity import config_hash
from ampsweep.data.base import as_model_input
from ampsweep.monitors.device_sampler import EnergyMeter
from ampsweep.observe.step import trace_step
from ampsweep.predict.run_prediction import predict_run
from ampsweep.recorder import instruments, recorder
from ampsweep.tasks.classification import Classification
from ampsweep.training import assembly


@pytest.fixture
def timed(monkeypatch):
    """Train while time passes by 10 ms with each batch; returns the instruments and the traced steps."""
    now_s = 0.0
    monkeypatch.setattr(instruments, "perf_counter", lambda: now_s)

    def train(*overrides):
        training, traced = assemble(*MLP, *overrides), []
        own, read, trace = training.instruments, training.trainer.data.train_batch, training.instruments._traced_step

        def train_batch(index):
            nonlocal now_s
            now_s += 0.01
            return read(index)

        training.trainer.data.train_batch = train_batch
        own._traced_step = lambda: traced.append(own.num_steps_seen + 1) or trace()
        training.train()
        return own, traced

    return train


def test_warmup_lasts_until_both_steps_and_seconds_have_passed(timed):
    own, _ = timed("trainer.steps=40", "trainer.warmup_steps=5", "trainer.warmup_seconds=0.095")
    assert own.num_warmup_steps == 12  # ten steps after the traced step, the second
    assert len(own._clock._steady.step_ms) == 28
    assert own.summary()["perf/step_ms"] > 0
    assert own.absent() == {}
    own, _ = timed("trainer.steps=40", "trainer.warmup_steps=15", "trainer.warmup_seconds=0.095")
    assert own.num_warmup_steps == 15
    own, _ = timed("trainer.steps=10", "trainer.warmup_steps=9")
    assert own.num_warmup_steps == 5, "at most half of the steps"
    own, _ = timed("trainer.steps=10", "trainer.warmup_seconds=2")
    assert not [key for key in own.summary() if key.startswith("perf/")]
    assert "before its warm-up (2 steps and 2 s) was over" in own.absent()["perf/step_ms"]
    assert own.contamination(None).verdict == "unknown"


SKIPS = ("precision=amp_fp16", "optimizer.fused=false")
ALL_SKIPPED = (*SKIPS, "precision.init_scale=1e30", "precision.backoff_factor=0.999")


@pytest.mark.parametrize(
    ("settings", "warmup_steps", "traced_steps", "expected"),
    [
        (("optimizer=sgd", "precision=amp_fp16", "precision.init_scale=16"), 10, {2}, 10),
        (("optimizer=adamw", "precision=amp_fp16", "precision.init_scale=16"), 10, {2}, 10),
        (("precision=fp32",), 2, {2}, 3),  # a traced step does not end warm-up
        ((*SKIPS, "precision.init_scale=1e12", "precision.backoff_factor=1e-3"), 10, {*range(3, 10)}, 10),
        *((ALL_SKIPPED, 10, {9}, 10), (ALL_SKIPPED, 3, {2}, 3)),
    ],
)
def test_the_step_after_the_first_applied_step_is_traced(settings, warmup_steps, traced_steps, expected, timed):
    own, (traced,) = timed(*settings, "trainer.steps=20", f"trainer.warmup_steps={warmup_steps}")
    assert traced in traced_steps
    assert own.num_warmup_steps == expected


def test_memory_includes_optimizer_state_however_late_it_comes(timed):
    late = ("precision.init_scale=1e12", "precision.backoff_factor=0.1", "trainer.warmup_steps=3", "trainer.steps=20")
    own, (first, second) = timed(*SKIPS, *late, "optimizer=adamw")
    assert first == 2 < second == own.memory().step
    assert own.memory().peak["optimizer_state"] > own.memory().peak["parameters"]


def test_by_default_only_an_accelerator_needs_time():
    cuda, config, given = torch.device("cuda", 0), composed(*MLP), composed(*MLP, "trainer.warmup_seconds=0.5")
    assert [assembly.warmup_seconds(config, CPU), assembly.warmup_seconds(config, cuda)] == [0, 2]
    assert assembly.warmup_seconds(given, cuda) == 0.5
    default = composed(*MLP, "trainer.warmup_seconds=null")
    assert config_hash(default) == config_hash(config) != config_hash(given), "finished points stay finished"


class Costly(Classification):
    """A step takes 5 J, and the sixth 0.2 s; all else 1000 J. Either it or each evaluation compiles."""

    num_steps = joules = 0

    def loss(self, model, batch):
        self.num_steps += 1
        self.joules += 5
        if self.num_steps == 6:
            time.sleep(0.2)
            self.compile(asked=self.step_compiles)
        return super().loss(model, batch)

    def evaluate(self, model, batch):
        self.joules += 1000
        self.compile(asked=not self.step_compiles)
        return super().evaluate(model, batch)

    def compile(self, *, asked):
        if asked:
            torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))


@pytest.mark.parametrize(("step_compiles", "warmup_steps"), [(True, 0), (False, 1), (False, 4)])
def test_only_ordinary_steps_are_in_time_and_energy(step_compiles, warmup_steps):
    task, often = Costly(), ("trainer.steps=12", "trainer.eval_every=5", "trainer.checkpoint_every=4")
    task.step_compiles = step_compiles
    saves = lambda trainer: setattr(task, "joules", task.joules + 1000)  # noqa: E731
    training = assemble(*MLP, *often, f"trainer.warmup_steps={warmup_steps}", task=task, _save=saves)
    training.instruments._energy = EnergyMeter(lambda: task.joules, samples_per_step=16, min_stretch_s=0)
    training.train()
    summary = training.instruments.summary()
    assert (summary["perf/step_ms_p95"] < 70) == step_compiles, "an evaluation that compiles excludes no step"
    assert summary["device/energy_per_sample_j"] == 5 / 16


def test_values_of_a_row_are_those_of_its_step():
    rows, loss, count = recorder.UnreadRows(CPU), torch.tensor(1 / 3), torch.tensor(2**24 + 1)
    for step in (10, 20):
        rows.add(step, {"train/loss": loss, "amp/applied_steps": count, "train/lr": 0.1})
        loss += 1
        count += 1
    rows.add(30, {"train/loss": torch.tensor(math.inf, dtype=torch.bfloat16)})  # rows may have different keys
    (step, first), (_, second), last = rows.take()
    assert (step, last) == (10, (30, {"train/loss": math.inf}))
    assert first == {"train/loss": torch.tensor(1 / 3).item(), "amp/applied_steps": 2**24 + 1, "train/lr": 0.1}
    assert second["amp/applied_steps"] == 2**24 + 2
    while not rows.full:
        rows.add(len(rows), {"train/loss": torch.tensor(float(len(rows)))})
    assert [values["train/loss"] for _, values in rows.take()] == [float(n) for n in range(32)]
    assert (rows.full, len(rows)) == (False, 0)


def test_rows_read_together_are_those_read_one_by_one(monkeypatch):
    overrides = (*MLP, "precision=amp_fp16", "trainer.steps=40", "trainer.eval_every=15", "scheduler=cosine")
    keys = ("step", "train/loss", "train/lr", "train/grad_norm", "val/loss", "amp/scale", "amp/skipped_steps")
    results = []
    for flush_every_s in (0.0, math.inf):
        monkeypatch.setattr(recorder, "FLUSH_EVERY_S", flush_every_s)
        training = assemble(*overrides)
        training.train()
        results.append([{key: row[key] for key in keys if key in row} for row in training.rows])
        diverging = assemble(*MLP, "optimizer=sgd", "optimizer.lr=1e30", "trainer.steps=20")
        ending = diverging.train()
        assert ending.status == "diverged"
        assert [math.isfinite(row["train/loss"]) for row in diverging.rows[-2:]] == [True, False]
        assert ending.error.endswith(f"at step {diverging.rows[-1]['step']}")
    assert results[0] == results[1]
    assert len(results[0]) == 40
    training = assemble(*MLP, "trainer.steps=20")  # never flushed, until a step fails
    train_batch = training.trainer.data.train_batch
    training.trainer.data.train_batch = lambda index: 1 / 0 if index == 10 else train_batch(index)
    with pytest.raises(ZeroDivisionError):
        training.train()
    assert [row["step"] for row in training.rows] == list(range(1, 11)), "rows before a failing step are logged"


def items(most):
    """Items of 1 to `most` rows."""
    return [(torch.randn(1 + index * 7 % most, 64), torch.randn(1 + index * 7 % most, 1)) for index in range(64)]


def joined(batch):
    return tuple(map(torch.cat, zip(*batch, strict=True)))


def settings(rows):
    return (
        *("model=custom", "model._target_=torch.nn.Linear", "+model.in_features=64", "+model.out_features=1"),
        *("data=custom", "data._target_=ampsweep.data.map_dataset.MapDataset", "data.batch_size=4"),
        *(f"+data.{split}={{_target_: {__name__}.items, {rows}}}" for split in ("train", "val")),
        *(f"+data.collate={{_target_: {__name__}.joined, _partial_: true}}", "+data.num_workers=0"),
        *("task=regression", "optimizer=sgd", "trainer.steps=16"),
    )


def test_peak_memory_is_that_of_the_traced_step():
    second, whole = (assemble(*settings("most: 37")) for _ in range(2))
    second.trainer.model.train()
    second.trainer.train_step()
    with trace_step(second.built.model, *second.trainer.optimizers.values()) as traced:
        second.trainer.train_step()
    whole.train()
    memory = whole.instruments.memory()
    assert (memory.peak_bytes, memory.step) == (traced.result.peak_bytes, 2)


def test_a_prediction_of_a_batch_that_varies_is_doubtful():
    varying, even = (composed(*LOGGED, *settings(f"most: {most}")) for most in (37, 1))
    assert [doubt.doubt for doubt in predict_run(varying, CPU).unvouched] == ["varies"]
    assert predict_run(even, CPU).unvouched is None


IMAGES, LABELS = torch.ones(2, 3, 4, 4), torch.tensor([0, 1])
Pair = namedtuple("Pair", "images labels")


def test_a_batch_keeps_its_form_and_images_take_dtype_and_layout():
    nested = {"inputs": [(IMAGES, "a file's name", None)], "labels": LABELS}
    for batch in ((IMAGES, LABELS), [IMAGES, LABELS], Pair(IMAGES, LABELS), nested):
        prepared = as_model_input(batch, torch.bfloat16, channels_last=False)
        assert type(prepared) is type(batch)
        assert tree_structure(prepared) == tree_structure(batch)
        assert tree_leaves(prepared)[0].dtype == torch.bfloat16
        assert tree_leaves(prepared)[-1] is LABELS
    prepared = as_model_input((IMAGES, torch.ones(2, 3), LABELS), torch.float32, channels_last=True)
    assert prepared[0].is_contiguous(memory_format=torch.channels_last)
    assert not prepared[0].is_contiguous()
    assert prepared[1].is_contiguous()
    assert as_model_input(IMAGES, torch.float32, channels_last=False) is IMAGES, "nothing is copied"

"""What torch's hooks report of a loop becomes its steps, losses and model, whatever loop it is."""

import copy
import gc
import os
import pickle
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from ampsweep.integrations.script.command_line import claim_of
from ampsweep.integrations.script.hooks import Hooks
from ampsweep.integrations.script.session import VARIABLE, Session
from ampsweep.integrations.script.watcher import ScriptWatcher
from ampsweep.observe.operators import innermost_mode
from ampsweep.records import RunRecord, read_history


@pytest.fixture(autouse=True)
def without_objects_of_other_tests():
    """What other tests keep alive would be found as a part of the training."""
    gc.freeze()  # these are in no list of objects
    yield
    gc.unfreeze()


@contextmanager
def watched(place, log_every=1):
    """Watch what happens inside as in a recorded command; yields a list that gets the record and the rows."""
    torch.manual_seed(0)
    session = Session(folder=str(place), root=str(place / "runs"), is_into=True, log_every=log_every)
    with patch.dict(os.environ, {VARIABLE: session.variable()}):
        watcher, found = ScriptWatcher(session), []
        before = torch.autograd.backward
        try:
            yield found
        finally:
            watcher.end()
    assert torch.autograd.backward is not before, "the wrapped functions are put back"
    directories = [own.directory for own in session.told() if own.directory is not None]
    for (directory,) in [directories] if directories else []:
        found += [RunRecord.read(place / directory), read_history(place / directory)]


def test_a_step_of_a_gan_is_a_round_with_the_last_loss_of_each_turn(tmp_path):
    generator, critic = nn.Linear(4, 8), nn.Linear(8, 1)
    optimizers = [torch.optim.Adam(model.parameters()) for model in (critic, generator)]
    sums = []
    with watched(tmp_path) as found:
        for _ in range(6):
            for _ in range(3):
                real = critic(torch.randn(16, 8)).square().mean()
                fake = critic(generator(torch.randn(16, 4)).detach()).square().mean()
                optimizers[0].zero_grad()
                real.backward()
                fake.backward()
                optimizers[0].step()
            deceived = critic(generator(torch.randn(16, 4))).square().mean()
            optimizers[1].zero_grad()
            deceived.backward()
            optimizers[1].step()
            sums.append((real + fake + deceived).item())
    record, rows = found
    assert [row["train/loss"] for row in rows] == pytest.approx(sums)
    assert (record.identity.steps, record.identity.model_size) == (6, 49)
    assert record.identity.optimizer == "Adam, Adam"


def test_the_loss_of_a_closure_is_its_first(tmp_path):
    weight, x = torch.zeros(5, 1, requires_grad=True), torch.randn(50, 5)
    optimizer = torch.optim.LBFGS([weight], max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = (x @ weight - 1).square().mean()
        loss.backward()
        return loss

    with watched(tmp_path) as found:
        firsts = [optimizer.step(closure).item() for _ in range(5)]
    assert [row["train/loss"] for row in found[1]] == pytest.approx(firsts)
    assert found[0].identity.steps == 5


def test_wrappers_of_an_optimizer_are_one_step_and_the_model_is_only_read(tmp_path):
    class Lookahead(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure=None):
            return self.inner.step(closure)

    model, teacher = nn.Sequential(nn.Linear(4, 4), nn.Dropout()), nn.Linear(4, 4)
    wrapper, ema = nn.ModuleDict({"module": model}), copy.deepcopy(model)
    optimizer = Lookahead(torch.optim.SGD(model.parameters(), 0.1))
    before = pickle.dumps(model)
    with watched(tmp_path) as found:
        for _ in range(4):
            F.mse_loss(model(torch.randn(8, 4)), teacher(torch.randn(8, 4))).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert (found[0].identity.steps, found[0].identity.model) == (4, "Sequential")
    assert len(pickle.dumps(model)) == len(before)
    assert (wrapper["module"] is model, len(ema)) == (True, 2)


def test_a_step_behind_an_evaluation_does_not_count_and_is_not_traced(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    with watched(tmp_path) as found:
        for step in range(1, 25):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 1 or step % 6 == 0:
                model.eval()
                with torch.no_grad():
                    model(torch.randn(4096, 4))
                model.train()
    record, rows = found
    assert record.identity.steps == len(rows) == 24
    assert [row["step"] for row in rows if "perf/step_ms" not in row] == [2, 3, 7, 13, 19]
    assert record.memory.peak_bytes < 4096 * 4


def test_a_loop_that_trains_in_evaluation_mode_is_timed(tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    with watched(tmp_path) as found:
        for _ in range(16):
            model.eval()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    assert [row["step"] for row in found[1] if "perf/step_ms" in row][-10:] == list(range(7, 17))


@pytest.mark.parametrize("place", ["around each step", "around some forward passes"])
def test_modes_of_the_script_are_left_as_they_were(place, tmp_path):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    with watched(tmp_path) as found:
        for step in range(8):
            with FlopCounterMode(display=False) as own:
                loss = model(torch.randn(8, 4)).square().mean()
                if place == "around each step":
                    loss.backward()
                    optimizer.step()
            with nullcontext() if place == "around each step" else FlopCounterMode(display=False):
                if place != "around each step":
                    loss.backward()
            if place != "around each step":
                optimizer.step()
            assert own.get_total_flops() > 0, step
    assert innermost_mode() is None
    assert found[0].status == "completed"
    assert (found[0].proof.flops is None) == ("proof" in found[0].absent) == (place == "around each step")


def test_another_training_is_left_out_and_a_new_optimizer_takes_over(tmp_path):
    model, other = nn.Linear(4, 4), nn.Linear(9, 9)
    with watched(tmp_path) as found:
        for trained in (model, other, model):
            optimizer = torch.optim.AdamW(trained.parameters())
            for _ in range(5):
                trained(torch.randn(8, trained.in_features)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    record, rows = found
    assert (record.identity.steps, record.identity.model_size) == (10, 20)
    assert [row["step"] for row in rows] == list(range(1, 11))


def test_a_listener_that_fails_is_heard_no_more_and_the_training_goes_on(tmp_path, monkeypatch):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())

    def fail(self, optimizer):
        raise RuntimeError("planted")

    with watched(tmp_path) as found:
        for step in range(6):
            if step == 3:
                monkeypatch.setattr(ScriptWatcher, "_is_complete", fail)
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    assert optimizer.state[model.weight]["step"] == 6
    assert found[0].status == "interrupted"
    assert "the recording ended" in found[0].error


def test_a_loop_without_optimizer_steps_has_no_record(tmp_path):
    with watched(tmp_path) as found:
        nn.Linear(4, 4)(torch.randn(8, 4)).sum().backward()
    assert found == []
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("command", "claim"),
    [
        ("python train.py --bf16 --tf32 True", "bf16+tf32"),
        ("python train.py --bf16 False --fp16 true", "fp16"),
        ("python train.py trainer.precision=16-mixed", "16-mixed"),
        ("python train.py --dtype=bfloat16 --amp", "bfloat16"),
        ("python train.py --precision high --no-amp", "fp32"),
        ("python train.py --bf16_full_eval --lr -1e-3", None),
    ],
)
def test_a_claim_is_read_from_the_command_line(command, claim):
    assert claim_of(command.split()) == claim


def test_hooks_leave_what_others_have_wrapped_since(monkeypatch):
    monkeypatch.setattr(nn.Module, "eval", nn.Module.eval)
    hooks = Hooks(ScriptWatcher.__new__(ScriptWatcher))
    inner = nn.Module.eval

    def theirs(self):
        return inner(self)

    nn.Module.eval = theirs
    hooks.close()
    assert nn.Module.eval is theirs
    assert isinstance(nn.Linear(1, 1).eval(), nn.Linear), "silent by now"

"""A task trains more of its model from some step on, as a loop by hand would, on any resume, and memory follows."""

import pytest
import torch
from assembled import assert_resumes_bitwise, own, trained
from hand_loop import DTYPES, Loop, assert_same, settings
from torch import nn

from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.step_memory import step_memory
from ampsweep.predict.target_device import TargetDevice
from ampsweep.tasks.base import Turn
from ampsweep.tasks.classification import Classification

FROM, NUM_STEPS, WIDTH = 4, 8, 32


class Net(nn.Sequential):
    def __init__(self):
        body = nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU())
        super().__init__(body, nn.Linear(WIDTH, 10))


class Gradual(Classification):
    """Trains the head alone, and from a step on all."""

    def before_step(self, model, step):
        model[0].requires_grad_(step >= FROM)


class TwoTurns(Gradual):
    """The same with an optimizer for each part, in turns of their own."""

    @property
    def turns(self):
        return [
            Turn(name="head", loss=self.loss, trains={"head": ["1.*"]}),
            Turn(name="all", loss=self.loss, trains={"rest": ["0.*1.bias", "0.1.*"]}),
        ]

    def before_step(self, model, step):
        model[0][1].weight.requires_grad_(step >= FROM)


def gradual(task="Gradual", *more):
    sgd = ("optimizer=adam", "optimizer.lr=1e-3", "trainer.max_grad_norm=null", f"trainer.steps={NUM_STEPS}")
    return own(__name__, "Net", "task=custom", f"task._target_={__name__}.{task}", *sgd, *more)


@pytest.mark.parametrize(("mode", "init_scale"), [("fp32", 1.0), ("amp_fp16", 2.0**16)])
def test_a_schedule_that_unfreezes_is_bitwise_the_loop_by_hand(mode, init_scale):
    hand = Loop(mode, init_scale, Net)
    adam = torch.optim.Adam(hand.model.parameters(), lr=1e-3, fused=True)
    for step in range(1, NUM_STEPS + 1):
        hand.model[0].requires_grad_(step >= FROM)
        images, classes = hand.batch()
        with torch.autocast("cpu", DTYPES.get(mode), enabled=mode in DTYPES):
            loss = nn.functional.cross_entropy(hand.model(images).float(), classes)
        hand.scaler.scale(loss).backward()
        hand.scales.append(hand.scaler.get_scale())
        hand.scaler.step(adam)
        hand.scaler.update()
        adam.zero_grad()
        hand.losses.append(loss.item())
    assert_same(trained(*gradual("Gradual", *settings(mode, init_scale))), hand)


@pytest.mark.parametrize("stop_after", [FROM - 2, FROM - 1, FROM + 1])
@pytest.mark.parametrize("task", ["Gradual", "TwoTurns"])
def test_it_resumes_bitwise_before_and_after_the_change(task, stop_after, tmp_path):
    master = ("precision=amp_fp16",) if task == "TwoTurns" else ("precision=master_bf16",)
    assert_resumes_bitwise(tmp_path, *gradual(task, *master), stop_after=stop_after)


def test_memory_is_that_of_the_fullest_step_and_predicted_for_it():
    training = trained(*gradual())
    whole = trained(*gradual(), "task._target_=ampsweep.tasks.classification.Classification")
    use, of_whole = training.instruments.memory(), whole.instruments.memory()
    assert (use.step, of_whole.step) == (FROM + 1, 2), "traced again, once the optimizer has all its state"
    assert use.peak == of_whole.peak
    assert training.instruments.proof().flops == whole.instruments.proof().flops
    cpu, config = TargetDevice("cpu"), training.config
    for step in (2, FROM + 1):
        memory = step_memory(FakeTraining(config, cpu).trace(16, step=step), cpu, 16)
        assert (memory.peak == use.peak) == (step == FROM + 1)
        assert [operator.doubt for operator in memory.unvouched] == ["varies"]

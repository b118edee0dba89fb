"""A step in which something is compiled is warm-up, whenever it comes; what an evaluation compiles makes none."""

import time

import torch
import torch._dynamo  # whoever compiles in warm-up has loaded it
from assembled import MLP, assemble

from ampsweep.tasks.classification import Classification

SLOW_S, SLOW_STEP = 0.2, 6


def compile_something():
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))


class Compiling(Classification):
    """Its sixth step is slow, and compiles where that is asked for; so can an evaluation."""

    def __init__(self, *, step_compiles, evaluation_compiles):
        super().__init__()
        self.step_compiles, self.evaluation_compiles = step_compiles, evaluation_compiles
        self.num_steps = 0

    def loss(self, model, batch):
        self.num_steps += 1
        if self.num_steps == SLOW_STEP:
            time.sleep(SLOW_S)
            if self.step_compiles:
                compile_something()
        return super().loss(model, batch)

    def evaluate(self, model, batch):
        if self.evaluation_compiles:
            compile_something()
        return super().evaluate(model, batch)


def p95_ms(**compiles):
    training = assemble(*MLP, "trainer.steps=10", "trainer.eval_every=5", task=Compiling(**compiles))
    training.train()
    return training.trainer.instruments.summary()["perf/step_ms_p95"]


def test_a_step_that_compiles_is_in_no_figure():
    assert p95_ms(step_compiles=True, evaluation_compiles=False) < 1e3 * SLOW_S / 3


def test_what_an_evaluation_compiles_takes_no_step_out():
    assert p95_ms(step_compiles=False, evaluation_compiles=True) > 1e3 * SLOW_S / 3

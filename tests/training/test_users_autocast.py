"""Custom autograd functions, decorators and regions of the user's own: trained as in a loop written by hand."""

import pytest
import torch
import torch.nn.functional as F
from amp_loops import amp_step
from assembled import CPU, assemble

from ampsweep.data.digits import Digits
from ampsweep.training.components.instantiate import locate

pytestmark = pytest.mark.filterwarnings("ignore:.*CUDA is not available:UserWarning")

DTYPES = {"fp32": None, "amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}
HERE = [f"HERE.{name}" for name in ("WithAutocastable", "WithFloat32", "Decorated", "DecoratedOff", "Region")]
HARMLESS = [f"ON_CUDA.{name}" for name in ("Decorated", "DecoratedOff", "Region")]
SEED, NUM_STEPS, SCALE = 3, 4, 1024.0


def own(name):
    return ("model=custom", f"model._target_=autocast_users.{name}", "data=digits", "data.batch_size=16")


def by_hand(name, mode):
    torch.manual_seed(SEED)
    model = locate("model", {"_target_": f"autocast_users.{name}"})()
    data = Digits(val_fraction=0.2, batch_size=16, seed=SEED, device=CPU)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=mode == "amp_fp16")

    def loss(outputs, classes):
        return F.cross_entropy(outputs.float(), classes)

    losses = []
    for step in range(NUM_STEPS):
        losses += amp_step(
            model, optimizer, scaler, [data.train_batch(step)], loss_fn=loss, dtype=DTYPES[mode], max_norm=1.0
        )[0]
    return [value.item() for value in losses], [*model.parameters()]


@pytest.mark.parametrize("mode", DTYPES)
@pytest.mark.parametrize("name", [*HERE, *HARMLESS])
def test_every_loss_is_that_of_a_loop_written_by_hand(name, mode, seen):
    expected, parameters = by_hand(name, mode)
    dtypes = [*seen]
    seen.clear()
    training = assemble(
        *own(name), f"precision={mode}", f"seed={SEED}", "optimizer=sgd", "optimizer.lr=0.1", "optimizer.momentum=0",
        "trainer.max_grad_norm=1", f"trainer.steps={NUM_STEPS}", f"precision.init_scale={SCALE}",
    )  # fmt: skip
    assert training.train().status == "completed"
    assert list(training.column("train/loss").values()) == expected
    assert all(map(torch.equal, training.parameters(), parameters))
    assert seen[: len(dtypes)] == dtypes


@pytest.mark.parametrize("mode", ["amp_bf16", "amp_fp16"])
def test_both_kinds_compute_in_the_dtype_that_they_ask_for(mode, seen):
    for name, dtype in (("WithAutocastable", DTYPES[mode]), ("WithFloat32", torch.float32)):
        assemble(*own(f"HERE.{name}"), f"precision={mode}", "precision.eval=autocast", "trainer.steps=3").train()
        assert {found for _, found in seen} == {dtype}
        assert any("backward" in place for place, _ in seen)
        seen.clear()

"""Modules that docs/workloads.md shows train as it says, in the modes that they are for."""

import sys
from pathlib import Path

import pytest
import torch
from assembled import MLP, trained
from hand_loop import by_hand, cross_entropy, settings

PAGE = (Path(__file__).parents[2] / "docs/workloads.md").read_text()
LR, RHO, NUM_STEPS = 0.05, 0.05, 8


@pytest.fixture(autouse=True)
def shown(tmp_path, monkeypatch):
    """The modules of the page, to be imported; they are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    for block in PAGE.split("```python\n# ")[1:]:
        name, _, code = block.partition("\n")
        (tmp_path / name).write_text(code.partition("\n```")[0])
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize(("mode", "init_scale"), [("fp32", 1.0), ("amp_fp16", 65536.0)])
def test_sam_is_that_of_a_loop_by_hand(mode, init_scale):
    def sharp(model, batch, autocast, scaler):
        """The loss at the top of the climb; its gradients are taken there, and the weights are put back."""
        parameters = [*model.parameters()]
        loss = cross_entropy(model, batch, autocast, scaler)
        scaled = torch.autograd.grad(scaler.scale(loss), parameters)
        uphill = [gradient * (1.0 / scaler.get_scale()) for gradient in scaled]
        far = RHO / (torch.stack([gradient.norm() for gradient in uphill]).norm() + 1e-12)
        before = [parameter.detach().clone() for parameter in parameters]
        with torch.no_grad():
            for parameter, gradient in zip(parameters, uphill, strict=True):
                parameter.add_(far * gradient)
        loss = cross_entropy(model, batch, autocast, scaler)
        top = torch.autograd.grad(scaler.scale(loss), parameters)
        with torch.no_grad():
            for parameter, value in zip(parameters, before, strict=True):
                parameter.copy_(value)
        sums = [(p * g).sum() for p, g in zip(parameters, top, strict=True)]  # whose gradients are those at the top
        return loss.detach() + (sum(sums) - sum(sums).detach()) / scaler.get_scale()

    def sgd_of(parameters):
        return torch.optim.SGD(parameters, lr=LR)

    hand = by_hand(mode, sgd_of, steps=NUM_STEPS, init_scale=init_scale, loss=sharp)
    task = ("task=custom", "task._target_=sharp.SAM", f"+task.rho={RHO}", f"trainer.steps={NUM_STEPS}")
    sgd = ("optimizer=sgd", f"optimizer.lr={LR}", "optimizer.momentum=0", "trainer.max_grad_norm=null")
    training = trained(*MLP, *settings(mode, init_scale), *task, *sgd)
    close = {"fp32": 1e-6, "amp_fp16": 1e-4}[mode]
    assert [*training.column("train/loss").values()] == pytest.approx(hand.losses, rel=close)
    plain = trained(*MLP, *settings(mode, init_scale), *sgd, f"trainer.steps={NUM_STEPS}").parameters()
    for own, by_hand_, other in zip(training.parameters(), hand.model.parameters(), plain, strict=True):
        torch.testing.assert_close(own, by_hand_, rtol=close, atol=close)
        assert not torch.equal(own, other)


@pytest.mark.parametrize("mode", ["fp32", "amp_bf16"])
def test_hugging_faces_dicts_give_loss_and_accuracy(mode):
    pytest.importorskip("transformers", reason="transformers is not installed")
    part = "{{_target_: hf_classes.Sentences, first: {}, last: {}}}".format
    data = ("data=custom", "data._target_=ampsweep.data.map_dataset.MapDataset", "data.batch_size=16")
    sets = (f"+data.train={part(0, 200)}", f"+data.val={part(200, 260)}")
    collate = "+data.collate={_target_: hf_classes.padded, _partial_: true}"
    model = ("model=custom", "model._target_=hf_classes.Model", "task=custom", "task._target_=hf_classes.WithAccuracy")
    training = trained(*data, *sets, collate, *model, f"precision={mode}", "trainer.steps=40", "optimizer.lr=3e-3")
    first, last = training.rows[0], training.rows[-1]
    assert last["train/loss"] < first["train/loss"] / 2
    assert last["train/accuracy"] > 0.9 < last["val/accuracy"]
    assert last["val/loss"] < 0.5


def test_a_page_shows_mistakes_and_a_model_that_unfreezes():
    shown = trained(*MLP, "task=custom", "task._target_=shown.Shown", "trainer.steps=3")
    assert shown.column("train/accuracy").keys() == {1, 2, 3}
    unfreezing = ("model=custom", "model._target_=lessons.Net", "task=custom", "task._target_=lessons.Unfreezing")
    training = trained("data=digits", *unfreezing, "trainer.steps=22")
    assert training.instruments.memory().step == 22

"""A training with modules kept in float32: its proof, and checkpoints that fit trainings without them."""

import pytest
import torch
from assembled import MLP, assemble, resumed

from ampsweep.analysis.contradictions import contradictions
from ampsweep.config.errors import UserError

HEAD = "precision.fp32_modules=[head]"


def test_a_run_has_the_proof_and_its_checkpoint_fits_others(tmp_path):
    training = assemble(
        *MLP, "precision=amp_bf16", "precision.fp32_modules=[head]", "trainer.steps=4", "trainer.checkpoint_every=4",
        directory=tmp_path,
    )  # fmt: skip
    assert training.train().status == "completed"
    proof = training.trainer.instruments.proof()
    assert proof.fp32_module_flops.keys() == {"float32"}
    assert contradictions(training.config.precision, proof) == []
    weights = training.parameters()
    for others in ((), ("precision=amp_bf16",), ("precision=amp_fp16", "precision.fp32_modules=[blocks.0]")):
        plain, notes = resumed(tmp_path, *MLP, *others, "trainer.steps=6")
        assert all(map(torch.equal, plain.parameters(), weights))
        assert not any("model" in note for note in notes)
    assert plain.train().status == "completed"


@pytest.mark.parametrize("mode", ["amp_bf16", "amp_fp16"])
def test_it_learns_as_a_loop_with_a_subregion(mode):
    """The suite's losses are those of a loop that casts and switches autocast off by hand."""
    training = assemble(*MLP, f"precision={mode}", HEAD, "trainer.steps=6", "precision.init_scale=1024")
    by_hand = assemble(*MLP, f"precision={mode}", "trainer.steps=6", "precision.init_scale=1024")
    head = by_hand.built.model.head

    def subregion(hidden, forward=head.forward):
        with torch.autocast("cpu", enabled=False):
            return forward(hidden.float())

    head.forward = subregion
    plain = assemble(*MLP, f"precision={mode}", "trainer.steps=6", "precision.init_scale=1024")
    for one in (training, by_hand, plain):
        assert one.train().status == "completed"
    assert training.column("train/loss") == by_hand.column("train/loss")
    assert all(map(torch.equal, training.parameters(), by_hand.parameters()))
    assert training.column("train/loss") != plain.column("train/loss")


def test_in_fp32_they_change_nothing():
    losses = []
    for more in ((), (HEAD,)):
        training = assemble(*MLP, "precision=fp32", *more, "trainer.steps=4")
        training.train()
        losses.append(training.column("train/loss"))
        assert training.trainer.instruments.proof().fp32_module_flops is None
    assert losses[0] == losses[1]


def test_a_wrong_pattern_is_the_users_error():
    with pytest.raises(UserError, match="there are blocks, head"):
        assemble(*MLP, "precision.fp32_modules=[haed]")

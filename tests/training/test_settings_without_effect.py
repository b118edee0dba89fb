"""Settings of the trainer that change nothing: told beside the run's figures, which stand."""

from dataclasses import asdict
from types import SimpleNamespace

import pytest
from assembled import assemble

from ampsweep.analysis.run_findings import without_effect
from ampsweep.record.parts import ModeProof

ON_DIGITS = ("model=custom", "data=digits", "data.batch_size=16", "task=classification", "trainer.steps=4")
CHANNELS_LAST, CHECKPOINTED = "trainer.channels_last=true", "trainer.activation_checkpointing=true"
CONVOLUTIONS = (*ON_DIGITS, "model._target_=checkpointed_models.TwoConvolutions")


def notes(*overrides):
    training = assemble(*overrides)
    assert training.train().status == "completed"
    proof = training.trainer.instruments.proof()
    return kinds(training.config.trainer, proof), proof


def kinds(trainer, proof):
    identity = SimpleNamespace(seed=0)
    record = SimpleNamespace(config={"trainer": asdict(trainer)}, proof=proof, identity=identity)
    return [one.kind() for one in without_effect(record)]


@pytest.mark.parametrize(
    ("overrides", "noted"),
    [
        ((*CONVOLUTIONS, CHANNELS_LAST), []),
        ((*CONVOLUTIONS, CHANNELS_LAST, "precision=amp_bf16"), []),
        ((*CONVOLUTIONS, "+model.puts_back=true"), []),
        ((*ON_DIGITS, "model._target_=checkpointed_models.Idle", CHECKPOINTED), ["nothing_recomputed"]),
        ((*ON_DIGITS, "model._target_=checkpointed_models.Idle"), []),
        ((*ON_DIGITS, "model._target_=checkpointed_models.Reentrant", CHECKPOINTED), []),
    ],
)
def test_a_setting_that_was_asked_for_and_did_nothing_is_noted(overrides, noted):
    assert notes(*overrides)[0] == noted


def test_of_what_was_not_counted_nothing_is_said():
    training = assemble(*CONVOLUTIONS, CHANNELS_LAST)
    assert kinds(training.config.trainer, ModeProof(flops={"float32": 1})) == []

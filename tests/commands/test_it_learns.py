"""On real data the loss falls, in every precision mode."""

import pytest
from command_line import GPT, MLP, only_run

MODES = pytest.mark.parametrize("precision", ["fp32", "amp_bf16", "amp_fp16"])


@MODES
def test_handwritten_digits_are_learned_to_a_real_accuracy(precision, train):
    arguments = ("trainer.steps=null", "trainer.epochs=10", "optimizer.lr=2e-3", f"precision={precision}")
    assert train(*MLP, *arguments).code == 0
    run = only_run()
    assert run.record.identity.steps == 224
    assert run.record.summary["val/accuracy"] >= 0.9
    assert run.record.summary["val/loss"] < 0.4


@MODES
def test_text_is_learned_beyond_the_frequency_of_letters(precision, train):
    """A model that knows nothing has a loss of 5.5, one that knows how often each byte comes of 3.3 (its entropy)."""
    lengths = ("trainer.steps=200", "trainer.log_every=50", "trainer.eval_every=50", "data.num_val_batches=8")
    assert train(*GPT, *lengths, "optimizer.lr=1e-2", f"precision={precision}").code == 0
    losses = list(only_run().column("val/loss").values())
    assert losses[-1] < min(3.25, losses[0])  # on the way it may rise: rounding and text differ

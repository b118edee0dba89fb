"""What several ranks have saved goes on as if nothing had been, and on any number of processes."""

import pytest
from command_line import only_run

TRAINING = (
    *("model=gpt_tiny", "model.hidden_size=16", "model.num_heads=2", "model.num_layers=1", "model.dropout=0.2"),
    *("data=synthetic_tokens", "data.seq_len=8", "data.vocab_size=32", "data.batch_size=4", "device=cpu"),
    *("trainer.steps=12", "trainer.log_every=1", "trainer.checkpoint_every=4", "tracking=disabled"),
    *("predict.with_runs=false", "precision=amp_fp16", "precision.init_scale=16777216", "scheduler=cosine"),
)
TWO = ("parallel=fsdp2", "parallel.num_processes=2")
SAME = ("train/loss", "train/grad_norm", "train/lr", "amp/scale", "amp/applied_steps")


@pytest.mark.slow
def test_a_checkpoint_of_two_ranks_is_gone_on_with(train):
    assert train(*TRAINING, *TWO, "predict.with_runs=true", "output_dir=whole").code == 0
    whole = only_run("whole")
    assert whole.record.prediction.error_pct == 0, "of the fullest rank"
    assert whole.record.memory.peak["communication"] > 0
    checkpoint = whole.directory / "checkpoints/previous"
    assert {path.name for path in checkpoint.parent.iterdir()} == {"last", "previous"}

    assert train(*TRAINING, *TWO, f'resume="{checkpoint}"', "output_dir=again").code == 0
    again = only_run("again")
    (attempt,) = again.record.attempts
    assert (attempt.from_step, attempt.checkpoint, attempt.notes) == (8, str(checkpoint), [])
    for key in SAME:
        assert again.column(key) == {step: value for step, value in whole.column(key).items() if step > 8}, key
    assert 0 < whole.column("amp/applied_steps")[8] < 8, "some steps were skipped, and some applied"

    assert again.record.memory.peak == whole.record.memory.peak

    alone = ("model.dropout=0", "data.batch_size=8", "trainer.steps=14", f'resume="{checkpoint}"', "output_dir=alone")
    assert train(*TRAINING, *alone).code == 0
    run = only_run("alone")
    assert sorted(run.column("train/loss")) == [*range(9, 15)]
    assert run.column("amp/applied_steps")[9] == whole.column("amp/applied_steps")[8] + 1

    (checkpoint / "rank-1.pt").write_bytes(b"")
    refused = train(*TRAINING, *alone)
    assert refused.code == 2
    assert refused.err.strip().endswith("rank-1.pt cannot be read: it is damaged or no checkpoint")

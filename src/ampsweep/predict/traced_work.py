"""The work of a traced training, to be timed on a GPU."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ampsweep.observe.operator_work import OperatorWork
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.speed.step_time import StepWork


@dataclass(frozen=True)
class TracedWork:
    """The work of a step at the configured batch size and at the largest that fits into a GPU's memory."""

    step: StepWork
    at_largest: StepWork | None  # None if not even one item fits, and for several ranks
    fits: bool  # the configured batch size
    batches_per_step: int  # micro-batches of all ranks
    tokens_per_sample: int | None  # None if the data is not tokens
    reading_ms: float  # in which one process on this machine's CPU reads what a rank needs for a step
    num_steps: int  # of the training


def traced_work(
    training: FakeTraining,
    works: Callable[[int], Sequence[OperatorWork]],
    sizes: tuple[int, int | None],
    num_ranks: int,
    *,
    fits: bool,
) -> TracedWork:
    """The work of a training by the works of its step at a batch size; `sizes`: the configured one and the largest."""
    trainer, (batch_size, largest) = training.trainer, sizes
    num_batches = trainer.config.grad_accum_steps * len(trainer.turns)
    return TracedWork(
        StepWork(works(batch_size), compiled=trainer.config.compile),
        StepWork(works(largest), compiled=trainer.config.compile) if largest else None,
        fits,
        num_batches * num_ranks,
        training.tokens_per_sample,
        training.reading_ms * num_batches,
        trainer.num_steps,
    )

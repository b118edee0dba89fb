"""Trainings on a rank with an optimizer of torchao's, whole, and in two parts with a checkpoint between."""

from trainings import assemble

from ampsweep.nested_tensors import plain_tensors_in
from ampsweep.training.found_checkpoint import find_checkpoint
from ampsweep.training.resume import resume, take_checkpoint


def facts(training):
    optimizer = training.built.optimizers["optimizer"]
    states = optimizer.state_dict()["state"]
    return training.parameters(), [[one.clone() for one in plain_tensors_in(state)] for state in states.values()]


def whole_and_in_two(rank, config, place):
    """The facts at the end of a training, of one that stopped after two steps, and of one that went on from there."""
    unbroken = assemble(config, rank)
    unbroken.train()
    first = assemble(config, rank)
    first.trainer.num_steps = 2
    first.train()
    take_checkpoint(first.trainer, place, "hash", "mlp", "arm")
    second = assemble(config, rank)
    found = find_checkpoint(place / "checkpoints/last", second.built.parallel)
    notes = resume(second.trainer, found)
    restored = facts(second)
    second.train()
    return {
        "unbroken": facts(unbroken),
        "saved": facts(first),
        "restored": restored,
        "resumed": facts(second),
        "notes": notes,
    }

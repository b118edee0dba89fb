"""Figures of trainings whose batches vary in size, take long to load, or take another form."""

from collections import namedtuple

import torch
from assembled import CPU, LOGGED, assemble, composed
from torch.utils._pytree import tree_leaves, tree_structure

from ampsweep.data.base import as_model_input
from ampsweep.observe.step import trace_step
from ampsweep.predict.run_prediction import predict_run


def items(most):
    """Items of 1 to `most` rows."""
    return [(torch.randn(1 + index * 7 % most, 64), torch.randn(1 + index * 7 % most, 1)) for index in range(64)]


def joined(batch):
    return tuple(map(torch.cat, zip(*batch, strict=True)))


def settings(rows):
    return (
        *("model=custom", "model._target_=torch.nn.Linear", "+model.in_features=64", "+model.out_features=1"),
        *("data=custom", "data._target_=ampsweep.data.map_dataset.MapDataset", "data.batch_size=4"),
        *(f"+data.{split}={{_target_: {__name__}.items, {rows}}}" for split in ("train", "val")),
        *(f"+data.collate={{_target_: {__name__}.joined, _partial_: true}}", "+data.num_workers=0"),
        *("task=regression", "optimizer=sgd", "trainer.steps=16"),
    )


def test_peak_memory_is_that_of_the_traced_step():
    second, whole = (assemble(*settings("most: 37")) for _ in range(2))
    second.trainer.model.train()
    second.trainer.train_step()
    with trace_step(second.built.model, *second.trainer.optimizers.values()) as traced:
        second.trainer.train_step()
    whole.train()
    memory = whole.instruments.memory()
    assert (memory.peak_bytes, memory.step) == (traced.result.peak_bytes, 2)


def test_a_prediction_of_a_batch_that_varies_is_doubtful():
    varying, even = (composed(*LOGGED, *settings(f"most: {most}")) for most in (37, 1))
    assert [doubt.doubt for doubt in predict_run(varying, CPU).unvouched] == ["varies"]
    assert predict_run(even, CPU).unvouched is None


IMAGES, LABELS = torch.ones(2, 3, 4, 4), torch.tensor([0, 1])
Pair = namedtuple("Pair", "images labels")


def test_a_batch_keeps_its_form_and_images_take_dtype_and_layout():
    nested = {"inputs": [(IMAGES, "a file's name", None)], "labels": LABELS}
    for batch in ((IMAGES, LABELS), [IMAGES, LABELS], Pair(IMAGES, LABELS), nested):
        prepared = as_model_input(batch, torch.bfloat16, channels_last=False)
        assert type(prepared) is type(batch)
        assert tree_structure(prepared) == tree_structure(batch)
        assert tree_leaves(prepared)[0].dtype == torch.bfloat16
        assert tree_leaves(prepared)[-1] is LABELS
    prepared = as_model_input((IMAGES, torch.ones(2, 3), LABELS), torch.float32, channels_last=True)
    assert prepared[0].is_contiguous(memory_format=torch.channels_last)
    assert not prepared[0].is_contiguous()
    assert prepared[1].is_contiguous()
    assert as_model_input(IMAGES, torch.float32, channels_last=False) is IMAGES, "nothing is copied"

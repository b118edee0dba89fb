"""Batches reach the model in its dtype and layout, whatever they are made of."""

from collections import namedtuple

import pytest
import torch

from ampsweep.training.batches import as_model_input

IMAGES = torch.ones(2, 3, 4, 4)
LABELS = torch.tensor([0, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_floating_point_inputs_take_the_dtype_of_the_parameters(dtype):
    images, labels = as_model_input((IMAGES, LABELS), dtype, channels_last=False)
    assert images.dtype == dtype
    assert labels is LABELS


def test_nested_batches_are_walked_through():
    batch = {"pixels": [IMAGES, (IMAGES,)], "labels": LABELS, "path": "a.png"}
    found = as_model_input(batch, torch.bfloat16, channels_last=False)
    assert found["pixels"][0].dtype == found["pixels"][1][0].dtype == torch.bfloat16
    assert found["labels"] is LABELS
    assert found["path"] == "a.png"
    assert isinstance(found["pixels"], list)


def test_a_named_tuple_keeps_its_names():
    kind = namedtuple("Batch", "images labels")
    found = as_model_input(kind(IMAGES, LABELS), torch.bfloat16, channels_last=False)
    assert isinstance(found, kind)
    assert (found.images.dtype, found.labels.dtype) == (torch.bfloat16, torch.int64)


def test_images_and_only_they_are_laid_out_channels_last_on_request():
    images, rows = as_model_input((IMAGES, torch.ones(2, 5)), torch.float32, channels_last=True)
    assert images.is_contiguous(memory_format=torch.channels_last)
    assert rows.is_contiguous()
    assert as_model_input(IMAGES, torch.float32, channels_last=False).is_contiguous()


def test_a_batch_that_is_right_already_is_not_copied():
    assert as_model_input(IMAGES, torch.float32, channels_last=False) is IMAGES

"""Batches arrive in the dtype and the layout that the model takes."""

from typing import NamedTuple

import pytest
import torch

from ampsweep.data.base import as_model_input

IMAGES, LABELS = torch.ones(2, 3, 4, 4), torch.tensor([0, 1])


class Pair(NamedTuple):
    images: torch.Tensor
    labels: torch.Tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_floating_point_takes_the_dtype_and_labels_stay_whole(dtype):
    images, labels = as_model_input((IMAGES, LABELS), dtype, channels_last=False)
    assert images.dtype == dtype
    assert labels is LABELS


@pytest.mark.parametrize(
    "batch",
    [
        (IMAGES, LABELS),
        [IMAGES, LABELS],
        Pair(IMAGES, LABELS),
        {"images": IMAGES, "labels": LABELS},
        {"inputs": [(IMAGES, "a file's name", None)], "labels": LABELS},
    ],
    ids=["tuple", "list", "named tuple", "dict", "nested"],
)
def test_a_batch_keeps_its_form(batch):
    prepared = as_model_input(batch, torch.bfloat16, channels_last=False)
    assert type(prepared) is type(batch)
    assert torch.utils._pytree.tree_structure(prepared) == torch.utils._pytree.tree_structure(batch)
    leaves = torch.utils._pytree.tree_leaves(prepared)
    assert leaves[0].dtype == torch.bfloat16
    assert leaves[-1] is LABELS


def test_only_images_take_the_channels_last_layout():
    prepared = as_model_input((IMAGES, torch.ones(2, 3), LABELS), torch.float32, channels_last=True)
    assert prepared[0].is_contiguous(memory_format=torch.channels_last)
    assert not prepared[0].is_contiguous()
    assert prepared[1].is_contiguous()


def test_nothing_is_copied_where_nothing_changes():
    assert as_model_input(IMAGES, torch.float32, channels_last=False) is IMAGES

"""A collective on the host is over when its tensors are held by nobody but their owners."""

import time
from threading import Thread

import torch

from ampsweep.parallel.waits import until_let_go


def hold(tensor, seconds):
    """Hold a view of the tensor in another thread."""
    view = tensor.view(-1)

    def held(_):
        time.sleep(seconds)

    thread = Thread(target=held, args=(view,))
    thread.start()
    return thread


def test_a_thread_that_is_about_to_let_go_is_waited_for():
    ours, began_s = torch.zeros(8), time.monotonic()
    kept = ours[2:]  # held before, and after
    with until_let_go(ours):
        thread = hold(ours, 0.02)
    assert time.monotonic() - began_s >= 0.02
    thread.join()
    assert kept.untyped_storage().data_ptr() == ours.untyped_storage().data_ptr()


def test_one_that_keeps_a_tensor_is_not_waited_for_long():
    ours, kept = torch.zeros(8), []
    began_s = time.monotonic()
    with until_let_go(ours):
        kept.append(ours[2:])
    assert 0.1 <= time.monotonic() - began_s < 5


def test_tensors_of_a_device_are_its_own_affair():
    kept, ours = [], torch.zeros(8, device="meta")
    began_s = time.monotonic()
    with until_let_go(ours):
        kept.append(ours[2:])
    assert time.monotonic() - began_s < 0.1

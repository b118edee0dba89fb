"""Ranks that a launcher has started hold the devices of their machine, and wait for who holds them."""

import tempfile
import threading
import time

import pytest
from devices import device_lock

ONE_LAUNCHER, ONE_EACH = (0, 1), (0, 0)


@pytest.mark.parametrize("local_ranks", [ONE_LAUNCHER, ONE_EACH], ids=["one launcher", "a launcher each"])
def test_ranks_of_a_machine_do_not_wait_for_each_other(pair, local_ranks, tmp_path):
    assert [said for said, _ in pair.run("cases.hold_devices", folder=str(tmp_path), local_ranks=local_ranks)] == [
        []
    ] * 2


@pytest.mark.parametrize("local_ranks", [ONE_LAUNCHER, ONE_EACH], ids=["one launcher", "a launcher each"])
def test_all_wait_for_another_training(pair, local_ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    is_held, released = threading.Event(), []

    def other():
        with device_lock("cpu"):
            is_held.set()
            time.sleep(2)
            released.append(time.time())

    training = threading.Thread(target=other)
    training.start()
    is_held.wait()
    (said, held_at), (of_second, held_by_second_at) = pair.run(
        "cases.hold_devices", folder=str(tmp_path), local_ranks=local_ranks
    )
    training.join()
    assert [text.partition(" (lock ")[0] for text in said] == ["waiting for cpu: another training runs on it"]
    assert of_second == []
    assert min(held_at, held_by_second_at) > released[0] - 0.01

"""Ranks that a launcher has started hold the devices of their machine together, and wait for whoever holds them."""

import tempfile
import threading
import time

import pytest
from devices import device_lock


@pytest.mark.parametrize("local_ranks", [(0, 1), (0, 0)], ids=["one launcher", "a launcher each"])
def test_ranks_wait_for_another_training_not_each_other(pair, local_ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    alone = tmp_path / "alone"
    alone.mkdir()
    ranks = pair.run("hold_devices", folder=str(alone), local_ranks=local_ranks)
    assert [said for said, _ in ranks] == [[], []]
    is_held, released = threading.Event(), []

    def other():
        with device_lock("cpu"):
            is_held.set()
            time.sleep(2)
            released.append(time.time())

    training = threading.Thread(target=other)
    training.start()
    is_held.wait()
    ranks = pair.run("hold_devices", folder=str(tmp_path), local_ranks=local_ranks)
    training.join()
    said = [[text.partition(" (lock ")[0] for text in texts] for texts, _ in ranks]
    assert said == [["waiting for cpu: another training runs on it"], []]
    assert min(held_at for _, held_at in ranks) > released[0] - 0.01

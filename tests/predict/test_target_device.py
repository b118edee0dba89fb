"""The target of a prediction: the device that is meant, and the workspaces that its torch keeps there."""

import pytest
import torch
from programs import trace_program
from torch import nn

from ampsweep.config.schema import PredictConfig
from ampsweep.predict.fake_device import FakeDevice
from ampsweep.predict.step_memory import timeline
from ampsweep.predict.target_device import TargetDevice, resolve_target

MIB = 2**20
SMALL, LARGE = (2 * 4096 + 8 * 16) * 1024, 32 * MIB
T4, A100, H100, B200, THOR, RTX_5090 = (7, 5), (8, 0), (9, 0), (10, 0), (11, 0), (12, 0)


@pytest.mark.parametrize(
    ("version", "large"),
    [
        ((2, 11), {H100}),
        ((2, 12), {H100, B200, RTX_5090}),
        ((2, 13), {H100, B200, RTX_5090}),
        ((2, 14), {H100, B200, RTX_5090, THOR}),
    ],
)
def test_workspaces_are_those_of_the_version(version, large, monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    for capability in (T4, A100, H100, B200, THOR, RTX_5090):
        kept = TargetDevice("cuda", capability, version).workspaces
        assert kept[:2] == ((LARGE,) * 2 if capability in large else (SMALL,) * 2)
        assert kept[2:] == ((MIB,) if version == (2, 11) else ())


def test_before_they_came_from_the_allocator_there_were_none():
    assert TargetDevice("cuda", A100, (1, 11)).workspaces == ()
    assert TargetDevice("cpu").workspaces == ()


def test_a_setting_replaces_their_size(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:2:16:8")
    assert TargetDevice("cuda", H100, (2, 13)).workspaces == (SMALL, SMALL)


def scratch_of_a_layer(version, *, bias):
    device = FakeDevice(TargetDevice("cuda", A100, version))
    layer = device.adopt(nn.Linear(8, 8, bias=bias, device="meta"))
    with device(), trace_program(device) as trace:
        layer(torch.ones(4, 8)).sum().backward()
    lives = timeline(trace.ledger, optimizer_step=0)
    return sorted(lives.sizes[lives.categories < 0].tolist())


def test_since_2_15_a_product_has_its_workspace_while_it_runs(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    assert TargetDevice("cuda", A100, (2, 15)).workspaces == ()
    assert scratch_of_a_layer((2, 14), bias=True) == []
    assert scratch_of_a_layer((2, 15), bias=True) == [MIB, SMALL]  # forward, and the weight's gradient
    assert scratch_of_a_layer((2, 15), bias=False) == [SMALL, SMALL]


def test_the_capability_is_that_of_the_device_that_is_meant(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    capabilities = {None: A100, "cuda:1": H100, "cuda": A100}
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capabilities[device])
    assert resolve_target(PredictConfig(target="cuda"), "cuda:1").capability == H100
    assert resolve_target(PredictConfig(), "cuda:1").capability == H100
    assert resolve_target(PredictConfig(target="cuda"), "cpu").capability == A100

"""On fake CPU tensors operators are cast and split as CUDA does it, and only inside the context."""

import base64
import zlib
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from attention_calls import CALLS, call, choices_of_torch
from devices import needs_cuda
from steps import trace_program
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ampsweep.observe.operator_work import WorkLog
from ampsweep.predict.cuda_attention import AttentionCall
from ampsweep.predict.fake_device import FakeDevice
from ampsweep.predict.target_device import TargetDevice

T4, A100, H100 = (TargetDevice("cuda", capability, (2, 13)) for capability in ((7, 5), (8, 0), (9, 0)))
NEWEST = TargetDevice("cuda", (8, 0), (2, 15))
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
MATH = ("UnsafeViewBackward0", "ToCopyBackward0")
"""Its last operator: a matrix product, for half precision taken in float32 and cast."""


def saved_by(output):
    """dtypes of the tensors that the output's node keeps for backward."""
    node = output.grad_fn
    saved = (getattr(node, name) for name in dir(node) if name.startswith("_saved_"))
    return [value.dtype for value in saved if isinstance(value, torch.Tensor)]


def chain(node):
    """Names of the nodes from this one back along first inputs."""
    while node is not None:
        yield node.name()
        node = node.next_functions[0][0] if node.next_functions else None


def test_losses_softmax_and_dropout_keep_what_cuda_keeps():
    with FakeDevice(A100)():
        logits, classes = torch.randn(8, 10, dtype=BF16, requires_grad=True), torch.randint(10, (8,))
        with torch.autocast("cpu", BF16):
            loss = F.cross_entropy(logits, classes)
        assert loss.dtype == FP32
        # The CPU casts the logits; CUDA only what reaches nll_loss, after a log_softmax in the logits' own dtype.
        assert [*chain(loss.grad_fn)][:3] == ["NllLossBackward0", "ToCopyBackward0", "LogSoftmaxBackward0"]
        loss.backward()
        assert logits.grad.dtype == BF16
        for dtype, nodes in ((FP16, 2), (BF16, 3)):  # the kernel itself takes float16
            scores = torch.randn(8, 10, dtype=dtype, requires_grad=True)
            with torch.autocast("cpu", dtype):
                assert len([*chain(scores.softmax(-1).grad_fn)]) == nodes
            result = F.softmax(scores, -1, dtype=FP32)
            assert (result.dtype, len([*chain(result.grad_fn)])) == (FP32, nodes)
            result.sum().backward()
            assert scores.grad.dtype == dtype
        assert saved_by(F.dropout(torch.randn(8, 8, requires_grad=True), 0.5)) == [torch.bool]
        assert F.dropout(torch.randn(8), 0.5, training=False).grad_fn is None
        with torch.autocast("cpu", BF16):
            assert set(saved_by(nn.LayerNorm(8)(torch.randn(4, 8, dtype=BF16, requires_grad=True)))) == {FP32}


def choices(target, device):
    def choose(*inputs, enable_gqa):
        return (AttentionCall(*inputs, enable_gqa, target).backend() or "-")[0]

    return "".join(call(choose, device, *inputs) for inputs in CALLS)


@pytest.mark.parametrize("line", (Path(__file__).parent / "attention_choices.txt").read_text().splitlines())
def test_attention_is_by_the_kernel_that_torch_chooses(line):
    *pairs, packed = line.split(" ")
    version, capability = (tuple(map(int, pair.split("."))) for pair in pairs)
    truth = zlib.decompress(base64.b85decode(packed)).decode()
    chosen = choices(TargetDevice("cuda", capability, version), "meta")
    assert not [(*both, inputs) for *both, inputs in zip(truth, chosen, CALLS, strict=True) if both[0] != both[1]]


@needs_cuda
def test_attention_is_by_the_kernel_that_this_torch_chooses():
    assert choices_of_torch() == choices(TargetDevice("cuda", torch.cuda.get_device_capability()), "cuda")


@pytest.mark.parametrize(
    ("target", "dtype", "masked", "node"),
    [
        (A100, BF16, False, "ScaledDotProductFlashAttentionBackward0"),
        (A100, FP32, True, MATH),
        (NEWEST, FP32, True, "ScaledDotProductEfficientAttentionBackward0"),
        (H100, BF16, True, "ScaledDotProductCudnnAttentionBackward0"),
        (T4, FP16, False, MATH),
    ],
)
def test_grouped_queries_attend_by_each_kernel(target, dtype, masked, node):
    with FakeDevice(target)():
        query, key = (torch.randn(2, heads, 40, 64, dtype=dtype, requires_grad=True) for heads in (8, 2))
        mask = torch.ones(40, 40, dtype=torch.bool) if masked else None
        output = F.scaled_dot_product_attention(query, key, key, mask, enable_gqa=True)
        assert output.grad_fn.name() in node
        output.sum().backward()
        assert (query.grad.shape, key.grad.shape) == (query.shape, key.shape)


def test_masks_are_padded_for_efficient_attention_alone():
    for target, is_padded in ((A100, True), (H100, False)):
        device = FakeDevice(target)
        with device(), trace_program(device) as trace:
            query = torch.randn(2, 4, 40, 64, dtype=BF16, requires_grad=True)
            mask = torch.zeros(40, 40, dtype=BF16)
            F.scaled_dot_product_attention(query, query, query, attn_mask=mask).sum().backward()
        padded = 2 * 40 * 48  # rows of 40 in 48
        assert (padded in {life.num_bytes for life in trace.ledger.allocations}) is is_padded
    with FakeDevice(A100)():
        query = torch.randn(2, 4, 40, 60, dtype=BF16, requires_grad=True)
        assert F.scaled_dot_product_attention(query, query, query).shape == query.shape
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):  # a switch of torch decides, too
            assert F.scaled_dot_product_attention(query, query, query).grad_fn.name() in MATH


def test_rms_norm_is_one_kernel_and_the_cpu_is_restored():
    device = FakeDevice(A100)
    with device(), trace_program(device) as trace:
        norm, x = nn.RMSNorm(16), torch.randn(8, 16, requires_grad=True)
        norm(x).sum().backward()
    assert norm.weight.grad.shape == (16,)
    assert trace.result.peak_bytes < 6 * x.numel() * 4
    x = torch.randn(64, requires_grad=True)
    assert F.dropout(x, 0.5).grad_fn.name() == "MulBackward0"
    with torch.autocast("cpu", BF16):
        assert x.to(BF16).exp().dtype == BF16


rows = torch.randn
FUNCTIONS = {
    "losses": lambda h: F.mse_loss(h, rows(8, 16)) + F.cross_entropy(h, torch.randint(16, (8,))),
    "bce_with_logits": lambda h: F.binary_cross_entropy_with_logits(h, torch.rand(8, 16)),
    "softmax": lambda h: h.softmax(-1) + F.softmax(h, -1, dtype=FP32),
    "elementwise": lambda h: h**2 + h.var(-1, keepdim=True) + h.cumsum(0) + F.dropout(h, 0.1),
    "products": lambda h: torch.einsum("ij,kj->ik", torch.cat([h, rows(8, 16)]), rows(8, 16)) + torch.cdist(h, h).sum(),
    "norms": lambda h: nn.RMSNorm(16)(h) + nn.LayerNorm(16)(h) + nn.GroupNorm(4, 16)(h) + nn.BatchNorm1d(16)(h),
    "weight_norm": lambda h: nn.utils.parametrizations.weight_norm(nn.Linear(16, 4))(h),
    "ConvTranspose2d": lambda h: nn.ConvTranspose2d(1, 4, 3)(h[None, None]),
    "MultiheadAttention": lambda h: nn.MultiheadAttention(16, 4)(h, h, h)[0],
    "RNNCell": lambda h: nn.RNNCell(16, 8)(h),
}


def saved(function, device_type, dtype):
    """dtypes and bytes of the storages that a linear layer and the function after it save, and the result's dtype."""
    found = {}

    def keep(tensor):
        found[tensor.untyped_storage()._cdata] = tensor
        return tensor

    # torch.autocast("cuda") is off where there is no GPU; this is what it does.
    torch.set_autocast_enabled(device_type, True)
    torch.set_autocast_dtype(device_type, dtype)
    torch.autocast_increment_nesting()
    try:
        with torch.device(device_type), torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
            result = function(nn.Linear(16, 16)(rows(8, 16)))
    finally:
        torch.set_autocast_enabled(device_type, False)
        torch.autocast_decrement_nesting()
        torch.clear_autocast_cache()
    return Counter((tensor.dtype, tensor.untyped_storage().nbytes()) for tensor in found.values()), result.dtype


@pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="needs a CUDA build of torch, but no GPU")
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore:.*:UserWarning")  # of torch's kernels about these small inputs
def test_a_prediction_saves_what_cudas_dispatcher_saves(name, dtype):
    """A CUDA build of torch dispatches fake CUDA tensors without a GPU: the true casts, composites and derivatives."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        truth = saved(FUNCTIONS[name], "cuda", dtype)
    with FakeDevice(TargetDevice("cuda"))():
        assert saved(FUNCTIONS[name], "cpu", dtype) == truth


def test_scalars_of_the_host_are_no_work_of_the_device():
    device, log = FakeDevice(A100), WorkLog()
    with torch.device("meta"):
        model = nn.Linear(64, 64)
    device.adopt(model)
    with device():
        with device.optimizers():
            optimizer = torch.optim.AdamW(model.parameters(), foreach=False)  # counts its steps on the host
        with device.trace_step(model, optimizer, log=log):
            loss = model(torch.zeros(8, 64)).sum()
            loss.backward()
            with device.optimizers():
                optimizer.step()
            loss.item()
    (wait,) = (number for number, work in enumerate(log.works) if work.kind == "wait")
    assert wait == len(log.works) - 1
    assert {work.num_elements for work in log.works[:wait] if work.phase == "update"} == {64, 64 * 64}

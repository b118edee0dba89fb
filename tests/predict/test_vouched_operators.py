"""A prediction has the bytes of the CPU's operators, and names the operators that may take others."""

import json
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from steps import GPT, MLP, REGRESSION, RESNET, composed, own, predicted
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ampsweep.commands.main import main
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.precision.support import INSTALLED_TORCH
from ampsweep.predict.fake_kernels import FakeKernels
from ampsweep.predict.run_prediction import predict_batch, predict_run
from ampsweep.predict.target_device import TargetDevice
from ampsweep.predict.vouched_operators import doubt_about
from ampsweep.records import find_records

LOSSES = (
    *(F.mse_loss, F.huber_loss, F.smooth_l1_loss, F.kl_div, F.binary_cross_entropy_with_logits),
    lambda x, y: F.binary_cross_entropy(x.sigmoid(), y),
    lambda x, y: F.binary_cross_entropy(x.sigmoid(), y, reduction="sum"),
    lambda x, y: F.cross_entropy(x, torch.arange(6)),
)
FUNCTIONS = {
    (6, 8): [
        lambda x: sum(loss(x, torch.rand_like(x)) for loss in LOSSES),
        lambda x: nn.BatchNorm1d(8)(x) + nn.LayerNorm(8)(x) + nn.RMSNorm(8)(x) + x.norm(dim=1, keepdim=True),
        lambda x: F.glu(F.gelu(nn.PReLU()(x))).masked_fill(x[:, :4] > 0, 0),
        lambda x: x.gather(1, torch.zeros(6, 3, dtype=torch.long)) + x[torch.tensor([0, 2, 2, 1, 1, 0]), :3],
        lambda x: F.embedding(torch.arange(5) % 3, F.dropout(x, 0.3)),
        lambda x: x.std(0) + x.max(0).values + x.logsumexp(0) + x.cumsum(0) + x.log_softmax(-1) + x.softmax(-1),
        lambda x: x.sort().values[:, :2] + x.topk(2).values,
        lambda x: nn.Linear(16, 5)(torch.cat([x, x], 1)),
    ],
    (2, 4, 9, 9): [
        lambda x: F.avg_pool2d(x, 2) + F.max_pool2d(x, 2) + F.adaptive_avg_pool2d(x, 4),
        lambda x: F.scaled_dot_product_attention(x, x, x) + nn.BatchNorm2d(4)(x) + nn.GroupNorm(2, 4)(x),
        lambda x: nn.ConvTranspose2d(6, 6, 3, stride=2)(nn.Conv2d(4, 6, 3, groups=2)(x)),
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    ],
    (2, 4, 5, 6, 7): [lambda x: F.max_pool3d(nn.Conv3d(4, 6, 3)(x), 2)],
}


class Compared(TorchDispatchMode):
    """Runs every operator a second time on fake tensors, and keeps those whose results take other bytes."""

    def __init__(self):
        super().__init__()
        self.kernels, self.called, self.different = FakeKernels(TargetDevice("cpu")), set(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if any(issubclass(kind, FakeTensor) for kind in types):
            return result
        fake = cache(lambda tensor: self.kernels.from_tensor(tensor, static_shapes=True))
        with self.kernels:
            args, kwargs = tree_map_only(torch.Tensor, fake, (args, kwargs or {}))
            expected = func(*args, **kwargs)
        self.called.add(func)
        if sizes(expected) != sizes(result):
            self.different.append((func, sizes(result), sizes(expected)))
        return result


def sizes(result):
    tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
    return [(tuple(tensor.shape), tensor.dtype, tensor.untyped_storage().nbytes()) for tensor in tensors]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", FUNCTIONS, ids=str)
def test_operators_without_doubt_take_the_kernels_bytes(shape, dtype, request):
    request.addfinalizer(lambda: torch.set_default_dtype(torch.float32))
    torch.set_default_dtype(dtype)
    for function in FUNCTIONS[shape]:
        x = torch.rand(shape, dtype=dtype, requires_grad=True)
        with Compared() as compared:
            function(x).sum().backward()
        assert compared.different == []
        assert [func for func in compared.called if doubt_about(func, on_cuda=False)] == []


@pytest.mark.parametrize("workload", [MLP, GPT, REGRESSION, RESNET], ids=lambda overrides: overrides[0])
def test_there_is_no_doubt_about_the_suites_own_models(workload):
    settings = (*workload, "precision=amp_fp16", "optimizer=adamw")
    assert predicted(*settings).unvouched == ()
    on_cuda = {operator.doubt for operator in predicted(*settings, target=TargetDevice("cuda")).unvouched}
    assert on_cuda == ({"workspace"} if workload is RESNET else set())


@pytest.mark.parametrize(
    ("operator", "on_cpu", "on_cuda"),
    [
        *((name, None, None) for name in ("mm", "add_", "view", "_embedding_bag")),
        *((name, None, "workspace") for name in ("convolution", "_fft_r2c")),
        ("mkldnn_rnn_layer", None if INSTALLED_TORCH >= (2, 13) else "differs", None),
    ],
)
def test_doubts(operator, on_cpu, on_cuda):
    packet = getattr(torch.ops.aten, operator)
    overload = getattr(packet, "default" if "default" in packet.overloads() else packet.overloads()[0])
    assert (doubt_about(overload, on_cuda=False), doubt_about(overload, on_cuda=True)) == (on_cpu, on_cuda)


def test_a_users_operator_is_named_in_every_output(capsys, tmp_path):
    users = own("predicted_models.own_operator")
    chosen = ("predict", *users, "predict.target=cpu", "precision=amp_bf16", "predict.batch_sizes=[8]")
    reason = "not torch's own, so that only its author knows what its kernel takes."
    named = {"name": "tests.doubled", "doubt": "custom", "modules": ["between (Between)"]}

    assert main([*chosen, "predict.memory_gib=0.002", "predict.write=true", f"output_dir={tmp_path}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"Not vouched for: tests.doubled in between (Between): {reason}" in printed
    assert "On 0.002 GiB, unless what is named below takes more than predicted: amp_bf16 " in printed
    ((_, record),) = find_records(tmp_path).records
    assert record.as_json()["prediction"]["unvouched"] == [named]

    assert main([*chosen, "format=json"]) == 0
    ((mode,),) = (workload["modes"] for workload in json.loads(capsys.readouterr().out)["workloads"])
    assert mode["unvouched"] == [named]
    assert "unvouched" not in mode["curve"][0]

    for settings, expected in ((users, ["tests.doubled"]), (MLP, None)):
        config = composed(*settings, "trainer.memory_limit_gib=0.01", "device=cpu")
        assert predict_batch(config, stop=StopRequest()).unvouched == expected
    (beside_a_run,) = predict_run(composed(*users), torch.device("cpu")).unvouched
    assert beside_a_run.name == "tests.doubled"

"""A prediction takes the bytes of the CPU's operators, and names those that may take others."""

import json

import pytest
import torch
import torch.nn.functional as F
from steps import GPT, MLP, REGRESSION, RESNET, composed, predicted
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from ampsweep.commands.main import main
from ampsweep.launch.signals import StopRequest
from ampsweep.precision.support import INSTALLED_TORCH
from ampsweep.predict.fake_kernels import FakeKernels
from ampsweep.predict.run_prediction import predict_batch, predict_run
from ampsweep.predict.target_device import TargetDevice
from ampsweep.predict.vouched_operators import doubt_about
from ampsweep.record import RunRecord, find_records
from ampsweep.record.reading import converted

CPU, A100 = TargetDevice("cpu"), TargetDevice("cuda")
OWN = ("model=custom", "model._target_=unvouched_models.Classifier", "data=digits", "data.batch_size=8")
ROWS, IMAGE, VOLUME = (6, 8), (2, 4, 9, 9), (2, 4, 5, 6, 7)


def calls(*shape, **functions):
    """Cases of one shape: a function of a tensor that asks for gradients."""
    return [pytest.param(shape, function, id=name) for name, function in functions.items()]


CALLS = [
    *calls(
        *ROWS,
        batch_norm=lambda x: nn.BatchNorm1d(8).to(x.dtype)(x),
        bce=lambda x: F.binary_cross_entropy(x.sigmoid(), torch.rand_like(x)),
        bce_sum=lambda x: F.binary_cross_entropy(x.sigmoid(), torch.rand_like(x), reduction="sum"),
        bce_with_logits=lambda x: F.binary_cross_entropy_with_logits(x, torch.rand_like(x)),
        cat=lambda x: torch.cat([x, x]),
        cross_entropy=lambda x: F.cross_entropy(x, torch.arange(6)),
        cumsum=lambda x: x.cumsum(0),
        dropout=lambda x: F.dropout(x, 0.3),
        embedding=lambda x: F.embedding(torch.arange(5) % 3, x),
        gather=lambda x: x.gather(1, torch.zeros(6, 3, dtype=torch.long)),
        gelu=F.gelu,
        glu=F.glu,
        huber=lambda x: F.huber_loss(x, torch.rand_like(x)),
        index=lambda x: x[torch.tensor([0, 2, 2])],
        kl=lambda x: F.kl_div(x, torch.rand_like(x), reduction="batchmean"),
        layer_norm=lambda x: nn.LayerNorm(8).to(x.dtype)(x),
        linear=lambda x: nn.Linear(8, 5).to(x.dtype)(x),
        log_softmax=lambda x: x.log_softmax(-1),
        logsumexp=lambda x: x.logsumexp(0),
        masked_fill=lambda x: x.masked_fill(x > 0, 0),
        max=lambda x: x.max(1).values,
        mse=lambda x: F.mse_loss(x, torch.rand_like(x)),
        norm=lambda x: x.norm(dim=1),
        prelu=lambda x: nn.PReLU().to(x.dtype)(x),
        rms_norm=lambda x: nn.RMSNorm(8).to(x.dtype)(x),
        scatter_add=lambda x: torch.zeros_like(x).scatter_add(0, torch.zeros(6, 8, dtype=torch.long), x),
        softmax=lambda x: x.softmax(-1),
        sort=lambda x: x.sort().values,
        std=lambda x: x.std(0),
        topk=lambda x: x.topk(2).values,
        tril=lambda x: x.tril(),
        where=lambda x: torch.where(x > 0, x, 2 * x),
    ),
    *calls(
        *IMAGE,
        adaptive_avg_pool=lambda x: F.adaptive_avg_pool2d(x, 3),
        adaptive_max_pool=lambda x: F.adaptive_max_pool2d(x, 3),
        attention=lambda x: F.scaled_dot_product_attention(x, x, x),
        avg_pool=lambda x: F.avg_pool2d(x, 2),
        batch_norm_of_images=lambda x: nn.BatchNorm2d(4).to(x.dtype)(x),
        conv=lambda x: nn.Conv2d(4, 6, 3, groups=2).to(x.dtype)(x),
        conv_transpose=lambda x: nn.ConvTranspose2d(4, 6, 3, stride=2).to(x.dtype)(x),
        group_norm=lambda x: nn.GroupNorm(2, 4).to(x.dtype)(x),
        interpolate=lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        max_pool=lambda x: F.max_pool2d(x, 2),
        pad=lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
        pixel_shuffle=lambda x: F.pixel_shuffle(x, 2),
    ),
    *calls(
        *VOLUME,
        conv_of_volumes=lambda x: nn.Conv3d(4, 6, 3).to(x.dtype)(x),
        max_pool_of_volumes=lambda x: F.max_pool3d(x, 2),
    ),
]


class Compared(TorchDispatchMode):
    """Runs every operator a second time on fake tensors, and keeps those whose results take other bytes."""

    def __init__(self):
        super().__init__()
        self.kernels, self.called, self.different = FakeKernels(CPU), set(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if any(issubclass(one, FakeTensor) for one in types):
            return result
        made = {}
        with self.kernels:
            args, kwargs = tree_map_only(torch.Tensor, lambda tensor: self._fake(tensor, made), (args, kwargs))
            fake = func(*args, **kwargs)
        self.called.add(func)
        if sizes(fake) != sizes(result):
            self.different.append((func, sizes(result), sizes(fake)))
        return result

    def _fake(self, tensor, made):
        if id(tensor) not in made:
            made[id(tensor)] = self.kernels.from_tensor(tensor, static_shapes=True)
        return made[id(tensor)]


def sizes(result):
    tensors = [one for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
    return [(tuple(one.shape), one.dtype, one.untyped_storage().nbytes()) for one in tensors]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("shape", "function"), CALLS)
def test_what_is_vouched_for_takes_the_kernels_bytes(shape, function, dtype):
    x = torch.rand(shape, dtype=dtype, requires_grad=True)
    with Compared() as compared:
        function(x).sum().backward()
    assert compared.different == []
    assert [func for func in compared.called if doubt_about(func, on_cuda=False)] == []


@pytest.mark.parametrize("workload", [MLP, GPT, REGRESSION, RESNET], ids=lambda overrides: overrides[0])
@pytest.mark.parametrize("mode", ["fp32", "amp_fp16"])
def test_the_models_that_come_along_are_vouched_for(workload, mode):
    settings = (*workload, f"precision={mode}", "optimizer=adamw")
    assert predicted(*settings).unvouched == ()
    on_cuda = {one.doubt for one in predicted(*settings, target=A100).unvouched}
    assert on_cuda == ({"workspace"} if workload is RESNET else set())


def test_an_operator_of_ones_own_is_named_with_its_module():
    (named,) = predicted(*OWN).unvouched
    assert (named.name, named.doubt, named.modules) == ("tests.doubled", "custom", ["twice (Doubling)"])


@pytest.mark.parametrize(
    ("operator", "on_cpu", "on_cuda"),
    [
        ("mm", None, None),
        ("add_", None, None),
        ("view", None, None),
        ("convolution", None, "workspace"),
        ("_fft_r2c", None, "workspace"),
        ("mkldnn_rnn_layer", None if INSTALLED_TORCH >= (2, 13) else "differs", None),
        ("_embedding_bag", None, None),
    ],
)
def test_doubts(operator, on_cpu, on_cuda):
    packet = getattr(torch.ops.aten, operator)
    overload = getattr(packet, "default" if "default" in packet.overloads() else packet.overloads()[0])
    assert (doubt_about(overload, on_cuda=False), doubt_about(overload, on_cuda=True)) == (on_cpu, on_cuda)


def test_it_is_named_in_sentence_json_and_record(capsys, tmp_path):
    chosen = ("predict", "-m", *OWN, "predict.target=cpu", "precision=fp32,amp_bf16", "predict.memory_gib=0.1")
    reason = "not torch's own, so that only its author knows what its kernel takes."
    unless = "unless what is named below takes more than predicted"

    assert main([*chosen, "predict.write=true", f"output_dir={tmp_path}"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"Not vouched for: tests.doubled in twice (Doubling): {reason}" in printed
    assert f"On 0.1 GiB, {unless}: fp32 " in printed
    for _, record in find_records(tmp_path).records:
        (named,) = converted(record.as_json(), RunRecord).prediction.unvouched
        assert (named.name, named.modules) == ("tests.doubled", ["twice (Doubling)"])

    assert main([*chosen, "format=json"]) == 0
    (workload,) = json.loads(capsys.readouterr().out)["workloads"]
    named = {"name": "tests.doubled", "doubt": "custom", "modules": ["twice (Doubling)"]}
    assert [mode["unvouched"] for mode in workload["modes"]] == [[named]] * 2
    assert "unvouched" not in workload["modes"][0]["curve"][0]


def test_the_batch_that_a_search_begins_with_names_it_too():
    def predicted_with(*settings):
        config = composed(*settings, "trainer.memory_limit_gib=0.01", "device=cpu")
        return predict_batch(config, stop=StopRequest())

    assert predicted_with(*OWN).unvouched == ["tests.doubled"]
    assert predicted_with(*MLP).unvouched is None


def test_the_prediction_beside_a_run_names_it_too():
    (named,) = predict_run(composed(*OWN), torch.device("cpu")).unvouched
    assert named.name == "tests.doubled"

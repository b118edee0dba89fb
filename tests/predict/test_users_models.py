"""Predictions of users' models: changed gradients, recurrent layers, looks at values. To the byte, or refused."""

import sys
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from steps import MLP, assert_to_the_byte, predicted
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ampsweep.commands.main import main
from ampsweep.precision.support import INSTALLED_TORCH
from ampsweep.predict.fake_device import FakeDevice
from ampsweep.predict.fake_kernels import FakeKernels, UntraceableError
from ampsweep.predict.kernel_sizes import workspace_bytes
from ampsweep.predict.target_device import TargetDevice

OWN = "model._target_=predicted_models."
ADAMW, SGD = ("optimizer=adamw",), ("optimizer=sgd", "optimizer.momentum=0.9")
TEXT = ("data=text", "data.seq_len=16", "data.batch_size=4")
LLAMA = (
    *("model=custom", "model._target_=transformers.LlamaForCausalLM", "task=model_loss"),
    *("task.input_argument=input_ids", "task.target_argument=labels", "task.targets=inputs", *TEXT),
    "+model.config._target_=transformers.LlamaConfig",
    *(f"+model.config.{size}=16" for size in ("hidden_size", "intermediate_size", "max_position_embeddings")),
    *("+model.config.vocab_size=256", "+model.config.num_hidden_layers=1", "+model.config.use_cache=false"),
    *("+model.config.num_attention_heads=2", "+model.config.num_key_value_heads=1"),
)


@pytest.mark.parametrize(
    ("model", "mode", "optimizer"),
    [
        *(("unused", "fp32", SGD), ("unused", "amp_bf16", ADAMW), ("unused", "master_bf16", SGD)),
        *(("unused", "bf16_sr", ADAMW), ("hooked", "fp32", ADAMW), ("hooked", "pure_bf16", SGD)),
        *(
            ("hooked", "amp_bf16", SGD),
            ("Waves", "fp32", ADAMW),
            ("Waves", "bf16_sr", SGD),
            ("Waves", "amp_bf16", ADAMW),
        ),
    ],
)
def test_missing_changed_and_complex_gradients(model, mode, optimizer):
    own = ("model=custom", OWN + model, "data=digits", "data.batch_size=6")
    assert_to_the_byte(*own, *optimizer, f"precision={mode}")


def test_a_step_after_which_weights_are_averaged():
    assert_to_the_byte(*MLP, "task._target_=predicted_models.Averaging", "precision=amp_bf16")


def gradient_of_a_turned_input():
    inputs, gradient = (torch.ones(2, 4, 3).transpose(1, 2) for _ in range(2))
    outputs = F.layer_norm(inputs.requires_grad_(), (4,))
    return torch.autograd.grad(outputs, inputs, gradient)[0].stride()


def test_a_turned_gradient_has_the_layout_of_the_kernels():
    with FakeKernels(TargetDevice("cpu")):
        predicted_layout = gradient_of_a_turned_input()
    assert predicted_layout == gradient_of_a_turned_input() == (12, 4, 1)


@pytest.mark.parametrize("looks_at", ["mask", "changed_mask", "positions", "places", "drawn", "overwritten"])
def test_a_model_may_look_at_values_that_the_host_knows(looks_at):
    overrides = ("model=custom", OWN + "Looking", *TEXT, f"+model.looks_at={looks_at}", "precision=amp_bf16")
    if looks_at in ("drawn", "overwritten"):
        with pytest.raises(UntraceableError, match="depends on values of tensors"):
            predicted(*overrides)
    else:
        assert_to_the_byte(*overrides)


def test_hugging_face_models_make_no_mask_for_fake_tensors(monkeypatch):
    name = "transformers.utils.import_utils"
    asked = ModuleType(name)
    asked.is_fake_tensor = lambda value: True
    monkeypatch.setitem(sys.modules, name, asked)
    with FakeDevice(TargetDevice("cpu"))():
        assert not asked.is_fake_tensor(torch.ones(1))
    assert asked.is_fake_tensor(torch.ones(1))


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["fp32", "amp_bf16"])
def test_a_hugging_face_model_to_the_byte(mode):
    assert_to_the_byte(*LLAMA, f"precision={mode}")


TOKENS = (
    *("model=custom", OWN + "Recurrent", "data=synthetic_tokens", "data.vocab_size=50", "data.seq_len=5"),
    *("data.batch_size=4", "data.num_batches=4"),
)
TWICE = ("num_layers=2", "bidirectional=true")
RECURRENT = [
    *(((), mode) for mode in ("fp32", "amp_bf16", "pure_bf16")),
    *((TWICE, "fp32"), (("num_layers=3", "dropout=0.2"), "pure_bf16"), (("batch_first=false",), "fp32")),
    *((("bias=false",), "amp_bf16"), (("proj_size=8",), "amp_bf16")),
    *((("kind=GRU", *TWICE, "dropout=0.1"), mode) for mode in ("fp32", "amp_bf16")),
    *((("kind=RNN", *TWICE), mode) for mode in ("fp32", "amp_bf16", "pure_bf16")),
]


@pytest.fixture(scope="module")
def has_bfloat16_lstm() -> bool:
    """True if oneDNN has an LSTM in bfloat16 for this CPU, which takes AVX-512."""
    with torch.autocast("cpu", torch.bfloat16):
        try:
            nn.LSTM(8, 8)(torch.zeros(1, 1, 8))
        except RuntimeError as error:
            assert "could not create a primitive" in str(error)  # noqa: PT017
            return False
    return True


@pytest.mark.skipif(INSTALLED_TORCH < (2, 13), reason="was compared with torch 2.13; before, it is not vouched for")
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(("settings", "mode"), RECURRENT, ids=str)
def test_a_recurrent_step_to_the_byte(settings, mode, has_bfloat16_lstm):
    if mode == "amp_bf16" and not has_bfloat16_lstm and not {"kind=GRU", "kind=RNN", "proj_size=8"} & {*settings}:
        pytest.skip("oneDNN has no LSTM in bfloat16 for this CPU")
    assert_to_the_byte(*TOKENS, f"precision={mode}", *(f"+model.{setting}" for setting in settings))


class Workspaces(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mkldnn_rnn_layer.default:
            self.size = result[3].untyped_storage().nbytes()
        return result


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1), (7, 3, 17, 33), (10, 4, 128, 64), (5, 130, 100, 200), (3, 2, 300, 512)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_workspace_of_an_lstm_is_the_one_of_onednn(sizes, dtype, has_bfloat16_lstm):
    if dtype == torch.bfloat16 and not has_bfloat16_lstm:
        pytest.skip("oneDNN has no LSTM in bfloat16 for this CPU")
    length, batch, width, hidden = sizes
    with Workspaces() as made:
        nn.LSTM(width, hidden).to(dtype)(torch.zeros(length, batch, width, dtype=dtype))
    assert made.size == workspace_bytes(*sizes, dtype.itemsize, dtype.itemsize)


ON_CPU_ONLY = "model=Recurrent: a recurrent layer is predicted on a CPU"


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            ("+model.packed=true", "predict.target=cpu"),
            "aten._pack_padded_sequence in Recurrent (Recurrent) depends on",
        ),
        *(((f"+model.kind={kind}", "predict.target=cuda"), ON_CPU_ONLY) for kind in ("LSTM", "GRU", "RNN")),
    ],
)
def test_packed_sequences_and_cuda_are_refused(settings, complaint, capsys):
    assert main(["predict", *TOKENS, *settings, "precision=fp32"]) == 2
    assert complaint in capsys.readouterr().err

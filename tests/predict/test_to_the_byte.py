"""A prediction for the CPU is the step that the CPU takes, to the byte, in every category; or it is refused."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from predicted_models import LOOKS
from steps import GPT, LLAMA, MLP, REGRESSION, RESNET, TEXT, assert_to_the_byte, composed, measured, own, predicted
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ampsweep.commands.main import main
from ampsweep.launch.signal_handlers import StopRequest
from ampsweep.precision.support import INSTALLED_TORCH
from ampsweep.predict.fake_device import FakeDevice
from ampsweep.predict.fake_kernels import FakeKernels, UntraceableError
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.kernel_sizes import workspace_bytes
from ampsweep.predict.target_device import TargetDevice
from ampsweep.search.probe import probe_batch

pytestmark = pytest.mark.filterwarnings("ignore:.*CUDA is not available:UserWarning")

ADAM, ADAMW, SGD = ("optimizer=adam",), ("optimizer=adamw",), ("optimizer=sgd", "optimizer.momentum=0.9")
ACCUMULATED = (*SGD, "trainer.max_grad_norm=null", "trainer.grad_accum_steps=3")
CLIPPED = ("trainer.max_grad_value=0.001", "trainer.grad_accum_steps=2")
CHECKPOINTED = ("trainer.activation_checkpointing=true",)
FP32_MODULES = ("precision.fp32_modules=[blocks.*.feed_forward, norm]",)
PENALIZED = ("task.gradient_penalty=0.5",)
COSINE = ("scheduler=cosine", "scheduler.num_warmup_steps=2")
GAN = ("model=gan_digits", "model.hidden_size=8", "data.batch_size=16")
TWO_HEADED = ("model=two_headed", "model.hidden_size=64", "data.batch_size=16")
OF_TORCH = ("Adam", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adafactor", "Adadelta", "Adamax", "ASGD", "Rprop")
OPTIMIZERS = (*(f"torch.optim.{name}" for name in OF_TORCH), "own_optimizers.Lion", "own_optimizers.Decaying")
KNOWN = [name for name in LOOKS if name not in ("drawn", "overwritten")]
TABLE = [
    (GAN, "fp32 amp_bf16 amp_fp16", ADAMW),
    (GAN, "amp_fp16", ("task=wgan_gp", "task.critic_steps=2", *ADAM)),
    (TWO_HEADED, "amp_bf16", ADAMW),
    (MLP, "fp32 amp_bf16 amp_fp16 pure_bf16 pure_fp16 master_bf16", ADAMW),
    (MLP, "amp_fp16", CLIPPED),
    (MLP, "bf16_sr master_fp16", ACCUMULATED),
    (MLP, "fp32 pure_bf16", PENALIZED),
    (MLP, "amp_fp16", (*ACCUMULATED, *PENALIZED)),
    (MLP, "amp_bf16", ("optimizer.state_dtype=bfloat16", "trainer.accumulate_dtype=bfloat16")),
    (MLP, "pure_bf16", ("optimizer.state_dtype=float32", "trainer.accumulate_dtype=float32")),
    (MLP, "amp_bf16", ("task._target_=predicted_models.Averaging",)),
    (GPT, "amp_bf16 pure_bf16 bf16_sr master_fp16", ADAMW),
    (GPT, "fp32 amp_fp16", ACCUMULATED),
    (GPT, "amp_bf16", (*FP32_MODULES, *CHECKPOINTED)),
    (LLAMA, "fp32 amp_bf16 pure_bf16", ADAMW),
    (LLAMA, "amp_fp16", CHECKPOINTED),
    (REGRESSION, "amp_fp16", ("optimizer.fused=false", *COSINE)),
    (("model=gpt_tiny", "data=text"), "fp32", ("data.batch_size=1",)),  # which NumPy reads
    (RESNET, "fp32", (*CHECKPOINTED, *PENALIZED)),
    (RESNET, "amp_bf16", ADAMW),
    (RESNET, "pure_bf16", ACCUMULATED),
    (own("predicted_models.unused"), "fp32 amp_bf16 master_bf16 bf16_sr", ADAMW),
    (own("predicted_models.hooked"), "fp32 amp_bf16 pure_bf16", SGD),
    (own("predicted_models.Waves"), "fp32 amp_bf16 bf16_sr", ADAMW),
    *((own(f"autocast_users.HERE.{name}"), "amp_bf16", ()) for name in ("WithAutocastable", "WithFloat32")),
    *((own(f"autocast_users.HERE.{name}"), "amp_bf16", ()) for name in ("Decorated", "DecoratedOff", "Region")),
    (own("autocast_users.HERE.Region"), "amp_fp16", ()),
    (own("autocast_users.ON_CUDA.Region"), "fp32", ()),
    (own("autocast_users.ON_CUDA.Decorated"), "amp_fp16", ()),
    *((own("predicted_models.Looking", TEXT), "amp_bf16", (f"+model.looks_at={name}",)) for name in KNOWN),
    *((MLP, "amp_bf16", ("optimizer=custom", f"optimizer._target_={name}")) for name in OPTIMIZERS),
    (MLP, "amp_fp16", ("optimizer=custom", "optimizer._target_=torch.optim.NAdam")),
]
CASES = [(workload, mode, settings) for workload, modes, settings in TABLE for mode in modes.split()]


@pytest.mark.parametrize(("workload", "mode", "settings"), CASES)
def test_a_prediction_is_exact(workload, mode, settings):
    groups = ("optimizer.groups=[{match:[*.bias],lr:0.0001}]",) if "optimizer=custom" in settings else ()
    assert_to_the_byte(*workload, f"precision={mode}", *settings, *groups)


@pytest.mark.parametrize("looks_at", ["drawn", "overwritten"])
def test_a_look_at_a_value_of_the_device_is_refused(looks_at):
    with pytest.raises(UntraceableError, match="depends on values of tensors"):
        predicted(*own("predicted_models.Looking", TEXT), f"+model.looks_at={looks_at}", "precision=amp_bf16")


@pytest.mark.parametrize(("workload", "mode"), [(GPT, "amp_bf16"), (REGRESSION, "amp_fp16"), (MLP, "pure_bf16")])
def test_fresh_resumed_and_predicted_peaks_agree(workload, mode, tmp_path):
    overrides = (*workload, f"precision={mode}", *ADAMW)
    fresh, continued = assert_to_the_byte(*overrides), measured(*overrides, resumed=tmp_path)
    assert (fresh.peak, fresh.end_of_forward) == (continued.peak, continued.end_of_forward)
    assert fresh.peak["optimizer_state"] > fresh.peak["parameters"]


@pytest.mark.parametrize(("workload", "mode"), [(("model=gpt_tiny", *TEXT), "amp_fp16"), (MLP, "pure_bf16")])
def test_all_that_a_memory_limit_counts_is_predicted(workload, mode):
    config = composed(*workload, f"precision={mode}", "trainer.memory_limit_gib=1")
    with StopRequest() as stop:
        found = probe_batch(config, send=lambda message: None, stop=stop)
    timeline = FakeTraining(config, TargetDevice("cpu")).trace(config.data["batch_size"], evaluates=True)
    counts = 4 * 8 if config.precision.grad_scaler else 0  # which a row may keep from one step to the next
    assert abs(found.probe.peak_bytes - timeline.peak().num_bytes) <= counts


def test_a_penalty_on_gradients_is_predicted_for_a_gpu():
    arms = ((*MLP, "precision=amp_fp16", *settings) for settings in ((), PENALIZED))
    steps = [predicted(*arm, target=TargetDevice("cuda")) for arm in arms]
    before, after = (step.at(step.end_of_forward)["activations"] for step in steps)
    assert after > before + 4 * (65 * 64 + 65 * 64 + 65 * 10), "a gradient of every parameter"


def test_hugging_face_models_make_no_mask_for_fake_tensors(monkeypatch):
    asked = SimpleNamespace(is_fake_tensor=lambda value: True)
    monkeypatch.setitem(sys.modules, "transformers.utils.import_utils", asked)
    with FakeDevice(TargetDevice("cpu"))():
        assert not asked.is_fake_tensor(torch.ones(1))
    assert asked.is_fake_tensor(torch.ones(1))


@pytest.mark.parametrize("kernels", [FakeKernels(TargetDevice("cpu")), nullcontext()])
def test_a_turned_gradient_has_the_layout_of_the_kernels(kernels):
    with kernels:
        inputs, gradient = (torch.ones(2, 4, 3).transpose(1, 2) for _ in range(2))
        outputs = F.layer_norm(inputs.requires_grad_(), (4,))
        assert torch.autograd.grad(outputs, inputs, gradient)[0].stride() == (12, 4, 1)


TOKENS = (
    *own("predicted_models.Recurrent", ("data=synthetic_tokens", "data.vocab_size=50", "data.seq_len=5")),
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


def need_bfloat16_lstm():
    """Skip where oneDNN has no LSTM in bfloat16 for this CPU, which takes AVX-512."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            nn.LSTM(8, 8)(torch.zeros(1, 1, 8))
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.mark.skipif(INSTALLED_TORCH < (2, 13), reason="was compared with torch 2.13; before, it is not vouched for")
@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
@pytest.mark.parametrize(("settings", "mode"), RECURRENT, ids=str)
def test_a_recurrent_step_to_the_byte(settings, mode):
    if mode == "amp_bf16" and not {"kind=GRU", "kind=RNN", "proj_size=8"} & {*settings}:
        need_bfloat16_lstm()
    assert_to_the_byte(*TOKENS, f"precision={mode}", *(f"+model.{setting}" for setting in settings))


class Workspaces(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mkldnn_rnn_layer.default:
            self.size = result[3].untyped_storage().nbytes()
        return result


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (7, 3, 17, 33), (5, 130, 100, 200), (3, 2, 300, 512)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_workspace_of_an_lstm_is_the_one_of_onednn(sizes, dtype):
    if dtype == torch.bfloat16:
        need_bfloat16_lstm()
    length, batch, width, hidden = sizes
    with Workspaces() as made:
        nn.LSTM(width, hidden).to(dtype)(torch.zeros(length, batch, width, dtype=dtype))
    assert made.size == workspace_bytes(*sizes, dtype.itemsize, dtype.itemsize)


PACKED = "aten._pack_padded_sequence in Recurrent (Recurrent) depends on"
ON_CPU_ONLY = "model=Recurrent: a recurrent layer is predicted on a CPU"


@pytest.mark.parametrize(
    ("setting", "target", "complaint"),
    [("packed=true", "cpu", PACKED), *((f"kind={kind}", "cuda", ON_CPU_ONLY) for kind in ("LSTM", "GRU", "RNN"))],
)
def test_packed_sequences_and_cuda_are_refused(setting, target, complaint, capsys):
    assert main(["predict", *TOKENS, f"+model.{setting}", f"predict.target={target}", "precision=fp32"]) == 2
    assert complaint in capsys.readouterr().err

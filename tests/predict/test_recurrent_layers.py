"""Recurrent layers: to the byte on the CPU, with the workspaces that oneDNN's LSTM keeps for backward."""

import pytest
import torch
from steps import measured, predicted
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from ampsweep.commands.main import main
from ampsweep.precision.support import INSTALLED_TORCH
from ampsweep.predict.kernel_sizes import workspace_bytes

TOKENS = (
    *("model=custom", "model._target_=recurrent_models.Recurrent"),
    *("data=synthetic_tokens", "data.vocab_size=50", "data.seq_len=5", "data.batch_size=4", "data.num_batches=4"),
)
TWICE = ("layers=2", "bidirectional=true")
LAYERS = [
    (),
    TWICE,
    ("layers=3", "dropout=0.2"),
    ("batch_first=false",),
    ("bias=false",),
    ("projection=8",),
    ("kind=GRU",),
    ("kind=GRU", *TWICE, "dropout=0.1"),
    ("kind=RNN",),
    ("kind=RNN", *TWICE),
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
@pytest.mark.parametrize("mode", ["fp32", "amp_bf16", "pure_bf16"])
@pytest.mark.parametrize("settings", LAYERS, ids=",".join)
def test_a_recurrent_step_to_the_byte(settings, mode, has_bfloat16_lstm):
    if mode == "amp_bf16" and not has_bfloat16_lstm and not {"kind=GRU", "kind=RNN", "projection=8"} & {*settings}:
        pytest.skip("oneDNN has no LSTM in bfloat16 for this CPU")
    overrides = (*TOKENS, f"precision={mode}", *(f"+model.{setting}" for setting in settings))

    truth, peak = measured(*overrides), predicted(*overrides).peak()

    assert (peak.num_bytes, peak.categories) == (truth.peak_bytes, truth.peak)


@pytest.mark.parametrize(
    "sizes", [(1, 1, 1, 1), (7, 3, 17, 33), (10, 4, 128, 64), (5, 130, 100, 200), (35, 2, 300, 512), (3, 5, 64, 64)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_workspace_is_the_one_onednn_asks_for(sizes, dtype, has_bfloat16_lstm):
    if dtype == torch.bfloat16 and not has_bfloat16_lstm:
        pytest.skip("oneDNN has no LSTM in bfloat16 for this CPU")
    length, batch, width, hidden = sizes
    with Workspaces() as made:
        nn.LSTM(width, hidden).to(dtype)(torch.zeros(length, batch, width, dtype=dtype))
    assert made.sizes == [workspace_bytes(*sizes, dtype.itemsize, dtype.itemsize)]


class Workspaces(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.mkldnn_rnn_layer.default:
            self.sizes.append(result[3].untyped_storage().nbytes())
        return result


def test_packed_sequences_are_refused(capsys):
    packed = ("predict", *TOKENS, "+model.packed=true", "precision=fp32", "predict.target=cpu")

    assert main([*packed]) == 2
    assert "aten._pack_padded_sequence in Recurrent (Recurrent) depends on values" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_they_are_refused_on_cuda(kind, capsys):
    on_cuda = ("predict", *TOKENS, f"+model.kind={kind}", "precision=amp_fp16", "predict.target=cuda")
    assert main([*on_cuda]) == 2
    assert "model=Recurrent: a recurrent layer is predicted on a CPU only" in capsys.readouterr().err

"""Recurrent layers on CUDA: one operator of cuDNN's, which a prediction counts but does not vouch for."""

import pytest
from steps import composed, predicted

from ampsweep.commands.main import main
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice

A100 = TargetDevice("cuda")
TOKENS = (
    *("model=custom", "model._target_=recurrent_models.Recurrent", "+model.hidden=128", "+model.batch_first=false"),
    *("data=synthetic_tokens", "data.vocab_size=50", "data.seq_len=64", "data.batch_size=16", "data.num_batches=4"),
)
STEPS, HIDDEN = 64 * 16, 128


def step(*settings):
    return predicted(*TOKENS, *settings, target=A100)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("mode", ["fp32", "amp_fp16", "amp_bf16", "pure_bf16"])
def test_the_operator_is_named_with_its_layer(kind, mode):
    named = step(f"+model.kind={kind}", f"precision={mode}").unvouched
    assert [(one.name, one.doubt, one.modules) for one in named] == [
        ("aten._cudnn_rnn", "reserve", [f"layers ({kind})"]),
        ("aten._cudnn_rnn_backward", "reserve", []),
    ]


@pytest.mark.parametrize(("kind", "kept"), [("LSTM", 5), ("GRU", 4), ("RNN", 0)])
@pytest.mark.parametrize(("mode", "itemsize"), [("fp32", 4), ("amp_fp16", 2), ("pure_bf16", 2)])
def test_what_backward_needs_at_least_is_counted(kind, kept, mode, itemsize):
    timeline = step(f"+model.kind={kind}", f"precision={mode}")
    reserve = STEPS * HIDDEN * kept * itemsize
    assert timeline.at(timeline.end_of_forward)["activations"] >= reserve
    assert (reserve in timeline.sizes.tolist()) == (kept > 0)


def test_layers_directions_and_outputs_between_layers_add_up():
    deep = step("+model.layers=2", "+model.bidirectional=true", "precision=fp32")
    assert 4 * STEPS * 2 * (2 * 5 * HIDDEN + HIDDEN) in deep.sizes.tolist()


def test_weights_are_one_allocation():
    size = 4 * HIDDEN * (16 + HIDDEN + 2)
    assert (step("precision=fp32").sizes == 4 * size).sum() == 2, "the weights, and their gradients"


def test_bfloat16_parameters_are_copied_at_each_call():
    size = 2 * 4 * HIDDEN * (16 + HIDDEN + 2)
    assert size in step("precision=pure_bf16").sizes.tolist()


def test_torchs_operators_are_its_own_again_afterwards():
    config = composed(*TOKENS, "precision=fp32")
    before = FakeTraining(config, TargetDevice("cpu")).trace(16).peak().num_bytes
    FakeTraining(config, A100).trace(16)
    assert FakeTraining(config, TargetDevice("cpu")).trace(16).peak().num_bytes == before


def test_the_sentence_says_what_is_not_known(capsys):
    assert main(["predict", *TOKENS, "precision=amp_fp16", "predict.target=cuda", "predict.memory_gib=1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Not vouched for: aten._cudnn_rnn in layers (LSTM), aten._cudnn_rnn_backward: cuDNN chooses" in out
    assert "On 1 GiB, unless what is named below takes more than predicted: amp_fp16" in out

"""One line records a training of each framework, with the real library; what its flags claim is proved."""

import importlib
import sys
from functools import partial

import framework_trainings
import pytest
import torch

from ampsweep.commands.main import main
from ampsweep.config.claims import claimed_precision
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.integrations import own_training
from ampsweep.integrations.own_training import OwnTraining
from ampsweep.records import RunRecord, read_history

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks' own
FRAMEWORKS = (
    *("transformers", "lightning"),
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("accelerate", "fabric")),
)
OF_A_BATCH = 4 * framework_trainings.BATCH * (framework_trainings.WIDTH + 2)
EXACT = ("parameters", "gradients", "optimizer_state", "autocast_weights")


def losses(run):
    return {row["step"]: row["train/loss"] for row in read_history(run.directory) if "train/loss" in row}


def seen(capsys):
    return " ".join(capsys.readouterr().out.split())


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    run = framework_trainings.bare(tmp_path_factory.mktemp("bare"))
    return RunRecord.read(run.directory), losses(run)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_frameworks_record_is_that_of_the_bare_loop(framework, bare, tmp_path):
    run, _ = getattr(framework_trainings, framework)(tmp_path, tmp_path / "own")
    record, (expected, of_bare) = RunRecord.read(run.directory), bare
    assert (record.status, record.source, record.arm, record.error) == ("completed", framework, "fp32", None)
    assert (record.identity.precision_mode, record.identity.steps) == ("fp32", framework_trainings.STEPS)
    assert losses(run) == pytest.approx(of_bare, rel=1e-6, abs=0), "of both micro-batches of each step"
    assert {name: record.memory.peak[name] for name in EXACT} == {name: expected.memory.peak[name] for name in EXACT}
    # Loaders fetch batches ahead, and the trainers hold losses of their own.
    assert 0 <= record.memory.peak_bytes - expected.memory.peak_bytes <= 3 * OF_A_BATCH + 64
    assert record.proof.flops == expected.proof.flops
    assert record.summary["perf/step_ms"] > 0
    loss = record.summary["eval_loss" if framework == "transformers" else "val/loss"]
    assert 0.5 < loss < 0.8
    assert torch.autograd.backward.__name__ == "backward"
    assert not hasattr(torch.autograd.backward, "__wrapped__"), "the hooks are gone"


@pytest.mark.nightly
def test_flags_are_proved_and_not_believed(tmp_path, capsys):
    """bf16 whose model turns autocast off, and fp16 that Accelerate quietly leaves in float32 on a CPU."""
    quiet = {"evaluate": False}
    framework_trainings.transformers(tmp_path, tmp_path / "a", arguments={"bf16": True}, autocast=False, **quiet)
    framework_trainings.accelerate(tmp_path, tmp_path / "b", precision="fp16", options={"arm": "half"})
    main(["report", str(tmp_path), "--format", "json"])
    assert capsys.readouterr().out.count("only 0% of the matmul and convolution operations ran in") >= 2


def test_float32_that_is_rounded_under_another_claim_is_said(tmp_path, monkeypatch, capsys, request):
    request.addfinalizer(partial(setattr, torch.backends.mkldnn.matmul, "fp32_precision", "none"))
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    monkeypatch.setattr(own_training, "kept_bits", lambda *_: {"matmul": 7})  # whatever this processor does
    framework_trainings.bare(tmp_path, claimed="32-true")
    main(["report", str(tmp_path)])
    assert "fp32 was asked for, and a matmul in float32 was rounded, as TF32 does" in seen(capsys)


@pytest.mark.nightly
def test_an_evaluation_in_other_parameters_is_said(tmp_path, capsys):
    """`bf16_full_eval` casts the model in an evaluation outside of `train`."""
    run, trainer = framework_trainings.transformers(
        tmp_path, tmp_path / "own", evaluate=False, arguments={"bf16_full_eval": True}
    )
    assert "eval_loss" not in RunRecord.read(run.directory).summary
    trainer.evaluate()
    record = RunRecord.read(run.directory)
    last = read_history(run.directory, record.history_digest)[-1]
    assert (last["step"], last["eval_loss"]) == (framework_trainings.STEPS, record.summary["eval_loss"])
    assert record.proof.eval_parameters == "bfloat16"
    main(["report", str(tmp_path)])
    assert "evaluated with parameters in bfloat16" in seen(capsys)


@pytest.mark.nightly
def test_a_training_that_fails_or_a_recording_that_does_stays_apart(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="the batch is broken"):
        framework_trainings.lightning(tmp_path / "a", tmp_path / "own", fails=True)
    (directory,) = (tmp_path / "a").iterdir()
    record = RunRecord.read(directory)
    assert (record.status, record.identity.steps) == ("failed", 3)
    assert record.error.startswith("RuntimeError: the batch is broken (tests/framework_trainings.py")

    monkeypatch.setattr(OwnTraining, "note_evaluation", lambda *_: 1 / 0)
    run, trainer = framework_trainings.lightning(tmp_path / "b", tmp_path / "own", "pytorch_lightning")
    assert trainer.global_step == framework_trainings.STEPS
    record = RunRecord.read(run.directory)
    assert record.status == "interrupted"
    assert "on_validation_start: ZeroDivisionError" in record.error


def test_words_of_frameworks_are_modes_and_others_are_not():
    words = {
        "amp_bf16": ("bf16-mixed", "BF16", "torch.bfloat16", "bf16+tf32"),
        "amp_fp16": ("fp16", "16-mixed", "amp"),
        "fp32": ("no", "32-true"),
        "pure_bf16": ("bf16-true",),
    }
    assert {mode: {claimed_precision(word).mode for word in of} for mode, of in words.items()} == {
        m: {m} for m in words
    }
    assert claimed_precision("bf16+tf32").tf32
    assert all(claimed_precision(mode) == settings for mode, settings in PRECISION_MODES.items())
    assert [claimed_precision(word) for word in ("64-true", "fp8", "transformer-engine", "my run")] == [None] * 4


@pytest.mark.parametrize(
    ("module", "hidden", "extra"),
    [("transformers", "transformers", "transformers"), ("accelerate", "accelerate.state", "accelerate")],
)
def test_an_absent_library_is_one_sentence(module, hidden, extra, monkeypatch):
    monkeypatch.delitem(sys.modules, f"ampsweep.integrations.{module}", raising=False)
    monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(ImportError, match=rf"needs .*: pip install -e '.\[{extra}\]'"):
        importlib.import_module(f"ampsweep.integrations.{module}")


def test_impossible_options_are_refused_before_the_training():
    from ampsweep.integrations.fabric import AmpsweepCallback

    with pytest.raises(ValueError, match="goal='largest': minimize or maximize"):
        AmpsweepCallback(goal="largest")

"""Workloads of a stranger's project train as the same loops written by hand do, resume bitwise and are predicted."""

import importlib
from pathlib import Path

import pytest
import torch
from assembled import assert_resumes_bitwise, trained

from ampsweep.config.identity import resolved_values
from ampsweep.data.base import stop_workers
from ampsweep.predict.fake_training import FakeTraining
from ampsweep.predict.target_device import TargetDevice
from ampsweep.user_code import own_code

PROJECT = Path(__file__).parents[1] / "benchmarks/own_workloads"
NAMES = sorted(path.stem for path in (PROJECT / "conf/experiment").glob("*.yaml"))
ALWAYS = ("digits_gan", "dqn")
WORKLOADS = [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.nightly) for name in NAMES]
STEPS = 8


@pytest.fixture(autouse=True)
def own_project(request, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(PROJECT)
    workload = request.node.callspec.params.get("workload")
    if workload in ("bert", "gpt2"):
        pytest.importorskip("transformers")
    if workload == "images":
        pytest.importorskip("PIL")
        from zoo.folder import write_digits

        monkeypatch.chdir(tmp_path)
        write_digits(Path("images"))


def settings(workload, mode):
    search_path = f"hydra.searchpath=['file://{PROJECT / 'conf'}']"
    return (
        search_path,
        f"experiment={workload}",
        f"precision={mode}",
        f"trainer.steps={STEPS}",
        "trainer.warmup_steps=0",
    )


@pytest.mark.parametrize("workload", WORKLOADS)
def test_it_trains_as_written_by_hand_and_as_predicted(workload):
    import plain_loops

    for mode in ("fp32", "amp_bf16"):
        training = trained(*settings(workload, mode))
        stop_workers(training.built.data)
        theirs = plain_loops.train(workload, resolved_values(training.config))
        losses, weights = [*training.column("train/loss").values()], training.built.model.state_dict()
        if mode == "fp32":
            assert losses == theirs["losses"]
            assert all(torch.equal(weights[name], theirs["weights"][name]) for name in weights)
        assert losses == pytest.approx(theirs["losses"], rel=2**-8)
        if workload == "experts":  # shapes that depend on values have no prediction
            continue
        step = FakeTraining(training.config, TargetDevice("cpu")).trace(training.built.data.batch_size)
        assert step.peak().categories == training.instruments.memory().peak


@pytest.mark.parametrize("workload", WORKLOADS)
def test_it_resumes_bitwise_in_float16(workload, tmp_path):
    mode = "amp_fp16" if workload != "lstm" else "amp_bf16"  # oneDNN trains no LSTM in float16
    assert_resumes_bitwise(tmp_path, *settings(workload, mode), stop_after=STEPS // 2)


@pytest.mark.parametrize(
    "use", ["from my_layers import Layer", "import my_layers", "from my_layers import Layer as L\nlayer = L()\ndel L"]
)
def test_a_change_in_the_model_or_its_imports_is_a_new_version(use, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def version(nets, layers):
        """The version of these modules of the user, imported as by a process that has just begun."""
        for name, source in (("my_layers", layers), ("my_nets", nets)):
            (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
            monkeypatch.delitem(importlib.sys.modules, name, raising=False)
        importlib.invalidate_caches()
        importlib.import_module("my_nets")
        return own_code({"_target_": "ampsweep.data.digits.Digits"}, {"_target_": "my_nets.Net"})

    nets, layers = f"from torch import nn\n{use}\n\nclass Net(nn.Module): ...\n", "class Layer: ...\n"
    before = version(nets, layers)
    assert before.keys() == {"my_layers", "my_nets"}, "without installed packages and the suite itself"
    assert version(nets, layers) == before
    assert version(nets, layers + "# other\n")["my_layers"] != before["my_layers"]
    assert version(nets + "# other\n", layers)["my_nets"] != before["my_nets"]
    nested = {"_target_": "ampsweep.x.Y", "dataset": {"_target_": "my_nets.Net"}}
    assert own_code(nested, {"_target_": "torch.nn.Linear"}, {"_target_": "json.x"}).keys() == before.keys()

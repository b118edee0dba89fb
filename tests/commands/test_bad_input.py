"""Wrong input is one sentence, exit code 2 and nothing else: no run directory, no W&B run, nothing on stdout.

The sentences about values of the config are asserted in `tests/config/test_wrong_input.py`.
"""

import re
from pathlib import Path

import numpy as np
import pytest

MLP = ("model=mlp_small", "trainer.steps=4", "tracking=disabled")
GPT = ("model=gpt_tiny", "trainer.steps=4", "data.seq_len=16", "tracking=disabled")
OWN = ("model=custom", "data=digits", "trainer.steps=4", "tracking=disabled")
NO_YAML = "own.yaml: not YAML: while constructing a mapping found duplicate key"


@pytest.fixture
def refused(train, machine, tmp_path):
    """The sentence of a command line that is refused and leaves no trace."""

    def refused(*arguments):
        before = {path: path.stat().st_mtime_ns for path in [*tmp_path.rglob("*"), *machine.rglob("*")]}
        ended = train(*arguments)
        assert (ended.code, ended.out) == (2, ""), arguments
        (line,) = ended.err.splitlines()
        assert line.startswith("error: ")
        assert {path: path.stat().st_mtime_ns for path in [*tmp_path.rglob("*"), *machine.rglob("*")]} == before
        return line.removeprefix("error: ")

    return refused


SINGLE = {
    "--option": "unknown option --option; settings are given as key=value",
    "--multi-run": "unknown option --multi-run; did you mean --multirun? Settings are given as key=value",
    "device=cup": "device=cup: torch knows no such device; did you mean cpu? Allowed are auto, cpu, cuda, mps",
    "--config-dir=nosuch": "--config-dir nosuch is not a directory",
    "precision=fp32,amp_bf16": "precision=fp32,amp_bf16 names several values; add -m",
    "into=outputs": "into=outputs: only a multirun can be extended; add -m",
    "report.decide=true": "report.decide=true: only a multirun can add seeds; add -m",
    "resume=nosuch": "nosuch is neither a checkpoint nor a run directory with one",
    "resume=nosuch/*": "neither a checkpoint nor a run",
    "resume=notes.txt": "is damaged or no checkpoint",
    "output_dir=notes.txt/runs": "output_dir=notes.txt/runs: cannot be written",
    "device=cuda:77": "device=cuda:77",
    "device=tpu": "device=tpu",
    "device=cpu trainer.cudnn_benchmark=true": "trainer.cudnn_benchmark",
    "device=cpu precision=tf32": "precision=tf32: ",
    "optimizer=custom optimizer._target_=own_optimizers.Lion +optimizer.beta=1": "unexpected keyword argument 'beta'",
    "scheduler=custom scheduler._target_=torch.optim.lr_scheduler.ReduceLROnPlateau": "set trainer.eval_every",
    "precision=fp8_rowwise model.num_layers=1": "no layer of the model multiplies in float8",
    "parallel=ddp parallel.num_processes=5000": "num_processes=5000: at most",
    "tracking.mode=online": "tracking.mode is online, but wandb is not logged in",
    "data.batch_size=100000": "1438",
    "format=json": "format=json: a training has no format",
    "experiment=own --config-dir=own": NO_YAML,
    "experiment=own --config-dir=own --cfg job": NO_YAML,
    "name='a\x1b[31mred/'": r"name=a\x1b[31mred/: must be the name of one folder, without slashes",
    "name='a\u202eb/'": r"name=a\u202eb/: must be",
}
"""Settings of a training that is fine without them, with a part of the sentence."""
SWEEPS = {
    "model.num_heads=2,3": "64 and 3",
    "data.path=null,nosuch.txt": "data=text: data file nosuch.txt cannot be read: No such file or directory",
    "data=tokens data.path=ids.bin data.vocab_size=2000": "token id 2000 at position 2000",
    "resume=auto": "resume=auto: a multirun is continued with into=",
    "resume=el*where": "resume=el*where: elsewhere is neither a checkpoint",
    "resume=*e*": "paths fit it, such as elsewhere and notes.txt",
    "into=elsewhere": "into=elsewhere: not the directory of a multirun",
    "experiment=own --config-dir=own": NO_YAML,
    "hydra/launcher=nosuch": "hydra/launcher=nosuch: no such option; allowed are",
    "hydra.launcher.n_jobs=2": "keys of hydra.launcher: none; another launcher is chosen with hydra/launcher=NAME",
}
"""Points that refuse a whole sweep."""


@pytest.mark.parametrize(
    ("fine", "wrong"), [(MLP, SINGLE), (("-m", *GPT, "seed=0,1"), SWEEPS)], ids=["single", "sweep"]
)
def test_a_wrong_setting_is_named(fine, wrong, refused):
    Path("elsewhere").mkdir()
    Path("notes.txt").write_text("no checkpoint")
    np.arange(3000, dtype=np.uint16).tofile("ids.bin")
    Path("own/experiment").mkdir(parents=True)
    Path("own/experiment/own.yaml").write_text("# @package _global_\nseed: 1\nseed: 2")
    for setting, said in wrong.items():
        assert said in refused(*fine, *setting.split()), setting


def test_a_missing_package_is_named(refused, monkeypatch):
    monkeypatch.setattr("ampsweep.precision.torchao_import.find_spec", lambda _: None)
    said = refused(*MLP, "precision=fp8_rowwise")
    assert said.startswith("precision=fp8_rowwise needs the optional package torchao")


def test_wrong_input_is_found_before_torch_and_wandb_begin(refused, monkeypatch):
    def begin(*_):
        raise AssertionError("W&B begins, and after it torch and the device's lock")

    assert refused("-m", *MLP[:-1], "tracking.mode=offline", "data.batch_size=100000")
    monkeypatch.setattr("ampsweep.commands.train.WandbProcess", begin)
    for sweep, setting in (((), "model._target_=nosuch.deeper.Net"), (("-m",), "resume=missing")):
        assert refused(*sweep, *OWN[:-1], "model._target_=own_models.Digits", "tracking.mode=offline", setting)


UNIMPORTABLE = {
    "raising": ("raise RuntimeError('a library is missing')", "RuntimeError: a library is missing", 1),
    "misspelt": ("class Net(:", "SyntaxError: invalid syntax", 1),
    "exiting": ("import sys\nsys.exit(3)", "ended by sys.exit(3)", 2),
}
"""Modules of a user, with the error of their import and its line."""


def test_an_own_model_that_cannot_be_trained_is_refused(refused, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "own")
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    for name, (content, error, line) in UNIMPORTABLE.items():
        (tmp_path / f"own/{name}.py").write_text(content)
        said = refused(*OWN, f"model._target_={name}.Net")
        assert said == f"model._target_={name}.Net does not import: {error} (own/{name}.py, line {line})"
    said = "model=custom cannot be trained on data=digits with task=classification: KeyError: 'features'"
    for sweep in ((), ("-m",)):
        assert refused(*sweep, *OWN, "model._target_=own_models.Lookup").startswith(said)
    said = refused("-m", *OWN, "model._target_=own_models.Unbuilt", "+model.what=crashes")
    assert said == "model=Unbuilt with data=digits cannot be checked: killed by SIGSEGV"


@pytest.mark.nightly
@pytest.mark.parametrize("sweep", [(), ("-m",)], ids=["single", "sweep"])
def test_a_model_that_is_never_built_is_refused_in_time(sweep, refused):
    limits = ("trainer.max_seconds=0.5", "trainer.grace_seconds=0.5")
    said = refused(*sweep, *OWN, *limits, "model._target_=own_models.Unbuilt", "+model.what=hangs")
    late = r"before it begins did not end within 5\.5 s .trainer.max_seconds=0\.5.*own_models\.py, line "
    assert re.search(late, said)


def test_a_launch_of_ranks_that_the_command_does_not_want_is_refused(refused, monkeypatch):
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert refused(*MLP).startswith("parallel=single with 2 processes of torchrun")
    assert "leave torchrun out" in refused("-m", *MLP)
    assert "parallel.num_processes=3 with 2 processes" in refused(*MLP, "parallel=ddp", "parallel.num_processes=3")

"""Wrong input is one sentence, exit code 2 and nothing else: no run directory, no W&B run, nothing on stdout.

The sentences about values of the config are asserted in `tests/config/test_wrong_input.py`.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import only_run

MLP = ("model=mlp_small", "trainer.steps=4", "tracking=disabled")
GPT = ("model=gpt_tiny", "trainer.steps=4", "data.seq_len=16", "tracking=disabled")
OWN = ("model=custom", "data=digits", "trainer.steps=4", "tracking=disabled")


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


def test_the_process_says_it_in_one_line(start, tmp_path):
    ended = start(*MLP, "precision=fp8").finish()
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: precision=fp8: no such option; allowed are amp_bf16,")
    assert ended.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


SINGLE = {
    "--option": "unknown option --option; settings are given as key=value",
    "--config-dir=nosuch": "--config-dir nosuch is not a directory",
    "precision=fp32,amp_bf16": "precision=fp32,amp_bf16 names several values; add -m",
    "into=outputs": "into=outputs: only a multirun can be extended; add -m",
    "resume=nosuch": "nosuch is neither a checkpoint nor a run directory with one",
    "output_dir=file/runs": "output_dir=file/runs: cannot be written",
    "device=cuda:77": "device=cuda:77",
    "device=tpu": "device=tpu",
    "device=cpu trainer.cudnn_benchmark=true": "trainer.cudnn_benchmark",
    "device=cpu precision=tf32": "precision=tf32: ",
    "resume=nosuch/*": "neither a checkpoint nor a run",
    "precision=fp8_rowwise model.num_layers=1": "no layer of the model multiplies in float8",
    "parallel=ddp parallel.num_processes=5000": "num_processes=5000: at most",
    "tracking.mode=online": "tracking.mode is online, but wandb is not logged in",
    "data.batch_size=100000": "1438",
    "format=json": "format=json: a training has no format",
}
"""Settings of a training that is fine without them, with a part of the sentence."""


def test_a_wrong_setting_is_named(refused, tmp_path):
    (tmp_path / "file").touch()
    for setting, said in SINGLE.items():
        assert said in refused(*MLP, *setting.split()), setting


SWEEPS = {
    "model.num_heads=2,3": "64 and 3",
    "data.path=null,nosuch.txt": "data=text: data file nosuch.txt cannot be read: No such file or directory",
    "resume=auto": "resume=auto: a multirun is continued with into=",
    "resume=el*where": "resume=el*where: elsewhere is neither a checkpoint",
    "resume=*e*": "paths fit it, such as elsewhere and file",
    "into=elsewhere": "into=elsewhere: not the directory of a multirun",
    "output_dir=file/runs": "output_dir=file/runs: cannot be written",
    "hydra/launcher=nosuch": "hydra/launcher=nosuch: no such option; allowed are",
    "hydra.launcher.n_jobs=2": "hydra.launcher has no keys; another launcher is chosen with hydra/launcher=NAME",
}


def test_one_bad_point_refuses_the_whole_sweep(refused):
    Path("elsewhere").mkdir()
    Path("file").touch()
    for swept, said in SWEEPS.items():
        assert said in refused("-m", *GPT, "seed=0,1", swept), swept


def test_wrong_input_is_found_before_torch_and_wandb_begin(refused, monkeypatch, tmp_path):
    def begin(*_):
        raise AssertionError("W&B begins, and after it torch and the device's lock")

    (tmp_path / "file").touch()
    for setting in ("data.batch_size=100000", "output_dir=file/runs"):
        assert refused("-m", *MLP[:-1], "tracking.mode=offline", setting)
    monkeypatch.setattr("ampsweep.commands.train.WandbProcess", begin)
    for sweep, setting in (((), "model._target_=nosuch.deeper.Net"), (("-m",), "resume=missing")):
        assert refused(*sweep, *OWN[:-1], "model._target_=own_models.Digits", "tracking.mode=offline", setting)
    monkeypatch.setattr("ampsweep.commands.train.find_spec", lambda _: None)
    said = refused(*MLP[:-1], "tracking.mode=offline", "precision=fp8_rowwise")
    assert said.startswith("precision=fp8_rowwise needs the optional package torchao")


def test_data_files_are_read_before_anything_starts(refused):
    Path("short.txt").write_bytes(b"short")
    assert "4 tokens for training" in refused(*GPT, "data.path=short.txt")
    np.arange(3000, dtype=np.uint16).tofile("ids.bin")
    for sweep in ((), ("-m", "seed=0,1")):
        said = refused(*GPT, "data=tokens", "data.path=ids.bin", "data.vocab_size=2000", *sweep)
        assert "token id 2000 at position 2000" in said
        assert "vocabulary of 2000" in said
    assert "data=text has no epochs; use trainer.steps" in refused(*GPT, "trainer.steps=null", "trainer.epochs=1")


def test_files_that_are_no_checkpoint_of_this_model_are_refused(train, refused):
    train(*MLP, "trainer.checkpoint_every=2")
    directory = only_run().directory
    said = refused(*MLP, "model.hidden_size=128", f"resume={directory}")
    assert "is of another model" in said
    assert "(256,) there and (128,)" in said
    checkpoint = directory / "checkpoints/last.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1000])
    assert refused(*MLP, f"resume={checkpoint}").endswith("cannot be read: it is damaged or no checkpoint")
    torch.save({"weights": torch.zeros(2)}, "model.pt")
    assert "model.pt is not a checkpoint of this version" in refused(*MLP, "resume=model.pt")
    Path("notes.txt").write_text("no checkpoint")
    assert "is damaged or no checkpoint" in refused(*MLP, "resume=notes.txt")


OWN_MODELS = {
    "nosuch.Net": "does not import: ModuleNotFoundError: No module named 'nosuch'",
    "raising.Net": "does not import: RuntimeError: a library is missing (own/raising.py, line 1)",
    "misspelt.Net": "does not import: SyntaxError: invalid syntax (own/misspelt.py, line 1)",
    "exiting.Net": "does not import: ended by sys.exit(3) (own/exiting.py, line 2)",
    "own_models.NotAModule": "gave a NotAModule, not a torch.nn.Module",
    "own_models.Unwilling": "KeyError: 'no such layer'",
    "own_models.Gated": "missing 2 required positional arguments: 'at' and 'gate'",
    "own_models.Lookup": "cannot be trained on data=digits with task=classification: KeyError: 'features'",
}


def test_an_own_model_that_cannot_be_trained_is_refused(refused, tmp_path, monkeypatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/raising.py").write_text("raise RuntimeError('a library is missing')\nclass Net: pass")
    (tmp_path / "own/misspelt.py").write_text("class Net(:")
    (tmp_path / "own/exiting.py").write_text("import sys\nsys.exit(3)\nclass Net: pass")
    monkeypatch.syspath_prepend(tmp_path / "own")
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    for target, said in OWN_MODELS.items():
        sentence = refused(*OWN, f"model._target_={target}")
        assert sentence.startswith((f"model._target_={target}", "model=custom")), target
        assert said in sentence
    assert OWN_MODELS["own_models.Lookup"] in refused("-m", *OWN, "model._target_=own_models.Lookup")
    wrong = refused(*OWN, "model._target_=own_models.Broken", "+model.what=raises", "+model.wdith=8")
    assert "unexpected keyword argument 'wdith'" in wrong
    sentence = refused(*OWN, "model._target_=own_models.Digits", "trainer.activation_checkpointing=true")
    assert sentence.startswith("trainer.activation_checkpointing=true: Digits has no gradient_checkpointing_enable")
    said = refused("-m", *OWN, "model._target_=own_models.Unbuilt", "+model.what=crashes")
    assert said == "model=Unbuilt with data=digits cannot be checked: killed by SIGSEGV"


@pytest.mark.nightly
@pytest.mark.parametrize("sweep", [(), ("-m",)], ids=["single", "sweep"])
def test_a_model_that_is_never_built_is_refused_in_time(sweep, refused):
    time_limit = ("trainer.max_seconds=0.5", "trainer.grace_seconds=0.5")
    said = refused(*sweep, *OWN, *time_limit, "model._target_=own_models.Unbuilt", "+model.what=hangs")
    assert "checking the run before it begins did not end within 5.5 s (trainer.max_seconds=0.5" in said
    assert "own_models.py, line " in said


def test_broken_yaml_of_a_users_own_is_named(refused):
    Path("own/experiment").mkdir(parents=True)
    for content, said in {
        b"a:\n\tb: 1": "own.yaml: not YAML: while scanning for the next token found character '\\t'",
        b"a: [1\nb: 2": "own.yaml: not YAML: while parsing a flow sequence",
        b"\xff\xfe": "is not UTF-8 text: invalid start byte at byte 0",
        b"defaults: 3": "Invalid defaults list in 'experiment/own'",
        b"# @package _global_\nseed: 1\nseed: 2": "own.yaml: not YAML: while constructing a mapping found",
    }.items():
        Path("own/experiment/own.yaml").write_bytes(content)
        assert said in refused("--config-dir=own", *MLP, "experiment=own")
    for more in (("-m",), ("--cfg", "job")):
        assert "duplicate key" in refused(*more, "--config-dir=own", *MLP, "experiment=own")


def test_a_launch_of_ranks_that_the_command_does_not_want_is_refused(refused, monkeypatch):
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert refused(*MLP).startswith("parallel=single with 2 processes of torchrun")
    assert "leave torchrun out" in refused("-m", *MLP)
    assert "parallel.num_processes=3 with 2 processes" in refused(*MLP, "parallel=ddp", "parallel.num_processes=3")


def test_names_do_not_steer_the_terminal(train):
    for name in ("a\x1b[31mred/", "a\x9b31m/", "a‮b/", "a\x07/"):
        ended = train(*MLP, f"name='{name}'")
        assert ended.code == 2
        shown = name.encode("unicode_escape").decode()
        assert ended.err == f"error: name={shown}: must be the name of one folder, without slashes\n"


def test_ampsweep_train_is_train_py(ampsweep):
    ended = ampsweep("train", "precision=amp_fp8")
    assert ended.code == 2
    assert ended.err.startswith("error: precision=amp_fp8")

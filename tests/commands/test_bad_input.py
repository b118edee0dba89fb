"""Wrong input is one sentence, exit code 2 and nothing else: no run directory, no W&B run, nothing on stdout."""

from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import only_run

from ampsweep.commands import main as cli

MLP = ("model=mlp_small", "trainer.steps=4", "tracking=disabled")
GPT = ("model=gpt_tiny", "trainer.steps=4", "data.seq_len=16", "tracking=disabled")
OWN = ("model=custom", "data=digits", "trainer.steps=4", "tracking=disabled")

KEYS = {
    "unknown key": ("nosuch=1", "unknown key nosuch", "optimizer"),
    "unknown group value": ("precision=fp8", "precision=fp8", "amp_bf16", "pure_fp16"),
    "negative steps": ("trainer.steps=-1", "trainer.steps=-1", "greater than 0"),
    "no batch": ("data.batch_size=0", "data.batch_size=0", "greater than 0"),
    "batch above the data": ("data.batch_size=100000", "100000", "1438"),
    "new key": ("+seed=1", "+seed=1", "model, data, task"),
    "unknown option": ("--option", "--option", "key=value"),
    "unknown short option": ("-x", "-x", "key=value"),
    "several values in a single run": ("precision=fp32,amp_bf16", "precision=fp32,amp_bf16", "-m"),
    "another config": ("--config-name=mine", "--config-name mine", "there is one config"),
    "missing config directory": ("--config-dir=nosuch", "--config-dir nosuch", "not a directory"),
    "unknown device": ("device=tpu", "device=tpu"),
    "cuDNN's flag without cuDNN": ("device=cpu trainer.cudnn_benchmark=true", "trainer.cudnn_benchmark", "CUDA", "cpu"),
    "device that is not here": ("device=cuda:77", "device=cuda:77"),
    "unknown W&B mode": ("tracking.mode=sometimes", "tracking.mode=sometimes", "offline"),
    "W&B online without a key": ("tracking.mode=online", "tracking.mode is online", "WANDB_API_KEY", "offline"),
    "a multirun's directory in a single run": ("into=outputs", "into=outputs", "-m"),
    "checkpoint that is not there": ("resume=nosuch", "resume=nosuch", "neither a checkpoint nor a run directory"),
    "a pattern that no checkpoint fits": ("resume=nosuch/*", "resume=nosuch/*", "neither a checkpoint nor a run"),
    "a key that only several processes use": (
        "parallel.reduce_dtype=float16",
        "an effect only with parallel=ddp or fsdp2",
    ),
    "a key that only autocast uses": ("precision.fp32_modules=[head]", "an effect only with precision.autocast"),
    "a key of another key": ("numerics.every=5", "an effect only with numerics.watch"),
    "a key of another command": (
        "predict.capability=9.0",
        "predict.capability=9.0: has an effect in ampsweep predict only",
    ),
    "another run directory": ("hydra.run.dir=x", "give output_dir and name"),
    "more processes than cores": ("parallel=ddp parallel.num_processes=5000", "num_processes=5000: at most"),
    "what the device cannot do": ("precision=tf32 device=cpu", "precision=tf32: ", "cpu", "compute capability 8.0"),
    "a scaler for float16 gradients": (
        "precision=pure_fp16 precision.grad_scaler=true",
        "precision.grad_scaler=true with precision.parameters=float16",
        "amp_fp16",
    ),
    "unwritable output directory": ("output_dir=file/runs", "output_dir=file/runs", "cannot be written"),
}
"""Settings of a training that is fine without them, and what the sentence must say."""


@pytest.fixture
def refused(train, machine, tmp_path):
    """The sentence of a command line that is refused and leaves no trace."""

    def refused(*arguments):
        before = {path: path.stat().st_mtime_ns for path in [*tmp_path.rglob("*"), *machine.rglob("*")]}
        ended = train(*arguments)
        assert (ended.code, ended.out) == (2, "")
        (line,) = ended.err.splitlines()
        assert line.startswith("error: ")
        assert {path: path.stat().st_mtime_ns for path in [*tmp_path.rglob("*"), *machine.rglob("*")]} == before
        return line.removeprefix("error: ")

    return refused


@pytest.mark.parametrize(("setting", "said"), [(case[0], case[1:]) for case in KEYS.values()], ids=list(KEYS))
def test_a_wrong_setting_is_named(setting, said, refused, tmp_path):
    (tmp_path / "file").touch()
    sentence = refused(*MLP, *setting.split())
    for words in said:
        assert words in sentence


@pytest.mark.parametrize("sweep", [(), ("-m",)], ids=["single", "sweep"])
@pytest.mark.parametrize("setting", ["seed=-1", "data.batch_size=100000", "output_dir=file/runs"])
def test_nor_has_wandb_begun_anything(setting, sweep, refused, tmp_path):
    """Found before anything was looked at, while it was, and after it was found well."""
    (tmp_path / "file").touch()
    assert refused(*sweep, *MLP[:-1], "tracking.mode=offline", setting)


@pytest.mark.parametrize(
    ("path", "content", "said"),
    [
        ("missing.txt", None, "No such file"),
        ("empty.txt", b"", "is empty"),
        ("short.txt", b"short", "4 tokens for training"),
        (".", None, "Is a directory"),
    ],
)
def test_a_text_that_cannot_be_read_is_named(path, content, said, refused):
    if content is not None:
        Path(path).write_bytes(content)
    sentence = refused(*GPT, f"data.path={path}")
    assert f"data file {path} " in sentence
    assert said in sentence


@pytest.mark.parametrize(("path", "said"), [("missing.bin", "No such file"), ("empty.bin", "is empty"), (".", "Is a")])
def test_token_ids_that_cannot_be_read_are_named(path, said, refused):
    Path("empty.bin").touch()
    sentence = refused(*GPT, "data=tokens", f"data.path={path}")
    assert f"data file {path} " in sentence
    assert said in sentence


@pytest.mark.parametrize("sweep", [(), ("-m", "seed=0,1")])
def test_a_token_id_outside_the_vocabulary_is_named(sweep, refused):
    np.arange(3000, dtype=np.uint16).tofile("ids.bin")
    sentence = refused(*GPT, "data=tokens", "data.path=ids.bin", "data.vocab_size=2000", *sweep)
    assert "token id 2000 at position 2000" in sentence
    assert "vocabulary of 2000" in sentence


def test_endless_data_has_no_epochs(refused):
    assert "data=text has no epochs; use trainer.steps" in refused(*GPT, "trainer.steps=null", "trainer.epochs=1")


def test_a_checkpoint_that_is_damaged_is_refused(train, refused):
    train(*MLP, "trainer.checkpoint_every=2")
    checkpoint = only_run().directory / "checkpoints/last.pt"
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1000])
    said = refused(*MLP, f"resume={checkpoint}")
    assert said.endswith("cannot be read: it is damaged or no checkpoint")


def test_another_file_is_no_checkpoint(refused):
    torch.save({"weights": torch.zeros(2)}, "model.pt")
    assert "model.pt is not a checkpoint of this version" in refused(*MLP, "resume=model.pt")
    Path("notes.txt").write_text("no checkpoint")
    assert "is damaged or no checkpoint" in refused(*MLP, "resume=notes.txt")


def test_a_checkpoint_of_another_model_is_refused(train, refused):
    train(*MLP, "trainer.checkpoint_every=4")
    directory = only_run().directory
    sentence = refused(*MLP, "model.hidden_size=128", f"resume={directory}")
    assert "is of another model" in sentence
    assert "(256,) there and (128,)" in sentence


OWN_MODELS = {
    "nosuch.Net": "does not import: ModuleNotFoundError: No module named 'nosuch'",
    "own_models.Nothing": "does not import: AttributeError",
    "own_models": "is a module, not a class or function",
    "raising.Net": "does not import: RuntimeError: a library is missing (own/raising.py, line 1)",
    "misspelt.Net": "does not import: SyntaxError: invalid syntax (own/misspelt.py, line 1)",
    "exiting.Net": "does not import: ended by sys.exit(3) (own/exiting.py, line 2)",
    "own_models.NotAModule": "gave a NotAModule, not a torch.nn.Module",
    "own_models.Unwilling": "KeyError: 'no such layer'",
    "own_models.Leaving": "ended by sys.exit(5) (",
    "own_models.Gated": "missing 2 required positional arguments: 'at' and 'gate'",
    "own_models.Empty": "has no parameters to train",
    "own_models.Colour": "cannot be trained on data=digits with task=classification: RuntimeError: ",
    "own_models.Lookup": "cannot be trained on data=digits with task=classification: KeyError: 'features'",
}
"""A target that cannot be trained, and what is said of it."""


@pytest.fixture
def own_modules(tmp_path, monkeypatch):
    """Modules of a user that cannot be imported."""
    directory = tmp_path / "own"
    directory.mkdir()
    (directory / "raising.py").write_text("raise RuntimeError('a library is missing')\nclass Net: pass")
    (directory / "misspelt.py").write_text("class Net(:")
    (directory / "exiting.py").write_text("import sys\nsys.exit(3)\nclass Net: pass")
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setattr("sys.dont_write_bytecode", True)


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize(("target", "said"), OWN_MODELS.items())
def test_an_own_model_that_cannot_be_trained_is_refused(target, said, refused):
    sentence = refused(*OWN, f"model._target_={target}")
    assert sentence.startswith((f"model._target_={target}", "model=custom"))
    assert said in sentence


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize("target", ["exiting.Net", "own_models.Empty", "own_models.Lookup"])
def test_a_sweep_refuses_it_before_its_first_run(target, refused):
    assert OWN_MODELS[target] in refused("-m", *OWN, "seed=0,1", f"model._target_={target}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a:\n\tb: 1", "own.yaml: not YAML: while scanning for the next token found character '\\t'"),
        (b"a: [1\nb: 2", "own.yaml: not YAML: while parsing a flow sequence"),
        (b"\xff\xfe", "is not UTF-8 text: invalid start byte at byte 0"),
        (b"defaults: 3", "Invalid defaults list in 'experiment/own'"),
        (
            b"# @package _global_\nseed: 1\nseed: 2",
            "own.yaml: not YAML: while constructing a mapping found duplicate key",
        ),
    ],
)
@pytest.mark.parametrize("more", [(), ("-m",), ("--cfg", "job")], ids=["single", "sweep", "shown"])
def test_yaml_of_a_users_own_that_is_broken_is_named(content, said, more, refused):
    folder = Path("own/experiment")
    folder.mkdir(parents=True)
    (folder / "own.yaml").write_bytes(content)
    assert said in refused(*more, "--config-dir=own", *MLP, "experiment=own")


@pytest.mark.parametrize(
    "setting",
    [
        ("model=custom", "data=digits", "model._target_=nosuch.deeper.Net"),
        ("model=gpt_tiny", "data.path=missing.txt"),
        ("model=mlp_small", "resume=missing"),
        ("model=mlp_small", "into=missing"),
    ],
)
@pytest.mark.parametrize("sweep", [(), ("-m",)], ids=["single", "sweep"])
def test_what_is_not_there_is_told_before_wandb_and_torch(setting, sweep, refused, monkeypatch):
    def begin(*_):
        raise AssertionError("W&B begins, and after it torch and the device's lock")

    monkeypatch.setattr("ampsweep.commands.train.WandbProcess", begin)
    assert refused(*sweep, "tracking.mode=offline", "trainer.steps=4", *setting)


def test_so_is_a_package_that_is_not_there(refused, monkeypatch):
    monkeypatch.setattr("ampsweep.commands.train.find_spec", lambda _: None)
    monkeypatch.setattr("ampsweep.commands.train.WandbProcess", None)
    sentence = refused(*MLP, "tracking.mode=offline", "precision=fp8_rowwise")
    assert sentence.startswith("precision=fp8_rowwise needs the optional package torchao")


def test_a_launcher_adds_no_key_that_nobody_typed(refused, monkeypatch):
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    assert refused(*MLP).startswith("parallel=single with 2 processes of torchrun")


def test_a_model_that_crashes_the_checks_is_named(refused):
    said = refused("-m", *OWN, "model._target_=own_models.Crashing")
    assert said == "model=Crashing with data=digits cannot be checked: killed by SIGSEGV"


@pytest.mark.slow
@pytest.mark.parametrize("sweep", [(), ("-m",)], ids=["single", "sweep"])
def test_a_model_that_is_never_built_is_refused_in_time(sweep, refused):
    time_limit = ("trainer.max_seconds=0.5", "trainer.grace_seconds=0.5")
    said = refused(*sweep, *OWN, *time_limit, "model._target_=own_models.Endless")
    assert "checking the run before it begins did not end within 5.5 s (trainer.max_seconds=0.5" in said
    assert "own_models.py, line " in said


def test_a_wrong_argument_of_an_own_model_is_named(refused):
    sentence = refused(*OWN, "model._target_=own_models.Broken", "+model.what=raises", "+model.wdith=8")
    assert "unexpected keyword argument 'wdith'" in sentence


def test_a_model_that_cannot_recompute_is_named(refused):
    sentence = refused(*OWN, "model._target_=own_models.Digits", "trainer.activation_checkpointing=true")
    assert sentence.startswith("trainer.activation_checkpointing=true: Digits has no gradient_checkpointing_enable")


def test_a_model_and_data_that_do_not_fit_are_named(refused):
    assert "data.provides.vocab_size" in refused("model=gpt_tiny", "data=digits")
    assert "model=mlp_small cannot be trained on data=digits with task=regression" in refused(*MLP, "task=regression")


@pytest.mark.parametrize(
    ("swept", "said"),
    [
        ("model.num_heads=2,3", "64 and 3"),
        ("precision=fp32,fp9", "precision=fp9: no such option"),
        ("trainer.steps=4,0", "trainer.steps=0"),
        ("data.path=null,nosuch.txt", "data file nosuch.txt"),
        ("resume=auto", "resume=auto: a multirun is continued with into="),
        ("resume=null,nosuch", "resume=nosuch: nosuch is neither a checkpoint nor a run directory with one"),
        ("resume=el*where", "resume=el*where: elsewhere is neither a checkpoint"),
        ("resume=*e*", "paths fit it, such as elsewhere and file"),
        ("into=nosuch", "into=nosuch: no such directory"),
        ("into=elsewhere", "into=elsewhere: not the directory of a multirun"),
        ("output_dir=file/runs", "output_dir=file/runs: cannot be written"),
        ("tracking.mode=online", "WANDB_API_KEY"),
        ("hydra/launcher=nosuch", "hydra/launcher=nosuch: no such option; allowed are"),
        ("hydra.launcher.n_jobs=2", "hydra.launcher has no keys; another launcher is chosen with hydra/launcher=NAME"),
        ("hydra.verbose=true,false", "Hydra's own settings cannot be swept"),
    ],
)
def test_one_bad_point_refuses_the_whole_sweep(swept, said, refused):
    Path("elsewhere").mkdir()
    Path("file").touch()
    assert said in refused("-m", *GPT, "seed=0,1", swept)


def test_the_process_says_it_in_one_line_as_well(start, tmp_path):
    ended = start(*MLP, "precision=fp8").finish()
    assert (ended.code, ended.out) == (2, "")
    assert ended.err.startswith("error: precision=fp8: no such option; allowed are amp_bf16,")
    assert ended.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "COMMAND"),
        (("guess",), "'guess'"),
        (("report",), "DIR"),
        (("report", "nosuch"), "nosuch: no such directory"),
        (("report", "empty"), "no run records"),
        (("report", "broken"), "run.json is not JSON"),
        (("report", "newer"), "run.json is a run record of schema 99; this version of ampsweep reads schema 1"),
        (("report", "empty", "--format", "xml"), "'xml'"),
        (("report", "empty", "--margin-pct", "0"), "--margin-pct 0: must be greater than 0"),
        (("report", "empty", "--memory-gib", "0"), "--memory-gib 0: must be greater than 0"),
        (("report", "empty", "--colour"), "--colour"),
    ],
)
def test_the_report_command_refuses_in_the_same_way(arguments, said, tmp_path, capsys):
    for name, content in (("broken", "{"), ("newer", '{"schema": 99}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(content)
    (tmp_path / "empty").mkdir()
    assert cli.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("error: ")
    assert said in line


@pytest.mark.parametrize("name", ["a\x1b[31mred/", "a\x9b31m/", "a‮b/", "a\x07/"])
def test_names_do_not_steer_the_terminal(train, name):
    ended = train(*MLP, f"name='{name}'")
    assert ended.code == 2
    shown = name.encode("unicode_escape").decode()
    assert ended.err == f"error: name={shown}: must be the name of one folder, without slashes\n"

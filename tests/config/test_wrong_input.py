"""Whatever is wrong with a command line is one sentence that names the key, what was given and what is allowed."""

import math
import re
import shlex
from contextlib import nullcontext
from copy import deepcopy

import pytest

from ampsweep.config.compose import compose_one, compose_points, conf_dir
from ampsweep.config.errors import UserError
from ampsweep.config.modes import PRECISION_MODES
from ampsweep.config.overrides import check_effect
from ampsweep.config.value_checks import check

MODE_NAMES = ", ".join(PRECISION_MODES)


def sentence(line):
    arguments = shlex.split(line)
    with pytest.raises(UserError) as raised:
        compose_points([a for a in arguments if a != "-m"], multirun="-m" in arguments)
    text = str(raised.value)
    assert "\n" not in text
    assert not re.search(r"Traceback|hydra\.errors|omegaconf|full_key|object_type|See https", text)
    return text


TOP = (
    "data, device, doctor, dry_run, into, max_batch, model, name, numerics, optimizer, output_dir, parallel, "
    "precision, predict, report, resume, scheduler, seed, task"
)
NEW_KEY = "keys can be added or removed only in model, data, task, optimizer, scheduler"
NO_INTEGER = "of type 'str' could not be converted to Integer"
FLOAT16 = "a GradScaler cannot unscale float16 gradients; use amp_fp16, which keeps parameters in float32"
DEVICES = "allowed are auto, cpu, cuda, cuda:N and mps, and several to choose from (cuda:0/2)"
MISFIT = "the chosen model, data and task do not fit together"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # A key that does not exist.
        ("modle=gpt_tiny", f"unknown key modle; the config has {TOP}, tracking, trainer"),
        ("experiment=smoke modle=x", f"unknown key modle; the config has {TOP}, tracking, trainer"),
        ("foo=bar", f"unknown key foo; the config has {TOP}, tracking, trainer"),
        (
            "model.num_layer=3",
            "unknown key model.num_layer; "
            "model has dropout, hidden_size, name, num_heads, num_layers, seq_len, vocab_size",
        ),
        (
            "experiment=smoke model.hidden=3",
            "unknown key model.hidden; model has hidden_size, in_features, name, num_layers, out_features",
        ),
        (
            "optimizer=sgd optimizer.beta1=0.5",
            "unknown key optimizer.beta1; optimizer has capturable, each, foreach, fused, groups, lr, momentum, name, "
            "nesterov, state_dtype, weight_decay",
        ),
        ("seed.foo=1", "seed: Value '{}' of type 'dict' could not be converted to Integer"),
        # A wrong type.
        ("seed=abc", f"seed: Value 'abc' {NO_INTEGER}"),
        ("seed=1.5", "seed: Value '1.5' of type 'float' could not be converted to Integer"),
        ("seed=[1,2]", "seed: Value '[1, 2]' of type 'list' could not be converted to Integer"),
        ("model.num_layers=two", f"model.num_layers: Value 'two' {NO_INTEGER}"),
        ("data.batch_size=x", f"data.batch_size: Value 'x' {NO_INTEGER}"),
        ("trainer.compile=maybe", "trainer.compile: Value 'maybe' is not a valid bool (type str)"),
        ("precision.autocast=null", "precision.autocast=null: must be given a value"),
        ("data.batch_size=null", "data.batch_size=null: must be given a value"),
        # Numbers out of range, words that are not among those allowed.
        ("trainer.steps=-5", "trainer.steps=-5: must be greater than 0"),
        ("model.hidden_size=-64", "model.hidden_size=-64: must be greater than 0"),
        ("data.seq_len=0", "data.seq_len=0: must be greater than 0"),
        ("precision.eval=none", "precision.eval=none: allowed are full, autocast"),
        # Keys where none may come or go.
        ("+seed=1", f"+seed=1: {NEW_KEY}"),
        ("++seed=1", f"++seed=1: {NEW_KEY}"),
        ("~seed", f"~seed: {NEW_KEY}"),
        ("+trainer.foo=1", f"+trainer.foo=1: {NEW_KEY}"),
        ("~trainer.steps", f"~trainer.steps: {NEW_KEY}"),
        ("experiment=smoke +seed=1", f"+seed=1: {NEW_KEY}"),
        # Several values.
        ("seed=0,1", "seed=0,1 names several values; add -m to sweep over them"),
        ("model.num_layers=1,2", "model.num_layers=1,2 names several values; add -m to sweep over them"),
        ("seed=interval(0,1)", "seed=interval(0,1) names several values; add -m to sweep over them"),
        ("-m seed=interval(0,1)", "seed=interval(0,1): the basic sweeper takes lists, not intervals"),
        ("-m seed=0,x", f"seed: Value 'x' {NO_INTEGER}"),
        ("-m data.batch_size=8,0,4", "data.batch_size=0: must be greater than 0"),
        ("-m precision=glob(zzz*)", "precision=glob(zzz*): there is no such value"),
        ("-m hydra.job.name=a,b", "hydra.job.name=a,b: Hydra's own settings cannot be swept"),
        ("experiment=smoke trainer.steps=8,-1", "trainer.steps=-1: must be greater than 0"),
        ("experiment=smoke seed=0,x", f"seed: Value 'x' {NO_INTEGER}"),
        # Combinations.
        (
            "precision=pure_fp16 precision.grad_scaler=true",
            f"precision.grad_scaler=true with precision.parameters=float16: {FLOAT16}",
        ),
        (
            "-m precision=fp32,pure_fp16 precision.grad_scaler=true",
            f"precision.grad_scaler=true with precision.parameters=float16: {FLOAT16}",
        ),
        (
            "precision=amp_bf16 precision.dtype=float32",
            "precision.autocast=true with precision.dtype=float32: autocast computes in bfloat16 or float16",
        ),
        ("precision.dtype=float16", "precision.dtype=float16: has no effect without precision.autocast=true"),
        (
            "precision.mode=amp_bf16",
            f"precision.mode=amp_bf16: a mode is chosen as precision=MODE; allowed are {MODE_NAMES}",
        ),
        (
            "trainer.steps=null trainer.epochs=null",
            "trainer.steps and trainer.epochs are both null; one of them must say how long to train",
        ),
        ("optimizer=custom", "optimizer._target_ must be given a value"),
        (
            "optimizer=custom optimizer._target_=mine.Lion optimizer.wd=1",
            "unknown key optimizer.wd; optimizer has capturable, each, foreach, fused, groups, lr, name, weight_decay; "
            "+optimizer.wd adds one",
        ),
        (
            "optimizer._target_=torch.optim.SGD",
            "optimizer.name=adamw: stands for torch.optim.AdamW, and optimizer._target_ is torch.optim.SGD; another "
            "class is chosen with optimizer=custom",
        ),
        (
            "optimizer.groups=[{weight_decay:0}]",
            "optimizer.groups[0]: must have match, a list of patterns of parameter names such as [*.bias, *norm*]",
        ),
        (
            "optimizer.groups=[{match:[*.bias]}]",
            "optimizer.groups[0]: must have a hyperparameter beside match, such as weight_decay: 0",
        ),
        ("+optimizer.each.critic=3", "optimizer.each.critic: must be a mapping of settings"),
        ("+optimizer.each.critic.name=x", "optimizer.each.critic: may have any key of optimizer but each and name"),
        ("scheduler=custom", "scheduler._target_ must be given a value"),
        (
            "+scheduler.gamma=1",
            "unknown key scheduler.gamma; scheduler=constant has min_lr_ratio, name, num_warmup_steps",
        ),
        ("model=mlp_small task.gradient_penalty=-1", "task.gradient_penalty=-1: must not be negative"),
        (
            "model=mlp_small task.gradient_penalty=0.5 trainer.compile=true",
            "task.gradient_penalty=0.5 with trainer.compile=true: torch.compile has no gradient of a backward pass",
        ),
        ("model=gpt_tiny task.gradient_penalty=1", "unknown key task.gradient_penalty; task has name, output"),
        ("data=tokens", "data.path must be given a value"),
        (
            "model=custom model._target_=mine.Net task=regression data=custom data.batch_size=4 "
            "data._target_=ampsweep.data.map_dataset.MapDataset +data.num_workers=1.5",
            "data.num_workers=1.5: must be a whole number",
        ),
        ("model=custom", "model._target_ must be given a value"),
        ("task=custom", "task._target_ must be given a value"),
        ("~model", "model must be given a value"),
        (
            "model=mlp_small data=text",
            f"model.in_features: Interpolation key 'data.provides.num_features' not found; {MISFIT}",
        ),
        (
            "model=gpt_tiny data=digits",
            f"model.vocab_size: Interpolation key 'data.provides.vocab_size' not found; {MISFIT}",
        ),
        ("model.hidden_size='${nope}'", "model.hidden_size: Interpolation key 'nope' not found"),
        ("precision.fp32_modules=head", "precision.fp32_modules: must be a list, such as [first,second]"),
        ("precision.fp32_modules=null", "precision.fp32_modules=null: must be given a value"),
        (
            "precision=pure_bf16 precision.fp32_modules=[norm,head]",
            "precision.fp32_modules=[norm,head], precision.parameters=bfloat16: only parameters in float32 compute in "
            "float32; use amp_bf16 or amp_fp16",
        ),
        # Lines that Hydra cannot read.
        (
            "model.num_layers=[1",
            "model.num_layers=[1: cannot be read as key=value; a value with special characters needs quotes",
        ),
        ("data.path=a!", "data.path=a!: cannot be read as key=value; a value with special characters needs quotes"),
        ("seed", "seed: is not key=value"),
        ("/no/dir", "/no/dir: is not key=value"),
        ("hydra.run.dir=x", "hydra.run.dir=x: the suite chooses the directories of runs; give output_dir and name"),
        ("=3", "=3: there is no key before the equals sign"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(line, expected):
    assert sentence(line) == expected


@pytest.fixture(scope="module")
def fine():
    return compose_one([])


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("seed", -1, "must be from 0 to 2**32 - 1"),
        ("seed", 4294967296, "must be from 0 to 2**32 - 1"),
        ("trainer.steps", 0, "must be greater than 0"),
        ("trainer.epochs", 0, "must be greater than 0"),
        ("trainer.max_seconds", 0, "must be greater than 0"),
        ("trainer.max_grad_norm", -1, "must be greater than 0"),
        ("trainer.max_grad_value", 0, "must be greater than 0"),
        ("trainer.max_grad_value", math.inf, "must be a finite number"),
        ("trainer.grad_accum_steps", 0, "must be greater than 0"),
        ("trainer.log_every", 0, "must be greater than 0"),
        ("trainer.warmup_steps", -1, "must not be negative"),
        ("model.dropout", 1.0, "must be at least 0 and less than 1"),
        ("data.batch_size", -3, "must be greater than 0"),
        ("data.val_fraction", 0.0, "must be greater than 0 and less than 1"),
        ("optimizer.lr", -1, "must be greater than 0"),
        ("optimizer.lr", math.nan, "must be a finite number"),
        ("trainer.max_seconds", math.inf, "must be a finite number"),
        ("optimizer.beta1", 1, "must be at least 0 and less than 1"),
        ("optimizer.eps", -1, "must not be negative"),
        ("scheduler.min_lr_ratio", 2, "must lie from 0 to 1"),
        ("scheduler.num_warmup_steps", -1, "must not be negative"),
        ("report.margin_pct", 0, "must be greater than 0"),
        ("report.memory_gib", 0, "must be greater than 0"),
        (
            "report.baseline",
            "amp_fp99",
            f"must be an arm, which begins with its mode: {MODE_NAMES}",
        ),
        ("max_batch.limit", 0, "must be greater than 0"),
        ("trainer.memory_limit_gib", 0, "must be greater than 0"),
        ("precision.init_scale", 0, "must be greater than 0"),
        ("precision.growth_factor", 1, "must be greater than 1"),
        ("precision.backoff_factor", 1, "must lie between 0 and 1"),
        ("precision.growth_interval", 0, "must be greater than 0"),
        ("precision.dtype", "int8", "allowed are float32, bfloat16, float16"),
        ("scheduler.name", "exp", "allowed are constant, linear, cosine"),
        ("optimizer.name", "lion", "allowed are adamw"),
        ("tracking.mode", "on", "allowed are auto, online, offline, disabled"),
        ("device", "cuda:x", DEVICES),
        ("device", "cuda:0/", DEVICES),
        ("device", "cpu:a", DEVICES),
        ("device", "cpu:0", DEVICES),
        ("name", "a/b", "must be the name of one folder, without slashes"),
        ("name", "..", "must be the name of one folder, without slashes"),
        ("name", "", "must be the name of one folder, without slashes"),
    ],
)
def test_a_value_that_is_not_allowed_is_answered_with_what_is(key, value, expected, fine):
    config = deepcopy(fine)
    *path, name = key.split(".")
    part = config
    for step in path:
        part = part[step] if isinstance(part, dict) else getattr(part, step)
    if isinstance(part, dict):
        part[name] = value
    else:
        setattr(part, name, value)
    with pytest.raises(UserError) as raised:
        check(config)
    given = f"{value:g}" if isinstance(value, float) else value
    assert str(raised.value) == f"{key}={given}: {expected}"


@pytest.mark.parametrize(
    ("line", "group", "option"),
    [
        ("precision=fp23", "precision", "fp23"),
        ("model=gpt_tny", "model", "gpt_tny"),
        ("optimizer=lion", "optimizer", "lion"),
        ("experiment=nope", "experiment", "nope"),
        ("-m precision=fp32,fp23", "precision", "fp23"),
        # The mode stands in the experiment file too: there Hydra would speak of an ambiguous value.
        ("experiment=smoke precision=fp32,fp23", "precision", "fp23"),
        ("experiment=smoke model=nope", "model", "nope"),
    ],
)
def test_an_unknown_option_is_answered_with_those_that_exist(line, group, option):
    allowed = ", ".join(sorted(path.stem for path in (conf_dir() / group).glob("*.yaml")))
    assert sentence(line) == f"{group}={option}: no such option; allowed are {allowed}"


@pytest.mark.parametrize("line", ["model=null", "-m model=gpt_tiny,null", "precision=3"])
def test_a_group_is_not_given_a_value_that_is_no_name(line):
    given = line.removeprefix("-m ")
    group = given.partition("=")[0]
    assert sentence(line).startswith(f"{given}: no such option; allowed are ")
    assert sentence(line).endswith(", ".join(sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))))


@pytest.mark.parametrize(
    ("line", "refused"),
    [
        ("-m precision=fp32,amp_fp16 precision.init_scale=1024", None),
        ("parallel=single parallel.num_processes=null parallel.reduce_dtype=null", None),
        ("experiment=ddp_vs_fsdp2 parallel=single parallel.num_processes=null", None),
        ("precision=pure_bf16 precision.fp32_matmul=medium", "precision.parameters=float32"),
        ("scheduler.min_lr_ratio=0.5", "scheduler=linear or cosine"),
        ("trainer.grace_seconds=1", "trainer.max_seconds"),
        ("experiment=digits trainer.steps=40", "trainer.epochs=null"),
        ("experiment=digits trainer.steps=40 trainer.epochs=null", None),
        ("trainer.steps=null trainer.epochs=2", None),
        ("-m parallel=single,fsdp2 parallel.num_processes=null parallel.sync_batchnorm=true", "parallel=ddp"),
    ],
)
def test_a_key_counts_if_one_of_the_points_uses_it(line, refused):
    arguments = [one for one in line.split() if one != "-m"]
    configs = [point.config for point in compose_points(arguments, multirun="-m" in line).points]
    said = pytest.raises(UserError, match=f": has an effect only with {refused}$") if refused else nullcontext()
    with said:
        check_effect(configs, arguments)


def test_nothing_is_written_for_a_line_that_is_wrong(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    sentence("experiment=smoke seed=0,x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line",
    [
        "precision=amp_fp16 precision.grad_scaler=false",
        "precision=amp_fp16 precision.autocast=false",
        "-m precision=amp_fp16 precision.dtype=float16,bfloat16",
        "precision.grad_scaler=true",
        "trainer.steps=null trainer.epochs=1",
        "device=cuda:1",
        "device=cuda:0/2",
    ],
)
def test_parts_of_a_mode_can_be_switched_alone_to_find_a_fault(line):
    arguments = shlex.split(line)
    compose_points([a for a in arguments if a != "-m"], multirun="-m" in arguments)

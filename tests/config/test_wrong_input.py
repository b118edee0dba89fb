"""Every wrong command line gets one sentence: the key, the given value, the allowed values.

The sentences stand in `golden/wrong_input.md`; after a change run `pytest --update-golden` and read the diff.
"""

import math
import re
import shlex

import pytest
from changed_configs import with_value

from ampsweep.config.compose import compose_one, compose_points
from ampsweep.config.errors import UserError
from ampsweep.config.overrides import check_effect
from ampsweep.config.value_checks import check

REFUSED = {
    "Unknown keys": (
        *("modle=gpt_tiny", "experiment=smoke modle=x", "model.num_layer=3", "experiment=smoke model.hidden=3"),
        *("optimizer=sgd optimizer.beta1=0.5", "optimizer=custom optimizer._target_=mine.Lion optimizer.wd=1"),
        *("+scheduler.gamma=1", "model=gpt_tiny task.gradient_penalty=1", "hydra.launcher.n_jobs=2"),
    ),
    "Unknown options": (
        *("precision=fp23", "precision=3", "optimizer=lion", "experiment=nope", "experiment=smoke model=nope"),
        *("model=null", "-m model=gpt_tiny,null", "-m precision=fp32,fp23"),
        "experiment=smoke precision=fp32,fp23",  # which is in the experiment's file too: ambiguous to Hydra
    ),
    "Misspelled: what was meant comes first": (
        *("precison=fp32", "trainer.stepz=3", "optimizer.lrr=1", "experment=smoke", "data.batchsize=4", "dryrun=true"),
        *("model=gtp_tiny", "precision=amp_bf61", "experiment=fp32_vs_apm", "-m optimizer=sgd,adma"),
        *("precision.eval=autocst", "tracking.mode=ofline", "report.baseline=fp23", "optimizer.name=adamww"),
        *("lr=0.1", "trainer.lr=0.1", "precision=bf16", "precision=fp16-mixed"),  # words of other places
    ),
    "Far from anything, or near two": ("zzz=3", "model=gpt", "model=resnet", "model=x", "trainer.warmup=3"),
    "Types": (
        *("seed.foo=1", "resume.x=1", "seed=abc", "seed=1.5", "seed=[1,2]", "model.num_layers=two"),
        *("data.batch_size=x", "trainer.compile=maybe", "precision.autocast=null", "data.batch_size=null"),
        *("precision.fp32_modules=head", "precision.fp32_modules=null"),
        "model=custom model._target_=mine.Net task=regression data=custom data.batch_size=4 "
        "data._target_=ampsweep.data.map_dataset.MapDataset +data.num_workers=1.5",
    ),
    "Ranges and words": (
        *("trainer.steps=-1", "data.batch_size=0", "precision.eval=none", "tracking.mode=sometimes"),
        *("optimizer.state_dtype=int8", "precision=amp_fp16 precision.init_scale=3.5e38", "predict.memory_gib=1e300"),
        *("report.decide=true report.max_seeds=2", "report.decide=true report.max_seeds=101"),
    ),
    "Keys added or removed": ("+seed=1", "++seed=1", "~seed", "+trainer.foo=1", "experiment=smoke +seed=1"),
    "Several values": (
        *("seed=0,1", "model.num_layers=1,2", "seed=interval(0,1)", "-m seed=interval(0,1)", "-m seed=0,x"),
        *("-m data.batch_size=8,0,4", "-m precision=glob(zzz*)", "-m hydra.verbose=true,false"),
        *("experiment=smoke trainer.steps=8,-1", "experiment=smoke seed=0,x"),
    ),
    "Precision": (
        *("precision.mode=amp_bf16", "precision.dtype=float16", "precision=amp_bf16 precision.dtype=float32"),
        *("precision=pure_fp16 precision.grad_scaler=true", "precision=pure_bf16 precision.fp32_modules=[norm,head]"),
        "-m precision=fp32,pure_fp16 precision.grad_scaler=true",
    ),
    "Components": (
        *("optimizer=custom", "optimizer._target_=torch.optim.SGD", "optimizer.groups=[{weight_decay:0}]"),
        *("optimizer.groups=[{match:[*.bias]}]", "optimizer.groups=[{match:[],lr:1}]", "+optimizer.each.critic=3"),
        *("+optimizer.each.critic.name=x", "scheduler=custom", "model=mlp_small task.gradient_penalty=-1"),
        *("model=mlp_small task.gradient_penalty=0.5 trainer.compile=true", "data=tokens", "model=custom"),
        *("task=custom", "~model", "model=mlp_small data=text", "model=gpt_tiny data=digits"),
        "model.hidden_size='${nope}'",
    ),
    "Several processes": (
        *("parallel.num_processes=2", "parallel=ddp trainer.accumulate_dtype=float16"),
        *("parallel=ddp predict.batch_sizes=[1,2]", "parallel=ddp max_batch.search=true"),
        *("parallel=ddp numerics.watch=true", "parallel=fsdp2 precision=fp8_rowwise"),
        *("parallel=fsdp2 precision=amp_bf16 precision.fp32_modules=[head]", "parallel=horovod"),
        "parallel=fsdp2 optimizer=custom optimizer._target_=torchao.optim.AdamW8bit",
        "parallel=fsdp2 +optimizer.each.critic={_target_:torchao.optim.AdamW4bit}",
        "parallel=fsdp2 model=mlp_small task.gradient_penalty=0.5",
    ),
    "The run": (
        *("trainer.steps=null trainer.epochs=null", "max_batch.search=true resume=elsewhere", "device=cuda:0/0"),
        *("name=key-sk-aaaaaaaaaaaaaaaaaaaaaaaa", "hydra.run.dir=x"),
        *("trainer.patience=3", "scheduler=plateau", "trainer.keep_weights=best", "trainer.metric=train/loss"),
        "trainer.eval_every=9 trainer.patience=3 trainer.metric=val/reward",
    ),
    "Without effect in any point": (
        *("parallel.reduce_dtype=float16", "precision.fp32_modules=[head]", "scheduler.min_lr_ratio=0.5"),
        *("numerics.every=5", "max_batch.limit=5", "trainer.grace_seconds=1", "predict.capability=9.0"),
        *("doctor.steps=3", "experiment=digits trainer.steps=40", "trainer.min_delta=0.1"),
        "precision=pure_bf16 precision.fp32_matmul=medium",
        "-m parallel=single,fsdp2 parallel.num_processes=null parallel.sync_batchnorm=true",
    ),
    "Lines that cannot be read": ("model.num_layers=[1", "data.path=a!", "seed", "/no/dir", "=3"),
}

WRONG_VALUES = (
    *(("seed", -1), ("seed", 2**32), ("name", "a/b"), ("name", ".."), ("name", ""), ("optimizer.name", "lion")),
    *((f"trainer.{key}", 0) for key in ("steps", "epochs", "max_seconds", "grad_accum_steps", "memory_limit_gib")),
    *(("trainer.log_every", 0), ("trainer.max_grad_value", 0), ("trainer.max_grad_norm", -1)),
    *(("trainer.max_grad_value", math.inf), ("trainer.warmup_steps", -1), ("optimizer.lr", math.nan)),
    *(("model.dropout", 1.0), ("model.hidden_size", -64), ("data.batch_size", -3), ("data.seq_len", 0)),
    *(("data.val_fraction", 0.0), ("data.val_fraction", 1.0), ("optimizer.lr", -1), ("optimizer.beta1", 1)),
    *(("optimizer.eps", -1), ("scheduler.name", "exp"), ("scheduler.min_lr_ratio", 2)),
    *(("scheduler.num_warmup_steps", -1), ("report.margin_pct", 0), ("report.memory_gib", 0)),
    *(("report.baseline", "amp_fp99"), ("max_batch.limit", 0), ("precision.dtype", "int8")),
    *(("precision.init_scale", 0), ("precision.growth_factor", 1), ("precision.backoff_factor", 1)),
    *(("precision.backoff_factor", 0), ("precision.growth_interval", 0), ("tracking.mode", "on")),
    ("parallel.blocks", [""]),
    *(("device", name) for name in ("cuda:x", "cuda:0/", "cpu:a", "cpu:0")),
)
"""Values set in a config that is fine without them."""


def composed(line):
    """The points of a training's command line, after all checks."""
    arguments = shlex.split(line)
    overrides = [word for word in arguments if word != "-m"]
    points = compose_points(overrides, multirun="-m" in arguments).points
    check_effect([point.config for point in points], overrides)
    return points


def refusal(function, argument):
    with pytest.raises(UserError) as raised:
        function(argument)
    text = str(raised.value)
    assert "\n" not in text
    assert not re.search(r"Traceback|hydra\.errors|omegaconf|full_key|object_type|See https", text)
    return text


def test_each_refusal_is_one_sentence(golden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    document = [f"# {__doc__.splitlines()[0]}\n"]
    for heading, lines in REFUSED.items():
        document.append(f"## {heading}\n")
        document += [f"- `{line}`\n  {refusal(composed, line)}" for line in lines]
        document.append("")
    document.append("## Values\n")
    fine = compose_one([])
    document += [f"- {refusal(check, with_value(fine, key, value))}" for key, value in WRONG_VALUES]
    assert list(tmp_path.iterdir()) == [], "a line that is wrong leaves nothing behind"
    golden("wrong_input.md", "\n".join(document) + "\n")
    launcher = refusal(composed, "-m seed=0,1 hydra/launcher=nosuch")  # the plugins that are installed add options
    assert launcher.startswith("hydra/launcher=nosuch: no such option; allowed are ")


BROKEN = (
    (b"a:\n\tb: 1", "own.yaml: not YAML: while scanning for the next token found character '\\t'"),
    (b"a: [1\nb: 2", "own.yaml: not YAML: while parsing a flow sequence"),
    (b"\xff\xfe", "is not UTF-8 text: invalid start byte at byte 0"),
    (b"defaults: 3", "Invalid defaults list in 'experiment/own'"),
)


@pytest.mark.parametrize(("content", "why"), BROKEN)
def test_a_broken_yaml_file_of_the_users_is_named(content, why, tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/own.yaml").write_bytes(content)
    assert why in refusal(composed, f"\"hydra.searchpath=['file://{tmp_path}']\" experiment=own")


ACCEPTED = (
    "precision=amp_fp16 precision.grad_scaler=false",
    "precision=amp_fp16 precision.autocast=false",
    "-m precision=amp_fp16 precision.dtype=float16,bfloat16",
    "precision.grad_scaler=true",
    "device=cuda:1",
    "device=cuda:0/2",
    # A key has an effect if one of the points uses it; null and defaults need none.
    "-m precision=fp32,amp_fp16 precision.init_scale=1024",
    "parallel=single parallel.num_processes=null parallel.reduce_dtype=null",
    "experiment=digits trainer.steps=40 trainer.epochs=null",
    "trainer.steps=null trainer.epochs=2",
)


def test_lines_with_an_effect_are_accepted():
    assert all(map(composed, ACCEPTED))

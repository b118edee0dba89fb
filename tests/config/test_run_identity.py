"""The names of runs, and which configs are the same run or pair."""

import re
from dataclasses import asdict, replace

import pytest
from changed_configs import with_value

from ampsweep.config import identity
from ampsweep.config.compose import compose_one
from ampsweep.config.identity import config_hash, pair_key, run_directory_name
from ampsweep.config.modes import DOTTED_ARM_KEYS, PRECISION_MODES, arm_label, arm_of, report_order
from ampsweep.config.schema import FP32_MATMULS, PrecisionConfig
from ampsweep.run.request import new_record

OWN = ["model=custom", "model._target_=mine.Net", "+model.sizes=[4,8]", "+model.options={bias:true}"]
PLAIN = compose_one([])
CONFIGS = {
    "gpt on text": PLAIN,
    "mlp on digits": compose_one(["model=mlp_small", "optimizer=sgd"]),
    "sharded": compose_one(["parallel=fsdp2", "precision=amp_bf16"]),
    "own": compose_one(OWN),
}
WITHOUT_RESULT = {
    *("name", "output_dir", "into", "dry_run", "max_batch.limit", "precision.fp32_modules"),
    *(f"{group}.{key}" for group in ("tracking", "report", "predict", "doctor") for key in vars(getattr(PLAIN, group))),
    *("numerics.watch", "numerics.every"),
    *("trainer.log_every", "trainer.checkpoint_every", "trainer.grace_seconds", "trainer.keep_weights"),
    *("trainer.metric", "trainer.goal", "trainer.min_delta"),
}
"""Keys that change where and how results are kept and shown. `max_batch.limit` counts in a search only,
`precision.fp32_modules` under autocast only, the metric with `trainer.patience` or a scheduler that may follow it."""
OF_SEVERAL_PROCESSES = {f"parallel.{key}" for key in vars(PLAIN.parallel) if key != "strategy"}
"""Keys without effect in a single process."""
OF_THE_ARM = {"data.path", "parallel.num_processes", "resume", "device", *DOTTED_ARM_KEYS}
"""Keys in which runs that pair may differ, beside `precision.*`: the data's fingerprint, the number of ranks, the
checkpoint's arm and the device's name are compared instead."""


def leaves(values, prefix=""):
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def other(value):
    """Another value of the same kind."""
    if value is None or isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return [*value, 1] if isinstance(value, list) else {"a": 1} if isinstance(value, dict) else f"{value}x"


def pair(config, **facts):
    return pair_key(config, **({"device_name": "cpu", "world_size": 1, "data_fingerprint": "abc"} | facts))


@pytest.mark.parametrize("name", CONFIGS)
def test_every_key_counts_as_far_as_it_changes_the_result(name):
    config = CONFIGS[name]
    no_result = WITHOUT_RESULT | OF_SEVERAL_PROCESSES
    if name == "sharded":
        no_result = WITHOUT_RESULT - {"precision.fp32_modules"}
    keys = dict(leaves(asdict(config)))
    same_point, same_pair = set(), set()
    for key, value in keys.items():
        changed = with_value(config, key, other(value))
        same_point |= {key} if config_hash(changed) == config_hash(config) else set()
        same_pair |= {key} if pair(changed) == pair(config) else set()
    of_precision = {key for key in keys if key.startswith("precision.")}
    assert same_point == keys.keys() & no_result
    assert same_pair == keys.keys() & (no_result | OF_THE_ARM) | of_precision
    if config is PLAIN:
        assert keys.keys() >= WITHOUT_RESULT | OF_SEVERAL_PROCESSES, "these keys exist"


def test_the_batch_size_that_a_search_finds_is_no_setting():
    searching = with_value(PLAIN, "max_batch.search", True)
    answered = with_value(searching, "data.batch_size", 37)
    assert config_hash(answered) == config_hash(searching)
    assert pair(answered) == pair(searching), "arms with different answers pair"
    assert config_hash(with_value(searching, "max_batch.limit", 37)) != config_hash(searching)


def test_devices_make_points_and_facts_make_pairs(monkeypatch):
    either, again, other = (with_value(PLAIN, "device", name) for name in ("cuda:0/2", "cuda:0/2", "cuda:1"))
    assert config_hash(either) == config_hash(again)
    assert config_hash(either) != config_hash(other), "a sweep over devices has a point for each"
    before = pair(PLAIN)
    assert pair(either) == pair(other) == before
    for fact in ({"device_name": "H100"}, {"world_size": 2}, {"data_fingerprint": "abd"}):
        assert pair(PLAIN, **fact) != before
    monkeypatch.setattr(identity, "code_version", lambda: "0.1.0+00000000")
    assert pair(PLAIN) == before, "the source was edited"
    monkeypatch.setattr(identity, "__version__", "0.2.0")
    assert pair(PLAIN) != before
    assert config_hash(compose_one([])) == config_hash(compose_one(["optimizer.lr=1e-3"])) == config_hash(PLAIN)


ARMS = (
    ("amp_bf16", {"cache_enabled": False}, "+cache_enabled=false"),
    ("amp_fp16", {"init_scale": 1024.0}, "+init_scale=1024"),
    ("amp_fp16", {"init_scale": 2.0**40}, "+init_scale=1099511627776.0"),
    ("amp_fp16", {"growth_interval": 20, "backoff_factor": 0.25}, "+backoff_factor=0.25+growth_interval=20"),
    ("amp_bf16", {"eval": "autocast"}, "+eval=autocast"),
    ("amp_bf16", {"fp32_modules": ["norm", "blocks.*.head", "norm"]}, "+fp32_modules=blocks.*.head,norm"),
    ("fp32", {"tf32": True, "autocast": False}, "+tf32=true"),
    ("tf32", {"fp32_matmul": "highest"}, "+fp32_matmul=highest"),
    ("amp_bf16", {"fp32_matmul": "high"}, "+fp32_matmul=high"),
    ("amp_fp16", {"grad_scaler": False, "init_scale": 8.0}, "+grad_scaler=false"),
    # Settings without effect make no arm, so that a sweep over a setting of AMP keeps its baseline.
    ("fp32", {"fp32_modules": ["head"]}, ""),
    ("fp32", {"eval": "autocast", "cache_enabled": False}, ""),
    ("fp32", {"init_scale": 8.0, "growth_interval": 9}, ""),
    ("fp32", {"fp32_matmul": "highest"}, ""),
    ("amp_bf16", {"fp32_matmul": "highest"}, ""),
    ("tf32", {"fp32_matmul": "high"}, ""),
    ("pure_bf16", {"fp32_matmul": "medium"}, ""),
)


@pytest.mark.parametrize(("mode", "changes", "label"), ARMS)
def test_an_arm_is_its_mode_and_the_settings_that_differ(mode, changes, label):
    changed = replace(PRECISION_MODES[mode], **changes)
    assert arm_label(changed) == f"{mode}{label}"
    own, stock = (config_hash(replace(PLAIN, precision=precision)) for precision in (changed, PRECISION_MODES[mode]))
    if label or changes.keys() & {"fp32_modules", "fp32_matmul"}:
        assert (own == stock) == (not label)


def test_arms_that_differ_never_share_a_label():
    assert [arm_label(PRECISION_MODES[mode]) for mode in PRECISION_MODES] == list(PRECISION_MODES)
    scales = [2.0**20, 2.0**20 + 1, 1e6, 1234567.0, 1234568.0]
    labels = [arm_label(replace(PRECISION_MODES["amp_fp16"], init_scale=scale)) for scale in scales]
    assert len(set(labels)) == len(scales)
    own = PrecisionConfig(mode="mine", autocast=True, grad_scaler=True, init_scale=2.0)
    assert arm_label(own) == "mine+autocast=true+grad_scaler=true+init_scale=2"
    ddp = with_value(PLAIN, "parallel.strategy", "ddp")
    for key in ("parallel.reduce_dtype", "optimizer.state_dtype", "trainer.accumulate_dtype"):
        assert arm_of(with_value(ddp, key, "float32")) == "fp32", "the dtype it has anyway"
        assert arm_of(with_value(ddp, key, "bfloat16")) == f"fp32+{key.partition('.')[2]}=bfloat16"
    hashes = [config_hash(with_value(PLAIN, "precision.fp32_matmul", setting)) for setting in FP32_MATMULS]
    assert len(set(hashes)) == 3
    assert hashes[0] == config_hash(PLAIN)


def test_reports_show_arms_beside_the_mode_they_changed():
    in_float32 = ["fp32", "tf32", "amp_bf16", "fp8_tensorwise", "fp8_rowwise", "amp_fp16"]
    in_half = ["pure_bf16", "pure_fp16", "bf16_sr", "master_bf16", "master_fp16"]
    assert sorted(PRECISION_MODES, key=report_order) == in_float32 + in_half
    arms = ["mine", "pure_bf16", "amp_bf16+eval=autocast", "amp_bf16"]
    assert sorted(arms, key=report_order) == ["amp_bf16", "amp_bf16+eval=autocast", "pure_bf16", "mine"]


def test_a_run_directory_has_a_name_that_is_safe_everywhere():
    for name in ("gpt_tiny", "org/model", "a b\tc", "../..", "C:\\nets", "x" * 400, "Größe", "a'b\"c`$(d)", "*?<>|"):
        config = with_value(CONFIGS["own"], "model.name", name)
        directory = run_directory_name(config)
        assert re.fullmatch(r"fp32-[A-Za-z0-9_.+=-]+-[0-9a-f]{8}", directory)
        assert len(directory) <= 120
        assert directory.endswith(config_hash(config)[:8])
        assert run_directory_name(with_value(config, "model.name", f"{name}.")) != directory
    directory = run_directory_name(compose_one(["precision=amp_fp16", "precision.init_scale=1024", "seed=3"]))
    assert re.fullmatch(r"amp_fp16\+init_scale=1024-gpt_tiny-s3-[0-9a-f]{8}", directory)


def test_components_have_the_name_of_their_class_or_option():
    facts = new_record(CONFIGS["own"], device="cpu").identity
    assert (facts.model, facts.data, facts.task) == ("Net", "text", "language_modeling")
    custom = ["optimizer=custom", "optimizer._target_=mine.Lion"]
    for overrides, name, lr in [
        (["optimizer=sgd"], "sgd", 1e-3),
        (custom, "Lion", None),
        ([*custom, "optimizer.name=lion", "optimizer.lr=0.5"], "lion", 0.5),
        (["+optimizer.each.critic={_target_:torch.optim.SGD,lr:0.1}"], "adamw, critic: SGD", 1e-3),
    ]:
        facts = new_record(compose_one(overrides), device="cpu").identity
        assert (facts.optimizer, facts.lr) == (name, lr)


def test_the_dtype_of_a_run_is_the_one_it_computes_in():
    dtypes = {"fp32": "float32", "tf32": "float32", "amp_fp16": "float16", "pure_bf16": "bfloat16"}
    precisions = [(PRECISION_MODES[mode], dtype) for mode, dtype in dtypes.items()]
    for precision, dtype in (*precisions, (replace(PRECISION_MODES["amp_fp16"], autocast=False), "float32")):
        assert new_record(replace(PLAIN, precision=precision), device="cpu").identity.dtype == dtype

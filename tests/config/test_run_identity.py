"""What a run is called, and when two configs are the same run or a pair."""

import re
from copy import deepcopy
from dataclasses import asdict, replace

import pytest

from ampsweep.config import identity as own_identity
from ampsweep.config.compose import compose_one
from ampsweep.config.identity import config_hash, pair_key, run_directory_name
from ampsweep.config.modes import DOTTED_ARM_KEYS, PRECISION_MODES, arm_label, report_order
from ampsweep.config.schema import FP32_MATMULS, ParallelConfig, PrecisionConfig
from ampsweep.run.request import new_record

WITHOUT_RESULT = {
    *("name", "output_dir", "into", "dry_run"),
    *(
        f"tracking.{key}"
        for key in ("mode", "project", "entity", "group", "tags", "notes", "alerts", "checkpoints", "code", "console")
    ),
    *(f"report.{key}" for key in ("baseline", "margin_pct", "memory_gib")),
    *("predict.target", "predict.memory_gib", "predict.batch_sizes", "predict.capability"),
    *("predict.write", "predict.with_runs"),
    *("doctor.complaints", "doctor.steps", "doctor.max_seconds", "numerics.watch", "numerics.every"),
    *("trainer.log_every", "trainer.checkpoint_every", "trainer.grace_seconds"),
    "max_batch.limit",
    "precision.fp32_modules",
}
"""Keys that change where and how results are kept and shown, and no result; a limit counts for a search alone, modules
kept in float32 where there is autocast."""
OF_SEVERAL_PROCESSES = {f"parallel.{key}" for key in vars(ParallelConfig()) if key != "strategy"}
"""Keys without any effect where there is one process."""
OF_THE_ARM = {"data.path", "parallel.num_processes", "resume", *DOTTED_ARM_KEYS}
"""Keys in which runs that pair may differ, beside `precision.*`. Where the data lies says nothing of what it is: the
fingerprint does; how many ranks there are is told apart. The checkpoint that a run begins with is told by its arm."""

CONFIGS = {
    name: compose_one(overrides)
    for name, overrides in {
        "gpt on text": [],
        "mlp on digits": ["model=mlp_small", "optimizer=sgd"],
        "sharded": ["parallel=fsdp2", "precision=amp_bf16"],
        "one's own": ["model=custom", "model._target_=mine.Net", "+model.sizes=[4,8]", "+model.options={bias:true}"],
    }.items()
}


def leaves(values, prefix=""):
    """Every key below which no further keys are, with its value."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def without_result(name):
    """Keys that change no result of this config."""
    if name == "sharded":
        return WITHOUT_RESULT - {"precision.fp32_modules"}
    return WITHOUT_RESULT | OF_SEVERAL_PROCESSES


def other(value):
    """Another value of the same kind."""
    if value is None:
        return 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return [*value, 1] if isinstance(value, list) else {"a": 1} if isinstance(value, dict) else f"{value}x"


def with_value(config, key, value):
    config = deepcopy(config)
    *path, name = key.split(".")
    part = config
    for step in path:
        part = part[step] if isinstance(part, dict) else getattr(part, step)
    if isinstance(part, dict):
        part[name] = value
    else:
        setattr(part, name, value)
    return config


EVERY_LEAF = [(name, key) for name, config in CONFIGS.items() for key, _ in leaves(asdict(config))]


def changed(name, key):
    values = dict(leaves(asdict(CONFIGS[name])))
    return with_value(CONFIGS[name], key, other(values[key]))


def pair(config, **facts):
    here = {"device_name": "cpu", "world_size": 1, "data_fingerprint": "abc"}
    return pair_key(config, **(here | facts))


@pytest.mark.parametrize(("name", "key"), EVERY_LEAF)
def test_a_point_is_known_by_all_that_can_change_its_result(name, key):
    same = config_hash(changed(name, key)) == config_hash(CONFIGS[name])
    assert same == (key in without_result(name))


@pytest.mark.parametrize(("name", "key"), EVERY_LEAF)
def test_runs_pair_whose_precision_alone_differs(name, key):
    same = pair(changed(name, key)) == pair(CONFIGS[name])
    assert same == (key in {*without_result(name), *OF_THE_ARM, "device"} or key.startswith("precision."))


def test_the_keys_without_result_exist():
    assert {key for _, key in EVERY_LEAF} >= WITHOUT_RESULT | OF_SEVERAL_PROCESSES


def test_the_batch_of_a_search_is_its_result_and_no_setting():
    searching = with_value(CONFIGS["gpt on text"], "max_batch.search", True)
    answered = with_value(searching, "data.batch_size", 37)
    assert config_hash(answered) == config_hash(searching)
    assert pair(answered) == pair(searching), "arms with different answers pair"
    assert config_hash(with_value(searching, "max_batch.limit", 37)) != config_hash(searching)


def test_a_point_is_known_whichever_free_device_it_takes():
    some, same, other = (compose_one([f"device={name}"]) for name in ("cuda:0/2", "cuda:0/2", "cuda:1"))
    assert config_hash(some) == config_hash(same)
    assert config_hash(some) != config_hash(other), "a sweep over devices has a point for each"
    assert pair(some) == pair(other), "the model of the device decides, which the facts have"
    assert pair(some, device_name="an A100") != pair(some, device_name="a T4")


@pytest.mark.parametrize("fact", [{"device_name": "H100"}, {"world_size": 2}, {"data_fingerprint": "abd"}])
def test_runs_pair_on_the_same_device_and_data_alone(fact):
    config = CONFIGS["gpt on text"]
    assert pair(config) == pair(config)
    assert pair(config, **fact) != pair(config)


def test_another_version_unpairs_runs_an_edited_source_does_not(monkeypatch):
    config = CONFIGS["gpt on text"]
    before = pair(config)
    monkeypatch.setattr(own_identity, "code_version", lambda: "0.1.0+00000000")
    assert pair(config) == before
    monkeypatch.setattr(own_identity, "__version__", "0.2.0")
    assert pair(config) != before


def test_a_config_composed_again_is_the_same_run():
    assert config_hash(compose_one([])) == config_hash(CONFIGS["gpt on text"])
    assert config_hash(compose_one(["optimizer.lr=0.001"])) == config_hash(compose_one(["optimizer.lr=1e-3"]))


@pytest.mark.parametrize("mode", PRECISION_MODES)
def test_an_arm_is_labelled_by_its_mode(mode):
    assert arm_label(PRECISION_MODES[mode]) == mode


@pytest.mark.parametrize(
    ("mode", "changes", "label"),
    [
        ("amp_bf16", {"cache_enabled": False}, "amp_bf16+cache_enabled=false"),
        ("amp_fp16", {"init_scale": 1024.0}, "amp_fp16+init_scale=1024"),
        ("amp_fp16", {"init_scale": 2.0**40}, "amp_fp16+init_scale=1099511627776.0"),
        (
            "amp_fp16",
            {"growth_interval": 20, "backoff_factor": 0.25},
            "amp_fp16+backoff_factor=0.25+growth_interval=20",
        ),
        ("amp_bf16", {"eval": "autocast"}, "amp_bf16+eval=autocast"),
        ("amp_bf16", {"fp32_modules": ["norm", "blocks.*.head", "norm"]}, "amp_bf16+fp32_modules=blocks.*.head,norm"),
        ("fp32", {"tf32": True, "autocast": False}, "fp32+tf32=true"),
        ("fp32", {"fp32_matmul": "medium"}, "fp32+fp32_matmul=medium"),
        ("tf32", {"fp32_matmul": "highest"}, "tf32+fp32_matmul=highest"),
        ("amp_bf16", {"fp32_matmul": "high"}, "amp_bf16+fp32_matmul=high"),
        ("amp_fp16", {"grad_scaler": False, "init_scale": 8.0}, "amp_fp16+grad_scaler=false"),
    ],
)
def test_an_arm_is_labelled_by_its_mode_and_what_differs_from_it(mode, changes, label):
    assert arm_label(replace(PRECISION_MODES[mode], **changes)) == label


@pytest.mark.parametrize(
    "setting",
    [
        {"fp32_modules": ["head"]},
        {"eval": "autocast"},
        {"cache_enabled": False},
        {"init_scale": 8.0, "growth_interval": 9},
    ],
)
def test_what_a_mode_does_not_use_makes_no_arm(setting):
    """So a sweep over a setting of AMP keeps its baseline."""
    assert arm_label(replace(PRECISION_MODES["fp32"], **setting)) == "fp32"


@pytest.mark.parametrize(
    ("mode", "setting"),
    [("fp32", "highest"), ("amp_bf16", "highest"), ("tf32", "high"), ("pure_bf16", "medium"), ("pure_fp16", "high")],
)
def test_a_setting_that_changes_no_matmul_makes_no_arm(mode, setting):
    changed = compose_one([f"precision={mode}", f"precision.fp32_matmul={setting}"])
    assert arm_label(changed.precision) == mode
    assert config_hash(changed) == config_hash(compose_one([f"precision={mode}"]))


def test_a_setting_of_matmuls_is_a_run_of_its_own():
    hashes = {config_hash(compose_one([f"precision.fp32_matmul={setting}"])) for setting in FP32_MATMULS}
    assert len(hashes) == 3
    assert config_hash(CONFIGS["gpt on text"]) in hashes


def test_modules_in_float32_are_a_run_of_their_own():
    plain, covered = (
        compose_one(["precision=amp_bf16", f"precision.fp32_modules={value}"]) for value in ("[]", "[norm]")
    )
    assert config_hash(plain) == config_hash(compose_one(["precision=amp_bf16"]))
    assert config_hash(covered) != config_hash(plain)
    assert re.fullmatch(r"amp_bf16\+fp32_modules=norm-gpt_tiny-s0-[0-9a-f]{8}", run_directory_name(covered))


def test_reports_show_arms_beside_the_mode_they_changed():
    in_float32 = ["fp32", "tf32", "amp_bf16", "fp8_tensorwise", "fp8_rowwise", "amp_fp16"]
    in_half = ["pure_bf16", "pure_fp16", "bf16_sr", "master_bf16", "master_fp16"]
    assert sorted(PRECISION_MODES, key=report_order) == in_float32 + in_half
    arms = ["mine", "pure_bf16", "amp_bf16+eval=autocast", "amp_bf16"]
    assert sorted(arms, key=report_order) == ["amp_bf16", "amp_bf16+eval=autocast", "pure_bf16", "mine"]


def test_a_mode_of_ones_own_is_labelled_by_what_it_sets():
    own = PrecisionConfig(mode="mine", autocast=True, grad_scaler=True, init_scale=2.0)
    assert arm_label(own) == "mine+autocast=true+grad_scaler=true+init_scale=2"


def test_arms_that_differ_never_share_a_label():
    scales = [2.0**20, 2.0**20 + 1, 1e6, 1234567.0, 1234568.0]
    labels = [arm_label(replace(PRECISION_MODES["amp_fp16"], init_scale=scale)) for scale in scales]
    assert len(set(labels)) == len(scales)


@pytest.mark.parametrize(
    "name", ["gpt_tiny", "org/model", "a b\tc", "../..", "C:\\nets", "x" * 400, "nets.Größe", "a'b\"c`$(d)", "*?<>|"]
)
def test_a_run_directory_has_a_name_that_is_safe_everywhere(name):
    config = with_value(CONFIGS["one's own"], "model.name", name)
    directory = run_directory_name(config)
    assert re.fullmatch(r"fp32-[A-Za-z0-9_.+=-]+-[0-9a-f]{8}", directory)
    assert len(directory) <= 120
    assert directory.endswith(config_hash(config)[:8])


def test_a_run_directory_says_arm_model_and_seed():
    directory = run_directory_name(compose_one(["precision=amp_fp16", "precision.init_scale=1024", "seed=3"]))
    assert re.fullmatch(r"amp_fp16\+init_scale=1024-gpt_tiny-s3-[0-9a-f]{8}", directory)


def test_long_names_that_differ_at_their_end_stay_apart():
    config = CONFIGS["one's own"]
    names = [run_directory_name(with_value(config, "model.name", "x" * 200 + end)) for end in "ab"]
    assert names[0] != names[1]


def test_a_component_without_a_name_is_called_by_its_class():
    facts = new_record(CONFIGS["one's own"], device="cpu").identity
    assert (facts.model, facts.data, facts.task) == ("Net", "text", "language_modeling")


def test_an_optimizer_is_known_by_its_class_or_its_option():
    custom = ["optimizer=custom", "optimizer._target_=mine.Lion"]
    for overrides, name, lr in [
        (["optimizer=sgd"], "sgd", 1e-3),
        (custom, "Lion", None),
        ([*custom, "optimizer.name=lion", "optimizer.lr=0.5"], "lion", 0.5),
        (["+optimizer.each.critic={_target_:torch.optim.SGD,lr:0.1}"], "adamw, critic: SGD", 1e-3),
    ]:
        facts = new_record(compose_one(overrides), device="cpu").identity
        assert (facts.optimizer, facts.lr) == (name, lr)
    assert new_record(compose_one(custom), device="cpu", lr=0.25).identity.lr == 0.25, "the class's own"


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [
        ("fp32", "float32"),
        ("tf32", "float32"),
        ("amp_fp16", "float16"),
        ("amp_bf16", "bfloat16"),
        ("pure_bf16", "bfloat16"),
    ],
)
def test_the_dtype_of_a_run_is_the_one_it_computes_in(mode, dtype):
    config = replace(CONFIGS["gpt on text"], precision=PRECISION_MODES[mode])
    assert new_record(config, device="cpu").identity.dtype == dtype


def test_without_autocast_the_parameters_dtype_is_computed_in():
    precision = replace(PRECISION_MODES["amp_fp16"], autocast=False)
    config = replace(CONFIGS["gpt on text"], precision=precision)
    assert new_record(config, device="cpu").identity.dtype == "float32"

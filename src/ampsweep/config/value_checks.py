"""Checks of a composed config before anything starts, without torch and without the device: of combinations, since the
allowed values of a single field are in its schema (`ALLOWED`, `RANGE`)."""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

from ampsweep.config.components import OPTIMIZERS, SchedulerConfig, is_plateau
from ampsweep.config.errors import UserError, allowed, unknown_key
from ampsweep.config.field_rules import ALLOWED, POSITIVE, RANGE
from ampsweep.config.modes import PRECISION_MODES, mode_of, step_dtypes
from ampsweep.config.schema import FIELDS, Config, PrecisionConfig, PredictConfig, component_name
from ampsweep.metrics import goal_of
from ampsweep.redaction import hide

_LARGEST_GIB = 2**30  # a memory size that no device has and whose bytes still fit into 64 bits
_OWN = "ampsweep."


def check(config: Config) -> None:
    """Raise UserError for the first fault, with its key, its value and what is allowed."""
    for fault in _faults(config):
        raise UserError(fault)


def _faults(config: Config) -> Iterator[str]:
    values = asdict(config)
    yield from _not_finite("", values)
    for group in ("data", "model", "task", "optimizer"):
        yield from _component(group, getattr(config, group))
    yield from _optimizer(config.optimizer)
    yield from _scheduler(config.scheduler)
    for group in ("data", *values):  # data first: a model takes sizes from it
        if isinstance(values[group], dict) and _has_schema(group, values[group]):
            yield from _fields(group, values[group])
    yield from _precision(config.precision)
    if config.trainer.steps is None and config.trainer.epochs is None:
        yield "trainer.steps and trainer.epochs are both null; one of them must say how long to train"
    yield from _watched_metric(config)
    yield from _parallel(config)
    yield from _gradient_penalty(config.task, config.trainer.compile, config.parallel.strategy)
    yield from _predicted(config.predict)
    if mode_of(config.report.baseline) is None:
        modes = allowed(config.report.baseline, tuple(PRECISION_MODES))
        yield f"report.baseline={config.report.baseline}: must be an arm, which begins with its mode; {modes}"
    if config.report.goal is None and goal_of(config.report.metric) is None:
        given = f"report.metric={config.report.metric}"
        yield f"{given}: its name does not say which way it is better; add report.goal=minimize or maximize"
    if config.max_batch.search and config.begins_elsewhere:
        yield f"max_batch.search=true with resume={config.resume}: a search starts each training from scratch"
    if not 0 <= config.seed < 2**32:
        yield f"seed={config.seed}: must be from 0 to 2**32 - 1"
    if not re.fullmatch(r"[^/\\]+", config.name) or config.name in (".", ".."):
        yield f"name={config.name}: must be the name of one folder, without slashes"
    for key, path in (("name", config.name), ("output_dir", config.output_dir)):
        if (safe := hide(path, beside=values)) != path:
            yield f"{key}={safe}: holds a secret, which would be read in the names of directories"
    yield from _device(config.device)


def _fields(group: str, part: Mapping[str, Any]) -> Iterator[str]:
    for key, value in part.items():
        known = FIELDS.get(f"{group}.{key}")
        metadata = {} if known is None else known.metadata
        for item in value if isinstance(value, list) else [value]:
            if ALLOWED in metadata and item is not None:
                yield from _choice(f"{group}.{key}", item, metadata[ALLOWED])
            if isinstance(item, bool) or not isinstance(item, int | float):
                continue
            if isinstance(item, float) and known is not None and known.type in (int, int | None):
                yield f"{group}.{key}={item:g}: must be a whole number"
            holds, sentence = metadata.get(RANGE, POSITIVE)
            if not holds(item):
                yield f"{group}.{key}={item:g}: {sentence}"


def _has_schema(group: str, part: Mapping[str, Any]) -> bool:
    """Return False for a user's own class, whose arguments are for itself to check."""
    schema = OPTIMIZERS.get(str(part.get("name"))) if group == "optimizer" else None
    is_option = schema is not None and part.keys() >= {field.name for field in fields(schema)}
    return is_option or str(part.get("_target_", _OWN)).startswith(_OWN)


def _device(name: str) -> Iterator[str]:
    if not re.fullmatch(r"auto|cpu|(?!cpu:)[a-z]+(:\d+(/\d+)*)?", name):
        yield f"device={name}: allowed are auto, cpu, cuda, cuda:N and mps, and several to choose from (cuda:0/2)"
    elif len({*(indices := name.partition(":")[2].split("/"))}) < len(indices):
        yield f"device={name}: names a device twice"


def _not_finite(key: str, value: Any) -> Iterator[str]:
    """Find NaN and infinities: a record is strict JSON, which cannot hold them, and no setting needs them."""
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{key}={value:g}: must be a finite number"
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield from _not_finite(f"{key}.{name}".lstrip("."), item)


def _precision(precision: PrecisionConfig) -> Iterator[str]:
    yield from _choice("precision.mode", precision.mode, tuple(PRECISION_MODES))
    if precision.init_scale >= 2.0**128:
        yield f"precision.init_scale={precision.init_scale:g}: must be less than 2**128, a float32"
    if precision.autocast and precision.dtype == "float32":
        yield "precision.autocast=true with precision.dtype=float32: autocast computes in bfloat16 or float16"
    if not precision.autocast and precision.dtype not in (precision.parameters, PRECISION_MODES[precision.mode].dtype):
        yield f"precision.dtype={precision.dtype}: has no effect without precision.autocast=true"
    if precision.grad_scaler and step_dtypes(precision).optimizer_state == "float16":
        yield (
            "precision.grad_scaler=true with precision.parameters=float16: a GradScaler cannot unscale float16 "
            "gradients; use amp_fp16, which keeps parameters in float32"
        )
    if precision.fp32_modules and precision.parameters != "float32":
        yield (
            f"precision.fp32_modules={_listed(precision.fp32_modules)}, precision.parameters={precision.parameters}: "
            "only parameters in float32 compute in float32; use amp_bf16 or amp_fp16"
        )


def _parallel(config: Config) -> Iterator[str]:
    parallel = config.parallel
    if not all(isinstance(pattern, str) and pattern for pattern in parallel.blocks):
        yield f"parallel.blocks={parallel.blocks}: must be a list of patterns of module names"
    if parallel.strategy == "single":
        if parallel.num_processes not in (None, 1):
            yield f"parallel.num_processes={parallel.num_processes} with parallel=single: use parallel=ddp or fsdp2"
        return
    here = f"with parallel={parallel.strategy}"
    if config.trainer.accumulate_dtype is not None:
        yield (
            f"trainer.accumulate_dtype={config.trainer.accumulate_dtype} {here}: several processes accumulate "
            "gradients in their buffers; use parallel.reduce_dtype"
        )
    if config.predict.batch_sizes:
        yield f"predict.batch_sizes {here}: the table is over numbers of processes; give data.batch_size"
    if config.max_batch.search:
        yield f"max_batch.search=true {here}: the search for the largest batch runs in one process"
    if config.numerics.watch:
        yield f"numerics.watch=true {here}: numerics are watched in one process only; use parallel=single"
    if parallel.strategy == "fsdp2":
        yield from _sharded_states(config.optimizer)
    has_policy = parallel.strategy == "fsdp2" and parallel.mixed_precision == "policy" and config.precision.autocast
    mode = mode_of(config.precision.mode)
    if has_policy and mode is not None and mode.implementation is not None:
        yield policy_casts(mode.name)
    if has_policy and config.precision.fp32_modules:
        yield (
            f"precision.fp32_modules={_listed(config.precision.fp32_modules)} with parallel.mixed_precision=policy: "
            "the policy casts whole blocks; use parallel.mixed_precision=autocast"
        )


def _predicted(predict: PredictConfig) -> Iterator[str]:
    if (predict.memory_gib or 0) > _LARGEST_GIB:
        yield f"predict.memory_gib={predict.memory_gib:g}: must be at most {_LARGEST_GIB}"
    prices = {} if predict.prices is None else predict.prices
    if not isinstance(prices, dict) or not all(isinstance(of, int | float) and of >= 0 for of in prices.values()):
        yield f"predict.prices={prices}: must be the price of an hour of each GPU, such as {{T4: 0.35, A100-80: 1.8}}"
    for key in ("target", "capability", "memory_gib", "batch_sizes"):
        if predict.of_gpus and (value := getattr(predict, key)) not in (None, "auto", "cuda"):
            yield f"predict.{key}={value} with predict.speed=true: speed is that of predict.gpus at data.batch_size"


def _watched_metric(config: Config) -> Iterator[str]:
    metric = config.trainer.metric
    if not metric.startswith("val/"):
        yield f"trainer.metric={metric}: must be a validation metric, such as val/loss or val/accuracy"
    for setting in metric_users(config):
        if config.trainer.eval_every is None:
            yield f"{setting}: needs evaluations during the training; set trainer.eval_every"
        if config.trainer.goal is None and goal_of(metric) is None:
            yield f"{setting} by trainer.metric={metric}: trainer.goal must say minimize or maximize"


def metric_users(config: Config) -> Iterator[str]:
    """Yield the settings that follow `trainer.metric`."""
    trainer = config.trainer
    if trainer.patience is not None:
        yield f"trainer.patience={trainer.patience}"
    if trainer.keep_weights in ("best", "both"):
        yield f"trainer.keep_weights={trainer.keep_weights}"
    if is_plateau(config.scheduler):
        yield f"scheduler={component_name(config.scheduler)}"


def _sharded_states(optimizer: dict[str, Any]) -> Iterator[str]:
    of_each = {f"each.{name}.": own for name, own in (optimizer.get("each") or {}).items()}
    for key, settings in {"": optimizer, **of_each}.items():
        target = str(settings.get("_target_"))
        if target.startswith("torchao.optim."):
            yield (
                f"optimizer.{key}_target_={target} with parallel=fsdp2: shards split the blocks that share a scale, so "
                "that another number of ranks could not read the checkpoint; use parallel=ddp"
            )


def policy_casts(mode: str) -> str:
    """The error about a mode with casts of its own, which FSDP2's policy would replace."""
    return (
        f"precision={mode} with parallel.mixed_precision=policy: the policy would replace the mode's own casts; use "
        "parallel.mixed_precision=autocast"
    )


def _optimizer(optimizer: Mapping[str, Any]) -> Iterator[str]:
    target = str(optimizer["_target_"])
    named = OPTIMIZERS.get(str(optimizer.get("name")))
    if named is not None and target != named._target_:
        yield (
            f"optimizer.name={optimizer['name']}: stands for {named._target_}, and optimizer._target_ is {target}; "
            "another class is chosen with optimizer=custom"
        )
    for name, schema in OPTIMIZERS.items():
        if target == schema._target_ and optimizer.keys() >= {field.name for field in fields(schema)}:
            yield from _choice("optimizer.name", optimizer["name"], (name,))
    yield from _common_settings("optimizer", optimizer)
    each = optimizer.get("each") or {}
    if not isinstance(each, dict):
        yield "optimizer.each: must be a mapping from an optimizer's name to its own settings"
        return
    for name, own in each.items():
        if not isinstance(own, dict):
            yield f"optimizer.each.{name}: must be a mapping of settings"
        elif "each" in own or "name" in own:
            yield f"optimizer.each.{name}: may have any key of optimizer but each and name"
        else:
            yield from _common_settings(f"optimizer.each.{name}", own)


def _common_settings(key: str, settings: Mapping[str, Any]) -> Iterator[str]:
    """Check the settings that every optimizer has; its class checks the other arguments."""
    if settings.get("state_dtype") is not None:
        yield from _choice(f"{key}.state_dtype", settings["state_dtype"], ("float32", "bfloat16"))
    groups = settings.get("groups") or []
    if not isinstance(groups, list):
        yield f"{key}.groups: must be a list of groups, each with match and what differs in it"
        return
    for number, group in enumerate(groups):
        where = f"{key}.groups[{number}]"
        match = group.get("match") if isinstance(group, dict) else None
        if not isinstance(match, list) or not match or not all(isinstance(pattern, str) for pattern in match):
            yield f"{where}: must have match, a list of patterns of parameter names such as [*.bias, *norm*]"
        elif len(group) == 1:
            yield f"{where}: must have a hyperparameter beside match, such as weight_decay: 0"
        elif not isinstance(limit := group.get("max_grad_norm", 1.0), int | float) or not limit > 0:
            yield f"{where}.max_grad_norm={limit}: must be a number greater than 0"


def _scheduler(scheduler: Any) -> Iterator[str]:
    if not isinstance(scheduler, dict) or not {"name", "_target_"} & scheduler.keys():
        yield "scheduler must have a name, or a _target_ to build"
    elif "_target_" not in scheduler:
        known = [field.name for field in fields(SchedulerConfig)]
        for key in scheduler.keys() - known:
            yield unknown_key(f"scheduler.{key}", known, f"scheduler={scheduler['name']}")


def _component(group: str, component: Any) -> Iterator[str]:
    if not isinstance(component, dict) or "_target_" not in component:
        yield f"{group} must have a _target_, the class to build"
    elif group == "data" and not isinstance(component.get("batch_size"), int):
        yield f"data.batch_size={component.get('batch_size')}: must be a whole number greater than 0"


def _listed(values: list[str]) -> str:
    return f"[{','.join(map(str, values))}]"


def _gradient_penalty(task: dict[str, Any], compiles: bool, strategy: str) -> Iterator[str]:
    if not str(task["_target_"]).startswith(_OWN) or "gradient_penalty" not in task:
        return
    given = f"task.gradient_penalty={task['gradient_penalty']:g}"
    if task["gradient_penalty"] and compiles:
        yield f"{given} with trainer.compile=true: torch.compile has no gradient of a backward pass"
    # A Wasserstein critic differentiates a backward pass even for a penalty of no weight.
    if strategy == "fsdp2" and (task["gradient_penalty"] or "critic_steps" in task):
        yield (
            f"{given} with parallel=fsdp2: FSDP2 frees parameters after a backward pass, which then cannot be "
            "differentiated; use parallel=ddp"
        )


def _choice(key: str, value: str, known: tuple[str, ...]) -> Iterator[str]:
    if value not in known:
        yield f"{key}={value}: {allowed(value, known)}"

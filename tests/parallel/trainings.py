"""Trainings on a rank of the pair or in one process, the same by hand, and the collectives of their steps."""

import copy
import functools
import json
import tempfile
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from ampsweep.config.compose import compose_one
from ampsweep.data.base import for_rank
from ampsweep.parallel.base import SINGLE
from ampsweep.parallel.rank_environment import RankPlace
from ampsweep.parallel.strategy import make_parallel
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.checkpoint import seed_everything
from ampsweep.training.components.built import build, build_data, build_model

CPU = torch.device("cpu")
NUM_STEPS = 4
LOGGED = (
    "trainer.log_every=1",
    "trainer.max_grad_norm=1.0",
    "trainer.warmup_steps=2",
    "device=cpu",
    "tracking=disabled",
    f"trainer.steps={NUM_STEPS}",
    "scheduler=constant",
)
MLP = ("model=mlp_small", "model.hidden_size=16", "data=digits", "data.batch_size=8")
GPT = (
    "model=gpt_tiny",
    *(f"model.{size}" for size in ("hidden_size=16", "num_heads=2", "num_layers=2", "dropout=0.0")),
    "data=synthetic_tokens",
    *(f"data.{size}" for size in ("vocab_size=17", "seq_len=8", "batch_size=2", "num_batches=64")),
)
"""With 17 ids, which two ranks cannot share evenly."""
STRATEGIES = {
    "ddp": ("parallel=ddp", "parallel.num_processes=2"),
    "policy": ("parallel=fsdp2", "parallel.num_processes=2"),
    "autocast": ("parallel=fsdp2", "parallel.num_processes=2", "parallel.mixed_precision=autocast"),
}
"""By the short name of a strategy, with what FSDP2 casts by."""


@functools.cache
def composed(*overrides):
    return compose_one((*LOGGED, *overrides))


def single(config, *, batches=2):
    """The same training in one process, whose steps take the micro-batches of all ranks."""
    trainer = replace(config.trainer, grad_accum_steps=config.trainer.grad_accum_steps * batches)
    return replace(config, trainer=trainer, parallel=composed(*MLP).parallel)


@dataclass
class Training:
    """A training's parts and what it logged."""

    built: object
    trainer: object
    rows: list = field(default_factory=list)

    def train(self):
        with self.trainer.instruments:
            return self.trainer.train(SimpleNamespace(reason=""))

    def parameters(self):
        """The parameters, whole; every rank must ask."""
        return {name: whole(weight.detach()) for name, weight in self.built.model.named_parameters()}


def strategy_of(rank, config):
    """The strategy of a config for this rank, in the process group that there is."""
    size = dist.get_world_size()
    place = RankPlace(rank, size, rank, size, address="", port=0, has_store=True)
    return make_parallel(config.parallel, SimpleNamespace(place=place), CPU)


def assemble(config, rank=None, *, loss=None):
    """A training of this rank, or in one process; `loss` maps the loss of a turn to the loss to train by."""
    config = copy.deepcopy(config)
    parallel = SINGLE if rank is None else strategy_of(rank, config)
    built = build(config, CPU, build_data(config, CPU), parallel)
    if loss is not None:
        built = replace(built, turns=tuple(replace(turn, loss=loss(turn.loss)) for turn in built.turns))
    rows = []
    trainer = assemble_trainer(
        config, built, CPU, tracker=SimpleNamespace(log=lambda row, step: rows.append({"step": step, **row}))
    )
    return Training(built, trainer, rows)


def whole(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).clone()


def column(rows, key):
    return [row[key] for row in rows if key in row]


def apart(some, others, begun):
    """The distance of two sets of parameters over the way that the second has gone since it had `begun`."""
    assert some.keys() == others.keys() == begun.keys()
    between, way = ([(a[name].double() - others[name].double()).norm() for name in others] for a in (some, begun))
    return (torch.stack(between).norm() / torch.stack(way).norm()).item()


def same(some, others):
    assert some.keys() == others.keys()
    return all(torch.equal(some[name], others[name]) for name in some)


class Collectives:
    """The reductions and gathers that gloo was handed within `with`, in their order, as the profiler saw them."""

    def __enter__(self):
        self._profile = profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True)
        self._profile.__enter__()
        return self

    def __exit__(self, *error):
        self._profile.__exit__(*error)
        with tempfile.TemporaryDirectory() as folder:
            self._profile.export_chrome_trace(f"{folder}/trace.json")
            events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
        found = [event for event in events if str(event.get("name", "")).startswith("gloo:")]
        self.all = sorted((event["ts"], event["name"][5:], *_handed(event)) for event in found)
        self.spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in found)

    def reduced(self, *, more_than=64):
        """dtype and number of values of each reduction of more values than a norm, a row or an optimizer has."""
        return [(dtype, size) for _, name, dtype, size in self.all if "reduce" in name and size > more_than]


def _handed(event):
    kinds, sizes = event["args"].get("Input type") or [""], event["args"].get("Input Dims") or [[]]
    return kinds[0].removeprefix("c10::").lower(), sum(prod(size) for size in sizes if size != [])


def by_hand(rank, config):
    """Train as torch's documentation does it; returns the losses of this rank, the scales, and the parameters."""
    precision, trainer, parallel = config.precision, config.trainer, config.parallel
    seed_everything(config.seed)
    model = build_model(config).to(getattr(torch, precision.parameters))
    data = for_rank(build_data(config, CPU), rank, dist.get_world_size())
    is_language = "gpt" in config.model["name"]
    reduced = getattr(torch, parallel.reduce_dtype or precision.parameters)
    autocast = torch.autocast("cpu", getattr(torch, precision.dtype), enabled=precision.autocast)
    wrapped, model = model, model
    if parallel.strategy == "ddp":
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
        if parallel.reduce_dtype == "bfloat16":
            wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)
        if parallel.reduce_dtype == "float16":
            wrapped.register_comm_hook(None, default_hooks.fp16_compress_hook)
    else:
        casts = precision.autocast and parallel.mixed_precision == "policy"
        dtype = getattr(torch, precision.dtype) if casts else None
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=reduced)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in getattr(model, "blocks", ()):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        outer = replace(policy, output_dtype=torch.float32) if casts else policy
        fully_shard(model, mesh=mesh, mp_policy=outer)
        autocast = nullcontext() if casts else autocast
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.optimizer["lr"], weight_decay=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=precision.init_scale, enabled=precision.grad_scaler)
    losses, scales = [], []
    for step in range(NUM_STEPS):
        total = 0.0
        for micro in range(accumulate := trainer.grad_accum_steps):
            inputs, targets = data.train_batch(step * accumulate + micro)
            last = micro + 1 == accumulate
            if inputs.is_floating_point():
                inputs = inputs.to(getattr(torch, precision.parameters))
            waits = wrapped.no_sync() if parallel.strategy == "ddp" and not last else nullcontext()
            if parallel.strategy == "fsdp2":
                model.set_requires_gradient_sync(last)
            with waits:
                with autocast:
                    outputs = wrapped(inputs)
                    outputs = outputs.float()
                    if is_language:
                        outputs, targets = outputs.flatten(0, 1), targets.flatten()
                    loss = F.cross_entropy(outputs, targets) / accumulate
                scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), trainer.max_grad_norm)
        scales.append(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(float(total))
    return losses, scales, {name: whole(weight.detach()) for name, weight in model.named_parameters()}


def seeded(loss):
    """The same loss with the same random numbers for each batch, so that it does not matter who computes it."""

    def computed(model, batch):
        torch.manual_seed(7)
        return loss(model, batch)

    return computed

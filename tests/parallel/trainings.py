"""Trainings on a rank of the pair or in one process, the same by hand, and the collectives of their steps."""

import copy
import functools
import json
import tempfile
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from math import prod
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_map_only

from ampsweep.config.compose import compose_one
from ampsweep.data.base import for_rank
from ampsweep.nested_tensors import plain_tensors_in, wraps_others
from ampsweep.parallel.base import SINGLE
from ampsweep.parallel.rank_environment import RankPlace
from ampsweep.parallel.strategy import make_parallel
from ampsweep.training.assembly import assemble_trainer
from ampsweep.training.checkpoint import seed_everything
from ampsweep.training.components.built import build, build_data, build_model
from ampsweep.training.found_checkpoint import find_checkpoint
from ampsweep.training.resume import resume, take_checkpoint

CPU = torch.device("cpu")
NUM_STEPS = 4
LOGGED = (
    *("trainer.log_every=1", "trainer.max_grad_norm=1.0", "trainer.warmup_steps=2", "scheduler=constant"),
    *("device=cpu", "tracking=disabled", f"trainer.steps={NUM_STEPS}"),
)
MLP = ("model=mlp_small", "model.hidden_size=16", "data=digits", "data.batch_size=8")
GPT = (
    *("model=gpt_tiny", "model.hidden_size=16", "model.num_heads=2", "model.num_layers=2", "model.dropout=0.0"),
    *("data=synthetic_tokens", "data.vocab_size=17", "data.seq_len=8", "data.batch_size=2", "data.num_batches=64"),
)
"""With 17 ids, which two ranks cannot share evenly."""
OWN = ("model=custom", "data=digits", "data.batch_size=8", "optimizer=sgd")
STRATEGIES = {
    "ddp": ("parallel=ddp", "parallel.num_processes=2"),
    "policy": ("parallel=fsdp2", "parallel.num_processes=2"),
    "autocast": ("parallel=fsdp2", "parallel.num_processes=2", "parallel.mixed_precision=autocast"),
}
"""By the short name of a strategy, with what FSDP2 casts by."""

assert_same = functools.partial(torch.testing.assert_close, rtol=0, atol=0)
"""Nested values are equal to the last bit."""


@functools.cache
def composed(*overrides):
    return compose_one((*LOGGED, *overrides))


def single(config, *, batches=2):
    """The same training in one process, whose steps take the micro-batches of all ranks."""
    trainer = replace(config.trainer, grad_accum_steps=config.trainer.grad_accum_steps * batches)
    return replace(config, trainer=trainer, parallel=composed(*MLP).parallel)


class Training:
    """A training of a rank, or in one process, with what it logged, and with checkpoints in `place`.

    `loss` maps the loss of a turn to the loss to train by.
    """

    def __init__(self, config, rank=None, *, loss=None, place=None, device=CPU):
        config, parallel = copy.deepcopy(config), SINGLE
        if rank is not None:
            size = dist.get_world_size()
            group = SimpleNamespace(place=RankPlace(rank, size, rank, size, address="", port=0, has_store=True))
            parallel = make_parallel(config.parallel, group, device)
        self.built = build(config, device, build_data(config, device), parallel)
        if loss is not None:
            turns = tuple(replace(turn, loss=loss(turn.loss)) for turn in self.built.turns)
            self.built = replace(self.built, turns=turns)
        self.rows, self._place, self.saved = [], place, None
        tracker = SimpleNamespace(log=lambda row, step: self.rows.append({"step": step, **row}))
        self.trainer = assemble_trainer(config, self.built, device, tracker=tracker, save=self._save)

    def _save(self, _):
        if self._place is not None:
            self.save(self._place)
            self.saved = self.facts()

    def train(self):
        with self.trainer.instruments:
            self.trainer.train(SimpleNamespace(reason=""))
        return self

    def parameters(self):
        """The parameters, whole; every rank must ask."""
        return {name: whole(weight) for name, weight in self.built.model.named_parameters()}

    def save(self, place):
        place.mkdir(exist_ok=True)
        return take_checkpoint(self.trainer, place, "hash", "model", "arm")

    def resume(self, path):
        return resume(self.trainer, find_checkpoint(path, self.trainer.parallel))

    def facts(self):
        """All that a checkpoint holds, with whole tensors; every rank must ask."""
        trainer = self.trainer
        held = {
            "model": trainer.model.state_dict(),
            "optimizers": {name: optimizer.state_dict()["state"] for name, optimizer in trainer.optimizers.items()},
            "scaler": trainer.precision.state_dict(),
            "step": trainer.step,
            "next_batch": trainer.next_batch,
            "applied": float(trainer.instruments.applied_steps()),
            "rng": torch.get_rng_state(),
        }
        return tree_map_only(torch.Tensor, whole, held)


def whole(tensor):
    """A tensor of its own, not a shard; for the wrappers of torchao a list of the tensors within."""
    if isinstance(tensor, DTensor):
        return tensor.detach().full_tensor().clone()
    if wraps_others(tensor):
        return [part.clone() for part in plain_tensors_in(tensor)]
    return tensor.detach().clone()


def column(rows, key):
    return [row[key] for row in rows if key in row]


def apart(some, others, begun):
    """The distance of two sets of parameters over the way that the second has gone since it had `begun`."""
    assert some.keys() == others.keys() == begun.keys()
    between, way = ([(a[name].double() - others[name].double()).norm() for name in others] for a in (some, begun))
    return (torch.stack(between).norm() / torch.stack(way).norm()).item()


@contextmanager
def profiled_collectives():
    """By torch's profiler: how long gloo is busy, and dtype and number of values of each reduction of gradients."""
    seen = SimpleNamespace()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as profiled:
        yield seen
    with tempfile.TemporaryDirectory() as folder:
        profiled.export_chrome_trace(f"{folder}/trace.json")
        events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
    found = [event for event in events if str(event.get("name", "")).startswith("gloo:")]
    seen.busy_ms = sum(event["dur"] for event in found) / 1e3
    handed = [_handed(event["args"]) for event in found if "reduce" in event["name"]]
    seen.reduced = [(dtype, size) for dtype, size in handed if size > 64]  # a norm, a row or an optimizer has fewer


def _handed(arguments):
    kinds, sizes = arguments.get("Input type") or [""], arguments.get("Input Dims") or [[]]
    return kinds[0].removeprefix("c10::").lower(), sum(prod(size) for size in sizes if size != [])


def by_hand(rank, config):
    """Train a GPT as torch's documentation does it; returns the losses of this rank, the scales, and the parameters."""
    precision, trainer, is_ddp = config.precision, config.trainer, config.parallel.strategy == "ddp"
    seed_everything(config.seed)
    parameters = getattr(torch, precision.parameters)
    model = wrapped = build_model(config).to(parameters)
    data = for_rank(build_data(config, CPU), rank, dist.get_world_size())
    autocast = torch.autocast("cpu", getattr(torch, precision.dtype), enabled=precision.autocast)
    if is_ddp:
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        casts = precision.autocast and config.parallel.mixed_precision == "policy"
        policy = MixedPrecisionPolicy(getattr(torch, precision.dtype) if casts else None, parameters)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=replace(policy, output_dtype=torch.float32) if casts else policy)
        autocast = nullcontext() if casts else autocast
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.optimizer["lr"], weight_decay=0.1, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=precision.init_scale, enabled=precision.grad_scaler)
    losses, scales = [], []
    for step in range(NUM_STEPS):
        total = 0.0
        for micro in range(accumulate := trainer.grad_accum_steps):
            tokens, targets = data.train_batch(step * accumulate + micro)
            is_last = micro + 1 == accumulate
            if not is_ddp:
                model.set_requires_gradient_sync(is_last)
            with wrapped.no_sync() if is_ddp and not is_last else nullcontext():
                with autocast:
                    logits = wrapped(tokens).float()
                    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten()) / accumulate
                scaler.scale(loss).backward()
            total += loss.detach()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), trainer.max_grad_norm)
        scales.append(scaler.get_scale())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(float(total))
    return losses, scales, {name: whole(weight) for name, weight in model.named_parameters()}


def seeded(loss):
    """The same loss with the same random numbers for each batch, so that it does not matter who computes it."""

    def computed(model, batch):
        torch.manual_seed(7)
        return loss(model, batch)

    return computed

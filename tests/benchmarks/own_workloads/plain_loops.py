"""Trainings of the same models on the same batches, written by hand from torch's own parts.

The loops are those of PyTorch's documentation: the recipe "Automatic Mixed Precision" and the notes "Automatic Mixed
Precision examples". Of the suite they use the data sets alone, of the project its models and losses.
"""

import math
import random
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from torch import Tensor, nn
from torch.amp import GradScaler
from zoo import adversarial, autoencoder, contrastive, control, physics, vision

DTYPES = {"fp32": torch.float32, "amp_bf16": torch.bfloat16, "amp_fp16": torch.float16}


def train(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Train the workload of this name; returns its losses, one a step, and its final weights."""
    arguments = {key: value for key, value in config["data"].items() if key not in ("name", "provides")}
    data = instantiate(arguments, seed=config["seed"], device=torch.device("cpu"), _convert_="all")
    random.seed(config["seed"])
    np.random.seed(config["seed"])
    torch.manual_seed(config["seed"])
    model = instantiate({key: value for key, value in config["model"].items() if key != "name"}, _convert_="all")
    model.train()
    mode, num_steps = config["precision"]["mode"], config["trainer"]["steps"]
    scaler = GradScaler("cpu", enabled=mode == "amp_fp16")
    autocast = torch.autocast("cpu", DTYPES[mode], enabled=mode != "fp32")
    loop = LOOPS.get(name) or partial(recipe, name, num_steps)
    steps = loop(model, map(data.train_batch, count()), scaler, autocast)
    losses = [float(next(steps)) for _ in range(num_steps)]
    if hasattr(data, "stop_workers"):
        data.stop_workers()
    return {"losses": losses, "weights": model.state_dict()}


def recipe(
    name: str, num_steps: int, model: nn.Module, batches: Iterator[Any], scaler: GradScaler, autocast: torch.autocast
) -> Iterator[Tensor]:
    """One model, one loss, one optimizer."""
    loss_of, accumulate = LOSSES[name], 2 if name == "regression" else 1
    optimizer = adamw(model)
    if name == "cnn":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True, fused=True)
    schedule = None
    if name == "vit":
        # A cosine under a scaler has its learning rate in a tensor, as torch's fused optimizers take it.
        for group in optimizer.param_groups if scaler.is_enabled() else ():
            group["lr"] = torch.tensor(group["lr"])
        cosine = [0.5 * (1 + math.cos(math.pi * step / num_steps)) for step in range(num_steps + 1)]
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine.__getitem__)
    while True:
        loss_of_step = 0.0
        for _ in range(accumulate):
            batch = next(batches)
            with autocast:
                loss = loss_of(model, batch) / accumulate
            scaler.scale(loss).backward()
            loss_of_step = loss_of_step + loss.detach()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if schedule is not None and scaler.get_scale() >= before:  # a skipped step is none
            schedule.step()
        optimizer.zero_grad()
        yield loss_of_step


def adamw(model: nn.Module, lr: float = 1e-3) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01, fused=True)


def next_tokens(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    ids, following = batch
    logits = model(ids)
    return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), following.reshape(-1))


def classes(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


LOSSES: dict[str, Callable[[nn.Module, Any], Tensor]] = {
    "gpt2": lambda model, batch: model(input_ids=batch[0], labels=batch[0]).loss,
    "bert": lambda model, batch: model(**batch).loss,
    **dict.fromkeys(("vit", "cnn", "images"), classes),
    **dict.fromkeys(("lstm", "gru", "experts", "stream"), next_tokens),
    "regression": lambda model, batch: F.mse_loss(model(batch[0]), batch[1]),
    "segmentation": vision.Segmentation().loss,
    "contrastive": contrastive.InBatchNegatives().loss,
    "pinn": physics.HeatEquation().loss,
}


def adversaries(
    judged_loss: Callable[[nn.Module, Any, GradScaler], Tensor],
    fooled_loss: Callable[[nn.Module, Any], Tensor],
    model: nn.ModuleDict,
    batches: Iterator[Any],
    scaler: GradScaler,
    autocast: torch.autocast,
) -> Iterator[Tensor]:
    """Two models and two optimizers in turn, each on a batch of its own, with one scaler and one update a step."""
    of_judge, of_generator = adamw(model["judge"]), adamw(model["generator"])
    while True:
        with autocast:
            judged = judged_loss(model, next(batches), scaler)
        backward_and_step(scaler, judged, of_judge, model)
        with autocast:
            fooled = fooled_loss(model, next(batches))
        backward_and_step(scaler, fooled, of_generator, model)
        scaler.update()
        yield judged.detach() + fooled.detach()


def wgan_gp(model: nn.ModuleDict, batch: tuple[Tensor, Tensor], scaler: GradScaler) -> Tensor:
    """A penalty on unscaled gradients of scaled scores, after the notes' "Gradient penalty"."""
    images, judge = batch[0], model["judge"]
    with torch.no_grad():
        made = model["generator"](torch.randn(len(images), 16)).float()
    share = torch.rand(len(images), 1, 1, 1)
    between = (share * images + (1 - share) * made).requires_grad_()
    scores = judge(between).sum()
    # In an autocast of its own, as in the notes, the penalty would cast the weights anew and round otherwise.
    with torch.autocast("cpu", enabled=False):
        (scaled,) = torch.autograd.grad(scaler.scale(scores), between, create_graph=True)
        slope = scaled / scaler.get_scale()
    penalty = (slope.flatten(1).norm(dim=1) - 1).square().mean()
    return judge(made).mean() - judge(images).mean() + 10.0 * penalty


def backward_and_step(scaler: GradScaler, loss: Tensor, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    model.zero_grad()  # also gradients that another model's loss has left there
    scaler.scale(loss).backward()
    scaler.step(optimizer)


def two_heads(
    model: nn.Module, batches: Iterator[Any], scaler: GradScaler, autocast: torch.autocast
) -> Iterator[Tensor]:
    """Two losses through one graph, and two optimizers, as in the notes' "Working with Multiple Models, Losses"."""
    first, second = adamw(nn.ModuleList([model.encoder, model.decoder])), adamw(model.head, lr=1e-2)
    for batch in batches:
        with autocast:
            copied, named = autoencoder.CopyAndName().losses(model, batch)
        scaler.scale(copied).backward(retain_graph=True)
        scaler.scale(named).backward()
        scaler.step(first)
        scaler.step(second)
        scaler.update()
        model.zero_grad()
        yield copied.detach() + named.detach()


def q_learning(
    model: nn.Module, batches: Iterator[Any], scaler: GradScaler, autocast: torch.autocast
) -> Iterator[Tensor]:
    """One net learns from what another expects, which follows it after each step."""
    optimizer, task = adamw(model.online), control.QLearning()
    for batch in batches:
        with autocast:
            loss = task.loss(model, batch)
        backward_and_step(scaler, loss, optimizer, model.online)
        scaler.update()
        with torch.no_grad():
            task.after_step(model)
        yield loss.detach()


GAN, WGAN_GP = adversarial.Gan(), adversarial.WassersteinGan()
LOOPS: dict[str, Callable[..., Iterator[Tensor]]] = {
    "digits_gan": partial(adversaries, lambda model, batch, _: GAN.judges(model, batch), GAN.generates),
    "digits_wgan_gp": partial(adversaries, wgan_gp, WGAN_GP.generates),
    "autoencoder": two_heads,
    "dqn": q_learning,
}

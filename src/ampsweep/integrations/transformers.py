"""One line for Hugging Face's Trainer: `Trainer(..., callbacks=[AmpsweepCallback(arm="bf16")])`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ampsweep.integrations.watched_run import INSTALL, RecordingCallback, WatchedRun

try:
    from accelerate.state import AcceleratorState
    from transformers import TrainerCallback, TrainerControl, TrainingArguments
except ImportError as error:
    raise ImportError(INSTALL.format("AmpsweepCallback", "transformers and accelerate", "transformers")) from error


class AmpsweepCallback(RecordingCallback, TrainerCallback):
    """Records each training of a `Trainer` as `ampsweep.record` does; the metrics of evaluations keep their names.

    The arm defaults to the mode that a traced step proves, the seed to `TrainingArguments.seed`, and the precision
    claimed to that of `TrainingArguments` or `accelerate launch`. Other options are those of `ampsweep.record`.
    """

    source = "transformers"
    run: WatchedRun

    def on_train_begin(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        optimizer = kwargs["optimizer"]
        self._optimizer = getattr(optimizer, "optimizer", optimizer)  # within Accelerate's wrapper
        self.begin(
            claimed=claimed(args, kwargs["model"]),
            seed=args.seed,
            config=args.to_sanitized_dict(),
            samples_per_step=args.train_batch_size * args.gradient_accumulation_steps * args.world_size,
        )

    def own_optimizers(self) -> Callable[[Optimizer], bool]:
        return lambda optimizer: optimizer is self._optimizer

    def on_step_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        if control.should_evaluate or control.should_save:
            self.run.evaluation_begins(kwargs["model"])

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.run.note_evaluation(kwargs["model"])

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.run.log(kwargs["logs"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.run.finish()


def claimed(args: TrainingArguments, model: nn.Module) -> str | None:
    """The precision that the arguments ask for; None if they do not, and the model is not in float32 anyway."""
    mixed = AcceleratorState().mixed_precision  # of the arguments, of `accelerate launch`, or of DeepSpeed's config
    if mixed == "no" and any(p.dtype != torch.float32 for p in model.parameters() if p.is_floating_point()):
        return None
    return f"{mixed}+tf32" if args.tf32 else mixed

"""The sizes of what is measured, each said once for the suite's command line and for the loop it is compared with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Settings = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Mlp:
    """Three linear layers and SGD on random batches resident on the device: the PyTorch AMP recipe at its own size."""

    width: int = 4096
    batch_size: int = 512
    num_batches: int = 50
    steps: int
    warmup_steps: int

    def suite(self) -> Settings:
        """Overrides of train.py."""
        sizes: Settings = {"experiment": "recipe"}
        if self.width != 4096:
            sizes |= dict.fromkeys(("model.hidden_size", "data.in_features", "data.out_features"), self.width)
        if self.batch_size != 512:
            sizes["data.batch_size"] = self.batch_size
        if self.num_batches != 50:
            sizes["data.num_batches"] = self.num_batches
        steps = {"trainer.epochs": None, "trainer.steps": self.steps, "trainer.warmup_steps": self.warmup_steps}
        return sizes | steps

    def by_hand(self) -> Settings:
        """Options of the worker `by_hand`."""
        sizes: Settings = {"width": self.width, "batch-size": self.batch_size, "num-batches": self.num_batches}
        return sizes | {"steps": self.steps, "warmup-steps": self.warmup_steps}


@dataclass(frozen=True, kw_only=True)
class Gpt:
    """GPT-2's architecture on random tokens with AdamW and clipping; at its own size GPT-2 124M."""

    num_layers: int = 12
    hidden_size: int = 768
    num_heads: int = 12
    vocab_size: int = 50257
    seq_len: int = 1024
    batch_size: int = 16
    steps: int
    warmup_steps: int = 10

    def suite(self) -> Settings:
        """Overrides of train.py."""
        chosen: Settings = {"model": "gpt_small", "data.batch_size": self.batch_size}
        if self.num_layers != 12:
            chosen |= {"model.num_layers": self.num_layers, "model.hidden_size": self.hidden_size}
            chosen |= {"model.num_heads": self.num_heads, "model.vocab_size": self.vocab_size}
            chosen |= {"data.vocab_size": self.vocab_size, "data.seq_len": self.seq_len}
        return chosen | {"trainer.steps": self.steps, "trainer.warmup_steps": self.warmup_steps}

    def nanogpt(self, vocab_size: int) -> Settings:
        """Options of the worker `nanogpt`, for so many token ids."""
        sizes: Settings = {"num-layers": self.num_layers, "hidden-size": self.hidden_size, "num-heads": self.num_heads}
        sizes |= {"vocab-size": vocab_size, "seq-len": self.seq_len, "batch-size": self.batch_size}
        return sizes | {"steps": self.steps, "warmup-steps": self.warmup_steps}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """All sizes of a campaign."""

    recipe: Mlp
    launches: Mlp
    """So small that a step is mostly kernel launches: where instrumentation costs most."""
    gpt: Gpt
    padded_vocab_size: int
    """The vocabulary rounded up to a multiple of 64, as nanoGPT has it by default."""
    resnet: Settings
    batches: Mapping[str, tuple[Settings, tuple[int, ...]]]
    """By a name: what is measured at several batch sizes, and these."""
    search: Settings
    memory_limits_gib: tuple[float | None, ...]
    """Of the searches for the largest batch; None is the device's own memory."""
    modes: tuple[str, ...]
    num_seeds: int
    compiled: bool
    """Whether compiled arms are measured: compiling takes a minute."""
    time_factor: float
    """Share of an H100's time that everything takes."""


_IMAGES: Final[Settings] = {"model": "resnet50", "optimizer": "sgd", "optimizer.momentum": 0.9}
_FEW_STEPS: Final[Settings] = {"trainer.steps": 12, "trainer.warmup_steps": 4, "data.num_batches": 2}
_SMALL_GPT: Final = Gpt(
    num_layers=1, hidden_size=32, num_heads=2, vocab_size=100, seq_len=16, batch_size=2, steps=8, warmup_steps=3
)
_SMALL_MLP: Final = Mlp(width=32, batch_size=8, num_batches=4, steps=20, warmup_steps=4)
_SMALL_SEARCH: Final[Settings] = {
    "experiment": "max_batch",
    "model": "mlp_small",
    "data": "synthetic",
    "data.num_batches": 1,
    "data.in_features": 32,
    "data.out_features": 32,
    "trainer.steps": 8,
    "max_batch.limit": 256,
}

SCALES: Final[Mapping[Literal["full", "tiny"], Scale]] = {
    "full": Scale(
        recipe=Mlp(steps=3000, warmup_steps=100),
        launches=Mlp(width=512, batch_size=64, steps=3000, warmup_steps=100),
        gpt=Gpt(steps=60),
        padded_vocab_size=50304,
        resnet=_IMAGES | {"data.batch_size": 128, "trainer.steps": 60},
        batches={
            "gpt_small": ({"model": "gpt_small"} | _FEW_STEPS, (1, 2, 4, 8, 16, 32)),
            "mlp_recipe": ({"experiment": "recipe", "trainer.epochs": None} | _FEW_STEPS, (64, 512, 2048, 8192)),
            "resnet50": (_IMAGES | _FEW_STEPS, (8, 32, 64, 128, 256)),
        },
        search={"experiment": "max_batch", "model": "gpt_small"},
        memory_limits_gib=(None, 16.0),
        modes=("fp32", "tf32", "amp_fp16", "amp_bf16", "pure_bf16"),
        num_seeds=3,
        compiled=True,
        time_factor=1.0,
    ),
    "tiny": Scale(
        recipe=_SMALL_MLP,
        launches=_SMALL_MLP,
        gpt=_SMALL_GPT,
        padded_vocab_size=128,
        resnet=_IMAGES | {"data.batch_size": 2, "data.image_size": 32, "trainer.steps": 4, "data.num_batches": 2},
        batches={"gpt_small": (_SMALL_GPT.suite(), (2, 4))},
        search=_SMALL_SEARCH,
        memory_limits_gib=(0.002,),
        modes=("fp32", "amp_bf16"),
        num_seeds=1,
        compiled=False,
        time_factor=0.25,
    ),
}
"""`tiny` shows within minutes on a CPU that everything runs; its figures mean nothing."""

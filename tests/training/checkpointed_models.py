"""Models of a user's that recompute activations, or only say that they do."""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM


class Net(nn.Module):
    """Two blocks on images of digits; subclasses call them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)) for _ in range(2))
        self.head = nn.Linear(32, 10)
        self.is_enabled = False

    def gradient_checkpointing_enable(self) -> None:
        self.is_enabled = True

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.flatten(1))
        for block in self.blocks:
            x = self.call(block, x) if self.is_enabled and torch.is_grad_enabled() else block(x)
        logits: Tensor = self.head(x)
        return logits

    def call(self, block: nn.Module, x: Tensor) -> Tensor:
        raise NotImplementedError


class Reentrant(Net):
    def call(self, block: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = checkpoint(block, x, use_reentrant=True)
        return output


class NotReentrant(Net):
    def call(self, block: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = checkpoint(block, x, use_reentrant=False)
        return output


class Idle(Net):
    """Has the method, and recomputes nothing."""

    def call(self, block: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = block(x)
        return output


class OtherDtype(Net):
    """Recomputes in float32 what autocast has computed in half precision: a reentrant checkpoint records only then."""

    def call(self, block: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = checkpoint(_float32_if_recorded, block, x, use_reentrant=True)
        return output


def _float32_if_recorded(block: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu") and not torch.is_grad_enabled()):
        output: Tensor = block(x.float()).float()
    return output


class Llama(LlamaForCausalLM):
    """A language model of Hugging Face's, which recomputes its layers in training."""

    def __init__(self) -> None:
        sizes = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64}
        super().__init__(LlamaConfig(**sizes, num_hidden_layers=2, num_attention_heads=2))


class TwoConvolutions(nn.Module):
    """Convolutions on images of digits, between which the images may be put back as they were."""

    def __init__(self, puts_back: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.head, self.puts_back = nn.Linear(8, 10), puts_back

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        logits: Tensor = self.head(self.second(x.contiguous() if self.puts_back else x).mean((2, 3)))
        return logits

"""A multilayer perceptron, as in the PyTorch AMP recipe."""

from torch import Tensor, nn

from ampsweep.argument_checks import require_positive
from ampsweep.models.activation_checkpointing import CheckpointedModel


class MLP(CheckpointedModel):
    """``num_layers`` linear layers with ReLUs between them, with torch's default initialization. Three layers of width
    4096 are the network of https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html (50,343,936 parameters).
    Activation checkpointing frees only autocast's copies of the weights."""

    def __init__(self, in_features: int, hidden_size: int, out_features: int, num_layers: int) -> None:
        """Build the network; raise a ``ValueError`` for sizes below 1. A single layer has no ``hidden_size``."""
        super().__init__()
        require_positive(
            in_features=in_features, hidden_size=hidden_size, out_features=out_features, num_layers=num_layers
        )
        widths = [in_features] + [hidden_size] * (num_layers - 1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, hidden_size), nn.ReLU()) for width in widths[:-1])
        self.head = nn.Linear(widths[-1], out_features)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map inputs (B, ...) with ``in_features`` values per item to outputs (B, out_features)."""
        x = inputs.flatten(1)
        for block in self.blocks:
            x = self.run(block, x)
        output: Tensor = self.head(x)
        return output

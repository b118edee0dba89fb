"""A network with a shared trunk and two heads."""

from torch import Tensor, nn

from ampsweep.argument_checks import require_positive


class TwoHeaded(nn.Module):
    """A ``trunk`` whose features a ``classifier`` maps to logits and a ``decoder`` back to the inputs."""

    def __init__(self, in_features: int, hidden_size: int, out_features: int) -> None:
        """Build the network; raise a ``ValueError`` for sizes below 1."""
        super().__init__()
        require_positive(in_features=in_features, hidden_size=hidden_size, out_features=out_features)
        self.trunk = nn.Sequential(nn.Linear(in_features, hidden_size), nn.ReLU())
        self.classifier = nn.Linear(hidden_size, out_features)
        self.decoder = nn.Sequential(
            nn.Linear(hidden_size, hidden_size), nn.ReLU(), nn.Linear(hidden_size, in_features)
        )

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Map inputs (B, ...) with ``in_features`` values per item to logits (B, out_features) and those values."""
        features = self.trunk(inputs.flatten(1))
        return self.classifier(features), self.decoder(features)

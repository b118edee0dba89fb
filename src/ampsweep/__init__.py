"""A Weights & Biases experiment suite for mixed precision."""

__version__ = "0.1.0"

"""Precision modes, usable on their own in any training loop."""

from ampsweep.precision.precision import Precision, gradients

__all__ = ["Precision", "gradients"]

"""Predictions of the memory a training takes, without its device and without running it."""

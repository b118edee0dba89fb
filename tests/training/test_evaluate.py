"""Evaluation weights every item alike and leaves the training as it was."""

"""Trainings whose precision changes in the middle: that of `seam.saved_in` up to `seam.step`, then their own."""

from dataclasses import replace

from ampsweep.config.modes import PRECISION_MODES, arm_of, differences
from ampsweep.config.schema import Config, PrecisionConfig, SeamConfig


def precision_before_seam(config: Config) -> PrecisionConfig | None:
    """The precision up to the seam: the mode `seam.saved_in`, with the changes that the run makes to its own mode.

    None if the run is uninterrupted.
    """
    saved_in = config.seam.saved_in
    if saved_in is None:
        return None
    own = config.precision
    return replace(PRECISION_MODES[saved_in], **differences(own, PRECISION_MODES[own.mode]))


def saved_in(config: Config) -> str | None:
    """The arm that the checkpoint at the seam is of; None if the run is uninterrupted."""
    before = precision_before_seam(config)
    return None if before is None else arm_of(replace(config, precision=before))


def uninterrupted(config: Config) -> Config:
    """The config of the run that keeps the checkpoint which the run of `config` begins with."""
    before = precision_before_seam(config)
    assert before is not None, "this run begins with no checkpoint of another"
    return replace(config, precision=before, seam=SeamConfig(step=config.seam.step))

"""Where on W&B a run belongs."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from ampsweep.config.schema import TrackingConfig
from ampsweep.record.parts import WandbFacts
from ampsweep.redaction import hidden
from ampsweep.tracking.wandb.agent import is_agents_run
from ampsweep.tracking.wandb.core import first_line

if TYPE_CHECKING:
    import wandb

_INIT_TIMEOUT_S: Final = 60.0
_FINISH_TIMEOUT_S: Final = 30.0
"""Where WANDB_INIT_TIMEOUT and WANDB_FINISH_TIMEOUT do not say. A training waits for neither: see `wandb_mirror`."""

_RETRY_S: Final = (1, 2)
"""Shortest and longest wait between two tries, so that a server that is back is noticed; wandb waits up to a minute."""


def finish_timeout_s() -> float | None:
    """How long the user lets the end of a run wait for W&B; None where nothing is said."""
    given = os.environ.get("WANDB_FINISH_TIMEOUT")
    return None if given is None else float(given)


def group_of(name: str, directory: Path) -> str:
    """The W&B group of the runs of the multirun in ``directory``, where the config names none."""
    return f"{name}_{directory.name}"


@dataclass(frozen=True)
class WandbPlace:
    """A run's place; what is None is left to wandb and its environment."""

    project: str | None
    entity: str | None
    group: str | None
    sweep: str | None = None

    @classmethod
    def here(cls, config: TrackingConfig, group: str | None) -> Self:
        """Of a run that starts in this process; ``group`` is where neither the config nor the environment has one.

        An agent's environment (WANDB_SWEEP_ID, WANDB_PROJECT) decides over project and entity.
        """
        of_agent, found = is_agents_run(), os.environ.get
        sweep = found("WANDB_SWEEP_ID")
        return cls(
            project=found("WANDB_PROJECT") if of_agent else config.project,
            entity=found("WANDB_ENTITY") if of_agent else config.entity or found("WANDB_ENTITY"),
            group=config.group or found("WANDB_RUN_GROUP") or sweep or group,
            sweep=sweep,
        )

    @classmethod
    def recorded(cls, facts: WandbFacts) -> Self:
        """What `facts` of an earlier place has become in a record."""
        return cls(project=facts.project, entity=facts.entity, group=facts.group, sweep=facts.sweep)

    def facts(self) -> dict[str, Any]:
        """What a record says of it."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def settings(self, tags: list[str]) -> "wandb.Settings":
        """Settings of wandb for a run there.

        Raises:
            ValueError: a project, entity or tag that W&B does not take.
        """
        import wandb

        try:
            settings = wandb.Settings(
                finish_timeout_raises=True,
                console="off",
                silent=True,
                reinit="finish_previous",
                # Not public settings of wandb 0.31, but it has no others for this: no samples of the machine every
                # 15 s, as the suite takes its own, and shorter waits. Settings refuses names it does not know.
                x_disable_stats=True,
                x_graphql_retry_wait_min_seconds=_RETRY_S[0],
                x_graphql_retry_wait_max_seconds=_RETRY_S[1],
                x_file_stream_retry_wait_min_seconds=_RETRY_S[0],
                x_file_stream_retry_wait_max_seconds=_RETRY_S[1],
                x_file_transfer_retry_wait_min_seconds=_RETRY_S[0],
                x_file_transfer_retry_wait_max_seconds=_RETRY_S[1],
            )
            by_agent = is_agents_run()  # wandb then takes project and entity from nobody else
            for name, value in {
                "project": None if by_agent else self.project,
                "entity": None if by_agent else self.entity,
                "run_group": self.group,
                "sweep_id": self.sweep,
                "run_tags": tuple(hidden(tags)) or None,
                "init_timeout": None if "WANDB_INIT_TIMEOUT" in os.environ else _INIT_TIMEOUT_S,
                "finish_timeout": None if "WANDB_FINISH_TIMEOUT" in os.environ else _FINISH_TIMEOUT_S,
            }.items():
                if value is not None:  # a setting that is not made leaves the word to the environment
                    setattr(settings, name, value)
        except (wandb.Error, ValueError) as error:
            raise ValueError(f"tracking: {first_line(error)}") from error
        return settings

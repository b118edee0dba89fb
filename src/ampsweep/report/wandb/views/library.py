"""wandb-workspaces, which makes what is saved. It is optional: only what publishes imports this.

What of it is not public is used here and nowhere else: `_to_model`, the one way to see what a page would save, and
the `_id` of a panel or run set, by which it is found again.
"""

import warnings
from typing import Any, TypeVar

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # wandb-workspaces 0.4 uses pydantic's older validators
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws
    from wandb_workspaces import expr

__all__ = ["expr", "identified", "saved_spec", "wr", "ws"]

T = TypeVar("T")


def identified(part: T, id: str) -> T:
    """The panel or run set `part`, with an id of our own."""
    part._id = id  # type: ignore[attr-defined]
    return part


def saved_spec(page: "ws.Workspace | wr.Report") -> dict[str, Any]:
    """The JSON that would be saved of `page`."""
    spec: dict[str, Any] = page._to_model().spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return spec

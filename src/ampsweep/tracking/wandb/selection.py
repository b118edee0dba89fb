"""A selection of runs on a W&B server: `wandb://ENTITY/PROJECT[/SWEEP][?group=NAME...]`."""

from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import parse_qs, quote, unquote, urlsplit

from ampsweep.config.errors import UserError
from ampsweep.text import folder_name

SCHEME: Final = "wandb://"
COMPARISON: Final = "comparison"  # the job type in W&B of runs that hold a comparison

_FORM: Final = f"{SCHEME}ENTITY/PROJECT, {SCHEME}ENTITY/PROJECT/SWEEP or {SCHEME}ENTITY/PROJECT?group=NAME"


@dataclass(frozen=True)
class Selection:
    """The runs of a project, of a sweep or of groups in it."""

    entity: str
    project: str
    sweep: str | None = None
    groups: tuple[str, ...] = ()

    @classmethod
    def parse(cls, address: str) -> Self:
        """Parse an address that begins with `wandb://`; UserError: it has another form."""
        assert address.startswith(SCHEME), address
        parts = urlsplit(address)
        names = [unquote(name) for name in (parts.netloc + parts.path).rstrip("/").split("/")]
        asked = parse_qs(parts.query, keep_blank_values=True)
        groups = asked.pop("group", [])
        if not 2 <= len(names) <= 3 or not all(names) or asked or not all(groups) or parts.fragment:
            raise UserError(f"{address}: not of the form {_FORM}")
        sweep = names[2] if len(names) == 3 else None
        return cls(names[0], names[1], sweep, tuple(sorted(groups)))

    def __str__(self) -> str:
        names = (self.entity, self.project, self.sweep)
        path = "/".join(quote(name, safe="") for name in names if name is not None)
        query = "&".join(f"group={quote(group, safe='')}" for group in self.groups)
        return SCHEME + path + (f"?{query}" if query else "")

    @property
    def path(self) -> str:
        return f"{self.entity}/{self.project}"

    @property
    def folders(self) -> tuple[str, str, str]:
        """The names of nested folders for the selection: entity, project, and sweep or groups."""
        names = [] if self.sweep is None else [f"sweep-{self.sweep}"]
        names += [f"group-{group}" for group in self.groups]
        return folder_name(self.entity), folder_name(self.project), folder_name("-".join(names) or "all")

    @property
    def filters(self) -> dict[str, Any]:
        """The runs in W&B's query language, without comparisons."""
        wanted: list[dict[str, Any]] = [{"jobType": {"$ne": COMPARISON}}]
        wanted += [] if self.sweep is None else [{"sweep": self.sweep}]
        wanted += [{"group": {"$in": list(self.groups)}}] if self.groups else []
        return {"$and": wanted}

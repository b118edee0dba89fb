"""The state of a server: only what clients have sent, as they sent it."""

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

ENTITY = "team"
EVENTS = "wandb-events.jsonl"
HISTORY = "wandb-history.jsonl"
SUMMARY = "wandb-summary.json"


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass
class Fault:
    """What happens to requests instead of an answer, while it lasts.

    Args:
        on: a regular expression for the path or the name of the GraphQL operation, such as "file_stream".
        status: HTTP status of the answer; 0 drops the connection before the request has had an effect.
        delay_s: how long the answer keeps the client waiting; with the status 200 the request then works.
        is_heard: the request has its effect, although the client gets an error.
        times: the number of requests that it strikes.
    """

    on: str = ""
    status: int = 500
    delay_s: float = 0.0
    is_heard: bool = False
    times: float = float("inf")

    def strikes(self, path: str, operation: str) -> bool:
        """Return True if it is this request's turn; counts it."""
        if self.times <= 0 or not re.search(self.on, f"{path} {operation}"):
            return False
        self.times -= 1
        return True


@dataclass
class Run:
    entity: str
    project: str
    name: str
    attributes: dict[str, Any] = field(default_factory=dict)
    """The last value that each of UpsertBucket's variables had, such as `displayName`, `groupName` or `tags`."""
    streams: dict[str, list[str]] = field(default_factory=dict)
    """Lines of the file stream by file, each where its offset put it; a line that was skipped is empty."""
    files: dict[str, bytes] = field(default_factory=dict)
    alerts: list[SimpleNamespace] = field(default_factory=list)
    """Each has the variables of its operation, such as `title`, `text` and `severity`."""
    state: str = "running"
    exit_code: int | None = None
    should_stop: bool = False
    agent_stops: bool = False
    created_at: str = field(default_factory=now)
    heartbeat_at: str = field(default_factory=now)

    @property
    def id(self) -> str:
        return f"run:{self.entity}/{self.project}/{self.name}"

    @property
    def config(self) -> dict[str, Any]:
        raw = json.loads(self.attributes.get("config") or "{}")
        return {key: item["value"] for key, item in raw.items() if key != "_wandb"}

    @property
    def summary(self) -> dict[str, Any]:
        lines = self.streams.get(SUMMARY, [])
        return json.loads(lines[-1]) if lines else json.loads(self.attributes.get("summaryMetrics") or "{}")

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rows as they lie, W&B's own keys included, which begin with an underscore."""
        return [json.loads(line) for line in self.streams.get(HISTORY, [])]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [{key: value for key, value in row.items() if not key.startswith("_")} for row in self.history]

    def take(self, sent: Mapping[str, Any]) -> dict[str, Any]:
        """Take a request of the file stream; the answer says whether the run is to stop."""
        self.heartbeat_at = now()
        for file, part in (sent.get("files") or {}).items():
            stream, offset = self.streams.setdefault(file, []), part["offset"]
            stream += [""] * (offset - len(stream))
            stream[offset : offset + len(part["content"])] = part["content"]
        self.exit_code = sent["exitcode"] if sent.get("complete") else None
        self.state = {None: "running", 0: "finished"}.get(self.exit_code, "failed")
        return {"exitcode": self.exit_code, "stopped": self.should_stop, "limits": {}}


@dataclass
class Sweep:
    entity: str
    project: str
    name: str
    config: str
    state: str = "RUNNING"
    points: list[SimpleNamespace] = field(default_factory=list)
    """The run, the agent and the values of each."""
    agents: list[str] = field(default_factory=list)
    created_at: str = field(default_factory=now)


@dataclass
class Artifact:
    id: str
    place: tuple[str, str, str]
    """Entity, project and collection."""
    run: str | None
    type: str
    digest: str
    state: str = "PENDING"
    files: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """A request that has been answered, or that a fault has kept from it."""

    path: str
    operation: str
    body: bytes


@dataclass
class Recorded:
    runs: dict[tuple[str, str, str], Run] = field(default_factory=dict)
    sweeps: dict[tuple[str, str, str], Sweep] = field(default_factory=dict)
    artifacts: list[Artifact] = field(default_factory=list)
    views: list[SimpleNamespace] = field(default_factory=list)
    """The id, type, title and spec of each."""
    requests: list[Request] = field(default_factory=list)


def new_name() -> str:
    return secrets.token_hex(4)

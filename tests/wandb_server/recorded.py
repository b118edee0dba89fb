"""The state of a server: only what clients have sent, as they sent it."""

import json
import re
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

HISTORY = "wandb-history.jsonl"
EVENTS = "wandb-events.jsonl"
SUMMARY = "wandb-summary.json"
OUTPUT = "output.log"


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


@dataclass(frozen=True)
class Alert:
    title: str
    text: str
    severity: str


@dataclass
class Run:
    entity: str
    project: str
    name: str
    attributes: dict[str, Any] = field(default_factory=dict)
    """The last value that each of UpsertBucket's arguments had, such as `displayName`, `groupName` or `tags`."""
    streams: dict[str, list[str]] = field(default_factory=dict)
    """Lines of the file stream by file, each where its offset put it; a line that was skipped is empty."""
    files: dict[str, bytes] = field(default_factory=dict)
    alerts: list[Alert] = field(default_factory=list)
    state: str = "running"
    exit_code: int | None = None
    is_preempting: bool = False
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

    def append(self, file: str, offset: int, lines: list[str]) -> None:
        stream = self.streams.setdefault(file, [])
        stream += [""] * (offset - len(stream))
        stream[offset : offset + len(lines)] = lines

    def complete(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self.state = "finished" if exit_code == 0 else "preempted" if self.is_preempting else "failed"


@dataclass(frozen=True)
class Point:
    run: str
    agent: str
    values: dict[str, Any]


@dataclass
class Sweep:
    entity: str
    project: str
    name: str
    config: str
    state: str = "RUNNING"
    points: list[Point] = field(default_factory=list)
    agents: dict[str, str] = field(default_factory=dict)
    created_at: str = field(default_factory=now)

    @property
    def id(self) -> str:
        return f"sweep:{self.entity}/{self.project}/{self.name}"


@dataclass
class Artifact:
    id: str
    entity: str
    project: str
    run: str | None
    type: str
    collection: str
    version: int
    fields: dict[str, Any]
    state: str = "PENDING"
    aliases: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    created_at: str = field(default_factory=now)

    @property
    def place(self) -> tuple[str, str, str]:
        return self.entity, self.project, self.collection


@dataclass
class View:
    id: str
    entity: str
    project: str
    type: str
    name: str
    title: str
    spec: str


@dataclass(frozen=True)
class Request:
    """A request that has been answered, or that a fault has kept from it (status 0: no answer at all)."""

    method: str
    path: str
    operation: str
    body: bytes
    status: int
    at: float


@dataclass
class Recorded:
    runs: dict[tuple[str, str, str], Run] = field(default_factory=dict)
    sweeps: dict[tuple[str, str, str], Sweep] = field(default_factory=dict)
    artifacts: list[Artifact] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def new_name(self) -> str:
        return secrets.token_hex(4)

    def projects(self, entity: str) -> set[str]:
        return {key[1] for key in (*self.runs, *self.sweeps) if key[0] == entity}

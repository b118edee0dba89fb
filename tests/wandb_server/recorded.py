"""What a server knows: only what clients have sent, as they sent it."""

import json
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


@dataclass(frozen=True)
class Alert:
    """What a run's `alert` sent."""

    title: str
    text: str
    severity: str


@dataclass
class Run:
    """A run, by its id in ``name`` as W&B calls it."""

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
    """Its agent is told to stop it, and nobody else."""
    created_at: str = field(default_factory=now)
    heartbeat_at: str = field(default_factory=now)

    @property
    def id(self) -> str:
        return f"run:{self.entity}/{self.project}/{self.name}"

    @property
    def config(self) -> dict[str, Any]:
        """The config's values, W&B's own left out."""
        raw = json.loads(self.attributes.get("config") or "{}")
        return {key: item["value"] for key, item in raw.items() if key != "_wandb"}

    @property
    def summary(self) -> dict[str, Any]:
        """The summary, W&B's own keys included."""
        lines = self.streams.get(SUMMARY, [])
        return json.loads(lines[-1]) if lines else json.loads(self.attributes.get("summaryMetrics") or "{}")

    @property
    def history(self) -> list[dict[str, Any]]:
        """The rows as they lie, W&B's own keys included, which begin with an underscore."""
        return [json.loads(line) for line in self.streams.get(HISTORY, [])]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The rows without W&B's own keys."""
        return [{key: value for key, value in row.items() if not key.startswith("_")} for row in self.history]

    def append(self, file: str, offset: int, lines: list[str]) -> None:
        """Put lines of the file stream where they belong, over what lies there."""
        stream = self.streams.setdefault(file, [])
        stream += [""] * (offset - len(stream))
        stream[offset : offset + len(lines)] = lines

    def complete(self, exit_code: int) -> None:
        """The client has said that the run is over."""
        self.exit_code = exit_code
        self.state = "finished" if exit_code == 0 else "preempted" if self.is_preempting else "failed"


@dataclass(frozen=True)
class Point:
    """A run that a sweep has ordered from an agent."""

    run: str
    agent: str
    values: dict[str, Any]


@dataclass
class Sweep:
    """A sweep, by its id in ``name``."""

    entity: str
    project: str
    name: str
    config: str
    """YAML, as the client wrote it."""
    state: str = "RUNNING"
    points: list[Point] = field(default_factory=list)
    agents: dict[str, str] = field(default_factory=dict)
    """Hosts by the agent's id."""
    created_at: str = field(default_factory=now)

    @property
    def id(self) -> str:
        return f"sweep:{self.entity}/{self.project}/{self.name}"


@dataclass
class Artifact:
    """One version of an artifact of a run."""

    id: str
    entity: str
    project: str
    run: str | None
    type: str
    collection: str
    version: int
    fields: dict[str, Any]
    """CreateArtifact's input."""
    state: str = "PENDING"
    aliases: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    """By path in the artifact; the manifest lies among them."""
    created_at: str = field(default_factory=now)


@dataclass
class View:
    """A saved workspace (of the type `project-view`) or report (`runs`)."""

    id: str
    entity: str
    project: str
    type: str
    name: str
    title: str
    spec: str
    """JSON, as the client wrote it."""


@dataclass(frozen=True)
class Request:
    """A request that has been answered, or that a fault has kept from it (status 0: no answer at all)."""

    method: str
    path: str
    operation: str
    """Name of the GraphQL operation; empty for other requests."""
    body: bytes
    status: int
    at: float
    """`time.monotonic` when it arrived."""


@dataclass
class Recorded:
    """All of it; whoever reads or writes holds the server's lock."""

    runs: dict[tuple[str, str, str], Run] = field(default_factory=dict)
    sweeps: dict[tuple[str, str, str], Sweep] = field(default_factory=dict)
    artifacts: list[Artifact] = field(default_factory=list)
    views: list[View] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)

    def new_name(self) -> str:
        """A name like those W&B gives: 8 characters of the alphabet that its ids are from."""
        return secrets.token_hex(4)

    def projects(self, entity: str) -> set[str]:
        """Projects come into being with their first run or sweep."""
        return {key[1] for key in (*self.runs, *self.sweeps) if key[0] == entity}

"""What readers rely on within the open parts of a record: keys that have this type where they are there."""

from typing import Any, TypedDict


class Attempt(TypedDict, total=False):
    started_at: str
    host: str
    pid: int
    from_step: int


class Report(TypedDict, total=False):
    baseline: str
    margin_pct: float


class Trainer(TypedDict, total=False):
    warmup_steps: int
    memory_limit_gib: float | None


class Config(TypedDict, total=False):
    precision: dict[str, Any]
    report: Report
    trainer: Trainer


class Proof(TypedDict, total=False):
    contradictions: list[str]
    flops: dict[str, int]
    num_operators: int


class Contamination(TypedDict, total=False):
    verdict: str
    reasons: list[str]


class Memory(TypedDict, total=False):
    """Bytes by category."""

    peak: dict[str, int]
    kept: dict[str, int]


class Prediction(TypedDict, total=False):
    """What a step was predicted to take in bytes; `refused`: why nothing could be predicted."""

    target: str
    torch: str
    refused: str
    peak_bytes: int
    peak: dict[str, int]
    end_of_forward: dict[str, int]
    allocator_peak_bytes: int
    reserved_bytes: int
    peak_bytes_by_batch_size: dict[str, int]
    measured_bytes: int
    """The peak that the run has measured of the same: on CUDA the allocator's, on the CPU that of the traced step."""
    error_pct: float
    """The predicted peak less the measured one, in percent of it."""


class Wandb(TypedDict, total=False):
    id: str
    url: str | None
    directory: str | None

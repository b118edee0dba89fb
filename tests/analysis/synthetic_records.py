"""Records with a known truth, as a sweep would leave them."""

from collections.abc import Collection
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from identities import identity as make_identity

from ampsweep.analysis.comparison import WorkloadComparison, compare
from ampsweep.records import RunRecord
from ampsweep.records.batch_search import LARGEST_BATCH, BatchSearch, PredictedBatch, Probe
from ampsweep.records.outcome import OutOfMemory
from ampsweep.records.sections import Attempt, ModeProof, StepPrediction

MIB_IN_GIB = 2**20 / 2**30

Entry = tuple[Path, RunRecord]


def run(
    arm: str,
    seed: int = 0,
    *,
    step_ms: float | None = 100.0,
    peak_mib: float | None = 1000.0,
    val_loss: float | None = 2.0,
    skipped: int | None = None,
    accuracy: float | None = None,
    num_operators: int | None = 400,
    pair_key: str | None = None,
    directory: str | None = None,
    config: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    summary: dict[str, float] | None = None,
    **record: Any,
) -> Entry:
    settings = {"precision": {"mode": arm}, "seed": seed, "optimizer": {"weight_decay": 0.0}, **(config or {})}
    of_run = {"experiment": "fp32_vs_amp", "model": "gpt_tiny", "task": "language_modelling", "data": "text"}
    of_run |= {"precision_mode": arm.partition("+")[0], "seed": seed, "model_size": 1_000_000}
    identity = make_identity(**{**of_run, "seq_len": 64, "device_name": "a CPU", **(facts or {})})
    figures = {
        "perf/step_ms": step_ms,
        "memory/peak_allocated_gib": None if peak_mib is None else peak_mib * MIB_IN_GIB,
        "val/loss": val_loss,
        "val/accuracy": accuracy,
        "amp/skipped_steps": skipped,
    }
    key = pair_key or f"{identity.model}-{identity.batch_size}-{identity.device_name}-{settings['optimizer']}-{seed}"
    name = directory or f"{arm}-{identity.model}-{identity.batch_size}-s{seed}"
    if "attempts" in record:
        record["attempts"] = [Attempt(**of) for of in record["attempts"]]
    return Path("runs") / name, RunRecord(
        run_id=name,
        arm=arm,
        pair_key=key,
        config_hash=name,
        identity=identity,
        config=settings,
        summary={key: value for key, value in figures.items() if value is not None} | (summary or {}),
        **{"status": "completed", "proof": ModeProof(num_operators=num_operators)}
        | {key: _PARTS[key](**value) if isinstance(value, dict) else value for key, value in record.items()},
    )


_PARTS: dict[str, Any] = {of.name: of.default_factory for of in fields(RunRecord)} | {"prediction": StepPrediction}


def searched(
    arm: str,
    largest: int,
    refusing: Probe | None,
    seed: int = 0,
    *,
    samples_per_sec: float = 100.0,
    predicted: PredictedBatch | None = None,
    **more: Any,
) -> Entry:
    """A training with the largest batch that a search found, `refusing` being the next one."""
    probes = [Probe(batch_size=size, outcome="trains", peak_bytes=2**20 * size) for size in range(1, largest + 1)]
    probes += [] if refusing is None else [refusing]
    search = BatchSearch(limit=65536, first=1, stride=1, probes=probes, predicted=predicted)
    facts = {"batch_size": max(largest, 1), **more.pop("facts", {})}
    directory, record = run(
        arm, seed, facts=facts, batch_search=search, pair_key=f"search {seed}", directory=f"{arm}-s{seed}", **more
    )
    if record.status == "completed":
        record.summary |= {LARGEST_BATCH: largest, "perf/samples_per_sec": samples_per_sec}
    return directory, record


def out_of_memory(batch_size: int) -> Probe:
    oom = OutOfMemory(phase="backward", step=2, requested_bytes=3 * 2**20, in_use_bytes=62 * 2**20)
    return Probe(batch_size=batch_size, outcome="oom", oom=oom, error=oom.sentence)


UNKNOWN = {"contamination": {"verdict": "unknown", "reasons": ["nothing tells"]}}
BUSY = "other processes kept 1.0 of 2 cores busy"
LOST_BITS = "a matmul in float32 lost bits, as TF32 does, although precision.tf32=false"


def disproved(arm: str, seed: int = 0, **more: Any) -> Entry:
    """A run that completed, but not in its mode, by `LOST_BITS`."""
    return run(arm, seed, proof={"num_operators": 400, "fp32_arithmetic": {"matmul": "rounded"}}, **more)


def contaminated(arm: str, seed: int = 0, reason: str = BUSY, **more: Any) -> Entry:
    """A run that completed while something else used its device."""
    return run(arm, seed, contamination={"verdict": "contaminated", "reasons": [reason]}, **more)


def failed(arm: str, seed: int, status: str, error: str | None = None, **more: Any) -> Entry:
    figures = {"step_ms": None, "peak_mib": None, "val_loss": None, "num_operators": None}
    return run(arm, seed, status=status, error=error, **(figures | more))


def sweep(arm: str, step_ms: list[float], **figures: Any) -> list[Entry]:
    """Runs of seeds 0, 1, ...; a figure given as a list has one value a seed."""

    def own(seed: int) -> dict[str, Any]:
        return {key: value[seed] if isinstance(value, list) else value for key, value in figures.items()}

    return [run(arm, seed, step_ms=time, **own(seed)) for seed, time in enumerate(step_ms)]


def workload(entries: list[Entry], **options: Any) -> WorkloadComparison:
    (only,) = compare(entries, **({"baseline": "fp32", "margin_pct": 1.0} | options)).workloads
    return only


def arms(entries: list[Entry], **options: Any) -> dict[str, Any]:
    return {arm.arm: arm for arm in workload(entries, **options).arms}


def document(**sections: Any) -> str:
    """Sections of lines, each a finding (its kind and sentence) or a case by name."""
    lines = []
    for title, entries in sections.items():
        lines += [f"# {title.replace('_', ' ')}", ""]
        if isinstance(entries, dict):
            lines += [f"- {name}: {text}" for name, text in entries.items()]
        else:
            lines += [f"- {finding.kind()}: {finding.sentence}" for finding in entries]
        lines.append("")
    return "\n".join(lines)


def figures(of: Any, without: Collection[str] = ()) -> str:
    """The known fields of a dataclass in words, but for counts of 0."""
    known = {key: value for key, value in vars(of).items() if key not in without and value not in (None, (), {})}
    return "; ".join(f"{key} {shown(value)}" for key, value in known.items() if value or not key.startswith("num_"))


def shown(value: Any) -> str:
    if is_dataclass(value):
        return f"({', '.join(f'{key} {shown(of)}' for key, of in vars(value).items() if of is not None)})"
    if isinstance(value, tuple):
        return f"[{', '.join(map(shown, value))}]"
    return f"{value:.6g}" if isinstance(value, float) else str(value)

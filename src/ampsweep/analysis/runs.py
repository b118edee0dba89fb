"""A run as the analysis sees it: its directory, its record and the facts derived from them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ampsweep.analysis.contradictions import contradictions
from ampsweep.analysis.figure_keys import FigureKeys
from ampsweep.config.identity import digest_of_values
from ampsweep.config.modes import DOTTED_ARM_KEYS
from ampsweep.config.schema import PrecisionConfig
from ampsweep.metrics import METRICS
from ampsweep.records import RunRecord
from ampsweep.text import GIB

Scalar = str | int | float | bool | None

STEP_MS: Final = "perf/step_ms"
VAL_ACCURACY: Final = "val/accuracy"
SKIPPED_STEPS: Final = "amp/skipped_steps"

SMALLEST_FIGURE: Final = 1e-30
LARGEST_FIGURE: Final = 1e30  # measurements other than 0 lie between these; their squares and ratios are still finite

OF_SPEED: Final = ("perf/", "instrumentation/", "device/energy")
_OF_THE_END: Final = ("train/", "val/")  # prefixes of metrics that a run cut short has wrong

_KEPT: Final = frozenset({"optimizer_state", "communication"})
"""Categories whose bytes may outlive a step: DDP rebuilds its buckets in the second step."""

_KEPT_BYTES: Final = 1024  # a step leaves its loss, its norm and the scaler's counters: some bytes each

_NO_FACTS: Final = frozenset({"precision_mode", "dtype", "seed", "data_fingerprint"})
"""Parts of the identity that are the arm or the seed, or may change with them."""
_NOT_WORKLOAD: Final = frozenset(
    {"precision", "seed", "tracking", "report", "predict", "name", "device", "resume", "into", "dry_run", "output_dir"}
    | {"trainer.log_every", "trainer.eval_every", "trainer.checkpoint_every", "trainer.keep_weights"}
    | {"parallel.num_processes", *DOTTED_ARM_KEYS}
)
"""Parts of the config that are the arm or the seed, do not change the computation, or are in the identity."""

_CONDITIONS: Final = ("packages.torch", "cuda", "cudnn", "own_code.", "variables.")
_OTHER_VARIABLES: Final = frozenset(
    f"variables.{name}" for name in ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "MKL_NUM_THREADS", "OMP_NUM_THREADS")
)
"""Variables that change no figure; the number of threads is recorded itself."""


@dataclass(frozen=True)
class Run:
    directory: Path
    record: RunRecord
    keys: FigureKeys = field(default_factory=FigureKeys)
    own: Mapping[str, Scalar] = field(default_factory=dict)
    """Of a training that is not the suite's: the keys of its own config that distinguish workloads."""

    @property
    def arm(self) -> str:
        return self.record.arm

    @property
    def seed(self) -> int:
        return self.record.identity.seed

    @property
    def measured(self) -> bool:
        """True if it trained in its mode; its speed counts without `contamination`, its final loss if `finished`."""
        return self.record.kind == "measured" and self.record.status == "completed" and not self.contradictions

    @property
    def finished(self) -> bool:
        return self.measured and not self.cut_short

    @property
    def cut_short(self) -> bool:
        """True if it took fewer steps than it should (`trainer.patience` is a rule of its own)."""
        return self.record.cut_short is not None and not self.record.stopped_early

    @property
    def outcome(self) -> str:
        """The status, with `disproved` and `cut short` separate from `completed`."""
        if self.record.status != "completed":
            return self.record.status
        return "disproved" if self.contradictions else "cut short" if self.cut_short else "completed"

    @cached_property
    def contradictions(self) -> tuple[str, ...]:
        """Facts in its proof that contradict its mode; with any, none of its figures counts."""
        settings = self.record.config.get("precision", {})
        known = {field.name: settings[field.name] for field in fields(PrecisionConfig) if field.name in settings}
        return tuple(contradictions(PrecisionConfig(**known), self.record.proof)) if known else ()

    @property
    def emulated(self) -> str | None:
        """Why its device emulates its mode, so that only its losses may be compared."""
        return None if self.record.proof.float8 is None else self.record.proof.float8.emulated

    @property
    def contamination(self) -> str | None:
        """Why its speed may have changed, if it may; memory and loss stay valid."""
        return self._reasons("contaminated")

    @property
    def unknown_contamination(self) -> str | None:
        return self._reasons("unknown")

    @property
    def leaked_bytes(self) -> int | None:
        """Bytes that its traced step left alive beyond new state and some scalars.

        Loops of others may free in a step what the one before has left: its gradients, its batch, its outputs.
        """
        if self.record.source != "suite":
            return None
        kept = self.record.memory.kept or {}
        leaked = sum(num_bytes for category, num_bytes in kept.items() if category not in _KEPT)
        return leaked if leaked > _KEPT_BYTES else None

    @property
    def predicted_bytes(self) -> int | None:
        """Its predicted peak, of the bytes that its device counts."""
        return None if self.is_compiled else self.eager_predicted_bytes

    @property
    def is_compiled(self) -> bool:
        return self.record.identity.compile and self.record.kind == "measured"

    @property
    def eager_predicted_bytes(self) -> int | None:
        prediction = self.record.prediction
        if prediction is None:
            return None
        return prediction.peak_bytes if prediction.allocator_peak_bytes is None else prediction.allocator_peak_bytes

    @property
    def prediction_error_pct(self) -> float | None:
        """Predicted minus measured peak, in percent of the measured peak."""
        return None if self.record.prediction is None or self.is_compiled else self.record.prediction.error_pct

    @property
    def tracked_at(self) -> str | None:
        return self.record.wandb.url or self.record.wandb.directory

    @property
    def casts(self) -> str | None:
        """What casts to the compute dtype: `autocast`, or `policy` for FSDP2; None without casts."""
        parallel, precision = self.record.config.get("parallel", {}), self.record.config.get("precision", {})
        if not precision.get("autocast"):
            return None
        return str(parallel.get("mixed_precision")) if parallel.get("strategy") == "fsdp2" else "autocast"

    @property
    def dtypes(self) -> dict[str, str]:
        names = ("compute", "parameters", "gradients", "reduction", "optimizer_state")
        return {name: value for name in names if (value := getattr(self.record.dtypes, name)) is not None}

    def _reasons(self, verdict: str) -> str | None:
        contamination = self.record.contamination
        return "; ".join(contamination.reasons or ()) if contamination.verdict == verdict else None

    @cached_property
    def facts(self) -> dict[str, Scalar]:
        """The identity without arm, seed and searched batch; of the device only its kind, None if unknown yet."""
        left_out = _NO_FACTS.union(() if self.record.batch_search is None else ("batch_size", "global_batch_size"))
        facts = {key: value for key, value in asdict(self.record.identity).items() if key not in left_out}
        kind = self.record.identity.device.partition(":")[0]
        return facts | {"device": None if kind == "auto" else kind, "source": self.record.source}

    @cached_property
    def trained_on(self) -> str:
        """Known hosts and devices: 'node1 cuda:0 and node1 cuda:1'."""
        record = self.record
        places = [(rank.host, rank.device) for rank in record.ranks]
        places = places or [(attempt.host, record.identity.device) for attempt in record.attempts[-1:]]
        names = {" ".join(part for part in place if part is not None) for place in places}
        return " and ".join(sorted(names)) or record.identity.device

    @cached_property
    def settings(self) -> dict[str, Scalar]:
        if self.record.source != "suite":
            return dict(self.own)
        left_out = _NOT_WORKLOAD.union(() if self.record.batch_search is None else ("data.batch_size",))
        config = leaves(self.record.config)
        return {key: value for key, value in config.items() if not left_out & {key, key.partition(".")[0]}}

    @cached_property
    def conditions(self) -> dict[str, Scalar]:
        """Conditions that change figures, by dotted key: libraries, own code, variables, CPU threads."""
        environment = leaves(self.record.environment)
        known = [key for key in environment if key.startswith(_CONDITIONS) and key not in _OTHER_VARIABLES]
        kept = {key: environment[key] for key in known}
        if self.facts["device"] == "cpu" and "num_threads" in environment:
            kept["num_threads"] = environment["num_threads"]
        if len(self.devices_of_ranks) > 1:
            kept["devices_of_ranks"] = ", ".join(self.devices_of_ranks)
        return kept

    @cached_property
    def devices_of_ranks(self) -> tuple[str, ...]:
        names = (rank.device_name for rank in self.record.ranks)
        return tuple(dict.fromkeys(name for name in names if name is not None))

    @cached_property
    def recorded_key(self) -> str:
        """Of the record's pair key and, of other trainings, the source and the keys of their config that count."""
        return digest_of_values([self.record.pair_key, self.record.source, self.own])

    @cached_property
    def pair_key(self) -> str:
        """Equal for runs that differ in precision only: the recorded key and a hash of the conditions."""
        return f"{self.recorded_key} {digest_of_values(self.conditions)}"

    def figure(self, key: str) -> float | None:
        """The summary's value of metric `key`, or of what stands for it (`keys`)."""
        return figure(self.record, self.keys.recorded(key))

    def compared_figure(self, key: str) -> float | None:
        """The figure if comparable: no speed of a contaminated run, no loss of a run cut short."""
        if not self.measured or (key.startswith(OF_SPEED) and self.contamination is not None):
            return None
        return None if key.startswith(_OF_THE_END) and not self.finished else self.figure(key)

    def num_bytes(self, key: str) -> float | None:
        """A `_gib` metric in bytes; exact, since a whole number of bytes over 2**30 is a double."""
        assert key.endswith("_gib"), key
        value = self.figure(key)
        return None if value is None else value * GIB


def figure(record: RunRecord, key: str) -> float | None:
    """The summary's value of metric `key`; None if it is absent or no plausible measurement."""
    value: object = record.summary.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if value == 0 or SMALLEST_FIGURE <= abs(value) <= LARGEST_FIGURE else None


def metric_words(metric: str) -> str:
    return metric.replace("/", " ") if metric in METRICS else metric


def leaves(node: Mapping[str, Any]) -> dict[str, Scalar]:
    """The values by dotted keys, lists as JSON."""
    found: dict[str, Scalar] = {}
    for key, value in node.items():
        if isinstance(value, Mapping):
            found |= {f"{key}.{name}": leaf for name, leaf in leaves(value).items()}
        else:
            is_scalar = value is None or isinstance(value, str | int | float | bool)
            found[key] = value if is_scalar else json.dumps(value, default=str)
    return found

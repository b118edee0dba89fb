"""The search for the largest batch that trains: probes, the next batch to probe, and the answer."""

from dataclasses import dataclass, field
from typing import Final, Literal

from ampsweep.records.outcome import OutOfMemory

LARGEST_BATCH: Final = "memory/largest_batch"  # the batch size found, in the record of the training with it

ProbeOutcome = Literal["trains", "oom", "refused"]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """A batch size, tried with a few optimizer steps and an evaluation in its own process."""

    batch_size: int
    outcome: ProbeOutcome  # `refused`: the data or the model rejects this batch size, regardless of memory
    peak_bytes: int | None = None  # peak bytes of tensors; None unless the batch trains
    oom: OutOfMemory | None = None
    error: str | None = None  # a sentence on why it does not train


@dataclass(frozen=True, kw_only=True)
class PredictedBatch:
    batch_size: int | None = None  # 0 if not even one item fits, None without a prediction
    refused: str | None = None  # why no prediction was possible
    unvouched: list[str] | None = None  # operators whose memory the prediction does not vouch for


@dataclass(kw_only=True)
class BatchSearch:
    """Doubles the distance from the first guess until a batch trains and another does not, then bisects. The next batch
    follows from the probes alone, so that an interrupted search can be continued."""

    limit: int  # the largest batch that may be probed
    first: int  # the first guess, at least 1
    stride: int  # first distance from it: 1 for a good guess; the guess itself to double it
    predicted: PredictedBatch | None = None  # None if the device does not support the mode
    probes: list[Probe] = field(default_factory=list)

    @property
    def refusing(self) -> Probe | None:
        failed = [probe for probe in self.probes if probe.outcome != "trains"]
        return min(failed, key=lambda probe: probe.batch_size, default=None)

    @property
    def largest(self) -> int:
        """The largest probed batch that trains, below `refusing`; 0 if none is known."""
        return max((probe.batch_size for probe in self._training), default=0)

    @property
    def next_batch(self) -> int | None:
        """The batch to probe next; None once the answer is found."""
        low, refusing = self.largest, self.refusing
        if not self.probes:
            return min(self.first, self.limit)
        if refusing is None:
            further = self.stride << (len(self._training) - 1)
            return None if low >= self.limit else min(low + further, self.limit)
        high = refusing.batch_size
        if high - low <= 1:
            return None
        if low:
            return (low + high) // 2
        return max(high - (self.stride << (len(self.probes) - 1)), 1)

    def add(self, probe: Probe) -> None:
        """Add a probe, replacing an earlier one of the same batch size."""
        self.probes = [old for old in self.probes if old.batch_size != probe.batch_size] + [probe]

    @property
    def _training(self) -> list[Probe]:
        refusing = self.refusing
        high = self.limit + 1 if refusing is None else refusing.batch_size
        return [probe for probe in self.probes if probe.outcome == "trains" and probe.batch_size < high]

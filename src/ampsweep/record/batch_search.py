"""The search for the largest batch that trains: what was probed, and what follows from it."""

from dataclasses import dataclass, field
from typing import Final, Literal

from ampsweep.record.outcome import OutOfMemory

LARGEST_BATCH: Final = "memory/largest_batch"
"""Metric of a training with the answer of a search."""

ProbeOutcome = Literal["trains", "oom", "refused"]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One batch size tried in a process of its own, with its optimizer steps and an evaluation."""

    batch_size: int
    outcome: ProbeOutcome
    """`refused`: the data or the model does not take such a batch, whatever the memory."""
    peak_bytes: int | None = None
    """Most tensor bytes at once, of one that trains."""
    oom: OutOfMemory | None = None
    error: str | None = None
    """Why it does not train, in one sentence."""


@dataclass(frozen=True, kw_only=True)
class PredictedBatch:
    """The largest batch that was predicted to train and to evaluate."""

    batch_size: int | None = None
    """0: not even one item; None: nobody could tell."""
    refused: str | None = None
    """Why not, in a clause."""


@dataclass(kw_only=True)
class BatchSearch:
    """Doubles the distance from the first guess until one batch trains and another does not, then bisects.

    What comes next is a function of the probes so far, so that a search goes on where it was interrupted. It finds a
    batch that trains while the next one does not; that none beyond trains is what memory makes very likely, no proof.
    """

    limit: int
    """Largest batch that is probed."""
    first: int
    """Where to begin: a guess, from 1 on."""
    stride: int
    """First distance from the guess; 1 for a good guess, the guess itself to begin by doubling it."""
    predicted: PredictedBatch | None = None
    """What was predicted before the first probe of this or of another seed; None for a mode the device cannot do."""
    probes: list[Probe] = field(default_factory=list)

    @property
    def refusing(self) -> Probe | None:
        """The smallest batch that was found not to train."""
        failed = [probe for probe in self.probes if probe.outcome != "trains"]
        return min(failed, key=lambda probe: probe.batch_size, default=None)

    @property
    def largest(self) -> int:
        """The largest batch that trains, below the smallest that does not; 0: none is known."""
        return max((probe.batch_size for probe in self._training), default=0)

    @property
    def next_batch(self) -> int | None:
        """The batch to probe next; None: the answer is found."""
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
        """Note what came of a batch; it takes the place of what was found of the same batch before."""
        self.probes = [one for one in self.probes if one.batch_size != probe.batch_size] + [probe]

    @property
    def _training(self) -> list[Probe]:
        refusing = self.refusing
        high = self.limit + 1 if refusing is None else refusing.batch_size
        return [probe for probe in self.probes if probe.outcome == "trains" and probe.batch_size < high]

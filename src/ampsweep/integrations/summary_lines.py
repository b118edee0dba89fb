"""What a user needs to know when a recorded training has ended: where the record is, and what it disproves."""

import sys
from pathlib import Path

from ampsweep.analysis.contradictions import contradictions
from ampsweep.config.schema import PrecisionConfig
from ampsweep.records import RunRecord
from ampsweep.text import escaped, percent


def say_ended(record: RunRecord, directory: Path) -> None:
    """Print a line about the recording to stderr, and one for each fact that contradicts the precision asked for."""
    ended = record.status if record.error is None else f"{record.status} ({record.error})"
    place = directory.relative_to(Path.cwd()) if directory.is_relative_to(Path.cwd()) else directory
    lines = [f"{record.arm}: {ended}, {_computed(record)}; recorded in {place}"]
    if known := record.config.get("precision"):
        claimed = PrecisionConfig(**known)
        lines += [f"{claimed.mode} asked for; {fact}" for fact in contradictions(claimed, record.proof)]
    for line in lines:
        print(f"ampsweep: {escaped(line)}", file=sys.stderr)


def _computed(record: RunRecord) -> str:
    """The dtype of most matrix products in the traced step, and its share."""
    flops = record.proof.flops or {}
    if not sum(flops.values()):
        return f"with no step traced ({record.absent['proof']})" if "proof" in record.absent else "with no step traced"
    dtype = max(flops, key=flops.__getitem__)
    return f"{percent(100 * flops[dtype] / sum(flops.values()))} of matmul and convolution operations in {dtype}"

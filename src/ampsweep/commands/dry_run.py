"""`dry_run=true`: the runs of a command line, those that the device cannot do, and the time that they would take."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from ampsweep.config.identity import config_hash, run_directory_name
from ampsweep.config.modes import arm_of
from ampsweep.config.schema import Config, component_name
from ampsweep.config.seam import saved_in
from ampsweep.launch.child import NamedFunction
from ampsweep.launch.isolated import run_isolated
from ampsweep.report.terminal import Terminal
from ampsweep.run.directories import finished_hashes
from ampsweep.sweep.preflight import Checked
from ampsweep.text import duration, plural

_ESTIMATE: Final = NamedFunction[list[float | None]]("ampsweep.sweep.estimate:estimate_seconds")


def print_plan(
    configs: Sequence[Config],
    checked: Sequence[Checked],
    console: Console,
    into: Path | None = None,
    *,
    elsewhere: bool = False,
) -> int:
    """Print one line per point and the time that all would take, estimated from a few steps timed now.

    Runs `elsewhere`, on a machine with other devices, are not timed.
    """
    hashes = [config_hash(config) for config in configs]
    done = set() if into is None else finished_hashes(into)
    points = list(zip(configs, checked, hashes, strict=True))
    first = {key: number for number, key in reversed([*enumerate(hashes)])}  # a point that is given again is one run
    todo = [
        config
        for number, (config, one, key) in enumerate(points)
        if one.unsupported is None and key not in done and first[key] == number
    ]
    # Nobody knows how long a search takes.
    timed = [config for config in todo if not (config.max_batch.search or elsewhere)]
    seconds = dict(zip(map(run_directory_name, timed), _estimated(timed), strict=True))
    if not console.is_terminal:
        console = Terminal(width=120)  # a pipe has no edge at 80 columns
    has_ranks = any(config.parallel.strategy != "single" for config, _, _ in points)
    named = ("#", "arm", "model", "data", *(("parallel",) if has_ranks else ()), "seed")
    table = Table(*named, "steps", "parameters", "time", "note", box=None, pad_edge=False)
    for number, (config, one, key) in enumerate(points):
        estimate = seconds.get(run_directory_name(config))
        note = "unsupported" if one.unsupported else "finished earlier" if key in done else ""
        if not note and first[key] != number:
            note = f"the same run as {first[key]}"
        elif not note and config.max_batch.search:
            note = "searches its batch"
        elif not note and (before := saved_in(config)) is not None:
            note = f"from step {config.seam.step} of {before}"
        table.add_row(
            str(number),
            arm_of(config),
            component_name(config.model),
            component_name(config.data),
            *((_ranks(config),) if has_ranks else ()),
            str(config.seed),
            f"{one.num_steps:,}",
            f"{one.num_parameters:,}",
            "" if estimate is None else duration(estimate),
            note,
        )
    console.print(table)
    for reason in sorted(
        {f"{arm_of(c)}: {o.unsupported}" for c, o in zip(configs, checked, strict=True) if o.unsupported}
    ):
        console.print(reason)
    told = [sentence for one in checked for sentence in (one.float8_gain, one.too_large) if sentence is not None]
    for sentence in dict.fromkeys(told):
        console.print(sentence)
    known = [value for value in seconds.values() if value is not None]
    took = "" if elsewhere else f"about {duration(sum(known))}, from steps timed just now; "
    console.print(f"{plural(len(configs), 'point')}, {len(todo)} to train; {took}nothing was trained or written")
    return 0


def _ranks(config: Config) -> str:
    """The strategy, with the number of ranks where it is given."""
    number = config.parallel.num_processes
    return config.parallel.strategy if number is None else f"{config.parallel.strategy} x{number}"


def _estimated(configs: Sequence[Config]) -> list[float | None]:
    if not configs:
        return []
    return run_isolated(_ESTIMATE, (configs,)).unpacked()

"""`ampsweep compare`: commands that train, each with every seed, recorded and compared; as are sweeps of any script."""

import re
import shlex
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Final, get_args

from ampsweep.commands.multirun import SweepPage, goes_on
from ampsweep.config.claims import float32_arm
from ampsweep.config.errors import UserError
from ampsweep.launch.signal_handlers import stop_signals_as_interrupt
from ampsweep.metrics import Goal, goal_of
from ampsweep.run.directories import dated_directory, finished_hashes
from ampsweep.standard_streams import OUTPUT_NAME
from ampsweep.stop_signals import blocked_stop_signals
from ampsweep.sweep.command_runs import ASSIGNED, CommandPoint, checked_script, run_point
from ampsweep.sweep.plan import Plan
from ampsweep.sweep.progress.display import ProgressDisplay
from ampsweep.text import folder_name, listed

SEED: Final = "{seed}"
_ARM: Final = re.compile(r"\s*([^\s:=/\\'\"]+):(?:\s+|(?![\\/]))(.*)", re.DOTALL)


def compare_command(arguments: Namespace) -> int:
    """Run the commands and compare their trainings; return the exit code. UserError: wrong input, nothing was run."""
    text = arguments.seeds
    try:
        seeds = [] if text is None else list(dict.fromkeys(map(int, text.split(","))))
    except ValueError as error:
        raise UserError(f"--seeds {text}: must be whole numbers, such as 0,1,2") from error
    return run_commands(points_of(arguments.commands, seeds), arguments, arguments.into)


def points_of(commands: Sequence[str], seeds: Sequence[int]) -> list[CommandPoint]:
    """The commands with every seed, seed by seed, so that drift of the machine falls on all arms alike.

    >>> [(point.arm, point.words) for point in points_of(["fp32: true {seed}", "bf16: true --bf16 {seed}"], [0])]
    [('fp32', ('true', '0')), ('bf16', ('true', '--bf16', '0'))]

    UserError: fewer than two commands, an arm twice, a missing or surplus `{seed}`, or quotes that do not close.
    """
    if len(commands) < 2:
        raise UserError("compare takes two or more commands, such as 'fp32: python t.py' 'bf16: python t.py --bf16'")
    found: list[tuple[str | None, list[str]]] = []
    for given in commands:
        arm, command = match.groups() if (match := _ARM.fullmatch(given)) else (None, given)
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise UserError(f"{given}: {str(error).lower()}") from error
        for is_wrong, why in (
            (not words, "there is no command"),
            (arm is not None and arm in dict(found), f"the arm {arm} is given twice"),
            (SEED in command and not seeds, f"say which seeds to put for {SEED}, such as --seeds 0,1,2"),
            (SEED not in command and len(seeds) > 1, f"without {SEED} its {len(seeds)} runs would all be the same"),
        ):
            if is_wrong:
                raise UserError(f"{given}: {why}")
        found.append((arm, ["env", *words] if ASSIGNED.fullmatch(words[0]) else words))
    points = []
    for seed, (arm, words) in product(seeds or (None,), found):
        own = tuple(word.replace(SEED, str(seed)) for word in words)
        points.append(CommandPoint(words=own, arm=arm, seed=seed, setting="" if seed is None else f"seed {seed}"))
    return points


def run_commands(
    points: Sequence[CommandPoint], options: Namespace, into: Path | None, experiment: str | None = None
) -> int:
    """Run the points that are not finished in `into`, compare all that is there, and return the exit code.

    `options`: `metric`, `goal` and `baseline`, None for the arm whose name stands for float32, or the first. `into`:
    None for a new directory in `outputs/EXPERIMENT`. `experiment`: None for the script's name. UserError before
    anything runs: no such program or baseline, an unknown goal, `into` cannot be written.
    """
    scripts, report = [checked_script(point.words) for point in points], _report_settings(points, options)
    experiment = experiment or scripts[0]
    try:
        new = Path("outputs").resolve() / folder_name(experiment)
        directory = dated_directory(new) if into is None else into.expanduser().resolve()
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be written: {error.strerror}") from error
    finished, page, reason = finished_hashes(directory), SweepPage(directory, report), None
    plan = Plan({point.key: point.planned for point in points}, finished)
    with stop_signals_as_interrupt(), ExitStack() as stack:
        with blocked_stop_signals():  # a thread that could take them would keep them from the commands
            display = stack.enter_context(ProgressDisplay(plan))
        if plan.runs:
            display.say(f"the commands' output goes to {directory}/*/{OUTPUT_NAME}")
        try:
            for point in points:
                if point.key not in finished:
                    run_point(point, directory, experiment, report, display)
                    with blocked_stop_signals():
                        page.rewrite()
        except (KeyboardInterrupt, OSError) as end:
            reason = f"{end.filename or directory}: {end.strerror}" if isinstance(end, OSError) else "interrupted"
    option = "--into " if "into" in options else "into="
    last_words = None if reason is None else goes_on(reason, directory, option)
    return page.show_at_end([point.key for point in points], last_words=last_words)


def _report_settings(points: Sequence[CommandPoint], options: Namespace) -> dict[str, str | None]:
    """Fields of `ReportConfig`; None where they follow from the runs."""
    metric, goal, baseline = options.metric, options.goal, options.baseline
    arms = list(dict.fromkeys(point.arm for point in points))
    named = [arm for arm in arms if arm is not None]
    if named == arms:  # else the arms are what their steps prove
        if baseline is not None and baseline not in named:
            raise UserError(f"--baseline {baseline}: no run is of this arm; there are {listed(named)}")
        baseline = baseline or float32_arm(named) or named[0]
    if metric is not None and (goal or goal_of(metric)) not in get_args(Goal):
        raise UserError(f"{metric}: its name does not say which way it is better; add --goal minimize or maximize")
    return {"metric": metric, "goal": goal, "baseline": baseline}

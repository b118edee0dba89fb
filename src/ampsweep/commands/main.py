"""The `ampsweep` command. Subcommands import their modules when they are called: statistics take 0.2 s to import."""

import argparse
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NoReturn, get_args

from ampsweep import __version__
from ampsweep.commands.entry import ended
from ampsweep.config.errors import UserError, allowed, meant_option
from ampsweep.launch.garbage_collection import paused_garbage_collection
from ampsweep.launch.isolated_child import NamedFunction
from ampsweep.metrics import Goal
from ampsweep.report.data_formats import CONSOLE, formats
from ampsweep.text import after_guess
from ampsweep.tracking.wandb.selection import SCHEME


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code (0, 1 if runs failed or still run, 2 for wrong input, 3 for arms that
    are worse than in an older sweep)."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # directory names may hold bytes that are not text
    given = sys.argv[1:] if argv is None else list(argv)
    if given[:1] == ["train"]:  # handles its own errors, as `train.py` does
        from ampsweep.commands.train import main as train

        return train(given[1:])
    return ended(lambda: _main(given), given)


def _main(given: Sequence[str]) -> int:
    name = next(iter(given), "")
    if name in ("predict", "doctor"):  # have Hydra's arguments, or those of a command behind `--`
        return _command("doctor_script" if name == "doctor" and "--" in given else name)(given[1:])
    arguments = _arguments(given)
    return _command(arguments.command)(arguments)


def _command(name: str) -> Callable[..., int]:
    with paused_garbage_collection():
        return NamedFunction[int](f"ampsweep.commands.{name}:{name}_command").load()


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    at = argv.index("--") if argv[:1] == ["record"] and "--" in argv else len(argv)
    arguments, rest = parser.parse_known_args(argv[:at])
    overrides = [word for word in rest if "=" in word and not word.startswith("-")]
    if rest != overrides or (rest and arguments.command != "sweep"):
        hint = "the command to record comes behind `--`; " if arguments.command == "record" else ""
        help_there = after_guess(meant_option(rest, arguments), f"{hint}see ampsweep {arguments.command} --help")
        raise UserError(f"unrecognized arguments: {' '.join(rest)}; {help_there}")
    if rest:  # argparse collects no more of them after an option
        arguments.overrides += overrides
    arguments.words = argv[at + 1 :]  # of the command that `record` runs
    return arguments


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a word that is not one of the choices; argparse has no public place for it before Python 3.14."""
        if action.choices is not None and value not in action.choices:
            argument = action.metavar or "/".join(action.option_strings)
            self.error(f"{argument} {value}: {allowed(value, [*action.choices])}")


def _parser() -> _Parser:
    parser = _Parser(prog="ampsweep", description="Train, predict, compare and send runs, and run sweep files.")
    parser.add_argument("--version", action="version", version=f"ampsweep {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("train", help="train once, or sweep with -m: what `python train.py` does in the repository")
    report = commands.add_parser("report", help="rebuild the comparison of one or more directories of runs")
    address = f"{SCHEME}ENTITY/PROJECT[/SWEEP][?group=NAME]"
    report.add_argument("sources", nargs="+", metavar="DIR", help=f"a multirun's directory, or {address}")
    report.add_argument("--against", metavar="OLD", help="compare the arms of DIR with those of an older sweep")
    report.add_argument("--tolerance-pct", type=float, help="with --against: more time or memory that is none (2)")
    report.add_argument("--output", type=Path, metavar="DIR", help=f"where runs at {SCHEME}... and their report go")
    report.add_argument("--time-key", metavar="KEY", help="their time, such as train_runtime (default: wall time)")
    report.add_argument("--margin-pct", type=float, help="loss gap that counts as equal (default: as recorded)")
    report.add_argument("--memory-gib", type=float, help="memory that an arm must fit into (default: as recorded)")
    report.add_argument("--publish", action="store_true", help="save it as a report and a workspace on W&B")
    report.add_argument("--wandb", action="store_true", help="send it to W&B too, as a run of its own")
    report.add_argument("--format", choices=formats(), default=CONSOLE)
    commands.add_parser("predict", help="predict the memory of a training without running it")
    commands.add_parser("doctor", help="find out why a training goes wrong in low precision, or gains nothing")
    record = commands.add_parser(
        "record",
        help="run a training of your own, of which nothing is changed, and record it",
        usage="%(prog)s [OPTIONS] -- COMMAND",
        description="Run a command, such as `python train.py --bf16`, `torchrun ...` or `accelerate launch ...`, and "
        "record its training. Nothing of it is changed; its output and its exit code are its own.",
        allow_abbrev=False,
    )
    record.add_argument("--arm", help="what runs are compared by (default: the mode that a traced step proves)")
    record.add_argument("--claimed", metavar="WORDS", help="precision asked for, such as bf16-mixed (default: by flag)")
    record.add_argument("--seed", type=int, help="runs of two arms with one seed pair (default: torch's initial seed)")
    record.add_argument("--into", type=Path, metavar="DIR", help="folder of the runs to compare (outputs/EXPERIMENT)")
    record.add_argument("--experiment", help="name of what the runs have in common (default: the script's name)")
    record.add_argument("--log-every", type=int, default=10, metavar="N", help="steps between two rows (default: 10)")
    sync = commands.add_parser("sync", help="send to W&B what it lacks of runs and of their comparison")
    sync.add_argument("directories", nargs="+", type=Path, metavar="DIR", help="a multirun's or a run's directory")
    sweep = commands.add_parser("sweep", help="run the points of a sweep file here, without a W&B server")
    sweep.add_argument("file", type=Path, metavar="FILE", help="of train.py or any other program; grid or random")
    sweep.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="for every point; into=DIR goes on with a sweep"
    )
    sweep.add_argument("--count", type=int, help="how many points at most (default: the file's run_cap)")
    compare = commands.add_parser("compare", help="run commands that train, record and compare them")
    compare.add_argument(
        "commands", nargs="+", metavar="'ARM: COMMAND'", help="such as 'bf16: python t.py --seed {seed}'"
    )
    compare.add_argument("--seeds", metavar="N,N", help="seeds to put for {seed}, such as 0,1,2")
    compare.add_argument("--into", type=Path, metavar="DIR", help="where runs go; finished ones there are not repeated")
    for command in (report, record, sweep, compare):
        command.add_argument("--metric", metavar="KEY", help="decides parity, such as eval/f1 (a validation loss)")
        command.add_argument("--goal", choices=get_args(Goal), help="of the metric (by its name)")
    for command in (report, sweep, compare):
        command.add_argument("--baseline", metavar="ARM", help="arm the others are compared with (float32's)")
    for command in (report, sweep):
        command.add_argument(
            "--arm-key", action="append", metavar="KEY", help="names the arms of runs that are not ours"
        )
        command.add_argument("--seed-key", metavar="KEY", help="is their seed (seed)")
    return parser


if __name__ == "__main__":
    sys.exit(main())

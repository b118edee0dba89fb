"""`ampsweep record [OPTIONS] -- COMMAND`: record the training that a command runs, of which nothing is changed."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from ampsweep.config.claims import claimed_precision
from ampsweep.config.errors import UserError
from ampsweep.integrations.script.launcher import ScriptOptions, run_recorded
from ampsweep.integrations.summary_lines import say_ended
from ampsweep.text import escaped


def record_command(argv: Sequence[str]) -> int:
    """Run the command behind `--`; return its exit code. What was recorded is said on stderr, behind its output."""
    at = argv.index("--") if "--" in argv else len(argv)
    given = vars(_parser().parse_args(argv[:at]))
    command = argv[at + 1 :]
    if not command:
        raise UserError("no command to record: ampsweep record [OPTIONS] -- python train.py --bf16")
    options = ScriptOptions(**given)
    if options.log_every < 1:
        raise UserError(f"--log-every {options.log_every}: must be at least 1")
    if options.claimed is not None and claimed_precision(options.claimed) is None:
        raise UserError(f"--claimed {options.claimed}: not a known precision, such as bf16-mixed, fp16, tf32, fp32")
    run = run_recorded(command, options)
    if run.why_none is not None:
        print(f"ampsweep: no record: {escaped(run.why_none)}", file=sys.stderr)
    for directory, record in zip(run.directories, run.records, strict=True):
        say_ended(record, directory)
    return run.exit_code


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; the command to record comes behind `--`; see {self.prog} --help")


def _parser() -> _Parser:
    parser = _Parser(
        prog="ampsweep record",
        usage="%(prog)s [OPTIONS] -- COMMAND",
        description="Run a command, such as `python train.py --bf16`, `torchrun ...` or `accelerate launch ...`, and "
        "record its training. Nothing of it is changed; its output and its exit code are its own.",
        allow_abbrev=False,
    )
    parser.add_argument("--arm", help="what runs are compared by (default: the mode that a traced step proves)")
    parser.add_argument("--claimed", metavar="WORDS", help="precision asked for, such as bf16-mixed (default: by flag)")
    parser.add_argument("--seed", type=int, help="runs of two arms with one seed pair (default: torch's initial seed)")
    parser.add_argument("--into", type=Path, metavar="DIR", help="folder of the runs to compare (outputs/EXPERIMENT)")
    parser.add_argument("--experiment", help="name of what the runs have in common (default: the script's name)")
    parser.add_argument("--metric", metavar="KEY", help="logged key that decides about parity (default: val/loss)")
    parser.add_argument("--goal", choices=("minimize", "maximize"), help="of the metric (default: minimize)")
    parser.add_argument("--log-every", type=int, default=10, metavar="N", help="steps between two rows (default: 10)")
    return parser

"""`ampsweep record [OPTIONS] -- COMMAND`: record the training that a command runs, of which nothing is changed."""

import sys
from argparse import Namespace

from ampsweep.config.claims import claimed_precision
from ampsweep.config.errors import UserError
from ampsweep.integrations.script.launcher import ScriptOptions, run_recorded
from ampsweep.integrations.summary_lines import say_ended
from ampsweep.text import escaped

_OPTIONS = ("arm", "claimed", "seed", "into", "experiment", "metric", "goal", "log_every")


def record_command(arguments: Namespace) -> int:
    """Run the command behind `--`; return its exit code. What was recorded is said on stderr, behind its output."""
    if not arguments.words:
        raise UserError("no command to record: ampsweep record [OPTIONS] -- python train.py --bf16")
    options = ScriptOptions(**{name: getattr(arguments, name) for name in _OPTIONS})
    if options.log_every < 1:
        raise UserError(f"--log-every {options.log_every}: must be at least 1")
    if options.claimed is not None and claimed_precision(options.claimed) is None:
        raise UserError(f"--claimed {options.claimed}: not a known precision, such as bf16-mixed, fp16, tf32, fp32")
    run = run_recorded(arguments.words, options)
    if run.why_none is not None:
        print(f"ampsweep: no record: {escaped(run.why_none)}", file=sys.stderr)
    for directory, record in zip(run.directories, run.records, strict=True):
        say_ended(record, directory)
    return run.exit_code

"""`ampsweep doctor [OPTIONS] -- COMMAND`: what goes wrong in a training of one's own, found while it runs once."""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ampsweep.commands.arguments import taken_out
from ampsweep.commands.doctor import show
from ampsweep.config.claims import claimed_precision
from ampsweep.config.errors import UserError
from ampsweep.integrations.script.launcher import MEMORY, EndedCommand, ScriptOptions, run_recorded
from ampsweep.integrations.script.session import Examination
from ampsweep.report.data_formats import CONSOLE, formats
from ampsweep.run.directories import dated_directory

_ROOT: Final = Path("outputs/doctor")  # apart from the runs that are compared: these are slow


def doctor_script_command(argv: Sequence[str]) -> int:
    at = argv.index("--")
    rest, chosen = taken_out(argv[:at], "format", formats())
    command, claimed, steps = list(argv[at + 1 :]), None, None
    while given := rest:
        match given:
            case ["--steps", number, *rest] if number.isdecimal() and int(number) > 0:
                steps = int(number)
            case ["--claimed", words, *rest] if claimed_precision(words) is not None:
                claimed = words
            case _:
                options = "--steps N, --claimed PRECISION (such as bf16-mixed) and format=json"
                raise UserError(f"{' '.join(given[:2])}: before `--` the doctor of a command takes {options}")
    if not command:
        raise UserError("no command to examine: ampsweep doctor -- python train.py --fp16")
    from ampsweep.doctor.script.examine import WATCHER, diagnose
    from ampsweep.doctor.script.examining_watcher import observations

    began_s, directory = time.monotonic(), dated_directory(_ROOT.resolve())
    with tempfile.TemporaryDirectory(prefix="ampsweep-", dir=MEMORY, ignore_cleanup_errors=True) as folder:
        asked = Examination(watcher=WATCHER, folder=folder, steps=steps)
        # With a format the standard output is the diagnosis's alone.
        output = None if chosen == CONSOLE else sys.stderr.buffer
        asked_of_it = ScriptOptions(claimed=claimed, into=directory, examination=asked, output=output)
        try:
            run = run_recorded(command, asked_of_it)
        except OSError as error:  # a full disk, with which the record ends; what was seen is known
            run = EndedCommand(exit_code=1, directories=(), records=(), why_none=f"{error.filename}: {error.strerror}")
        seen = observations(Path(folder))
    if not seen:
        raise UserError(f"nothing was examined: {run.why_none or 'its processes were killed'}")
    return show(diagnose(command, run, seen, time.monotonic() - began_s), None, lambda: directory, chosen)

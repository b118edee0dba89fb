"""Commands that train, such as `python train.py --bf16`, run one after another with their trainings recorded."""

import json
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

from ampsweep.config.claims import claimed_precision
from ampsweep.config.errors import UserError
from ampsweep.config.identity import digest_of_values
from ampsweep.integrations.script.command_line import claim_of, settings_of
from ampsweep.integrations.script.launcher import ScriptOptions, run_recorded
from ampsweep.records import FILE_NAME, HISTORY_NAME, Identity, RunRecord, find_records, now
from ampsweep.records.outcome import OUTCOMES
from ampsweep.records.sections import Attempt
from ampsweep.standard_streams import OUTPUT_NAME, tail
from ampsweep.sweep.plan import PlannedRun
from ampsweep.sweep.progress.display import ProgressDisplay
from ampsweep.text import first_line, folder_name

JSON_FILE: Final = "${args_json_file}"
"""A word of a command: the path of a file with its parameters, which is written before it starts."""
ASSIGNED: Final = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)  # a variable for a command, before its first word
_ERROR: Final = re.compile(r"(?<!ChildFailed)(Error|Exception): \S|\berror: \S")
"""torchrun's own error, which says nothing, comes after that of the script."""


@dataclass(frozen=True, kw_only=True)
class CommandPoint:
    """A command to run once; `arm` None is the mode that its training proves."""

    words: tuple[str, ...]
    arm: str | None
    seed: int | None
    setting: str  # tells it from others of its arm
    parameters: Mapping[str, Any] = field(default_factory=dict)  # of a sweep, as its agent would get them

    @cached_property
    def key(self) -> str:
        """Twelve hex digits, equal for the same command with the same parameters, arm and seed."""
        words = ["python" if word == sys.executable else word for word in self.words]
        return digest_of_values([self.arm, self.seed, words, self.parameters])

    @property
    def planned(self) -> PlannedRun:
        return PlannedRun(self.arm or "as proved", self.setting)


def checked_script(words: Sequence[str]) -> str:
    """The name of the script that a command runs. UserError: there is no such program or script."""
    program = next((word for word in words if Path(word).name != "env" and not ASSIGNED.fullmatch(word)), words[0])
    script = words[_script_place(words)]
    if shutil.which(program) is None:
        raise UserError(f"{program}: no such program")
    if script.endswith(".py") and not Path(script).is_file():
        raise UserError(f"{script}: no such file in {Path.cwd()}")
    return re.split(r"[./\\]", script.removesuffix(".py"))[-1]


def _script_place(words: Sequence[str]) -> int:
    """The index of the script, else of the module after `-m`, else of the first word."""
    scripts = (place for place, word in enumerate(words) if word.endswith(".py"))
    modules = (place for place in range(1, len(words)) if words[place - 1] == "-m")
    return next(scripts, next(modules, 0))


def run_point(
    point: CommandPoint, root: Path, experiment: str, report: Mapping[str, Any], display: ProgressDisplay
) -> None:
    """Run the command below `root` with its output in a file; `report`: fields of `ReportConfig` for its records.

    A command that leaves no record gets one that says why. Once all of its trainings have an outcome, the hash of their
    config is the point's key. KeyboardInterrupt: a signal has asked this process to stop meanwhile. OSError: the
    directory cannot be written.
    """
    seed = "" if point.seed is None else f"-s{point.seed}"
    place = root / folder_name(f"{point.arm or 'run'}{seed}-{point.key[:8]}")
    place.mkdir(parents=True, exist_ok=True)
    for earlier, _ in find_records(place).records:
        (earlier / FILE_NAME).replace(earlier / f"earlier_{FILE_NAME}")
    words = [str(place / "parameters.json") if word == JSON_FILE else word for word in point.words]
    display.run_begins(point.planned, "running")
    with (place / OUTPUT_NAME).open("wb") as output:
        options = ScriptOptions(
            arm=point.arm,
            seed=point.seed,
            into=place,
            experiment=experiment,
            metric=report["metric"],
            goal=report["goal"],
            environment=_write_parameters(point.parameters, place) if point.parameters else {},
            output=output,
        )
        began = now()
        ended = run_recorded(words, options)
    entries = [*zip(ended.directories, ended.records, strict=True)]
    if not entries and not ended.stopped_by:
        why = ended.why_none or "it took no optimizer step"
        error = f"exit code {ended.exit_code}: {_said_last(place / OUTPUT_NAME) if ended.exit_code else why}"
        entries = [(place, _failed_record(point, root, experiment, began, error))]
        (place / HISTORY_NAME).write_bytes(b"")
    has_ended = all(record.status in OUTCOMES for _, record in entries)
    for directory, record in entries:
        own = {key: of for key, of in record.config["own"].items() if str(place) not in str(of)}
        record.config["own"] = own | {key.replace("-", "_"): of for key, of in point.parameters.items()}
        record.config |= {"report": {**report}, "command": {"words": words, "exit_code": ended.exit_code}}
        record.config_hash = point.key if has_ended else record.config_hash
        record.write(directory)
    if entries:
        record = next((record for _, record in entries if record.status not in OUTCOMES), entries[-1][1])
        display.run_ends(replace(point.planned, arm=record.arm), record)
        if record.status == "failed":
            display.say(f"its output: {place / OUTPUT_NAME}")
    if ended.stopped_by:
        raise KeyboardInterrupt


def _write_parameters(parameters: Mapping[str, Any], place: Path) -> dict[str, str]:
    """Write the files of a sweep's parameters; return the variable with which an agent tells W&B's client of one."""
    (place / "parameters.json").write_text(json.dumps(parameters, default=str), encoding="utf-8")
    of_agent = {key: {"value": value} for key, value in parameters.items()}
    file = place / "parameters.yaml"
    file.write_text(yaml.safe_dump({"wandb_version": 1, **of_agent}, sort_keys=False), encoding="utf-8")
    return {"WANDB_SWEEP_PARAM_PATH": str(file)}  # a setting of wandb's, which only its agent's source documents


def _failed_record(point: CommandPoint, root: Path, experiment: str, began: str, error: str) -> RunRecord:
    """The record of a command that took no optimizer step, in the workload of the other runs below `root`."""
    claimed = claimed_precision(claim_of(point.words, point.arm) or "")
    identity = Identity(
        experiment=experiment,
        precision_mode="unknown" if claimed is None else claimed.mode,
        seed=point.seed or 0,
        device="auto",
    )
    for _, other in find_records(root).records:
        if (other.source, other.identity.experiment) == ("script", experiment):  # launched as this one was
            alike = {name: getattr(other.identity, name) for name in ("world_size", "parallel", "compile")}
            identity = replace(identity, **alike)
    return RunRecord(
        run_id=secrets.token_hex(4),
        source="script",
        arm=point.arm or "unknown",
        pair_key=point.key,
        config_hash=point.key,
        identity=identity,
        config={"own": settings_of(point.words[_script_place(point.words) + 1 :])},
        status="failed",
        error=error,
        started_at=began,
        ended_at=now(),
        attempts=[Attempt(started_at=began, host=socket.gethostname())],
    )


def _said_last(file: Path) -> str:
    """The last error in what a command has printed, else its last line with a word."""
    lines = [line for line in tail(file).splitlines() if re.search(r"\w", line)]
    errors = [line for line in lines if _ERROR.search(line)]
    return first_line((errors or lines or ["it printed nothing"])[-1].strip())

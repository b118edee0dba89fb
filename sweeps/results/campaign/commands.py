"""The command line of a block."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from campaign.block import Block
from campaign.workloads import Settings

ROOT: Final = Path(__file__).parents[3]
"""The repository."""
_HERE: Final = Path(__file__).parents[1]
JUNIT_NAME: Final = "gpu_tests.xml"


@dataclass(frozen=True)
class Place:
    """Where and on what a campaign runs."""

    directory: Path
    device: str
    nanogpt: Path | None

    @property
    def runs(self) -> Path:
        """Holds a directory an experiment, each with its multirun."""
        return self.directory / "runs"

    def multirun(self, experiment: str) -> Path | None:
        """The directory that an earlier call began; None before the first."""
        begun = sorted(path.parent for path in (self.runs / experiment).glob("*/multirun.yaml"))
        return begun[0] if begun else None

    def command(self, block: Block, arms: Sequence[str]) -> list[str]:
        """What measures these arms of a block."""
        if block.kind == "suite":
            return [sys.executable, str(ROOT / "train.py"), *self._overrides(block, arms)]
        if block.kind == "tests":
            junit = self.directory / JUNIT_NAME
            options = ["-q", "-m", "gpu", f"--junitxml={junit}", "-p", "no:cacheprovider"]
            return [sys.executable, "-m", "pytest", *options, "--continue-on-collection-errors", str(ROOT / "tests")]
        (arm,) = arms
        options = [f"--{key}={_value(value)}" for key, value in block.settings.items()]
        if block.kind == "nanogpt":
            options.append(f"--code={self.nanogpt}")
        worker = [sys.executable, "-m", f"campaign.{block.kind}"]
        return [*worker, f"--precision={arm}", f"--device={self.device}", *options]

    def _overrides(self, block: Block, arms: Sequence[str]) -> list[str]:
        begun = self.multirun(block.experiment)
        where = f"output_dir={_quoted(self.runs)}" if begun is None else f"into={_quoted(begun)}"
        own = [f"name={block.experiment}", f"device={self.device}", "tracking=disabled", where]
        return ["-m", *_overrides(block.settings), f"precision={','.join(arms)}", *own]


def shown(block: Block, arms: Sequence[str]) -> str:
    """The command as a reader would type it in the repository: without what only concerns the campaign's files."""
    if block.kind == "suite":
        words = ["python", "train.py", "-m", *_overrides(block.settings), f"precision={','.join(arms)}"]
    elif block.kind == "tests":
        words = ["pytest", "-m", "gpu"]
    else:
        words = ["PYTHONPATH=sweeps/results", "python", "-m", f"campaign.{block.kind}", f"--precision={arms[0]}"]
        words += [f"--{key}={_value(value)}" for key, value in block.settings.items()]
        words += ["--code=NANOGPT"] if block.kind == "nanogpt" else []
    return " ".join(words)


def environment() -> Mapping[str, str]:
    """Of every command: the suite and this package can be imported, whether installed or not."""
    paths = [str(_HERE), str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def _overrides(settings: Settings) -> list[str]:
    return [f"{key}={_value(value)}" for key, value in settings.items()]


def _value(value: object) -> str:
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("\\", "\\\\").replace("'", "\\'") + "'"

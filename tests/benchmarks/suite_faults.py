"""Faults planted in the source, one at a time: which tests notice them, the fast ones or only the nightly ones?

    python tests/benchmarks/suite_faults.py --workers 2 > suite_faults.json

Each fault is a line of the source as somebody might break it: a flipped sign, a unit, a swapped arm, a lost row. It is
planted in a clone of the last commit; then tests run until the first one fails: those of the room first, the other fast
ones after them, the nightly ones last. Prints a JSON object: for each fault its room, what noticed it (`fast`,
`nightly` or `nothing`), and the test.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).parents[2]
ROUNDS = {"fast": "not nightly", "nightly": "nightly"}
TEST_RUN_S = 2400
"""A run of tests that takes longer has noticed the fault: something hangs."""


@dataclass(frozen=True)
class Fault:
    """A fault in a file of `src/ampsweep`: `old`, which the file holds once, becomes `new`."""

    file: str
    old: str
    new: str
    tests: str = ""
    """Folders of tests to try first, separated by spaces; empty: that of the room."""

    @property
    def room(self) -> str:
        return self.file.split("/")[0] if "/" in self.file else "top level"

    def planted(self, text: str) -> str:
        """The file's text with the fault.

        Raises:
            ValueError: the text does not hold `old` exactly once.
        """
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file}: {self.old!r} is there {text.count(self.old)} times")
        return text.replace(self.old, self.new)


FAULTS = (
    # An interval of n pairs narrower than it is; the loss gap with its sign flipped; seconds that are milliseconds.
    Fault("analysis/statistics.py", "xbar=mean) / math.sqrt(n)", "xbar=mean) / n"),
    Fault("analysis/judgements.py", "arm - reference for", "reference - arm for"),
    Fault("analysis/time_to_loss.py", "* step_ms) / 1000", "* step_ms)"),
    Fault("analysis/recommendation.py", "best, as_good = max(options", "best, as_good = min(options"),
    Fault("analysis/pareto_front.py", 'return "better" if ratio.value < 1', 'return "better" if ratio.value > 1'),
    # A saving drawn as a loss; text of a user's that becomes markup, or ends a script; a sign that is missing.
    Fault(
        "report/figures/pairs.py",
        "lambda base, arm: base - arm",
        "lambda base, arm: arm - base",
    ),
    Fault("report/html.py", 'escape(child or "") for child', '(child or "") for child'),
    Fault("report/html.py", 'return text.replace("<", r', 'return text.replace("#", r'),
    Fault("report/tables.py", "of.text(digits=2, sign=True)", "of.text(digits=2, sign=False)"),
    # The doctor takes positive inputs for negative ones, gains for losses, shares for percent.
    Fault("doctor/loss/nonfinite_origins.py", "(signed < 0).any()", "(signed < 0).all()"),
    Fault(
        "doctor/memory/traced_memory.py", "self.peak_bytes - changed.peak_bytes", "changed.peak_bytes - self.peak_bytes"
    ),
    Fault("doctor/speed/waiting.py", "cost_ms=wait_ms,", "cost_ms=wait_ms / 100,"),
    Fault(
        "doctor/side_by_side/comparison.py",
        "eps > torch.finfo(torch.float32).eps",
        "eps < torch.finfo(torch.float32).eps",
    ),
    # A segment of another size than CUDA's; a slope off by one batch; a limit that forgets what is allocated already.
    Fault("predict/cuda_allocator.py", "_SMALL_SEGMENT: Final = 2 * MIB", "_SMALL_SEGMENT: Final = MIB"),
    Fault(
        "predict/memory_by_batch_size.py",
        "self._slopes * (batch - self._batch)",
        "self._slopes * (batch - self._batch - 1)",
    ),
    Fault("observe/memory_limit.py", "before + taken > self._limit_bytes", "taken > self._limit_bytes"),
    Fault("observe/flops.py", "return 3 * _scores(query, key)", "return 2 * _scores(query, key)"),
    Fault("observe/ledger.py", "self.live_bytes -= allocation.num_bytes", "self.live_bytes -= 0"),
    # Gradients clipped while they are scaled; warmup that begins at zero; samples seen twice; an unweighted mean.
    Fault("training/trainer.py", "            self.precision.unscale_(optimizer)\n", ""),
    Fault(
        "training/components/learning_rates.py", "(applied_steps + 1) / (warmup + 1)", "applied_steps / (warmup + 1)"
    ),
    Fault(
        "training/found_checkpoint.py",
        "samples = saved.next_batch * saved.batch_size * saved.world_size",
        "samples = saved.next_batch * saved.batch_size",
    ),
    Fault("training/evaluate.py", "else torch.float64) * count", "else torch.float64)"),
    Fault(
        "training/trainer.py",
        "losses = [part / num_batches for part in losses]",
        "losses = [part * 1 for part in losses]",
    ),
    # Rounding that truncates; a gradient that is scaled twice; modules outside of fp32 kept; switches left as they are.
    Fault("precision/stochastic_rounding.py", ".add_(2**15)", ""),
    Fault(
        "precision/precision.py",
        "one_over_scale = 1.0 / self.scaler",
        "one_over_scale = 1.0 * self.scaler",
        "precision training",
    ),
    Fault("precision/arithmetic.py", "default=FLOAT32_BITS + 1) - 1", "default=FLOAT32_BITS + 1)"),
    Fault("precision/flags.py", "        cudnn.benchmark = benchmark_before\n        for", "        for"),
    Fault("models/gpt.py", "math.sqrt(2 * num_layers)", "math.sqrt(num_layers)"),
    Fault("tasks/gan.py", "on_fake - on_real", "on_real - on_fake", "tasks training"),
    Fault("tasks/language_modeling.py", "batch[1].numel()", "len(batch[1])"),
    # The emptiest rank's memory for the fullest's; a run that never diverges; a row out of order; an endless search.
    Fault(
        "recorder/rank_figures.py",
        "max(ranks, key=lambda other: other.memory.peak_bytes",
        "min(ranks, key=lambda other: other.memory.peak_bytes",
    ),
    Fault(
        "recorder/divergence.py",
        "num_skipped >= _MAX_LAST_STEPS_WITHOUT_LOSS and",
        "num_skipped > 10**9 and",
        "recorder training",
    ),
    Fault("records/history.py", "if step <= before:", "if step < before:", "records report"),
    Fault("records/batch_search.py", "min(low + further, self.limit)", "low + further"),
    # A skip that is not counted; milliseconds for seconds; energy of a step for that of a sample; a host that is busy.
    Fault("monitors/scaler.py", "has_shrunk = scale < self._scale", "has_shrunk = scale > self._scale"),
    Fault("monitors/step_clock.py", "1e3 * work * len(times.step_ms)", "work * len(times.step_ms)"),
    Fault("monitors/nvml.py", "nvmlDeviceGetPowerUsage(handle) / 1e3", "nvmlDeviceGetPowerUsage(handle)"),
    Fault("monitors/device_sampler.py", "self._num_steps * self._samples_per_step)", "self._num_steps)"),
    Fault("monitors/contamination.py", "MAX_FOREIGN_SHARE * host.num_cores", "1e9 * host.num_cores"),
    # Ranks that see each other's samples; a last batch that is lost; an order that is the same in every epoch.
    Fault("data/base.py", "return own * self.world_size + self.rank", "return own * self.world_size"),
    Fault(
        "data/map_dataset.py",
        "return -(-len(self.dataset) // self.batch_size)",
        "return len(self.dataset) // self.batch_size",
    ),
    Fault("data/seeding.py", 'generator("epoch", self._seed, epoch)', 'generator("epoch", self._seed, 0)'),
    # Sums over ranks for means; gradients that a rank does not have; a stop that waits for no agreement.
    Fault("parallel/ranks.py", "(total / self.world_size)", "(total / 1)", "parallel training commands"),
    Fault("parallel/ddp.py", "if parameter.grad is None:", "if parameter.grad is not None and False:"),
    # Runs that differ in precision never pair; another seed's run is the same run.
    Fault(
        "config/identity.py", "settings = _without_arm(_result_settings(config))", "settings = _result_settings(config)"
    ),
    Fault("config/identity.py", 'origin = {"resume": config.resume} if config.begins_elsewhere else {}', "origin = {}"),
    Fault("config/value_checks.py", "if precision.init_scale >= 2.0**128:", "if precision.init_scale >= 2.0**129:"),
    # A row sent twice, a row lost; an error of prediction with its sign flipped.
    Fault("tracking/wandb/send_history.py", "(record.wandb.last_step or 0) + 1)", "record.wandb.last_step or 0)"),
    Fault(
        "tracking/tracker.py",
        "self._waiting[self._file.write(self._waiting) :]",
        "self._waiting[: self._file.write(self._waiting) and 0]",
    ),
    Fault("tracking/tracker.py", "if step <= self.reached:", "if step <= self.reached + 1:"),
    Fault(
        "launch/signal_handlers.py", "elif now - self._signalled_at > _ECHO_S:", "elif now - self._signalled_at > 1e9:"
    ),
    Fault("launch/isolated_process.py", "name = signal.Signals(-exitcode).name", 'name = "SIGKILL"'),
    Fault(
        "run/ending.py",
        "100 * (predicted - measured) / measured",
        "100 * (measured - predicted) / measured",
        "run record",
    ),
    Fault("run/directories.py", "return max(candidates)[1]", "return min(candidates)[1]", "commands"),
    Fault("run/ending.py", "100 * (row[GRAD_NORM] > (limits[0]", "100 * (row[GRAD_NORM] < (limits[0]", "run commands"),
    Fault(
        "search/largest_batch.py",
        "return self._with_batch(max(search.largest, 1))",
        "return self._with_batch(search.largest + 1)",
    ),
    Fault("run/short_run.py", "return until_last_step_s + self.rest_s", "return until_last_step_s", "sweep"),
    Fault("sweep/device_checks.py", "if at_most <= limit:", "if at_most > limit:"),
    # A secret in a file of Hydra's; a failed run that ends with exit code 0.
    Fault(
        "commands/hydra_job.py",
        "hidden(OmegaConf.to_container(config), beside)",
        "OmegaConf.to_container(config)",
        "commands",
    ),
    Fault("records/outcome.py", "ALL_ENDED if OUTCOMES.issuperset(statuses) else SOME_FAILED", "ALL_ENDED", "commands"),
    Fault(
        "text.py",
        'return f"{number(value / BYTES_OF[unit])} {unit}"',
        'return f"{number(value / 1000)} {unit}"',
        "report analysis",
    ),
    Fault("redaction.py", "(?:KEY|TOKEN|SECRET|", "(?:KEY|SECRET|", "test_redaction.py"),
)


def first_failure(clone: Path, tests: list[str], marks: str) -> str | None:
    """The first test that fails; None if all pass or there are none."""
    environment = {**os.environ, "PYTHONPATH": str(clone / "src"), "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", marks, "-p", "no:cacheprovider", "--tb=no", *tests]
    try:
        done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=TEST_RUN_S)
    except subprocess.TimeoutExpired:
        return "the time limit"
    if done.returncode in (0, 5):
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return found[1] if found else f"pytest's exit code {done.returncode}"


def noticed_by(fault: Fault, clone: Path) -> tuple[str, str]:
    """The round of tests that notices a fault, and the test."""
    path = clone / "src/ampsweep" / fault.file
    before = path.read_text(encoding="utf-8")
    first = [f"tests/{folder}" for folder in (fault.tests or fault.room).split() if (clone / "tests" / folder).exists()]
    others = ["tests", *(f"--ignore={folder}" for folder in first)]
    path.write_text(fault.planted(before), encoding="utf-8")
    try:
        for name, marks in ROUNDS.items():
            for tests in (first, others):
                if tests and (test := first_failure(clone, tests, marks)) is not None:
                    return name, test
    finally:
        path.write_text(before, encoding="utf-8")
    return "nothing", ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1, help="faults that are tried at a time")
    parser.add_argument("--room", help="only faults of this room")
    parser.add_argument("--check", action="store_true", help="only check that every fault can be planted")
    arguments = parser.parse_args()
    faults = [fault for fault in FAULTS if arguments.room in (None, fault.room)]
    for fault in faults:
        fault.planted((ROOT / "src/ampsweep" / fault.file).read_text(encoding="utf-8"))
    if arguments.check:
        print(f"{len(faults)} faults in {len({fault.room for fault in faults})} rooms")
        return
    free: Queue[Path] = Queue()

    def tried(fault: Fault) -> dict[str, str]:
        clone = free.get()
        try:
            noticed, test = noticed_by(fault, clone)
        finally:
            free.put(clone)
        print(f"{noticed:8} {fault.file}: {fault.old.strip()} -> {fault.new.strip()}  {test}", file=sys.stderr)
        return {**asdict(fault), "room": fault.room, "noticed": noticed, "test": test}

    with tempfile.TemporaryDirectory(prefix="suite-faults-") as folder:
        for number in range(arguments.workers):
            free.put(clone := Path(folder, f"clone-{number}"))
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        with ThreadPoolExecutor(arguments.workers) as pool:
            print(json.dumps({"faults": [*pool.map(tried, faults)]}, indent=1))


if __name__ == "__main__":
    main()

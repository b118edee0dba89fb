"""Make the page of a campaign from the files of its calls: see README.md.

    python sweeps/results/page.py FILE... [--to DIRECTORY]

writes README.md, beside it the whole comparison of each experiment as `ampsweep report` makes it (NAME.md), and
copies the files there; by default into a folder here that is named after the device.
"""

import argparse
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from campaign.aims import aims
from campaign.results import BASELINE, Results, Workload, num_warmup_steps
from campaign.tables import (
    BESIDE,
    DEVICE,
    FIGURES,
    PREDICTED,
    arms_table,
    bounds_against,
    compared_table,
    signed_percent,
    table,
    told,
)
from run import PLAN, Command, planned

from ampsweep.analysis.runs import Run
from ampsweep.report.comparison_document import MARKDOWN_NAME, comparison_document, write_comparison
from ampsweep.text import duration, num_bytes

TITLES: Final = {
    "recipe": "The PyTorch AMP recipe",
    "gpt_small": "GPT-2 124M",
    "nanogpt": "GPT-2 124M beside nanoGPT",
    "resnet50": "ResNet-50",
    "memory_by_batch": "Peak memory against batch size, and its prediction",
    "smoke": "Does everything run here?",
}
"""Experiments by the name of their runs, in the order of the page."""

ELSEWHERE: Final = {
    "recipe": "Elsewhere: the recipe's own page has 7.020 s in fp32 and 2.524 s with AMP on a T4 (2.78x) for 150 steps "
    "(docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html).",
    "gpt_small": "Elsewhere, GPT-2 124M: TF32 to bf16 1.60x, reserved memory -47 % on an A100; about 463,000 tokens/s "
    "with llm.c and 380,000 with nanoGPT on an H100. BERT-large: 1.8x to 1.9x on an A100.",
    "resnet50": "Elsewhere: ResNet-50 from TF32 to AMP 2.63x on an A100.",
}


def page(results: Results) -> str:
    """The Markdown document."""
    lines = [*_head(results), "## What was to be reached", "", *_aims(results)]
    for experiment, title in TITLES.items():
        if experiment in results.compared:
            lines += [f"## {title}", "", *_experiment(results, experiment), *_end(results, experiment)]
    lines += [*_tests(results), *_not_measured(results), *_files(results)]
    return "\n".join(lines).rstrip() + "\n"


def device_of(results: Results) -> str:
    """The device's name as a folder is called: `h100-80gb-hbm3`."""
    name = next((record.identity.device_name for record in results.records if record.identity.device_name), None)
    return re.sub(r"[^a-z0-9]+", "-", (name or "unknown device").lower().removeprefix("nvidia ")).strip("-")


def _head(results: Results) -> Iterator[str]:
    record = next((record for record in results.records if record.status == "completed"), None)
    yield from (f"# {record.identity.device_name if record else 'Nothing was measured'}", "")
    if any(call.tiny for call in results.calls):
        yield from ("**A rehearsal with tiny sizes: it shows that everything runs. Its figures mean nothing.**", "")
    if record is not None:
        environment = record.environment
        facts = {
            "torch": environment.get("packages", {}).get("torch"),
            "CUDA": environment.get("cuda"),
            "cuDNN": environment.get("cudnn"),
            "driver": environment.get("driver"),
            "power limit": f"{environment['power_limit_w']:.0f} W" if "power_limit_w" in environment else None,
            "Python": environment.get("python"),
            "ampsweep": environment.get("code_version"),
            "commit": ", ".join(sorted({call.commit[:12] for call in results.calls if call.commit})) or None,
        }
        counted = f"{len(results.records)} runs and {len(results.by_hand)} loops by hand"
        began = min(call.began_at for call in results.calls)
        known = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        yield from (f"{known}. {counted}, each in a process of its own, {began[:10]}.", "")
    yield from ("How to read it, and the command that made it: [the results' README](../README.md).", "")


def _aims(results: Results) -> list[str]:
    words = {True: "yes", False: "no", None: "not measured"}
    rows = [[aim.what, aim.aim, aim.measured, words[aim.reached]] for aim in aims(results)]
    return table(["what", "aim", "measured", "reached"], rows, words=True)


def _experiment(results: Results, experiment: str) -> Iterator[str]:
    compared = results.compared[experiment]
    if experiment == "memory_by_batch":
        yield from _by_batch([Run(path, record) for path, record in compared.records])
        return
    for workload in results.workloads(experiment):
        yield from (f"### {workload.comparison.title or 'Without figures'}", "", *_about(workload))
        yield from compared_table(workload)
        for columns in (FIGURES, PREDICTED, DEVICE):
            yield from arms_table(workload, columns)
        yield from bounds_against(workload, BASELINE)
        if any(arm.by_hand is not None for arm in workload.arms):
            yield from (
                "Beside the same loop written by hand:",
                "",
                *arms_table(workload, BESIDE),
            )
        yield from (
            *(f"- {arm.name}: {_plain(note.sentence)}" for arm in workload.arms for note in arm.figures.notes),
            "",
        )


def _about(workload: Workload) -> list[str]:
    """One line on the facts that the arms have in common; empty if none of the runs began."""
    identity = workload.record.identity
    if identity.steps is None:
        return []
    size = "" if identity.model_size is None else f" ({identity.model_size / 1e6:.4g} M parameters)"
    sequences = "" if identity.seq_len is None else f" of {identity.seq_len} tokens"
    steps = f"{identity.steps} steps, of which the first {num_warmup_steps(workload.record)} are warm-up"
    if (seconds := workload.record.config["trainer"].get("max_seconds")) is not None:
        steps = f"as many steps as {seconds:g} s have room for, at most {identity.steps}"
    return [f"{identity.model}{size}, batch {identity.batch_size}{sequences}, {identity.optimizer}, {steps}.", ""]


def _by_batch(runs: Sequence[Run]) -> Iterator[str]:
    """Measured and predicted peaks against batch size, by model."""
    for model in dict.fromkeys(run.record.identity.model for run in runs):
        rows = [
            (
                run.arm,
                str(run.record.identity.batch_size),
                run.outcome,
                told(num_bytes, run.num_bytes("memory/peak_allocated_gib") if run.measured else None),
                told(num_bytes, run.predicted_bytes),
                told(signed_percent, run.prediction_error_pct),
            )
            for run in sorted(runs, key=lambda run: (run.arm, run.record.identity.batch_size))
            if run.record.identity.model == model
        ]
        yield from (f"### {model}", "", *table(["arm", "batch", "outcome", "peak", "predicted", "error"], rows))


def _end(results: Results, experiment: str) -> Iterator[str]:
    """The lines below the tables of an experiment: figures from elsewhere, the whole comparison, the commands."""
    if experiment in ELSEWHERE:
        yield from (ELSEWHERE[experiment], "")
    yield from (
        f"The whole comparison, with the memory by category and every run: [{experiment}.md]({experiment}.md).",
        "",
    )
    entries = results.entries
    commands = [text for text in entries if Command(text, 0.0).experiment == experiment]
    told = [entries[text].printed.strip() for text in commands if text.startswith("ampsweep doctor")]
    yield from (line for text in told if text for line in ("What the doctor says of it:", "", "```", text, "```", ""))
    yield from ("```bash", *commands, "```", "")


def _tests(results: Results) -> Iterator[str]:
    lines = results.tests
    if lines:
        others = [line for line in lines[:-1] if not line.startswith("PASSED")]
        yield from ("## Tests on the GPU", "", f"`pytest -m gpu`: {_plain(lines[-1].strip('= '))}.", "")
        yield from (*(f"- {_plain(line)}" for line in others), "")


def _not_measured(results: Results) -> Iterator[str]:
    left = {text: entry.reason or "not begun" for text, entry in results.entries.items() if entry.status != "done"}
    for number in sorted({*PLAN["calls"]} - {call.number for call in results.calls}):
        left |= {command.text: f"call {number} was not made" for command in planned(number, tiny=False)}
    if left:
        yield from ("## Not measured", "", *(f"- `{text}`: {_plain(reason)}" for text, reason in left.items()), "")


def _files(results: Results) -> Iterator[str]:
    yield from ("## Files", "", *(f"- [{call.file}]({call.file})" for call in results.calls), "")
    yield f"All commands together took {duration(sum(entry.seconds for entry in results.entries.values()))}."


def _plain(text: str) -> str:
    return re.sub(r"([\\`*<>|#~])", r"\\\1", " ".join(text.split()))


def _write_comparisons(results: Results, directory: Path, to: Path) -> None:
    for name, compared in results.compared.items():
        write_comparison(comparison_document(compared, directory), directory)
        shutil.copyfile(directory / MARKDOWN_NAME, to / f"{name}.md")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packed", type=Path, nargs="+", metavar="FILE", help="callN.tar.xz")
    parser.add_argument("--to", type=Path, metavar="DIRECTORY", help="where the page goes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        try:
            results = Results.load(arguments.packed, Path(temporary).resolve())
        except (OSError, ValueError, tarfile.TarError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        to: Path = arguments.to or Path(__file__).parent / device_of(results)
        to.mkdir(parents=True, exist_ok=True)
        _write_comparisons(results, Path(temporary), to)
        (to / "README.md").write_text(page(results), encoding="utf-8")
    for call, path in zip(results.calls, arguments.packed, strict=True):
        if path.resolve() != (to / call.file).resolve():
            shutil.copyfile(path, to / call.file)
    print(to / "README.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())

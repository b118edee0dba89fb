"""The page of a campaign: everything it found, what it was to reach, and what was not measured."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from campaign.aims import aims_table
from campaign.experiments import EXPERIMENTS
from campaign.ledger import Ledger
from campaign.memory import by_batch, by_category, largest_batch, power
from campaign.packing import FILES
from campaign.results import Results
from campaign.section import Section
from campaign.speed import gpt, overhead, recipe, resnet

SECTIONS = (recipe, gpt, resnet, by_category, by_batch, largest_batch, overhead, power)


def page(results: Results) -> tuple[str, Mapping[str, str]]:
    """The Markdown document, and its figures (SVG) by file name."""
    sections = [found for make in SECTIONS if (found := make(results)) is not None]
    parts = [*_head(results), *(section.markdown() for section in sections), *_tests(results.ledger)]
    parts += [*_not_measured(results), *_method(results)]
    figures = {name: svg for section in sections for name, svg in section.figures.items()}
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n", figures


def device_of(results: Results) -> str:
    """The device's name as a folder is called: `h100-80gb-hbm3`."""
    record = results.any_record
    name = None if record is None else record.identity.device_name
    return re.sub(r"[^a-z0-9]+", "-", (name or "unknown device").lower().removeprefix("nvidia ")).strip("-")


def _head(results: Results) -> Iterator[str]:
    record = results.any_record
    yield f"# {record.identity.device_name if record else 'Nothing was measured'}\n"
    if results.ledger.scale != "full":
        yield "**A rehearsal with tiny sizes: it shows that everything runs. Its figures mean nothing.**\n"
    if record is not None:
        environment = record.environment
        packages = environment.get("packages", {})
        facts: dict[str, Any] = {
            "torch": packages.get("torch"),
            "CUDA": environment.get("cuda"),
            "cuDNN": environment.get("cudnn"),
            "driver": environment.get("driver"),
            "power limit": f"{environment['power_limit_w']:.0f} W" if "power_limit_w" in environment else None,
            "Python": environment.get("python"),
            "ampsweep": environment.get("code_version"),
            "commit": (results.ledger.commit or "")[:12] or None,
        }
        told = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
        num_runs = sum(len(runs) for runs in results.records.values())
        began = results.ledger.calls[0].started_at[:10] if results.ledger.calls else "an unknown day"
        counted = f"{num_runs} runs and {len(results.by_hand)} loops by hand, each in a process of its own"
        yield f"{told}. {counted}, {began}.\n"
    yield "How to read it, and the command that made it: [the results' README](../README.md).\n"
    yield "## What was to be reached\n"
    yield "\n".join(aims_table(results)) + "\n"


def _tests(ledger: Ledger) -> Iterator[str]:
    if ledger.tests is None:
        return
    section = Section("Tests on the GPU")
    outcomes = ledger.tests.outcomes
    counted = {
        word: sum(outcome.startswith(word) for outcome in outcomes.values())
        for word in ("passed", "failed", "error", "skipped")
    }
    told = ", ".join(f"{count} {word}" for word, count in counted.items() if count)
    section.add(f"`pytest -m gpu`: {told or 'none were found'}, in {ledger.tests.seconds:.0f} s.")
    others = {name: outcome for name, outcome in outcomes.items() if outcome != "passed"}
    section.add(*(f"- `{name}`: {_plain(outcome)}" for name, outcome in others.items()))
    yield section.markdown()


def _not_measured(results: Results) -> Iterator[str]:
    section = Section("Not measured")
    entries = results.ledger.entries
    lines = [
        f"- {name}: {entry.status}" + (f": {_plain(entry.reason)}" if entry.reason else "")
        for name, entry in entries.items()
        if entry.status != "done"
    ]
    met = {entry.experiment for entry in entries.values()}
    lines += [f"- {name} ({what}): not asked for" for name, what in EXPERIMENTS.items() if name not in met]
    if lines:
        section.add(*lines)
        yield section.markdown()


def _method(results: Results) -> Iterator[str]:
    section = Section("Files")
    section.add(*(f"- [{name}]({name})" for name in FILES))
    used = ", ".join(f"{call.used_s:.0f} of {call.budget_s:.0f} s" for call in results.ledger.calls)
    section.add(f"The campaign's calls used {used}.")
    yield section.markdown()


def _plain(text: str) -> str:
    return re.sub(r"([\\`*<>|#~])", r"\\\1", " ".join(text.split()))

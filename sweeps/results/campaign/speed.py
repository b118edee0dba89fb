"""The sections about time: the recipe, GPT-2, ResNet-50, and small steps."""

from collections.abc import Sequence
from typing import Final

from ampsweep.report.palette import MODE_COLOURS, OTHER_COLOUR
from ampsweep.text import milliseconds, number, percent, ratio
from campaign.beside import beside_hand, beside_nanogpt, nanogpt_pairs
from campaign.results import ArmRuns, Results, arms_of
from campaign.roofline import moved_bytes
from campaign.section import (
    MEMORY,
    SPEED,
    Section,
    about,
    arms_table,
    commands,
    notes,
    thousands,
)
from campaign.svg import Bar, bars

RECIPE_ELSEWHERE: Final = (
    "Elsewhere: the recipe's own page has 7.020 s in fp32 and 2.524 s with AMP on a T4 (2.78x) for 150 steps "
    "(docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html)."
)
GPT_ELSEWHERE: Final = (
    "Elsewhere, GPT-2 124M: TF32 to bf16 1.60x, reserved memory -47 % on an A100; about 463,000 tokens/s with llm.c "
    "and 380,000 with nanoGPT on an H100. BERT-large: 1.8x to 1.9x on an A100."
)
RESNET_ELSEWHERE: Final = "Elsewhere: ResNet-50 from TF32 to AMP 2.63x on an A100."


def recipe(results: Results) -> Section | None:
    """The PyTorch AMP recipe beside the same loop by hand, and its share of the roofline."""
    arms = arms_of(results.of("recipe"))
    if not arms:
        return None
    section = Section("The PyTorch AMP recipe")
    section.add(about(arms))
    section.add(*arms_table(arms, SPEED))
    section.add(*arms_table(arms, MEMORY))
    section.add(*_about_bound(arms))
    rows = [
        Bar(arm.arm, arm.figures.step_ms, milliseconds(arm.figures.step_ms), MODE_COLOURS[arm.arm], mark=_bound_ms(arm))
        for arm in arms
        if arm.figures.step_ms is not None
    ]
    if rows:
        marked = " (dashed: the bound)" if any(row.mark for row in rows) else ""
        section.show("recipe.svg", bars(f"Step time of the recipe{marked}", rows), "step time by mode")
    section.add(*beside_hand(results, "recipe", arms))
    section.add(RECIPE_ELSEWHERE)
    section.add(*notes(arms))
    section.add(*commands(results.ledger, "recipe"))
    return section


def gpt(results: Results) -> Section | None:
    """GPT-2 124M, eager and compiled, beside nanoGPT."""
    section = Section("GPT-2 124M")
    rows: list[Bar] = []
    for compiled in (False, True):
        how = "compiled" if compiled else "eager"
        arms = arms_of(results.of("gpt_small", compile=compiled))
        if arms:
            _add_arms(section, how, arms)
            rows += [bar for arm in arms if (bar := _tokens(f"{arm.arm} {how}", arm)) is not None]
    pairs = nanogpt_pairs(results)
    for vocab_size, _, by_hand in pairs:
        if by_hand is not None and by_hand.tokens_per_sec is not None:
            label, value = f"nanoGPT, {vocab_size} ids", by_hand.tokens_per_sec
            rows.append(Bar(label, value, thousands(value), OTHER_COLOUR))
    if not section.lines and not rows:
        return None
    if rows:
        section.show("gpt_small.svg", bars("Tokens per second", rows), "tokens per second by mode")
    section.add(*beside_nanogpt(pairs))
    section.add(GPT_ELSEWHERE)
    section.add(*commands(results.ledger, "gpt_small"))
    section.add(*commands(results.ledger, "nanogpt"))
    return section


def resnet(results: Results) -> Section | None:
    """ResNet-50 in both memory layouts."""
    section, rows = Section("ResNet-50"), []
    for channels_last in (False, True):
        how = "channels last" if channels_last else "contiguous"
        arms = arms_of(results.of("resnet50", channels_last=channels_last))
        if arms:
            _add_arms(section, how, arms)
            for arm in arms:
                value = arm.median("perf/samples_per_sec")
                if value is not None:
                    rows.append(Bar(f"{arm.arm} {how}", value, thousands(value), MODE_COLOURS[arm.arm]))
    if not section.lines:
        return None
    if rows:
        section.show("resnet50.svg", bars("Images per second", rows), "images per second by mode")
    section.add(RESNET_ELSEWHERE)
    section.add(*commands(results.ledger, "resnet50"))
    return section


def overhead(results: Results) -> Section | None:
    """What the suite itself costs."""
    arms = arms_of(results.of("overhead"))
    if not arms:
        return None
    section = Section("Cost of the instrumentation")
    section.add(
        "Steps so small that they are kernel launches, where the host's time counts most; `reported` is what the "
        "suite says of itself (`instrumentation/overhead_pct`), the rest compares it with the same loop by hand."
    )
    section.add(about(arms))
    section.add(*beside_hand(results, "overhead", arms))
    section.add(*notes(arms))
    section.add(*commands(results.ledger, "overhead"))
    return section


def _add_arms(section: Section, how: str, arms: Sequence[ArmRuns]) -> None:
    """The speed and the memory of a workload's arms under a heading of their own."""
    section.add(f"### {how.capitalize()}")
    section.add(about(arms))
    section.add(*arms_table(arms, SPEED))
    section.add(*arms_table(arms, MEMORY))
    section.add(*notes(arms))


def _about_bound(arms: Sequence[ArmRuns]) -> list[str]:
    """The sentence on what eager AMP can gain at most, computed from the records."""
    by_arm = {arm.arm: arm for arm in arms}
    amp, fp32, tf32 = by_arm.get("amp_fp16"), by_arm.get("fp32"), by_arm.get("tf32")
    run = next((run for run in amp.runs if run.record.memory), None) if amp else None
    moved = None if run is None else moved_bytes(run.record)
    if amp is None or run is None or moved is None:
        return []
    flops = sum((run.record.proof.flops or {}).values())
    text = (
        f"A step is {number(flops / 1e9, 4)} GFLOP, and under `amp_fp16` casts ({number(moved.casts / 1e9)} GB), "
        f"unscale ({number(moved.unscale / 1e9)} GB) and SGD ({number(moved.optimizer / 1e9)} GB) move "
        f"{number(moved.total / 1e9)} GB."
    )
    if amp.bound is None or fp32 is None or fp32.bound is None:
        return [f"{text} The peaks of this device are not known: there is no bound to hold the figures against."]
    text += (
        f" At the device's peaks that takes {milliseconds(amp.bound.arithmetic_ms)} and "
        f"{milliseconds(amp.bound.moving_ms)}, so that eager AMP is bounded at "
        f"{ratio(fp32.bound.step_ms / amp.bound.step_ms)} fp32"
    )
    if tf32 is not None and tf32.bound is not None:
        against = tf32.bound.step_ms / amp.bound.step_ms
        text += f" and at {ratio(against)} TF32, {'below' if against < 1 else 'above'} it"
    shares = [f"{arm.arm} {percent(arm.share_pct)}" for arm in arms if arm.share_pct is not None]
    text += f". Share of the bound that was reached: {', '.join(shares) or 'not measured'}."
    rest = (
        "What is beyond the bound: passes over activations (ReLU, loss, casts), kernels below their peak (clocks under "
        "the power cap are in the table of power), and gaps between kernels."
    )
    return [f"{text} {rest}"]


def _bound_ms(arm: ArmRuns) -> float | None:
    return None if arm.bound is None else arm.bound.step_ms


def _tokens(label: str, arm: ArmRuns) -> Bar | None:
    value = arm.median("perf/tokens_per_sec")
    return None if value is None else Bar(label, value, thousands(value), MODE_COLOURS[arm.arm])

"""What the campaign measures, most valuable first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from campaign.block import Block, Kind
from campaign.workloads import Scale, Settings

EXPERIMENTS: Final[Mapping[str, str]] = {
    "gpu_tests": "the suite's own tests that need a GPU",
    "recipe": "the PyTorch AMP recipe, beside the same loop by hand",
    "gpt_small": "GPT-2 124M, eager and compiled",
    "nanogpt": "GPT-2 124M beside nanoGPT, also with a padded vocabulary",
    "resnet50": "ResNet-50 at 224 pixels, channels last and not",
    "memory_by_batch": "peak memory against batch size, predicted and measured",
    "overhead": "steps of kernel launches alone, beside the same loop by hand",
    "max_batch": "the largest batch that trains, on the device and within 16 GiB",
}
"""Name -> what it measures. Power, energy and utilization are in every record."""

ALL_TESTS: Final = "all"
"""What stands for an arm where there are none."""

_SUITE_S: Final = 4.0
"""Of a sweep before its first run: checks, and a fork server that imports torch."""
_WORKER_S: Final = 5.0
_GPT: Final = {"fp32": 26.0, "tf32": 14.0, "amp_fp16": 12.0, "amp_bf16": 12.0, "pure_bf16": 11.0}
_GPT_COMPILED: Final = {arm: seconds + 40.0 for arm, seconds in _GPT.items()}
_RESNET: Final = {"fp32": 16.0, "tf32": 11.0, "amp_fp16": 11.0, "amp_bf16": 11.0, "pure_bf16": 11.0}
_RECIPE: Final = {"fp32": 14.0, "tf32": 8.0, "amp_fp16": 9.0, "amp_bf16": 8.0, "pure_bf16": 7.0}
_OVERHEAD: Final = {"fp32": 3.0, "amp_fp16": 3.0}
_AGAINST_BATCH: Final = {"fp32": 8.0, "amp_bf16": 8.0, "amp_fp16": 8.0}
"""Each batch size."""
_SEARCH: Final = {"fp32": 60.0, "amp_bf16": 60.0, "amp_fp16": 60.0, "pure_bf16": 50.0, "tf32": 50.0}


@dataclass(frozen=True)
class Plan:
    """The blocks of a campaign on one kind of device.

    Args:
        scale: its sizes.
        device: `cuda` or `cpu`, where TF32 is left out of what is done by hand and no test needs a GPU.
        has_nanogpt: nanoGPT's code was brought.
    """

    scale: Scale
    device: str
    has_nanogpt: bool = False

    def blocks(self) -> list[Block]:
        """All of them in the order in which they are best run: everything once, then further seeds."""
        first, *others = range(self.scale.num_seeds)
        blocks = [self._tests()]
        for seed in range(self.scale.num_seeds):
            blocks += self._beside_hand("recipe", seed, self.scale.recipe.suite(), self.scale.recipe.by_hand(), _RECIPE)
        blocks += [*self._gpt(first), *self._resnet(first), *self._against_batch()]
        small = self.scale.launches
        for seed in range(self.scale.num_seeds):
            blocks += self._beside_hand("overhead", seed, small.suite(), small.by_hand(), _OVERHEAD)
        blocks += self._searches()
        for seed in others:
            blocks += [*self._gpt(seed), *self._resnet(seed)]
        return blocks

    def _tests(self) -> Block:
        return self._block("gpu_tests", "gpu_tests", "tests", {}, {ALL_TESTS: 150.0}, start_s=5.0)

    def _beside_hand(
        self, experiment: str, seed: int, suite: Settings, by_hand: Settings, seconds: Mapping[str, float]
    ) -> Iterator[Block]:
        """Each arm twice in a row, by the suite and by hand; which goes first alternates with the seed."""
        for arm in (arm for arm in seconds if arm in self.scale.modes):
            name = f"{experiment}/s{seed}/{arm}"
            cost = {arm: seconds[arm]}
            pair = [self._block(experiment, name, "suite", suite | {"seed": seed}, cost, start_s=_SUITE_S)]
            if not (arm == "tf32" and self.device == "cpu"):
                options = by_hand | {"seed": seed}
                pair += [self._block(experiment, f"{name}/by_hand", "by_hand", options, cost, start_s=_WORKER_S)]
            yield from pair if seed % 2 == 0 else reversed(pair)

    def _gpt(self, seed: int) -> Iterator[Block]:
        gpt = self.scale.gpt
        for compiled in (False, True) if self.scale.compiled else (False,):
            how = "compiled" if compiled else "eager"
            settings = gpt.suite() | {"trainer.compile": compiled, "seed": seed}
            costs = _GPT_COMPILED if compiled else _GPT
            yield self._block("gpt_small", f"gpt_small/s{seed}/{how}", "suite", settings, costs, start_s=_SUITE_S)
        padded = self.scale.padded_vocab_size
        settings = gpt.suite() | {"trainer.compile": self.scale.compiled, "model.vocab_size": padded, "seed": seed}
        cost = {"amp_bf16": _GPT_COMPILED["amp_bf16"]}
        yield self._block("nanogpt", f"nanogpt/s{seed}/suite/v{padded}", "suite", settings, cost, start_s=_SUITE_S)
        for vocab_size in (gpt.vocab_size, padded) if self.has_nanogpt else ():
            options = gpt.nanogpt(vocab_size) | {"seed": seed, "compile": self.scale.compiled}
            yield self._block("nanogpt", f"nanogpt/s{seed}/v{vocab_size}", "nanogpt", options, cost, start_s=_WORKER_S)

    def _resnet(self, seed: int) -> Iterator[Block]:
        for channels_last in (False, True):
            settings = self.scale.resnet | {"trainer.channels_last": channels_last, "seed": seed}
            name = f"resnet50/s{seed}/{'channels_last' if channels_last else 'contiguous'}"
            yield self._block("resnet50", name, "suite", settings, _RESNET, start_s=_SUITE_S)

    def _against_batch(self) -> Iterator[Block]:
        for name, (settings, sizes) in self.scale.batches.items():
            costs = {arm: seconds * len(sizes) for arm, seconds in _AGAINST_BATCH.items()}
            swept = settings | {"seed": 0, "data.batch_size": ",".join(map(str, sizes))}
            yield self._block("memory_by_batch", f"memory_by_batch/{name}", "suite", swept, costs, start_s=_SUITE_S)

    def _searches(self) -> Iterator[Block]:
        for limit in self.scale.memory_limits_gib:
            settings = self.scale.search | {"seed": 0, "trainer.memory_limit_gib": limit}
            name = "max_batch/device" if limit is None else f"max_batch/{limit:g}_gib"
            yield self._block("max_batch", name, "suite", settings, _SEARCH, start_s=_SUITE_S)

    def _block(
        self, experiment: str, name: str, kind: Kind, settings: Settings, arms: Mapping[str, float], *, start_s: float
    ) -> Block:
        factor, modes = self.scale.time_factor, (*self.scale.modes, ALL_TESTS)
        costs = {arm: factor * seconds for arm, seconds in arms.items() if arm in modes}
        return Block(experiment=experiment, name=name, kind=kind, settings=settings, arms=costs, start_s=start_s)


def chosen(blocks: Sequence[Block], only: Sequence[str]) -> list[Block]:
    """The blocks of these experiments, of all where none is named."""
    return [block for block in blocks if not only or block.experiment in only]

"""The campaign's command: what is done is kept, whatever happens to it, and nothing is done twice."""

import gzip
import json
import shutil
import socket

from campaign.block import Block
from campaign.experiments import EXPERIMENTS, Plan
from campaign.ledger import read_by_hand
from campaign.workloads import SCALES
from tiny_campaign import beginnings, is_alive

BLOCKS = ["recipe/s0/fp32", "recipe/s0/fp32/by_hand", "recipe/s0/amp_bf16", "recipe/s0/amp_bf16/by_hand"]


def lines(path):
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def test_a_killed_campaign_has_packed_what_was_finished(killed):
    (line,) = lines(killed.packed / "records.jsonl.gz")
    assert line["record"]["status"] == "completed"
    assert killed.entries["recipe/s0/fp32"]["status"] == "done"


def test_one_that_is_asked_to_end_leaves_nothing_at_work(killed, interrupted):
    assert not is_alive(killed.worker)
    assert interrupted.worker is None
    assert [entry["status"] for entry in interrupted.entries.values()] == ["done", "done", "cut off"]
    assert interrupted.entries["recipe/s0/amp_bf16"]["reason"] == "the campaign was interrupted meanwhile"


def test_it_goes_on_where_it_was_and_does_nothing_twice(killed, finished):
    assert finished.code == 0, finished.err
    entries = finished.ledger.entries
    assert list(entries) == BLOCKS
    assert {entry.status for entry in entries.values()} == {"done"}
    after = beginnings(finished.directory)
    assert len(after) == 2
    assert killed.started_at.items() <= after.items()
    by_hand = (finished.directory / "by_hand.jsonl").read_text().splitlines()
    assert len(by_hand) == len(read_by_hand(finished.packed)) == 2
    assert len(finished.ledger.calls) == 3


def test_a_finished_campaign_runs_nothing_more(finished, call):
    before = beginnings(finished.directory)
    again = call(finished.directory, "--only", "recipe")
    assert again.code == 0
    assert "4 of 4 blocks are done" in again.out
    assert again.err == ""
    assert beginnings(finished.directory) == before


def test_packed_files_are_few_and_small_and_name_no_machine(finished):
    files = [*finished.packed.iterdir()]
    assert {path.name for path in files} == {
        *("campaign.json", "by_hand.jsonl", "records.jsonl.gz", "comparisons.json.gz")
    }
    assert sum(path.stat().st_size for path in files) < 100_000
    whole = "".join(
        gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text() for path in files
    )
    assert str(finished.directory) not in whole
    assert f'"{socket.gethostname()}"' not in whole
    comparisons = json.loads(gzip.decompress((finished.packed / "comparisons.json.gz").read_bytes()))
    assert comparisons["recipe"][0]["workloads"]


def test_another_machine_goes_on_from_the_packed_files(finished, call, tmp_path):
    packed = tmp_path / "packed"
    shutil.copytree(finished.packed, packed)
    there = call(tmp_path / "out", "--only", "recipe", "--packed", str(packed))
    assert there.code == 0
    assert "2 runs restored" in there.err
    assert "4 of 4 blocks are done" in there.out
    assert there.ledger.entries == finished.ledger.entries
    assert lines(packed / "records.jsonl.gz") == lines(finished.packed / "records.jsonl.gz")


def test_what_the_budget_does_not_hold_is_left_with_the_reason(call, tmp_path):
    poor = call(tmp_path / "out", "--only", "resnet50", "gpu_tests", "--budget", "12")
    assert poor.code == 1
    entries = poor.ledger.entries
    assert {entry.status for entry in entries.values()} == {"not begun"}
    assert "of the budget were left" in entries["resnet50/s0/contiguous"].reason
    assert entries["gpu_tests"].reason == "it needs a CUDA device"
    assert "left: gpu_tests: it needs a CUDA device" in poor.out
    assert poor.ledger.calls[0].used_s < 12


def test_of_a_block_the_first_arms_that_fit_are_measured():
    block = Block(experiment="e", name="b", kind="suite", settings={}, arms={"a": 5.0, "b": 9.0, "c": 1.0}, start_s=2.0)
    arms = [*block.arms]
    assert block.affordable(arms, 17.0) == ["a", "b", "c"]
    assert block.affordable(arms, 16.0) == ["a", "b"]
    assert block.affordable(arms, 15.9) == ["a"]
    assert block.affordable(["b", "c"], 12.0) == ["b", "c"]
    assert block.affordable(arms, 6.9) == []


def test_a_campaign_of_another_scale_is_not_mixed_in(finished, call):
    other = call(finished.directory, "--scale", "full")
    assert other.code == 2
    assert "holds a campaign of scale tiny" in other.err


NANOGPT = """
import torch
from dataclasses import dataclass

@dataclass
class GPTConfig:
    block_size: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_embd: int
    dropout: float
    bias: bool

class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        if config.vocab_size == 128:
            raise RuntimeError("it does not run here")
        self.embedding = torch.nn.Embedding(config.vocab_size, config.n_embd)
        self.head = torch.nn.Linear(config.n_embd, config.vocab_size, bias=config.bias)

    def forward(self, tokens, targets):
        logits = self.head(self.embedding(tokens))
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        return torch.optim.AdamW(self.parameters(), learning_rate, betas, weight_decay=weight_decay)
"""


def test_a_block_that_fails_ends_nothing_and_says_why(call, tmp_path):
    code = tmp_path / "nanoGPT"
    code.mkdir()
    (code / "model.py").write_text(NANOGPT)
    ended = call(tmp_path / "out", "--only", "nanogpt", "--nanogpt", str(code))
    assert ended.code == 1
    entries = ended.ledger.entries
    assert entries["nanogpt/s0/v128"].status == "failed"
    assert "it does not run here" in entries["nanogpt/s0/v128"].reason
    assert entries["nanogpt/s0/v100"].status == entries["nanogpt/s0/suite/v128"].status == "done"
    measured = ended.results.hand("nanogpt", "amp_bf16", **{"vocab-size": 100})
    assert measured.n == 1
    assert measured.tokens_per_sec == 1e3 * 2 * 16 / measured.step_ms


def test_at_full_scale_everything_is_planned_once_and_the_suite_and_hand_alternate():
    blocks = Plan(SCALES["full"], "cuda", has_nanogpt=True).blocks()
    names = [block.name for block in blocks]
    assert len(set(names)) == len(names)
    assert list(dict.fromkeys(block.experiment for block in blocks)) == [*EXPERIMENTS]
    recipe = [block for block in blocks if block.experiment == "recipe"]
    assert len(recipe) == 3 * 5 * 2
    for one, other in zip(recipe[::2], recipe[1::2], strict=True):
        assert {one.kind, other.kind} == {"suite", "by_hand"}
        assert list(one.arms) == list(other.arms)
    first_looks = sum(block.seconds([*block.arms]) for block in blocks if "/s1/" not in block.name)
    assert first_looks < 3600

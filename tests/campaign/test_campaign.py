"""The campaign's command: what is done is kept, whatever happens to it, and nothing is done twice."""

import shutil
import socket
import tarfile

import pytest
import run
from campaign.state import RECORDS_NAME
from tiny_campaign import beginnings, is_alive

ROOT = run.ROOT
COMMANDS = [command.text for command in run.planned(tiny=True, overrides=["device=cpu"], only=["recipe"])]


@pytest.mark.slow
def test_one_that_is_asked_to_end_keeps_its_runs(interrupted, began_before):
    assert interrupted.code == 1
    assert interrupted.worker is None
    (entry,) = interrupted.state.entries.values()
    assert (entry.status, entry.reason) == ("cut off", "the campaign was interrupted meanwhile")
    completed = {name for name, record in interrupted.records.items() if record["status"] == "completed"}
    assert completed == set(began_before)


@pytest.mark.slow
def test_a_killed_one_has_packed_what_was_done(killed, finished):
    assert [entry.status for entry in killed.state.entries.values()] == ["done"]
    assert len(killed.records) == 5
    assert not is_alive(killed.worker), "ended by the next call"


@pytest.mark.slow
def test_it_goes_on_and_does_nothing_twice(began_before, finished):
    assert finished.code == 0, finished.err
    state = finished.state
    assert list(state.entries) == COMMANDS
    assert [(entry.status, entry.num_tries) for entry in state.entries.values()] == [("done", 2), ("done", 2)]
    assert began_before.items() <= beginnings(finished.directory).items()
    assert [row["arm"] for row in state.by_hand] == ["fp32", "amp_fp16", "amp_bf16", "pure_bf16"]


@pytest.mark.slow
def test_a_finished_campaign_runs_nothing_more(finished, call):
    before = beginnings(finished.directory)
    again = call(finished.directory, "--only", "recipe")
    assert again.code == 0
    assert "2 of 2 commands are done" in again.out
    assert again.err == ""
    assert beginnings(finished.directory) == before


@pytest.mark.slow
def test_packed_files_are_small_and_name_no_machine(finished):
    files = [*finished.packed.iterdir()]
    assert {path.name for path in files} == {"campaign.json", "records.tar.xz"}
    assert sum(path.stat().st_size for path in files) < 100_000
    with tarfile.open(finished.packed / RECORDS_NAME) as archive:
        names = archive.getnames()
        packed = [archive.extractfile(entry).read().decode() for entry in archive]
    assert {name.rpartition("/")[2] for name in names} == {"run.json", "history.jsonl"}
    whole = "".join([*packed, (finished.packed / "campaign.json").read_text()])
    assert str(finished.directory) not in whole
    assert f'"{socket.gethostname()}"' not in whole


@pytest.mark.slow
def test_another_machine_goes_on_from_the_packed_files(finished, call, tmp_path):
    packed = tmp_path / "carried"
    shutil.copytree(finished.packed, packed)
    there = call(tmp_path / "out", "--only", "recipe", "--packed", str(packed))
    assert there.code == 0
    assert "5 runs restored" in there.err
    assert "2 of 2 commands are done" in there.out
    assert beginnings(tmp_path / "out") == beginnings(finished.directory)


def test_what_the_budget_does_not_hold_is_left_and_said(call, tmp_path):
    poor = call(tmp_path / "out", "--only", "resnet50", "--budget", "12")
    assert poor.code == 1
    assert poor.statuses == ["not begun"]
    assert "device=cpu: the budget was spent before" in poor.out
    assert [entry.seconds for entry in poor.state.entries.values()] == [0.0]


@pytest.mark.slow
def test_another_campaign_is_not_mixed_in(finished, call):
    other = call(finished.directory, "trainer.steps=7")
    assert other.code == 2
    assert "holds a campaign with --tiny device=cpu; choose another --out" in other.err


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
        if config.vocab_size == 50304:
            raise RuntimeError("it does not run here")
        self.embedding = torch.nn.Embedding(config.vocab_size, config.n_embd)
        self.head = torch.nn.Linear(config.n_embd, config.vocab_size, bias=config.bias)

    def forward(self, tokens, targets):
        logits = self.head(self.embedding(tokens))
        return logits, torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        return torch.optim.AdamW(self.parameters(), learning_rate, betas, weight_decay=weight_decay)
"""


@pytest.mark.slow
def test_a_command_that_fails_ends_nothing_and_says_why(call, tmp_path):
    code = tmp_path / "nanoGPT"
    code.mkdir()
    (code / "model.py").write_text(NANOGPT)
    ended = call(tmp_path / "out", "--only", "nanogpt", "--nanogpt", str(code))
    assert ended.code == 1
    suite, by_hand = ended.state.entries.values()
    assert suite.status == "done"
    assert (by_hand.status, by_hand.reason) == ("failed", "exit code 1: amp_bf16, seed 0: it does not run here")
    (measured,) = ended.state.by_hand
    assert (measured["vocab_size"], measured["compile"]) == (50257, False)
    assert measured["tokens_per_sec"] == 1e3 * 2 * 16 / measured["step_ms"]


def test_everything_is_planned_once_by_files_that_exist():
    commands = run.planned(tiny=False, overrides=[])
    assert len({command.text for command in commands}) == len(commands)
    files = {command.file for command in commands if command.file is not None}
    assert files == {*(ROOT / "sweeps/results").glob("*.yaml")} - {ROOT / "sweeps/results/plan.yaml"}
    assert {file.stem for file in files} == set(run.PLAN["tiny"])


@pytest.mark.parametrize("name", ["recipe", "small_steps"])
def test_the_suite_and_the_loop_by_hand_take_turns(name):
    commands = run.planned(tiny=False, overrides=[], only=[name])
    seeds = [[command for command in commands if f"seed={seed}" in command.words] for seed in range(3)]
    assert [*seeds[0], *seeds[1], *seeds[2]] == commands
    assert [[command.is_sweep for command in pair] for pair in seeds] == [[True, False], [False, True], [True, False]]

"""`ampsweep predict predict.speed=true`: what fits where, how fast it is, what bounds it, and what it costs."""

import json

import pytest
import steps

from ampsweep.commands.main import main

GPT = (*steps.GPT, "precision=fp32,amp_bf16,amp_fp16,pure_fp16")


@pytest.fixture
def predicted(capsys):
    def run(*overrides):
        assert main(["predict", "-m", *overrides, "format=json"]) == 0
        (workload,) = json.loads(capsys.readouterr().out)["workloads"]
        return workload

    return run


def by_mode(workload):
    return {(row["gpu"], row["arm"]): row for row in workload["modes"]}


def test_figures_follow_from_the_step_and_lie_within_their_ranges(predicted):
    asked = ("predict.gpus=[T4,A100-80]", "predict.prices={A100-80: 1.8}", "trainer.steps=50")
    found = predicted(*GPT, *asked, "trainer.grad_accum_steps=2", "parallel=ddp", "parallel.num_processes=3")
    assert found["num_steps"] == 50
    assert "batch_size 4, seq_len 32, grad_accum_steps 2, ddp on 3 ranks" in found["workload"]
    for row in found["modes"]:
        for key in ("step_ms", "tokens_per_sec"):
            assert row[f"{key}_low"] < row[key] < row[f"{key}_high"]
        assert row["tokens_per_sec"] == pytest.approx(1e3 * 4 * 2 * 3 * 32 / row["step_ms"])
        assert row["largest_batch"] > 4, "of each process"
    modes = by_mode(found)
    fp32, amp = modes["A100-80", "fp32"], modes["A100-80", "amp_bf16"]
    assert amp["speedup_over_fp32"] == pytest.approx(fp32["step_ms"] / amp["step_ms"])
    assert (fp32["speedup_over_fp32"], amp["speedup_over_tf32"]) == (None, None), "of itself; not predicted"
    a_step = 3 * 1.8 * amp["step_ms"] / 3.6e6
    assert amp["cost_of_training"] == pytest.approx(50 * a_step)
    assert amp["cost_per_million_tokens"] == pytest.approx(1e6 * a_step / (24 * 32))
    assert modes["T4", "fp32"]["cost_of_training"] is None, "without a price"


def test_a_mode_that_a_gpu_lacks_has_the_reason_and_no_figures(predicted):
    found = predicted(*GPT[:-1], "precision=fp32,tf32,amp_bf16,amp_fp16,fp8_tensorwise", "predict.gpus=[T4,A100-80]")
    t4, a100 = (gpu["unsupported"] for gpu in found["gpus"])
    assert [*t4] == ["tf32", "amp_bf16", "fp8_tensorwise"]
    assert t4["amp_bf16"] == "T4 has no bfloat16 arithmetic; use amp_fp16"
    assert a100["fp8_tensorwise"].startswith("A100-80 has no float8 kernels")
    modes = ("fp32", "tf32", "amp_bf16", "amp_fp16")
    assert {*by_mode(found)} == {("T4", "fp32"), ("T4", "amp_fp16"), *(("A100-80", mode) for mode in modes)}


def test_gpus_with_the_same_kernels_share_a_trace_and_others_do_not(predicted):
    """Flash attention is the kernel of an A100 and an H100; a T4 has none for half precision."""
    timed = {"reading_ms", "bound"}  # the machine's own time differs between traces
    names, modes = ("T4", "A100-80", "H100"), "precision=fp32,amp_fp16"
    together = by_mode(predicted(*steps.GPT, modes, f"predict.gpus=[{','.join(names)}]"))
    alone = {}
    for name in names:
        alone |= by_mode(predicted(*steps.GPT, modes, f"predict.gpus=[{name}]"))
    assert together.keys() == alone.keys()
    for key, row in together.items():
        assert {name: row[name] for name in row.keys() - timed} == {
            name: alone[key][name] for name in row.keys() - timed
        }


def test_a_batch_without_room_says_so_and_which_batch_has(predicted, capsys):
    large = (*steps.GPT, "data.batch_size=100000", "data.num_batches=1")
    found = predicted(*large, "precision=fp32,amp_fp16", "predict.gpus=[T4,H200]")
    modes = by_mode(found)
    assert [modes["T4", arm]["fits"] for arm in ("fp32", "amp_fp16")] == [False, False]
    assert modes["H200", "amp_fp16"]["fits"]
    assert [gpu["best"] is None for gpu in found["gpus"]] == [True, False]
    size = modes["T4", "amp_fp16"]["largest_batch"]
    assert main(["predict", "-m", *large, "precision=fp32,amp_fp16", "predict.gpus=[T4]"]) == 0
    assert f"no mode fits; amp_fp16 does up to batch {size}" in capsys.readouterr().out
    assert found["fastest"]["gpu"] == "H200"
    limit = ("predict.target=cuda", "predict.capability=7.5", "predict.memory_gib=14.4")  # 15 less the context
    ((mode,),) = (predicted(*large, *limit, "precision=amp_fp16")["modes"],)
    assert mode["largest_batch"] == size, "as traces around it find"


def test_the_best_mode_is_the_fastest_with_float32_weights_that_fits(predicted):
    wide = (*steps.REGRESSION, "model.hidden_size=8192", "data.batch_size=2048", "data.num_batches=1")
    found = predicted(*wide, "precision=fp32,tf32,amp_bf16,pure_bf16", "predict.gpus=[A100-80]")
    times = {row["arm"]: row["step_ms"] for row in found["modes"]}
    assert times["pure_bf16"] < times["amp_bf16"] < times["tf32"] < times["fp32"]
    assert found["gpus"][0]["best"] == "amp_bf16"


def test_a_step_that_waits_for_its_data_is_bound_by_it(predicted):
    data = ("data._target_=ampsweep.data.map_dataset.MapDataset", "data.batch_size=8")
    sets = [f"+data.{part}={{_target_: predicted_models.SlowImages}}" for part in ("train", "val")]
    slow = ("model=custom", "model._target_=predicted_models.Mlp", "data=custom", *data, *sets)
    found = predicted(*slow, "task=classification", "precision=fp32", "predict.gpus=[H100]")
    (row,) = found["modes"]
    assert row["bound"] == "data"
    assert 24 < row["reading_ms"] < 100
    assert any("longer than a step on H100: raise data.num_workers" in s for s in found["sentences"])


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["predict.gpus=[T4,K99]"], "predict.gpus: no data of a GPU 'K99'; known are "),
        (["predict.gpus=[A100-81]"], "predict.gpus: "),
        (["predict.gpus=T4"], "predict.gpus: must be a list"),
        (["predict.prices={T4: -1}"], "predict.prices={'T4': -1}: must be the price of an hour of each GPU, such as {"),
        (["predict.prices=2"], "predict.prices=2: must be the price of an hour of each GPU, such as {T4: 0.35"),
        (["predict.gpus=[T4]", "predict.prices={L4: 1}"], "L4 has a price, but predict.gpus does not have it"),
        (["predict.speed=true", "predict.capability=9.0"], "predict.capability=9.0 with predict.speed=true: speed is"),
        (["predict.speed=true", "predict.target=cpu"], "predict.target=cpu with predict.speed=true: speed is that of"),
        (["predict.gpus=[T4]", "precision=amp_bf16"], "error: T4 has no bfloat16 arithmetic; use amp_fp16"),
    ],
)
def test_wrong_gpus_and_prices_are_refused_in_one_sentence(overrides, sentence, capsys):
    assert main(["predict", *steps.MLP, *overrides]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


def test_the_screen_the_page_and_the_tables_say_the_same(capsys):
    asked = ("-m", *steps.MLP, "precision=fp32,amp_fp16", "predict.prices={A100-80: 1.8, T4: 0.35}")
    texts = {}
    for form in ("json", "console", "csv", "markdown", "html"):
        assert main(["predict", *asked, f"format={form}"]) == 0
        texts[form] = capsys.readouterr().out
    (workload,) = json.loads(texts["json"])["workloads"]
    headline = workload["sentences"][0]
    assert headline.startswith("Fastest: ")
    assert all(headline in " ".join(texts[form].split()) for form in ("console", "markdown", "html"))
    assert "\n# gpu_modes\ngpu,arm,step_ms,step_ms_low,step_ms_high," in texts["csv"]
    assert "How fast is which GPU, in which mode?" in texts["html"]

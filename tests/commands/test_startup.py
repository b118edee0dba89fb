"""A start imports only what is needed, a training looks for garbage only among its own objects, a wheel is complete."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NOTING = """
import gc, json, sys
from pathlib import Path
from torch import nn

imported_frozen = gc.get_freeze_count()

class Net(nn.Linear):
    def __init__(self):
        super().__init__(8, 8)

    def forward(self, inputs):
        if self.training and inputs.device.type != "meta":
            slow = [name for name in ("wandb", "scipy", "sklearn", "plotly", "pandas") if name in sys.modules]
            facts = {"slow": slow, "collects": gc.isenabled(), "frozen": gc.get_freeze_count()}
            Path("noted.json").write_text(json.dumps(facts | {"imported_frozen": imported_frozen}))
        return super().forward(inputs)
"""
RUN = (
    *("model=custom", "model._target_=noting.Net", "data=synthetic", "data.in_features=8", "data.out_features=8"),
    *("data.batch_size=4", "trainer.steps=4", "tracking.mode=offline"),
)


@pytest.mark.parametrize(
    "arguments", [(), pytest.param(("-m", "seed=0"), marks=pytest.mark.nightly)], ids=["alone", "of a sweep"]
)
def test_a_training_has_imported_neither_wandb_nor_statistics(arguments, start, tmp_path):
    (tmp_path / "noting.py").write_text(NOTING, encoding="utf-8")
    ended = start(*arguments, *RUN, PYTHONPATH=str(tmp_path)).finish()
    assert ended.code == 0, ended.err
    facts = json.loads((tmp_path / "noted.json").read_text())
    assert (facts["slow"], facts["collects"]) == ([], True)
    assert facts["frozen"] > 100_000, "objects of imported modules"
    assert not arguments or facts["imported_frozen"] > 100_000, "a run of a sweep begins with everything imported"


@pytest.mark.parametrize("module", ["ampsweep.commands.train", "ampsweep.commands.main"])
def test_commands_start_without_torch_and_wandb(module):
    code = f"import sys, {module}; print([name for name in ('torch', 'wandb', 'sklearn') if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "[]"


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.yaml")}


@pytest.mark.nightly
def test_a_wheel_has_the_whole_conf_and_composes_with_it(tmp_path_factory, repository, tmp_path):
    pytest.importorskip("setuptools", minversion="77")
    source, installed = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "src/ampsweep", "conf"):
        path = repository / name
        (source / name).parent.mkdir(exist_ok=True)
        shutil.copytree(path, source / name) if path.is_dir() else shutil.copy(path, source / name)
    command = [sys.executable, "setup.py", "-q", "build", "--build-base", str(installed)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    shutil.rmtree(source)
    installed = installed / "lib"
    assert files(installed / "ampsweep/conf") == files(repository / "conf")
    assert [path.name for path in installed.iterdir()] == ["ampsweep"], "no other name is taken in site-packages"

    code = "from ampsweep.config.compose import *; print(conf_dir(), compose_one(['precision=amp_bf16']).seed)"
    command, there = [sys.executable, "-P", "-c", code], os.environ | {"PYTHONPATH": str(installed)}
    run = subprocess.run(command, cwd=tmp_path, env=there, capture_output=True, text=True, timeout=60)
    assert (run.stdout, run.stderr) == (f"{installed / 'ampsweep/conf'} 0\n", "")

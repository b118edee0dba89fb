"""The package installed without its repository: a wheel holds all that a training needs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ampsweep.commands.main import main

BUILT_FROM = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "src/ampsweep", "conf")


@pytest.fixture(scope="module")
def installed(tmp_path_factory, repository):
    """The package as a wheel unpacks it: built in a copy of the repository, which is gone afterwards."""
    pytest.importorskip("setuptools", minversion="77")
    source, installed = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("installed")
    for part in BUILT_FROM:
        path = repository / part
        (source / part).parent.mkdir(exist_ok=True)
        shutil.copytree(path, source / part) if path.is_dir() else shutil.copy(path, source / part)
    command = [sys.executable, "setup.py", "-q", "build", "--build-base", str(installed)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    shutil.rmtree(source)
    return installed / "lib"


def files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.yaml")}


@pytest.mark.slow
def test_a_wheel_has_the_whole_conf_and_composes_with_it(installed, repository, tmp_path):
    assert files(installed / "ampsweep/conf") == files(repository / "conf")
    assert [path.name for path in installed.iterdir()] == ["ampsweep"], "no other name is taken in site-packages"

    code = "from ampsweep.config.compose import *; print(conf_dir(), compose_one(['precision=amp_bf16']).seed)"
    run = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (run.stdout, run.stderr) == (f"{installed / 'ampsweep/conf'} 0\n", "")


def test_ampsweep_train_is_train_py(capsys):
    assert main(["train", "precision=amp_fp8"]) == 2
    assert capsys.readouterr().err.startswith("error: precision=amp_fp8")

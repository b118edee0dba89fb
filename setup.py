"""What pyproject.toml cannot say: a wheel has the repository's `conf/` too, as `ampsweep/conf`."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithConf(build_py):
    """Builds the package; an editable install has no copy of `conf/`, as the package finds the repository's."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            shutil.copytree("conf", Path(self.build_lib, "ampsweep", "conf"), dirs_exist_ok=True)


setup(cmdclass={"build_py": BuildWithConf})

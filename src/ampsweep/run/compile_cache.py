"""The cache on disk of what torch.compile makes, one for all runs below an `output_dir`."""

import os
import platform
from pathlib import Path
from typing import Final

from ampsweep.config.schema import Config
from ampsweep.monitors.processors import cpu_name
from ampsweep.text import folder_name

VARIABLE: Final = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable that names the cache's directory; torch reads it whenever it compiles."""
_NAME: Final = ".compile_cache"


def share_compile_cache(config: Config) -> None:
    """Let a run that is compiled find what earlier runs have compiled, each in a process of its own.

    Without the user's own `TORCHINDUCTOR_CACHE_DIR` the cache is `<output_dir>/.compile_cache/<processor>`: torch's
    default lies below the temporary directory, which may be another for each job. Processors have caches of their own,
    as the code is made for the one that it was compiled on, and torch's key to it does not name that one.
    """
    if not config.trainer.compile:
        return
    given = os.environ.get(VARIABLE)
    # Private, as the default has no public name; torch puts it into the variable when it is first asked for it.
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    is_own = given is not None and Path(given).parent.name == _NAME  # of an earlier run of this process
    if given is None or is_own or Path(given) == Path(default_cache_dir()):
        processor = folder_name(f"{platform.machine()}-{cpu_name()}")
        os.environ[VARIABLE] = str(Path(config.output_dir).expanduser().resolve() / _NAME / processor)

"""Imported by the fork server of a sweep, so that its runs, forked from it, begin with everything imported.

What stands here touches no device. Nothing of it is ever garbage, and to look would copy its memory into every run
(https://docs.python.org/3/library/gc.html#gc.freeze).
"""

import importlib

from ampsweep.launch.garbage_collection import collector_at_rest, resume_collector

with collector_at_rest():
    for _name in (
        "torch._dynamo",  # the first optimizer's import
        "ampsweep.sweep.checks",
        "ampsweep.run.lifecycle",
        "ampsweep.commands.train",  # what `train.py` imports: multiprocessing imports the main module in every child
    ):
        importlib.import_module(_name)
resume_collector()

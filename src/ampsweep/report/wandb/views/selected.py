"""What the pages about a selection of runs are called, and how they filter runs."""

import re

from ampsweep.tracking.wandb.comparison import JOB_TYPE
from ampsweep.tracking.wandb.selection import Selection


def title(selection: Selection) -> str:
    """A name for people; W&B takes neither emojis nor signs such as a plus."""
    runs = ", ".join(selection.groups) or selection.sweep or selection.project
    return re.sub(r"[^\w .,:/()-]", "_", f"Precision of {runs}")[:120]


def run_filter(selection: Selection) -> str:
    """The runs, those that hold a comparison left out, in wandb-workspaces' own language of filters."""
    wanted = [f'Metric("JobType") != {_literal(JOB_TYPE)}']
    if selection.sweep is not None:
        wanted.append(f'Metric("Sweep") == {_literal(selection.sweep)}')
    if selection.groups:
        wanted.append(f'Metric("Group") in [{", ".join(map(_literal, selection.groups))}]')
    return " and ".join(wanted)


def _literal(text: str) -> str:
    """A string with every sign escaped: wandb-workspaces 0.4 replaces `=`, `<` and `>` even within strings."""
    return '"' + "".join(sign if sign.isascii() and sign.isalnum() else f"\\U{ord(sign):08x}" for sign in text) + '"'

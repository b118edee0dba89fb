"""Train once, or sweep: `python train.py experiment=fp32_vs_amp`. Settings are in conf/, the code in src/ampsweep."""

import sys

from ampsweep.commands.entry import run_command

if __name__ == "__main__":
    sys.exit(run_command("ampsweep.commands.train:main"))

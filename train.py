"""Train once, or sweep: `python train.py experiment=fp32_vs_amp`. Settings are in conf/, the code in src/ampsweep."""

import sys

from ampsweep.commands.train import main

if __name__ == "__main__":
    sys.exit(main())

"""Measure everything that the published results need, within a time budget: see README.md.

    python sweeps/results/run.py --budget SECONDS --out DIR [--only NAME ...] [--nanogpt CHECKOUT]

Can be called again with the same DIR as often as it takes: what is done is not done again. After each block what was
found lies in DIR/packed, a few small files, from which page.py makes the page. Exit code 0: everything was measured;
1: something is left, and it is said what; 2: wrong input.
"""

import argparse
import signal
import subprocess
import sys
import time
from pathlib import Path

from campaign.commands import Place, environment
from campaign.conductor import Conductor
from campaign.experiments import EXPERIMENTS, Plan, chosen
from campaign.ledger import Ledger
from campaign.packing import restore
from campaign.within import end_leftover
from campaign.workloads import SCALES


def main() -> int:
    began_s = time.monotonic()
    arguments = _parser().parse_args()
    out = arguments.out.expanduser().resolve()
    packed = out / "packed" if arguments.packed is None else arguments.packed.expanduser().resolve()
    if arguments.nanogpt is not None and not (arguments.nanogpt / "model.py").is_file():
        return _refuse(f"--nanogpt {arguments.nanogpt}: there is no model.py in it")
    out.mkdir(parents=True, exist_ok=True)
    end_leftover(out)
    try:
        restored = restore(packed, out)
        ledger = Ledger.read(out)
    except (OSError, ValueError) as error:
        return _refuse(f"{packed} or {out} cannot be continued: {error}")
    device = _device() if arguments.device == "auto" else arguments.device
    if ledger is None:
        ledger = Ledger(scale=arguments.scale, device=device)
    if (ledger.scale, ledger.device) != (arguments.scale, device):
        return _refuse(
            f"{out} holds a campaign of scale {ledger.scale} on {ledger.device}, not of scale {arguments.scale} on "
            f"{device}; choose another --out"
        )
    if restored:
        print(f"{restored} runs restored from {packed}", file=sys.stderr)
    nanogpt = None if arguments.nanogpt is None else arguments.nanogpt.expanduser().resolve()
    plan = Plan(SCALES[arguments.scale], device, has_nanogpt=nanogpt is not None)
    blocks = chosen(plan.blocks(), arguments.only)
    place = Place(out, device, nanogpt)
    conductor = Conductor(place, ledger, began_s=began_s, budget_s=arguments.budget, packed=packed)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        conductor.run(blocks)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    left = conductor.remaining(blocks)
    print(f"{len(blocks) - len(left)} of {len(blocks)} blocks are done; packed: {packed}")
    for line in left:
        print(f"left: {line}")
    if left:
        print("Another call of the same command goes on.")
    return 1 if left else 0


def _device() -> str:
    """`cuda` where torch finds a GPU; asked in a process of its own, since this one must hold nothing on it."""
    code = "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')"
    asked = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    return asked.stdout.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", type=float, required=True, metavar="SECONDS", help="for this call, all in all")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="of the campaign; may exist")
    told = "; ".join(f"{name}: {what}" for name, what in EXPERIMENTS.items())
    parser.add_argument("--only", nargs="+", choices=EXPERIMENTS, default=[], metavar="NAME", help=told)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--scale", choices=SCALES, default="full", help="tiny: shows on any machine that it works")
    parser.add_argument("--nanogpt", type=Path, metavar="CHECKOUT", help="nanoGPT's code, to be measured beside")
    parser.add_argument(
        "--packed", type=Path, metavar="DIR", help="of the packed files, also to continue from on another machine"
    )
    return parser


def _refuse(sentence: str) -> int:
    print(f"error: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

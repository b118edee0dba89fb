"""Traces of all rows of `measurements.csv`, made once for many fits: in `sweeps/results`

    python -m published.traces FILE

writes a pickle of {"works": {key: [OperatorWork, ...] in the order of the program}, "keys": [the key of each row]}. A
key is (recipe, batch, dtype): rows of several GPUs share a trace, and so do fp32 and tf32.
"""

import argparse
import csv
import pickle
import sys
from multiprocessing import Pool
from pathlib import Path
from typing import Final

import torch

from ampsweep.observe.operator_work import OperatorWork
from published.training_step import trace

TABLE: Final = Path(__file__).with_name("measurements.csv")
_DTYPES: Final = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

Key = tuple[str, int, torch.dtype]


def rows() -> list[dict[str, str]]:
    with TABLE.open(newline="") as file:
        return [*csv.DictReader(file)]


def key_of(row: dict[str, str]) -> Key:
    return row["recipe"], int(row["batch"]), _DTYPES[row["precision"].rpartition("_")[2]]


def main(target: Path) -> None:
    keys = [key_of(row) for row in rows()]
    distinct = [*dict.fromkeys(keys)]
    works: dict[Key, list[OperatorWork]] = {}
    with Pool() as pool:
        for key, found in zip(distinct, pool.imap(_trace, distinct), strict=True):
            works[key] = found
            print(f"{len(works)} of {len(distinct)}: {key}", file=sys.stderr)
    with target.open("wb") as file:
        pickle.dump({"works": works, "keys": keys}, file)


def _trace(key: Key) -> list[OperatorWork]:
    return trace(*key)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m published.traces", description="Trace the measured workloads.")
    parser.add_argument("file", type=Path, help="the pickle that is written")
    main(parser.parse_args().file)

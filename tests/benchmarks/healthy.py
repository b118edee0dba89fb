"""The doctor on seven trainings in which there is nothing to find: `python tests/benchmarks/healthy.py`.

They have sizes at which half precision pays on a CPU with bfloat16. Each is examined for everything in amp_bf16, by the
command that a user types, in a process of its own; other modes are not examined for speed. That planted faults are
found is tested in `tests/doctor`. JSON goes to stdout, progress to stderr.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from ampsweep.config.schema import COMPLAINTS

ZOO: Final = str(Path(__file__).resolve().parent / "own_workloads")


def _custom(target: str, **sizes: object) -> tuple[str, ...]:
    return "model=custom", f"model._target_={target}", *(f"+model.{name}={size}" for name, size in sizes.items())


_IMAGES = ("data=synthetic_images", "data.image_size=64", "data.num_classes=16", "data.batch_size=16")
_TOKENS = ("data=synthetic_tokens", "data.vocab_size=1024", "data.seq_len=128", "data.batch_size=16")
_FEATURES = ("data=synthetic", "data.in_features=1024", "data.out_features=16", "data.batch_size=512")
_VIT = {"channels": 3, "image_size": 64, "patch": 8, "width": 256, "num_layers": 4, "num_classes": 16, "dropout": 0}
_BERT = {"vocab_size": 1024, "hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024}
_UNCLIPPED = ("optimizer.lr=2e-4", "trainer.max_grad_norm=null")

HEALTHY: dict[str, tuple[str, ...]] = {
    "gpt": ("model=gpt_tiny", "model.num_layers=4", "model.hidden_size=256", "model.num_heads=4", *_TOKENS),
    "mlp": ("model=mlp_small", "model.hidden_size=1024", *_FEATURES),
    "resnet": ("model=resnet18", *_IMAGES),
    "bert": (
        *_custom("transformers.BertForMaskedLM", **{f"config.{name}": size for name, size in _BERT.items()}),
        *("+model.config._target_=transformers.BertConfig", "+model.config.num_attention_heads=4"),
        *("+model.config.hidden_dropout_prob=0", "+model.config.attention_probs_dropout_prob=0"),
        *("task=model_loss", "task.input_argument=input_ids", "task.target_argument=labels", *_TOKENS),
    ),
    "vit": (*_custom("zoo.vision.VisionTransformer", **_VIT), *_IMAGES),
    "lstm": (*_custom("zoo.language.Recurrent", vocab_size=1024, width=512, dropout=0), *_TOKENS),
    "gan": ("model=gan_digits", "model.hidden_size=128", "data.batch_size=256", "optimizer=adam", *_UNCLIPPED),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", nargs="+", choices=list(HEALTHY), default=list(HEALTHY))
    parser.add_argument("--complaints", nargs="+", choices=COMPLAINTS, default=COMPLAINTS)
    parser.add_argument("--modes", nargs="+", default=["amp_bf16"])
    arguments = parser.parse_args()
    examined = [_examined(name, mode, arguments.complaints) for name in arguments.names for mode in arguments.modes]
    alarms = sum(bool(one["findings"]) for one in examined)
    print(json.dumps({"num_healthy": len(examined), "num_false_alarms": alarms, "healthy": examined}, indent=1))


def _examined(name: str, mode: str, complaints: list[str]) -> dict[str, Any]:
    """The diagnosis that the command prints, or the `error` that it ends with."""
    asked = [one for one in complaints if one != "speed" or mode == "amp_bf16"]
    command = [sys.executable, "-m", "ampsweep.commands.main", "doctor", *HEALTHY[name], f"precision={mode}"]
    command += [f"doctor.complaints=[{','.join(asked)}]", "tracking=disabled", "format=json"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([ZOO, os.environ.get("PYTHONPATH", "")])}
    began_s = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    seconds = round(time.monotonic() - began_s, 1)
    found = json.loads(done.stdout) if done.returncode == 0 else {"findings": [], "error": done.stderr[-500:]}
    alarms = [one["kind"] for one in found["findings"]]
    print(f"{name} in {mode}: {', '.join(alarms) or found.get('error') or 'nothing'}", file=sys.stderr)
    return {"workload": name, "mode": mode, "seconds": seconds, **found}


if __name__ == "__main__":
    main()

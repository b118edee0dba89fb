"""The calls of a model's linear layers, with the rows of their inputs."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from torch import Tensor, nn

from ampsweep.record.parts import LinearShape


@contextmanager
def noting_linear_calls(model: nn.Module) -> Iterator[dict[str, LinearShape]]:
    """Note the calls inside of every `nn.Linear` of a model, by name; rows of several calls are added up.

    Inputs have their features last: (*, in_features).
    """
    shapes: dict[str, LinearShape] = {}

    def note(name: str, layer: nn.Linear, inputs: tuple[Tensor, ...]) -> None:
        before = shapes.get(name, LinearShape(0, layer.in_features, layer.out_features, calls=0))
        rows = before.rows + inputs[0].numel() // layer.in_features
        shapes[name] = LinearShape(rows, layer.in_features, layer.out_features, before.calls + 1)

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                hooks.callback(module.register_forward_pre_hook(partial(note, name)).remove)
        yield shapes

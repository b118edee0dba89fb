"""The cause of a loss or gradient that is not finite: the operator or the parameter at which it began."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor, nn

from ampsweep.record.numerics import NonfiniteSite
from ampsweep.tracing.calls import UNWRITTEN, Call, observe
from ampsweep.tracing.ledger import tensors_in


@dataclass(frozen=True, kw_only=True)
class NonfiniteCause:
    """The place at which a training step went wrong; without any field it is not known."""

    site: NonfiniteSite | None = None
    """The operator of the forward pass."""
    has_bad_batch: bool = False
    """The batch itself holds inf or NaN."""
    bad_tensor: str | None = None
    """Name of a parameter or buffer that was not finite before the step."""
    gradient: str | None = None
    """Name of the first parameter in backward order whose gradient is not finite."""
    most_often_first: tuple[str, int, int] | None = None
    """The same of the most of several skipped steps: in how many it was the first, and of how many."""

    def clause(self) -> str | None:
        """The cause in words; None where it is not known."""
        if self.has_bad_batch:
            return "its batch holds values that are not finite"
        if self.bad_tensor is not None:
            return f"{self.bad_tensor} was not finite before"
        if self.site is not None:
            return site_clause(self.site)
        if self.gradient is not None:
            return f"of the gradients that are not finite backward reached that of {self.gradient} first"
        if self.most_often_first is not None:
            name, num, num_skipped = self.most_often_first
            first = f"of the gradients that were not finite backward reached that of {name} first"
            return f"{first} in {num} of {num_skipped} skipped steps"
        return None


def site_clause(site: NonfiniteSite) -> str:
    """Tell the first operator whose result is not finite."""
    where = "in the loss" if site.module is None else f"in {site.module}" if site.module else "in the model"
    place = "" if site.place is None else f" ({site.place})"
    most = "" if site.input_max_abs is None else f", from inputs of up to {site.input_max_abs:g}"
    into = "" if site.output_dtype is None else f" in {site.output_dtype}"
    return f"{site.operator.removeprefix('aten.')} {where}{place} was the first to return inf or nan{into}{most}"


def find_site(model: nn.Module, forward: Callable[[], Sequence[Tensor]], step: int) -> NonfiniteSite | None:
    """Take a forward pass again, and find the operator from which a loss that is not finite comes.

    That operator had finite inputs, and its result was not finite. An infinity that an operator was told to put there,
    as into a mask of attention, counts only where it has become NaN. None if all losses are finite, or if nothing is
    known of the values that they come from.

    Args:
        forward: computes the losses.
    """
    search = _Search(step)
    with observe(model, search.on_call, around=search.around):
        losses = forward()
    for loss in losses:
        if not loss.isfinite().all():
            return search.origin_of(loss)
    return None


def find_gradient(model: nn.Module, backward: Callable[[], None]) -> str | None:
    """Take a backward pass again, and find the first parameter whose gradient is not finite."""
    found: list[str] = []

    def on_gradient(name: str, parameter: Tensor) -> None:
        if not found and parameter.grad is not None and not _is_finite(parameter.grad):
            found.append(name)

    handles = [
        parameter.register_post_accumulate_grad_hook(partial(on_gradient, name))  # type: ignore[no-untyped-call]
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    ]
    try:
        backward()
    finally:
        for handle in handles:
            handle.remove()
    return found[0] if found else None


def find_bad_tensor(model: nn.Module) -> str | None:
    """Find a parameter, or a buffer that is no mask, that is not finite."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.isnan().any() or (isinstance(tensor, nn.Parameter) and tensor.isinf().any()):
            return name
    return None


def is_bad_batch(batch: Any) -> bool:
    """Tell whether a batch holds NaN; infinities may be meant, as in a mask."""
    return any(tensor.isnan().any() for tensor in tensors_in(batch))


class _Search:
    """Follows values that are not finite from operator to operator, by the memory that holds them."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._origins: dict[int, NonfiniteSite | None] = {}
        self._largest_before: float | None = None
        self._is_finite_before: bool | None = None
        self._has_nan_before = False

    def around(self, operator: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call an operator; of one that changes its inputs these are looked at before."""
        self._is_finite_before = None
        if operator._schema.is_mutable:
            inputs = [*_floats((args, kwargs))]
            self._is_finite_before = all(map(_is_finite, inputs))
            self._has_nan_before = any(map(_has_nan, inputs))
            self._largest_before = _largest(inputs)
        return operator(*args, **kwargs)

    def on_call(self, call: Call, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> None:
        """Note where values of a result that are not finite come from."""
        outputs = [one for one in _floats(result) if not _is_finite(one)]
        inputs = [*_floats((args, kwargs))]
        if not outputs:
            for tensor in _floats(result):
                if _address(tensor) not in map(_address, inputs):  # else it may be a view of what is not finite
                    self._origins.pop(_address(tensor), None)
            return
        if call.operator in UNWRITTEN:
            return
        origin = self._origin(call, args, inputs, outputs)
        self._origins |= {_address(tensor): origin for tensor in outputs}

    def _origin(
        self, call: Call, args: Sequence[Any], inputs: Sequence[Tensor], outputs: Sequence[Tensor]
    ) -> NonfiniteSite | None:
        """The operator from which a result has its inf or NaN; None if that was meant."""
        is_finite, had_nan = self._is_finite_before, self._has_nan_before
        if is_finite is None:
            is_finite, had_nan = all(map(_is_finite, inputs)), any(map(_has_nan, inputs))
        if is_finite:
            return None if _is_meant(args) else self._site(call, inputs, outputs)
        origins = [self._origins.get(_address(one)) for one in _sources(call, inputs) if not _is_finite(one)]
        if (known := next((one for one in origins if one is not None), None)) is not None:
            return known
        is_new = not had_nan and any(map(_has_nan, outputs))
        return self._site(call, inputs, outputs) if is_new else None

    def _site(self, call: Call, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> NonfiniteSite:
        largest = _largest(inputs) if self._is_finite_before is None else self._largest_before
        return NonfiniteSite(
            step=self._step,
            module=call.module,
            operator=call.operator,
            place=call.place,
            input_dtypes=[str(dtype).removeprefix("torch.") for dtype in call.inputs],
            input_max_abs=largest,
            output_dtype=str(outputs[0].dtype).removeprefix("torch."),
        )

    def origin_of(self, loss: Tensor) -> NonfiniteSite | None:
        """The operator that a loss has its inf or NaN from; None if they were there from the beginning."""
        return self._origins.get(_address(loss))


def _sources(call: Call, inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """The inputs whose values an operator uses: of a copy not what it overwrites."""
    return inputs[1:] if call.operator == "aten.copy_" else inputs


def _floats(values: Any) -> Iterator[Tensor]:
    return (one for one in tensors_in(values) if one.is_floating_point() and one.itemsize > 1 and one.numel())


def _is_finite(tensor: Tensor) -> bool:
    return bool(tensor.isfinite().all())


def _has_nan(tensor: Tensor) -> bool:
    return bool(tensor.isnan().any())


def _largest(tensors: Sequence[Tensor]) -> float | None:
    """The largest finite magnitude."""
    found = [float(one.detach().double().nan_to_num(0.0, 0.0, 0.0).abs().max()) for one in tensors]
    return max(found) if found else None


def _is_meant(args: Sequence[Any]) -> bool:
    """Tell whether an operator was handed an infinity as a number."""
    return any(isinstance(one, float) and one - one != 0 for one in args)


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()

"""Operators in doubt: they may take more or less memory than predicted, for a known reason."""

from functools import cache
from typing import Any, Final

from ampsweep.observe.operators import OpOverload
from ampsweep.precision.support import INSTALLED_TORCH
from ampsweep.predict.target_device import TargetDevice
from ampsweep.records.sections import Doubt, UnvouchedOperator


class Vouching:
    """Collects the called operators that are in doubt on a target."""

    def __init__(self, target: TargetDevice) -> None:
        self._on_cuda = target.kind == "cuda"
        self._called: dict[tuple[str, Doubt], dict[str, None]] = {}

    def note(self, operator: Any, module: str | None) -> None:
        doubt = doubt_about(operator, on_cuda=self._on_cuda)
        if doubt is not None:
            modules = self._called.setdefault((str(getattr(operator, "overloadpacket", operator)), doubt), {})
            if module is not None:
                modules[module] = None

    def restart(self) -> None:
        self._called.clear()

    def called(self) -> tuple[UnvouchedOperator, ...]:
        called = sorted(self._called.items())
        return tuple(UnvouchedOperator(name=name, doubt=doubt, modules=[*m]) for (name, doubt), m in called)


@cache
def doubt_about(operator: Any, *, on_cuda: bool) -> Doubt | None:
    """The doubt about an operator's memory, or None."""
    if not isinstance(operator, OpOverload):
        return "custom"  # a higher-order operator, such as flex_attention
    if operator.namespace in _EXCHANGING or operator.namespace in ("prim", "profiler"):
        return None
    if operator.namespace != "aten":
        return "custom"
    name = operator.overloadpacket.__name__
    if on_cuda:
        return "workspace" if name in _WITH_WORKSPACE else None
    return "differs" if name in _DIFFERENT and INSTALLED_TORCH < _DIFFERENT_BEFORE else None


_EXCHANGING: Final = frozenset(("c10d", "_c10d_functional", "_dtensor", "fsdp"))
"""Namespaces of operators that fill given tensors, or return as many bytes as they get."""

_NAMES_WITH_WORKSPACE: Final = """
_ctc_loss_backward _embedding_bag_backward _fft_c2c _fft_c2r _fft_r2c _linalg_det _linalg_eigh _linalg_slogdet
_linalg_solve_ex _linalg_svd cholesky cholesky_inverse cholesky_solve convolution convolution_backward geqrf histogram
kthvalue linalg_cholesky_ex linalg_eig linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve
linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_pinv linalg_qr linalg_solve_triangular masked_scatter median mode
multinomial nanmedian ormqr randperm sort topk triangular_solve
"""

_DIFFERENT_BEFORE: Final = (2, 13)
_DIFFERENT: Final = frozenset(("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"))
"""Operators whose fake results have other bytes than the CPU's before that version: gradients in half precision have
other dtypes."""
_WITH_WORKSPACE: Final = frozenset(_NAMES_WITH_WORKSPACE.split())
"""Operators whose CUDA kernels allocate workspaces for cuDNN, cuFFT, cuSOLVER, MAGMA or CUB."""

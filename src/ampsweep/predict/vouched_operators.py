"""Operators whose kernels allocate what their fake ones do, and those of which that is not known."""

from typing import Any, Final

import torch

from ampsweep.observe.operators import OpOverload, is_made_of_others
from ampsweep.precision.support import INSTALLED_TORCH
from ampsweep.predict.target_device import TargetDevice
from ampsweep.record.parts import Doubt, UnvouchedOperator


class Vouching:
    """Tells which operators are in doubt on a target, and collects those that were called."""

    def __init__(self, target: TargetDevice) -> None:
        self._on_cuda = target.kind == "cuda"
        self._doubts: dict[Any, Doubt | None] = {}
        self._called: dict[tuple[str, Doubt], dict[str, None]] = {}

    def note(self, operator: Any, module: str | None) -> None:
        """Note a call of an operator in this module, where there is doubt about it."""
        try:
            doubt = self._doubts[operator]
        except KeyError:
            doubt = self._doubts[operator] = doubt_about(operator, on_cuda=self._on_cuda)
        if doubt is not None:
            modules = self._called.setdefault((str(getattr(operator, "overloadpacket", operator)), doubt), {})
            if module is not None:
                modules[module] = None

    def restart(self) -> None:
        """Forget the calls so far."""
        self._called.clear()

    def called(self) -> tuple[UnvouchedOperator, ...]:
        """The operators in doubt that were called, each once."""
        return tuple(
            UnvouchedOperator(name=name, doubt=doubt, modules=[*modules])
            for (name, doubt), modules in sorted(self._called.items())
        )


def doubt_about(operator: Any, *, on_cuda: bool) -> Doubt | None:
    """The doubt about an operator's memory on a target; None if the prediction vouches for it."""
    if not isinstance(operator, OpOverload):
        return "custom"  # a higher-order operator, such as flex_attention
    if operator.namespace in _EXCHANGING or operator.namespace in ("prim", "profiler"):
        return None
    if operator.namespace != "aten":
        return "custom"
    name = operator.overloadpacket.__name__
    if on_cuda and name in _RESERVING:
        return "reserve"
    if on_cuda and name in _WITH_WORKSPACE:
        return "workspace"
    if name in _COMPARED or name.startswith("_foreach_"):
        return None
    if name in _COMPARED_ON_CPU and not on_cuda and INSTALLED_TORCH >= _COMPARED_ON_CPU_SINCE:
        return None
    return None if _allocates_what_is_told(operator) else "untested"


def _allocates_what_is_told(operator: OpOverload) -> bool:
    """Tell whether it is a view, in place, elementwise or a factory, or made of operators that are seen one by one."""
    schema = operator._schema
    if torch.Tag.pointwise in operator.tags or all(one.alias_info is not None for one in schema.returns):
        return True
    if not any("Tensor" in str(argument.type) for argument in schema.arguments):
        return True
    return is_made_of_others(operator)


_EXCHANGING: Final = frozenset(("c10d", "_c10d_functional", "_dtensor", "fsdp"))
"""Namespaces of operators that fill tensors given to them, or return as many bytes as they get."""

_NAMES_COMPARED: Final = """
_adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d _adaptive_avg_pool3d_backward
_batch_norm_with_update _cdist_backward _cdist_forward _chunk_cat _ctc_loss_backward _efficientzerotensor
_embedding_bag_backward _embedding_bag_per_sample_weights_backward _fft_c2c _fft_c2r _fft_r2c _histogramdd_bin_edges
_histogramdd_from_bin_cts _histogramdd_from_bin_tensors _linalg_det _linalg_eigh _linalg_slogdet _linalg_solve_ex
_linalg_svd _local_scalar_dense _log_softmax _log_softmax_backward_data _native_batch_norm_legit _pdist_backward
_pdist_forward _prelu_kernel _prelu_kernel_backward _safe_softmax _scaled_dot_product_efficient_attention
_scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention
_scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu
_scaled_dot_product_flash_attention_for_cpu_backward _segment_reduce_backward _softmax _softmax_backward_data _to_copy
_unsafe_masked_index _unsafe_masked_index_put_accumulate _unsafe_view _upsample_bilinear2d_aa
_upsample_bilinear2d_aa_backward _upsample_nearest_exact1d _upsample_nearest_exact1d_backward
_upsample_nearest_exact2d _upsample_nearest_exact2d_backward _weight_norm_interface _weight_norm_interface_backward
adaptive_max_pool2d adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward addbmm addmm addmv
addr alias_copy all amax amin aminmax any arange argmax argmin as_strided_copy as_strided_scatter avg_pool2d
avg_pool2d_backward avg_pool3d avg_pool3d_backward baddbmm batch_norm_backward bernoulli binary_cross_entropy
binary_cross_entropy_backward binary_cross_entropy_with_logits block_diag bmm bucketize cat channel_shuffle cholesky
cholesky_inverse cholesky_solve complex constant_pad_nd convolution convolution_backward count_nonzero cummax cummin
cumprod cumsum diag_embed diagonal_backward diagonal_copy diagonal_scatter dist dot elu_backward embedding
embedding_dense_backward empty_like empty_permuted empty_strided expand_copy eye fill flip floor_divide
fractional_max_pool2d fractional_max_pool2d_backward fractional_max_pool3d fractional_max_pool3d_backward full
full_like gather geqrf glu glu_backward grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d
grid_sampler_3d_backward hardshrink_backward hardsigmoid_backward hardswish hardswish_backward hardtanh_backward histc
histogram huber_loss huber_loss_backward im2col index index_add index_copy index_fill index_put index_reduce
index_select isin kthvalue leaky_relu_backward lift_fresh_copy linalg_cholesky_ex linalg_cross linalg_eig
linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve linalg_lu linalg_lu_factor_ex
linalg_lu_solve linalg_matrix_exp linalg_pinv linalg_qr linalg_solve_triangular linalg_vector_norm linspace
log_sigmoid_backward log_sigmoid_forward logcumsumexp logspace logsumexp lu_unpack masked_fill masked_scatter
masked_scatter_backward max max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
max_pool3d_with_indices_backward max_unpool2d max_unpool3d mean median min mm mode mse_loss mse_loss_backward
multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_backward multilabel_margin_loss_forward
multinomial mv nanmedian nansum narrow_copy native_batch_norm native_batch_norm_backward native_dropout
native_dropout_backward native_group_norm native_group_norm_backward native_layer_norm native_layer_norm_backward
new_empty new_empty_strided new_full new_ones new_zeros nll_loss2d_backward nll_loss2d_forward nll_loss_backward
nll_loss_forward nonzero_static norm norm_except_dim normal ones ones_like ormqr permute_copy pixel_shuffle
pixel_unshuffle polar prod put rand rand_like randint randint_like randn randn_like reflection_pad1d
reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward renorm
repeat repeat_interleave replication_pad1d replication_pad1d_backward replication_pad2d replication_pad2d_backward
replication_pad3d replication_pad3d_backward roll rot90 rrelu_with_noise rrelu_with_noise_backward rsub scalar_tensor
scatter scatter_add scatter_reduce searchsorted segment_reduce select_backward select_scatter slice_backward
slice_scatter smooth_l1_loss smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward softplus_backward
softshrink_backward sort split_with_sizes_copy squeeze_copy stack std std_mean sum t_copy take topk trace
transpose_copy triangular_solve tril tril_indices triu triu_indices unbind_copy unfold_backward unfold_copy
unsafe_split unsqueeze_copy upsample_bicubic2d upsample_bicubic2d_backward upsample_bilinear2d
upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward upsample_nearest1d
upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward upsample_nearest3d
upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward var var_mean vdot view_copy zeros
zeros_like
"""
_NAMES_WITH_WORKSPACE: Final = """
_ctc_loss_backward _embedding_bag_backward _fft_c2c _fft_c2r _fft_r2c _linalg_det _linalg_eigh _linalg_slogdet
_linalg_solve_ex _linalg_svd cholesky cholesky_inverse cholesky_solve convolution convolution_backward geqrf histogram
kthvalue linalg_cholesky_ex linalg_eig linalg_householder_product linalg_inv_ex linalg_ldl_factor_ex linalg_ldl_solve
linalg_lu linalg_lu_factor_ex linalg_lu_solve linalg_pinv linalg_qr linalg_solve_triangular masked_scatter median mode
multinomial nanmedian ormqr randperm sort topk triangular_solve
"""

_COMPARED: Final = frozenset(_NAMES_COMPARED.split())
"""Operators whose fake results were compared with the CPU's, byte for byte, on the samples that torch tests them with
(`tests/benchmarks/vouched_operators.py`)."""
_COMPARED_ON_CPU: Final = frozenset(("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"))
_COMPARED_ON_CPU_SINCE: Final = (2, 13)
"""The torch that they were compared in: 2.11's give the gradients of half precision other dtypes."""
_RESERVING: Final = frozenset(("_cudnn_rnn", "_cudnn_rnn_backward"))
_WITH_WORKSPACE: Final = frozenset(_NAMES_WITH_WORKSPACE.split())
"""Operators whose CUDA kernels take workspaces from cuDNN, cuFFT, cuSOLVER, MAGMA or CUB."""

"""The operators that CUDA's autocast casts, by version of torch: for predictions of a torch that is not installed here.

Taken from the dispatcher of each version (`tests/benchmarks/autocast_lists.py` compares them); torch's own lists are in
ATen/autocast_mode.h, and the table of https://docs.pytorch.org/docs/stable/amp.html has part of them.
"""

from collections.abc import Mapping
from typing import Final

from ampsweep.installed_torch import INSTALLED_TORCH
from ampsweep.predict.autocast_dispatch import Cast, dispatched_casts

VERSIONS: Final = ((2, 11), (2, 12), (2, 13), (2, 14), (2, 15))
"""The versions of torch whose lists are known."""

_LISTS: Final[dict[Cast, str]] = {
    "lower": """
_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
conv_transpose3d.input convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm
mv linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell
lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention
""",
    "float32": """
acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar pow.Tensor_Tensor
pow.Scalar softplus layer_norm native_layer_norm rms_norm group_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim
cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss
smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss
multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d
_upsample_nearest_exact1d upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d
upsample_linear1d upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
_upsample_bicubic2d_aa linalg_matrix_sqrth
""",
    "float32_result": """
prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm
linalg_matrix_norm.str_ord sum sum.dim_IntList
""",
    "float32_overload": "norm.Scalar norm.ScalarOpt_dim",
    "widest": "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add",
    "refused": "binary_cross_entropy",
}
_SINCE: Final = {"rms_norm": (2, 12), "linalg_matrix_sqrth": (2, 14)}
"""First version of operators that are not in the lists of all known ones."""


def cuda_casts(version: tuple[int, int]) -> Mapping[str, Cast]:
    """The casts of CUDA's autocast in this version of torch, by operator without `aten.`; others are not cast.

    The installed torch is asked itself; of an unknown version the lists of `lists_of(version)` are taken.
    """
    return dispatched_casts("cuda") if version == INSTALLED_TORCH else listed_casts(lists_of(version))


def listed_casts(version: tuple[int, int]) -> dict[str, Cast]:
    """The lists of one of `VERSIONS`."""
    return {
        name: cast
        for cast, names in _LISTS.items()
        for name in names.split()
        if name not in _SINCE or version >= _SINCE[name]
    }


def lists_of(version: tuple[int, int]) -> tuple[int, int]:
    """The version whose lists a prediction for `version` uses: its own, else those of the next one that is known."""
    if version == INSTALLED_TORCH:
        return version
    return min(max(version, VERSIONS[0]), VERSIONS[-1])

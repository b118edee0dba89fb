"""An error of a kernel that lacks the mode's dtype is told from every other error."""

import pytest

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.precision.support import refusal_by_kernel

PRIMITIVE = (
    "could not create a primitive descriptor for the LSTM forward propagation primitive. Run workload with "
    "environment variable ONEDNN_VERBOSE=all to get additional diagnostic information."
)
NO_KERNEL = "torch has no {} for it there; cast what that is given to float32"
REFUSED = [
    ("amp_fp16", PRIMITIVE, "could not create a primitive descriptor for the LSTM forward propagation primitive"),
    ("amp_fp16", "could not create a primitive", "could not create a primitive"),
    ("pure_fp16", "\"ctc_loss_cpu\" not implemented for 'Half'", NO_KERNEL.format("ctc_loss")),
    ("amp_fp16", "Unsupported dtype Half", "Unsupported dtype Half"),
    ("pure_bf16", "\"_geqrf_cuda\" not implemented for 'BFloat16'", NO_KERNEL.format("geqrf")),
]
FAILED = [
    ("fp32", PRIMITIVE),
    ("fp32", "\"ctc_loss_cpu\" not implemented for 'Half'"),
    ("amp_bf16", "\"ctc_loss_cpu\" not implemented for 'Half'"),
    ("amp_fp16", "expected m1 and m2 to have the same dtype, but got: c10::Half != float"),
    ("amp_fp16", "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
]


@pytest.mark.parametrize(("mode", "error", "told"), REFUSED)
def test_a_missing_kernel_is_told_in_one_sentence(mode, error, told):
    sentence = refusal_by_kernel(RuntimeError(error), PRECISION_MODES[mode], "cpu")
    assert sentence == f"cpu cannot compute this model in {'bfloat16' if 'bf16' in mode else 'float16'}: {told}"


@pytest.mark.parametrize(("mode", "error"), FAILED)
def test_any_other_error_is_a_failure(mode, error):
    assert refusal_by_kernel(RuntimeError(error), PRECISION_MODES[mode], "cpu") is None


def test_the_error_of_the_users_own_code_is_a_failure():
    assert refusal_by_kernel(ValueError(PRIMITIVE), PRECISION_MODES["amp_fp16"], "cpu") is None

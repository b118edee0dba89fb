"""An error of a kernel that lacks the mode's dtype is told from every other error."""

import pytest

from ampsweep.config.modes import PRECISION_MODES
from ampsweep.precision.support import refusal_by_kernel
from ampsweep.text import first_line

PRIMITIVE = (
    "could not create a primitive descriptor for the LSTM forward propagation primitive. Run workload with "
    "environment variable ONEDNN_VERBOSE=all to get additional diagnostic information."
)
REFUSED = [
    ("amp_fp16", PRIMITIVE),
    ("amp_fp16", "could not create a primitive"),
    ("pure_fp16", "\"ctc_loss_cpu\" not implemented for 'Half'"),
    ("amp_fp16", "Unsupported dtype Half"),
    ("pure_bf16", "\"_geqrf_cuda\" not implemented for 'BFloat16'"),
]
FAILED = [
    ("fp32", PRIMITIVE),
    ("fp32", "\"ctc_loss_cpu\" not implemented for 'Half'"),
    ("amp_bf16", "\"ctc_loss_cpu\" not implemented for 'Half'"),
    ("amp_fp16", "expected m1 and m2 to have the same dtype, but got: c10::Half != float"),
    ("amp_fp16", "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
]


@pytest.mark.parametrize(("mode", "error"), REFUSED)
def test_a_missing_kernel_is_told_in_one_sentence(mode, error):
    sentence = refusal_by_kernel(RuntimeError(error), PRECISION_MODES[mode], "cpu")
    dtype = "bfloat16" if "bf16" in mode else "float16"
    assert sentence == f"cpu cannot compute this model in {dtype}: {first_line(error)}"


@pytest.mark.parametrize(("mode", "error"), FAILED)
def test_any_other_error_is_a_failure(mode, error):
    assert refusal_by_kernel(RuntimeError(error), PRECISION_MODES[mode], "cpu") is None


def test_the_error_of_the_users_own_code_is_a_failure():
    assert refusal_by_kernel(ValueError(PRIMITIVE), PRECISION_MODES["amp_fp16"], "cpu") is None

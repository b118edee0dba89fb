"""The version of torch that is installed here, for what torch does otherwise in one than in another."""

from typing import Final

import torch

INSTALLED_TORCH: Final = (int(torch.__version__.split(".")[0]), int(torch.__version__.split(".")[1]))
"""Its major and minor version."""

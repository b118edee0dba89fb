import os
from unittest.mock import patch

import pytest


@pytest.fixture(autouse=True)
def restored_environment():
    """Frameworks leave variables behind, and a fork server takes only requests with its own."""
    with patch.dict(os.environ):
        yield

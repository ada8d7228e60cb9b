"""Every test starts from the same random state."""

import numpy as np
import pytest
import torch

pytest.register_assert_rewrite("contract", "weight_files")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    np.random.seed(0)

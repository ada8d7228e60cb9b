"""Every test starts from the same random state."""

import numpy as np
import pytest
import torch
from hypothesis import settings

# No deadlines, since machines are shared; the same examples in every run, so that a failure is not lost.
settings.register_profile("qkgeom", deadline=None, derandomize=True)
settings.load_profile("qkgeom")
pytest.register_assert_rewrite("contract", "weight_files")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    np.random.seed(0)


@pytest.fixture
def one_thread():
    """PyTorch computes in one thread, so that results are the same bytes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_terminal_summary(terminalreporter):
    """Prints what tests measured, `record_property("told", ...)`, also from other processes."""
    for report in terminalreporter.stats.get("passed", []):
        for text in (value for name, value in report.user_properties if name == "told" and report.when == "call"):
            terminalreporter.write_line(text)

"""What all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest
import torch

from edgeloss import _ops, backends

# Workers share the cores: one thread each, and no deadline that a busy machine would miss.
torch.set_num_threads(1)
# A fixture that chooses the backend may hold for all examples of a property.
SHARED = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.function_scoped_fixture]}
hypothesis.settings.register_profile("default", max_examples=40, **SHARED)
hypothesis.settings.register_profile("ci", max_examples=200, derandomize=True, **SHARED)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") == "true" else "default")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave slow tests to CI."""
    if os.environ.get("CI") != "true":
        for item in items:
            if "slow" in item.keywords:
                item.add_marker(pytest.mark.skip(reason="slow: runs with CI=true"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=["reference", "fused"])
def each_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Lets ``backend="auto"`` mean the one, then the other."""
    if request.param == "reference":
        monkeypatch.setattr(_ops, "why_not_fused", lambda *arguments: "the test's choice")
    elif (state := backends()["cpu"]) != "available":
        pytest.skip(f"fused kernels {state}")
    return request.param


@pytest.fixture(scope="session")
def camvid() -> Path:
    """Real street scenes beside the repository, which it does not need."""
    root = Path(__file__).parents[2] / "shared" / "camvid"
    if not root.is_dir():
        pytest.skip(f"no CamVid at {root}")
    return root

"""The fuzzer: cases follow from their numbers, right results pass, and wrong ones are found."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import fuzz
import numpy as np
import pytest
import torch

from edgeloss import backends

pytestmark = pytest.mark.skipif(backends()["cpu"] != "available", reason=f"fused kernels {backends()['cpu']}")


def failures(number: int) -> list[str]:
    return fuzz.check(fuzz.make_case(number), "cpu", defaultdict(fuzz.Errors), verbose=False)


def test_cases_pass() -> None:
    assert [failures(number) for number in range(12)] == [[]] * 12


@pytest.mark.parametrize("name", ["loss", "gradient", "cross_entropy", "edge_mask"])
def test_a_wrong_result_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = fuzz.run

    def wrong(*arguments: Any) -> dict[str, Any]:
        found = right(*arguments)
        if name == "edge_mask":
            return found | {name: 1 - found[name]}
        return found | {name: found[name] + 1e-2 * np.abs(found[name]).max(initial=0)}

    monkeypatch.setattr(fuzz, "run", wrong)
    found = [failure for number in range(8) for failure in failures(number)]
    assert any(("maps" if name in ("cross_entropy", "edge_mask") else name) in failure for failure in found)


def test_a_number_replays_its_case() -> None:
    a, b = fuzz.make_case(7), fuzz.make_case(7)
    assert a.describe() == b.describe()
    assert torch.equal(a.x.nan_to_num(), b.x.nan_to_num())
    assert fuzz.make_case(8).describe() != a.describe()

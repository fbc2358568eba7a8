"""Trees of nested structures, and statistics of tensors of any kind."""

from __future__ import annotations

import io
import math
import re
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from edgeloss.debug import format_tree, tree

Pair = namedtuple("Pair", ["first", "second"])


@dataclass
class Batch:
    """A dataclass with tensors."""

    image: Tensor
    name: str


def line(obj: object) -> str:
    """Return the line of the root, without alignment."""
    return " ".join(format_tree(obj, name="x").splitlines()[0].split())


@pytest.mark.parametrize(
    ("obj", "expected"),
    [
        (
            torch.tensor([1.0, math.nan, math.inf, -math.inf, 0.0]),
            "x float32 [5] cpu min 0 mean 0.5 max 1 nan 1 · +inf 1 · -inf 1 · first bad [1] · zeros 1 · values 0, 1",
        ),
        (torch.full((3,), math.nan), "x float32 [3] cpu nan 3 · first bad [0]"),
        (torch.tensor(2.5), "x float32 [] cpu 2.5"),
        (torch.tensor(-math.inf), "x float32 [] cpu -inf"),
        (torch.empty(0, 3), "x float32 [0, 3] cpu"),
        # Sums that overflow the dtype.
        (torch.full((7000,), 65504.0).half(), "x float16 [7000] cpu min 65504 mean 65504 max 65504 values 65504"),
        (
            torch.full((4,), 1e308, dtype=torch.float64),
            "x float64 [4] cpu min 1e+308 mean 1e+308 max 1e+308 values 1e+308",
        ),
        (torch.full((3,), 255, dtype=torch.uint8), "x uint8 [3] cpu min 255 mean 255 max 255 values 255"),
        (torch.tensor([True, False, True]), "x bool [3] cpu min 0 mean 0.66667 max 1 zeros 1 · values 0, 1"),
        (torch.arange(11), "x int64 [11] cpu min 0 mean 5 max 10 zeros 1"),
        (torch.arange(10), "x int64 [10] cpu min 0 mean 4.5 max 9 zeros 1 · values 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"),
        (torch.tensor([3 + 4j, 0j]), "x complex64 [2] cpu min 0 mean 2.5 max 5 zeros 1 · values 0, 5 · of |z|"),
        (torch.tensor([complex(math.nan, 1)]), "x complex64 [1] cpu nan of |z|"),
        (torch.eye(3).to_sparse(), "x float32 [3, 3] cpu min 1 mean 1 max 1 values 1 · sparse_coo of 3 values"),
        (torch.empty(2, 2, device="meta"), "x float32 [2, 2] meta no values"),
        (torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn), "x float8_e4m3fn [2] cpu min 1 mean 1.5 max 2 values 1, 2"),
        (np.arange(6.0).reshape(2, 3)[::-1], "x float64 [2, 3] numpy min 0 mean 2.5 max 5 zeros 1"),
        (np.array(["a", "b"]), "x <U1 [2] numpy"),
        (0.5, "x 0.5"),
        (None, "x None"),
        ("text", "x 'text'"),
        ([1, 2, 3], "x [1, 2, 3]"),
        ({1}, "x {1}"),
    ],
)
def test_tree_of_one(obj: object, expected: str) -> None:
    assert line(obj) == expected


def test_tree_of_many() -> None:
    linear = nn.Linear(2, 1)
    nn.init.ones_(linear.weight)  # of few digits, so that no line goes on in a next one
    linear.weight.grad = torch.ones(1, 2)
    obj = OrderedDict(
        pair=Pair(torch.ones(2), 1), batch=Batch(torch.zeros(1), "cat"), model=nn.Sequential(linear), items=[{"a": 1}]
    )
    out = io.StringIO()
    tree(obj, file=out)
    names = [match[0] for match in re.finditer(r"^[ │├└─]*\S+", out.getvalue(), re.MULTILINE)]
    assert names == [
        "OrderedDict",
        "├── pair",
        "│   ├── first",
        "│   └── second",
        "├── batch",
        "│   ├── image",
        "│   └── name",
        "├── model",
        "│   └── 0",
        "│       ├── weight",
        "│       │   └── grad",
        "│       └── bias",
        "└── items",
        "    └── [0]",
        "        └── a",
    ]
    columns = {text.index("float32") for text in out.getvalue().splitlines() if "float32" in text}
    assert len(columns) == 1


def test_tree_ends() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = [loop, torch.ones(1)]
    assert "dict of 1: same object as above" in format_tree(loop)
    deep: list[Any] = []
    for _ in range(200):
        deep = [deep, torch.ones(1)]
    assert len(format_tree(deep).splitlines()) < 60
    assert "960 more" in format_tree({i: i for i in range(1000)})
    assert len(format_tree(["x" * 10**6, torch.ones(1)])) < 300
    shared = torch.ones(2)
    assert "above" not in format_tree([shared, [shared]])


def test_tree_of_an_object_without_repr() -> None:
    class Rude:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "Rude" in format_tree([Rude(), torch.ones(1)])


def test_control_characters_are_escaped() -> None:
    text = format_tree({"\x1b[2Jclear": 1, "a\nb\r": "\x07bell"}, name="\x1b]0;title")
    assert text.isprintable() or all(line.isprintable() for line in text.splitlines())
    assert "\\x1b[2Jclear" in text
    assert len(text.splitlines()) == 3


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors(layout: torch.layout) -> None:
    parts = [torch.ones(2, 3), torch.zeros(4, 3)]
    text = format_tree({"x": torch.nested.nested_tensor(parts, layout=layout)})
    assert "nested: [2, 3], [4, 3]" in text
    assert "zeros 12" in text

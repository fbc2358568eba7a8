"""The first call of a signature → the launches of its kernels, which later calls repeat with their own addresses.

To find the arguments and the compiled kernels of a call takes Python longer than a GPU takes for a small image. Of
calls with the same shapes, types and options only addresses differ: those of the arguments, of the results, and of one
workspace, which all other tensors of a call are parts of. Nothing else happens between launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, TypeAlias

import torch
import triton
from torch import Tensor

from edgeloss._kernels.triton.tiles import INTERPRETED, cdiv
from edgeloss._kernels.triton.workspace import rounded

ALIGNED = 16  # bytes, which Triton asks whether tensors are aligned to
Tensors: TypeAlias = Sequence[Any]  # tensors, or None
Take: TypeAlias = Callable[[list[Any]], Any]  # what takes some of the values of a call


class Plan:
    """What a call launches; it runs the kernels itself while it is recorded."""

    def __init__(self, given: Tensors) -> None:
        """Begin without launches; ``given`` are the tensors of the call."""
        self._first_result = len(given) + 1  # after the workspace, in the numbers of tensors
        self._results: list[tuple[Callable[..., Tensor], Sequence[int], Sequence[int]]] = []  # makers, sizes, strides
        self._zeroed: list[int] = []  # the results that start as zeros
        self._bytes = 0  # of the workspace
        self._values: list[Any] = []  # arguments of kernels; those that depend on the call are written over
        self._addresses: list[tuple[int, int, int]] = []  # place among the values, number of a tensor, distance from it
        self._tuples: list[tuple[int, Take]] = []  # place among the values, and its own elements
        self._launches: list[tuple[Any, int, Take]] = []  # kernel, programs, and its arguments
        # While it is recorded: tensors by id, with their numbers and distances, and values by id, with their places.
        self._homes = {id(values): (values, number, 0) for number, values in enumerate(given) if values is not None}
        self._places: dict[int, tuple[Any, int]] = {}
        self._tables: list[Tensor] = []  # tensors that stay where they are
        self._returned = 0  # results

    def result(self, values: Tensor, *, is_zero: bool = False) -> Tensor:
        """Return a new tensor, of which each call has its own, filled with zeros if asked to."""
        if is_zero:
            self._zeroed.append(len(self._results))
            values.zero_()
        self._homes[id(values)] = values, self._first_result + len(self._results), 0
        maker = values.new_empty(0).new_empty_strided  # of this type and device, sooner than torch.empty_strided
        self._results.append((maker, values.shape, values.stride()))
        return values

    def empty(self, values: Tensor) -> Tensor:
        """Return a new tensor, which is a part of the workspace of other calls."""
        self._homes[id(values)] = values, self._first_result - 1, self._bytes
        self._bytes += rounded(values.numel() * values.element_size())
        return values

    def view(self, values: Tensor, view: Tensor) -> Tensor:
        """Return a view of one of the tensors of a call."""
        _, number, distance = self._homes[id(values)]
        distance += int(view.storage_offset() * view.itemsize - values.storage_offset() * values.itemsize)
        self._homes[id(view)] = view, number, distance
        return view

    def launch(
        self,
        kernel: Any,  # noqa: ANN401
        images: int,
        count: int,
        block: int,
        *args: Any,  # noqa: ANN401
        warps: int = 4,
        fuses: bool = True,
    ) -> None:
        """Run a kernel over ``count`` places of each image, a program for ``block`` of them."""
        programs = images * cdiv(count, block)
        compiled = kernel[programs, 1, 1](*args, TILE=block, num_warps=warps, enable_fp_fusion=fuses)
        if not INTERPRETED:
            self._launches.append((compiled, programs, itemgetter(*map(self._place, (*args, block)))))

    def _place(self, value: Any) -> int:  # noqa: ANN401
        """Return the place of an argument among the values."""
        if id(value) in self._places:
            return self._places[id(value)][1]
        places = [*map(self._place, value)] if isinstance(value, tuple) else []
        place = len(self._values)
        self._places[id(value)] = value, place
        home = self._homes.get(id(value))
        if places:
            self._tuples.append((place, itemgetter(*places)))
        elif home is not None:
            self._addresses.append((place, *home[1:]))
        elif isinstance(value, Tensor):
            memory = value.untyped_storage().data_ptr()
            assert all(memory != other.untyped_storage().data_ptr() for other, _, _ in self._homes.values())
            self._tables.append(value)
        fixed = value.data_ptr() if isinstance(value, Tensor) else value
        self._values.append(None if places or home is not None else fixed)
        return place

    def finish(self, returned: int) -> None:
        """Forget the tensors of the call, which returned so many results, the first ones."""
        self._returned = returned
        self._homes.clear()
        self._places.clear()

    def repeat(self, given: Tensors) -> list[Tensor]:
        """Launch the kernels for tensors like those of the recorded call, and return its results."""
        results = [make(size, stride) for make, size, stride in self._results]
        for number in self._zeroed:
            results[number].zero_()
        workspace = torch.empty(self._bytes, dtype=torch.uint8, device=given[0].device)
        starts = [0 if values is None else values.data_ptr() for values in (*given, workspace, *results)]
        stream = triton.runtime.driver.active.get_current_stream(given[0].get_device())
        for kernel, programs, arguments in self.launches(starts):
            handles = stream, kernel.function, kernel.packed_metadata
            kernel.run(programs, 1, 1, *handles, None, None, None, *arguments)
        return results[: self._returned]

    def launches(self, starts: Sequence[int]) -> Iterator[tuple[Any, int, tuple[Any, ...]]]:
        """Yield kernels, programs and arguments of a call; its tensors, workspace and results have these addresses."""
        values = self._values.copy()
        for place, number, distance in self._addresses:
            values[place] = starts[number] + distance
        for place, take in self._tuples:
            values[place] = take(values)
        for kernel, programs, take in self._launches:
            yield kernel, programs, take(values)


def kind_of(values: Tensor | None) -> tuple[Any, ...] | None:
    """Return what kernels are compiled for, and what is described, of a tensor."""
    if values is None:
        return None
    return values.shape, values.stride(), values.dtype, values.data_ptr() % ALIGNED


@lru_cache(maxsize=512)
def recorded(*signature: Any) -> list[Plan]:  # noqa: ANN401
    """Return the plan for calls of a signature, in a list that is empty before the first of them."""
    return []


def run(describe: Callable[..., list[Tensor]], given: Tensors, *numbers: Any) -> list[Tensor]:  # noqa: ANN401
    """Return new tensors that kernels have filled for some arguments, of which the first one is a tensor.

    Args:
        describe: launches the kernels by :meth:`Plan.launch`; receives a plan and what follows here. What it does must
            depend on the types, shapes and strides of tensors alone, and on the numbers.
        given: the tensors.
        numbers: others, which can be hashed.
    """
    if INTERPRETED:
        return describe(Plan(given), given, *numbers)
    plans = recorded(describe, given[0].get_device(), *numbers, *map(kind_of, given))
    with torch.cuda.device_of(given[0]):
        if plans:
            return plans[0].repeat(given)
        given = [t if t is None else t.detach() for t in given]  # no two are one object, as in other calls
        plan = Plan(given)
        results = describe(plan, given, *numbers)
    plan.finish(len(results))
    plans.append(plan)
    return results

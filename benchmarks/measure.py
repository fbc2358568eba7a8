"""Measure time and memory: what the benchmarks share."""

from __future__ import annotations

import ctypes
import platform
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

INSTRUCTIONS = torch.backends.cpu.get_cpu_capability()  # of this CPU: AVX512, AVX2 or less

SLEEP = 20_000_000  # clock cycles of a GPU, of 2 GHz at most

Run = Callable[[], object]
T = TypeVar("T")


def processor() -> str:
    """Return the name of the processor, or its architecture if it has no name."""
    info = Path("/proc/cpuinfo")
    names = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


def alone(function: Callable[..., T], *arguments: Any) -> T:  # noqa: ANN401
    """Call a function in a new process and return its value."""
    with processes(1) as pool:
        return pool.submit(function, *arguments).result()


@contextmanager
def processes(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of new processes, which end with this one, whether a signal stops or kills it."""
    with ProcessPoolExecutor(workers, get_context("spawn"), end_with_parent) as pool:
        try:
            yield pool
        except (KeyboardInterrupt, SystemExit):  # the pool waits for its processes
            for process in active_children():
                process.terminate()
            raise


def end_with_parent() -> None:
    """Let this process, a new one, end as soon as its parent has ended, even if that was killed; on Linux only."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the parent too
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


# ----------------------------------------------------------------------------------------------------------------- time


def make_pass(loss: Callable[..., Tensor], logits: Tensor, *others: object) -> Callable[[], None]:
    """Return a forward and backward pass of a loss."""

    def run() -> None:
        loss(logits, *others).sum().backward()
        logits.grad = None  # here, so that each loss pays for freeing its own gradient

    return run


def median_seconds(
    runs: Mapping[str, Run], rounds: int, device: str = "cpu", clock: Callable[[], float] = time.perf_counter
) -> dict[str, float]:
    """Return the median time of each run, on a CPU by the clock; a first round does not count.

    The runs take turns, so that a change of clock rate affects all of them, and in both orders, since a run pays for
    what the one before it has left of cache and memory.
    """
    seconds_of, orders = stopwatch(device, clock), [[*runs], [*reversed(runs)]]
    rows = [{name: seconds_of(runs[name]) for name in orders[i % 2]} for i in range(rounds + 1)]
    return {name: statistics.median(row[name] for row in rows[1:]) for name in runs}


def stopwatch(device: str, clock: Callable[[], float] = time.perf_counter) -> Callable[[Run], float]:
    """Return a function that returns the seconds a run takes on the device, on a CPU by the clock."""
    if device == "cpu":

        def on_cpu(run: Run) -> float:
            start = clock()
            run()
            return clock() - start

        return on_cpu

    # Writing 2 GiB evicts the logits from the cache. The device then sleeps 10 ms or more, longer than Python takes
    # to enqueue the run, so that it does not wait for Python between the two events.
    eviction = torch.empty(2**31, dtype=torch.uint8, device=device)

    def on_cuda(run: Run) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        eviction.zero_()
        torch.cuda._sleep(SLEEP)
        start.record()
        run()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    return on_cuda


# --------------------------------------------------------------------------------------------------------------- memory


def added_memory(run: Run, device: str = "cpu") -> int:
    """Return the bytes that a run adds to the allocated memory at its peak."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    _return_free_memory()  # the allocator would reuse it, and the peak would not show it
    _reset_peak()
    before = _resident("VmRSS")
    run()
    return _resident("VmHWM") - before


def held_memory(run: Run) -> int:
    """Return the bytes that the result of a run keeps resident, such as what a loss stores for its backward pass."""
    _return_free_memory()
    before = _resident("VmRSS")
    result = run()
    _return_free_memory()
    held = _resident("VmRSS") - before
    del result
    return held


def _return_free_memory() -> None:
    """Return memory that the allocator keeps to the system."""
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


def _reset_peak() -> None:
    """Set the peak of this process's memory to its present memory, if possible."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        print("warning: the system cannot reset the peak memory; it includes making the inputs", file=sys.stderr)


def _resident(key: str) -> int:
    """Return this process's memory in bytes: ``VmRSS`` now, ``VmHWM`` at the peak."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    if key not in status:  # in some sandboxes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return int(status[key].split()[0]) * 1024

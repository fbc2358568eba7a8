#!/usr/bin/env python3
"""Check the kernels of GPUs on a GPU and measure them, in a quarter of an hour with 16 cores.

The steps, in this order. Results are added to a table as they come, and what has succeeded there is not repeated:

  checks     the forms of tools/check_gpu.py: the same finite bits in another call and in a second backward pass, and of
             some GradScaler and torch.compile; tests/kernels/test_cuda.py has others
  agreement  random calls of the tests, compared with plain PyTorch in float64 on the CPU
  speed      the cases of benchmarks/speed.py, compared with cross-entropy, the time to enqueue a step, and its memory
  bandwidth  a copy

Kernels take most of the time to compile: `--workers` processes do what is not timed, and call first what is timed.
`--device cpu` runs the same code on small tensors in Triton's interpreter; its times mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

ROOT = Path(__file__).parents[1]
sys.path.extend(str(ROOT / folder) for folder in ("tools", "tests/loss", "tests/fuzz"))

from calls import ON_GPU, random_case  # noqa: E402
from roundings import Case, with_unread  # noqa: E402

from check_gpu import FORMS, Form  # noqa: E402
from edgeloss._kernels import library  # noqa: E402
from edgeloss.functional import edge_aware_loss  # noqa: E402
from measure import added_memory, median_seconds, processes  # noqa: E402
from result_table import Row, add_rows, read_rows  # noqa: E402
from timing import losses  # noqa: E402

CHECKED = ["19 classes", "19 classes, bfloat16", "150 classes, upsampled", "2 classes"]  # of FORMS
SCALE = 65536.0  # that of a new GradScaler
CALLS = 30  # random ones, of which errors are in proportion to the largest element
CHOICES = {"logits": {"normal": 1, "sure": 1}, "gap": {20.0: 1, 60.0: 1}, "distance": {None: 1}, "upstream": {1.0: 1}}
CHOICES |= {"size": {((7, 8), (9, 14)): 1, ((40, 48), (33, 70)): 2, ((7, 7), (7, 8), (8, 10)): 1}}  # and whole tiles
CHOICES |= {"channels": {1: 1, 2: 1, 4: 1, 19: 1, 40: 1}, "batch": {2: 1}}
CHOICES |= {"unread": {0.0: 1}, "weight": {False: 1}, "pixel_weight": {False: 1}}
COMPILED = ["19 classes", "150 classes"]  # cases that are compared with compiled cross-entropy, which takes long
REPEATS = 5  # of a step whose kernels are timed one by one
Step = Callable[..., tuple[Tensor, Tensor]]
Tasks = Iterator[tuple[str, Callable[[], Row]]]  # a name, and what returns figures


class Place(NamedTuple):
    """Where the steps run."""

    device: str
    workers: int  # processes
    compiles: bool = False  # and measures nothing

    @property
    def is_dry(self) -> bool:
        """Whether there is no device."""
        return self.device == "cpu"

    def few(self, things: Sequence[Any]) -> Sequence[Any]:
        """Return one of many things where the interpreter runs."""
        return things[-1:] if self.is_dry else things

    def microseconds(self, run: Callable[[], object], *, on_host: bool = False) -> float:
        """Return the median time of a run, or that to enqueue it, while the device may still run those before."""
        if self.compiles:
            run()
            return 1.0
        seconds = median_seconds({"": run}, 1 if self.is_dry else 20, "cpu" if on_host else self.device)
        return round(1e6 * seconds[""], 2)

    def figures(self, run: Callable[[], object]) -> Row:
        """Return the median microseconds of a run, and those of each kernel of ours in it."""
        run()  # a first call compiles
        figures: Row = {"microseconds": self.microseconds(run), "kernels": {}}
        if not (self.is_dry or self.compiles):
            with torch.profiler.profile() as profile:
                for _ in range(REPEATS):
                    run()
                torch.cuda.synchronize()
            times = {event.key: event.self_device_time_total / REPEATS for event in profile.key_averages()}
            figures["kernels"] = {name: round(t, 2) for name, t in times.items() if name.endswith("_kernel") and t}
        return figures

    def step(self, form: Form) -> tuple[Step, Tensor]:
        """Return what calls the loss of random logits and labels as a form says, and the logits."""
        torch.manual_seed(0)
        shape, size, dtype, options = form
        options, multilabel = {"region_weight": 3.0, **options}, options.get("multilabel", False)
        y = torch.randint(2 if multilabel else shape[1], (*shape[: 1 + multilabel], *size)).to(self.device)
        x = torch.randn(shape, device=self.device).to(getattr(torch, dtype)).requires_grad_()

        def step(scale: float | Tensor = 1.0, times: int = 1) -> tuple[Tensor, Tensor]:
            """Return the loss, and the gradient of its multiple of the last of some backward passes."""
            loss = edge_aware_loss(x, y, backend="fused", **options)
            gradients = [torch.autograd.grad(scale * loss, x, retain_graph=i + 1 < times)[0] for i in range(times)]
            return loss.detach(), gradients[-1]

        return step, x


def error_of(found: Tensor, exact: Tensor, bound: float, least: float = 0.0) -> float:
    """Return how far results are off, in proportion to the largest; raise an error if that is more than a bound."""
    error = float((found - exact).abs().max()) / max(float(exact.abs().max()), least)
    if not error <= bound:  # also nan
        raise ArithmeticError(f"expected results off by {bound:.1e} at most, but got {error:.1e}")
    return error


def checks(place: Place) -> Tasks:
    """Yield the checks of the forms."""

    def same_bits(step: Step, _: Tensor) -> Row:
        return {"error": max(error_of(*both, 0.0) for both in zip(step(times=2), step(), strict=True))}

    def scaler(step: Step, x: Tensor) -> Row:
        scale = torch.amp.GradScaler(place.device, init_scale=SCALE).scale(torch.ones((), device=place.device))
        x.data = x.data.half()
        gradient = step(scale)[1].float() / SCALE
        x.data = x.data.float()
        return {"error": error_of(gradient, step()[1], 2 * torch.finfo(torch.float16).eps)}

    def compiled(step: Step, _: Tensor) -> Row:
        return {"error": max(error_of(*both, 1e-6) for both in zip(torch.compile(step)(), step(), strict=True))}

    kinds: list[tuple[Callable[[Step, Tensor], Row], list[str]]] = [(same_bits, [*FORMS]), (scaler, CHECKED)]
    for check, names in kinds if place.is_dry else [*kinds, (compiled, CHECKED)]:
        for name in place.few(names):
            yield f"{check.__name__}, {name}", partial(lambda check, name: check(*place.step(FORMS[name])), check, name)


def agreement(place: Place) -> Tasks:
    """Yield a comparison for each of the cases."""

    def results(x: Tensor, case: Case, device: str, backend: Any) -> list[Tensor]:  # noqa: ANN401
        x = x.detach().to(device).requires_grad_()
        options = {name: v.to(device) if isinstance(v, Tensor) else v for name, v in case.options.items()}
        loss = edge_aware_loss(x, case.y.to(device), backend=backend, **options)
        return [values.detach().cpu().double() for values in (loss, *torch.autograd.grad(loss, x))]

    def run(number: int) -> Row:
        case = random_case(number, **ON_GPU, **CHOICES)
        value, gradient = results(case.x, case, place.device, "fused")
        exact = with_unread(case, case.answer().is_read).double()
        true_value, true_gradient = results(exact, case, "cpu", "reference")
        bound = 1e-10 if case.x.dtype == torch.float64 else 2e-5
        bound *= 1 + float(exact.abs().max()) * case.options["upsample"]  # interpolation rounds in proportion
        error, rounding = error_of(value, true_value, bound, 1.0), torch.finfo(case.x.dtype).eps
        of_gradient = error_of(gradient, true_gradient, bound + rounding, 1 / case.y.numel())
        return {"case": str(case), "error_of_value": error, "error_of_gradient": of_gradient}

    yield from ((f"case {i}", partial(run, i)) for i in place.few([*range(CALLS)]))


def speed(place: Place) -> Tasks:
    """Yield a measurement of each of the cases."""

    def run(case: losses.Case) -> Row:
        logits, target, fraction = losses.make_inputs(case, None)
        x, y = logits.detach().to(place.device).requires_grad_(), target.to(place.device)
        result: Row = {"logits": case.shape, "edge_fraction": fraction}
        names = (*losses.NAMES, *losses.OTHERS[:1]) if case.name in COMPILED and not place.is_dry else losses.NAMES
        for name, loss in losses.make_losses(case, names).items():

            def step(loss: Any = loss) -> None:  # noqa: ANN401
                loss(x, y).backward()
                x.grad = None

            figures = place.figures(step)
            ratio = figures["microseconds"] / result.get(names[0], figures)["microseconds"]
            figures |= {"ratio": round(ratio, 3), "host_microseconds": place.microseconds(step, on_host=True)}
            result[name] = {**figures, "added_bytes": added_memory(step, place.device)}
        return result

    cases = [case for case in losses.CASES["table"] if not {"power", "reduction"} & case.options.keys()]
    for case in [replace(cases[0], shape=(1, 4, 8, 8))] if place.is_dry else cases:
        yield case.name, partial(run, case)


def bandwidth(place: Place) -> Tasks:
    """Yield a measurement of a copy."""

    def copy() -> Row:
        source = torch.empty(2**10 if place.is_dry else 2**30, dtype=torch.uint8, device=place.device)
        target = torch.empty_like(source)
        time_of_copy = place.microseconds(lambda: target.copy_(source))
        return {"microseconds": time_of_copy, "gigabytes_per_second": round(2e-3 * len(source) / time_of_copy, 1)}

    yield "copy", copy


UNTIMED = ("checks", "agreement")
STEPS = {step.__name__: step for step in (checks, agreement, speed, bandwidth)}


def key_of(row: Row) -> str:
    """Return the key of a row in the table."""
    return json.dumps([row[name] for name in ("step", "name", "gpu", "torch", "triton")])


def run_step(name: str, place: Place, output: Path) -> int:
    """Run what a step has not done yet, and return how much of it failed.

    Each step has processes of its own: an error may leave the device unusable for one.
    """
    tasks, run, is_timed = [task for task, _ in STEPS[name](place)], partial(run_task, name, place), name not in UNTIMED
    if place.is_dry:
        return sum(map(partial(run, output), tasks))
    if is_timed and place.workers > 1:  # what compiles first, at once
        with processes(place.workers) as pool:
            list(pool.map(partial(run_task, name, place._replace(compiles=True), None), tasks))
    with processes(1 if is_timed else place.workers) as pool:
        return sum(pool.map(partial(run, output), tasks))


def run_task(name: str, place: Place, output: Path | None, task: str) -> bool:
    """Run a task of a step unless it is done, and return whether it failed.

    Its row is added to the table. Without a table it is run so that its kernels are compiled.
    """
    triton = importlib.import_module("triton").__version__ if importlib.util.find_spec("triton") else "none"
    gpu = "interpreter" if place.is_dry else torch.cuda.get_device_name()
    machine = {"gpu": gpu, "torch": torch.__version__, "triton": triton}
    row, start = {"step": name, "name": task, **machine}, time.monotonic()
    if output and key_of(row) in {key_of(row) for row in read_rows(output) if row["status"] == "ok"}:
        return False
    try:
        row |= {"status": "ok", **dict(STEPS[name](place))[task]()}
    except Exception as error:  # what is left is to be tried
        row |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    if output is None:
        if row["status"] == "failed":
            print(f"{name}, {task}: {row['reason']}", file=sys.stderr)
        return False
    add_rows(output, [{**row, "seconds": round(time.monotonic() - start, 1)}], key_of)
    print(json.dumps({name: value for name, value in row.items() if name not in machine}), flush=True)
    return row["status"] == "failed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; return 1 if something failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    add("--only", nargs="+", choices=list(STEPS), metavar="STEP", default=list(STEPS), help="some of the steps")
    add("--output", type=Path, default=ROOT / "runs/gpu_day.jsonl", metavar="FILE", help="default: %(default)s")
    add("--workers", type=int, default=1, help="processes for what is not timed (default: %(default)s)")
    given = parser.parse_args(arguments)
    place = Place(given.device, given.workers)
    if place.is_dry:
        os.environ["TRITON_INTERPRET"] = "1"  # as Triton reads it when it is imported
        import interpreted  # noqa: F401
    library.interprets = place.is_dry
    return min(1, sum(run_step(step, place, given.output) for step in STEPS if step in given.only))


if __name__ == "__main__":
    sys.exit(main())

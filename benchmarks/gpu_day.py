#!/usr/bin/env python3
"""Check the kernels of GPUs on a GPU and measure them, in 8 minutes with 16 cores.

The steps, in this order. Results are added to a table as they come, and what has succeeded there is not repeated:

  agreement  random calls of the tests, compared with plain PyTorch in float64 on the CPU, and the forms of
             tools/check_gpu.py: the same finite bits in another call and in a second backward pass
  kernels    a copy, and each kernel of some calls with the prototype that may replace it, if there is one: their time,
             the bytes that they move and the least time of these (gpu/model.py), instructions and registers, and how
             results differ
  speed      the cases of benchmarks/speed.py: the default and region_weight=0 compared with cross-entropy, eager and
             compiled; memory, and the time to enqueue a step
  graphs     a step in a CUDA graph and by torch.compile: the same bits, and the time of a graph
  scaler     a step with GradScaler in float16
  counters   instructions and bytes of the same kernels as a profiler counts them, where it may

Kernels take most of the time to compile: `--workers` processes do what is not timed, and call first what is timed, all
at once. Nothing begins after `--minutes`. What fails is in the table with its message, and the rest goes on in a new
process; the exit status is then 1. `--device cpu` runs the same code on small tensors in Triton's interpreter; its
times mean nothing.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

ROOT = Path(__file__).parents[1]
sys.path.extend(str(ROOT / folder) for folder in ("tools", "tests", "tests/fuzz", "benchmarks/gpu"))

import model  # noqa: E402
from calls import ON_GPU, random_case  # noqa: E402
from roundings import Case, with_unread  # noqa: E402

from check_gpu import FORMS, Form, resources  # noqa: E402
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
# Cases of which kernels are timed.
TIMED = ["19 classes", "bfloat16", "11 classes, one thread", "2 classes", "binary", "150 classes", "volume"]
TIMED += ["radius 3, decay 2", "upsampled, 19 classes"]
REPEATS = 5  # of a step whose kernels are timed one by one
METRICS = ["smsp__inst_executed.sum", "dram__bytes_read.sum", "dram__bytes_write.sum"]
Step = Callable[..., tuple[Tensor, Tensor]]
Task: TypeAlias = tuple[str, str]  # of a step, and its name
Tasks = Iterator[tuple[str, Callable[[], Row]]]  # a name, and what returns figures


class Place(NamedTuple):
    """Where the steps run."""

    device: str
    workers: int  # processes
    end: float = float("inf")  # of the monotonic clock, after which nothing begins
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
        return {"microseconds": self.microseconds(run), "kernels": self.kernels(run)}

    def kernels(self, run: Callable[[], object]) -> dict[str, float]:
        """Return the microseconds of each kernel of ours in a run."""
        run()
        if self.is_dry or self.compiles:
            return {}
        with torch.profiler.profile() as profile:
            for _ in range(REPEATS):
                run()
            torch.cuda.synchronize()
        times = {event.key: event.self_device_time_total / REPEATS for event in profile.key_averages()}
        return {name: round(t, 2) for name, t in times.items() if name.endswith("_kernel") and t}

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

    def same_bits(form: Form) -> Row:
        step, _ = place.step(form)
        return {"error": max(error_of(*both, 0.0) for both in zip(step(times=2), step(), strict=True))}

    yield from ((f"case {i}", partial(run, i)) for i in place.few([*range(CALLS)]))
    yield from ((f"same bits, {name}", partial(same_bits, FORMS[name])) for name in place.few([*FORMS]))


def cases_of(place: Place, names: Sequence[str] | None = None) -> list[losses.Case]:
    """Return the cases of some names, or all that the kernels of Triton support; one, and small, without a device."""
    cases = [case for case in losses.CASES["table"] if not {"power", "reduction"} & case.options.keys()]
    if place.is_dry:
        return [replace(cases[0], shape=(1, 4, 8, 8))]
    return cases if names is None else [case for case in cases if case.name in names]


def step_of(case: losses.Case, place: Place, loss: Any = None) -> tuple[Callable[[], None], float]:  # noqa: ANN401
    """Return what a case does with a loss, by default ours, and the fraction of edge pixels."""
    logits, target, fraction = losses.make_inputs(case, None)
    x, y = logits.detach().to(place.device).requires_grad_(), target.to(place.device)
    loss = losses.make_losses(case, losses.NAMES[1:2])[losses.NAMES[1]] if loss is None else loss

    def step() -> None:
        loss(x, y).backward()
        x.grad = None

    return step, fraction


def copied(place: Place) -> Row:
    """Return the bandwidth of a copy."""
    source = torch.empty(2**10 if place.is_dry else 2**30, dtype=torch.uint8, device=place.device)
    target = torch.empty_like(source)
    time_of_copy = place.microseconds(lambda: target.copy_(source))
    return {"microseconds": time_of_copy, "gigabytes_per_second": round(2e-3 * len(source) / time_of_copy, 1)}


def beside_each_other(case: losses.Case, place: Place) -> tuple[dict[str, Any], list[Any]]:
    """Return the launches of a step by name, and the prototypes, which were launched once and agree."""
    from prototypes import replacements  # imports Triton

    launches = replacements.launches_of(step_of(case, place)[0])
    prototypes = [*replacements.prototypes_of(launches)]
    for prototype in prototypes:
        prototype.run()
    return launches, prototypes


def kernels(place: Place) -> Tasks:
    """Yield a copy, and a measurement of the kernels of some cases and of the prototypes."""

    def run(case: losses.Case) -> Row:
        launches, prototypes = beside_each_other(case, place)
        errors = {prototype.launches[0].name: prototype.error() for prototype in prototypes}
        names = {name: ", ".join(of.name for of in new.launches) for new in prototypes for name in new.replaces}
        names = {name: names.get(name, "no prototype") for name in launches}
        launches |= {launch.name: launch for prototype in prototypes for launch in prototype.launches}
        (x, maps, *_, grid), target = launches["forward"].args, launches["read_labels"].args[0]
        moved = model.bytes_of(x, target.element_size(), maps, grid)
        times = place.kernels(lambda: [launch.run() for launch in launches.values()])
        rows: Row = {}
        for name, launch in launches.items():
            rows[name] = row = {"microseconds": times.get(f"{launch.name}_kernel")}
            if name in names:
                row["prototype"] = names[name]
            if not place.is_dry:
                row["instructions"], row["registers"], row["spills"] = resources(launch.run())
            if launch.name in moved:
                row |= {"bytes": moved[launch.name], "microseconds_of_bytes": model.microseconds(moved[launch.name])}
            if launch.name in model.EXPECTED and case.name == TIMED[0]:
                row["expected_microseconds"], row["replaces"] = model.EXPECTED[launch.name]
            if launch.name in errors:
                row["error"] = errors[launch.name]
        # The results of all classes of a call are off by no more than in another order of sums.
        if max(errors.values(), default=0.0) > (1e-2 if case.dtype == torch.bfloat16 else 1e-5):
            raise ArithmeticError(f"prototypes: expected the same results, but got {errors}: {json.dumps(rows)}")
        return rows

    yield "copy", partial(copied, place)
    yield from ((case.name, partial(run, case)) for case in cases_of(place, TIMED))


def speed(place: Place) -> Tasks:
    """Yield a measurement of each of the cases."""

    def run(case: losses.Case) -> Row:
        result: Row = {"logits": case.shape}
        names = losses.NAMES if place.is_dry else (*losses.NAMES, *losses.OTHERS[:1])
        for name, loss in losses.make_losses(case, names).items():
            step, result["edge_fraction"] = step_of(case, place, loss)
            figures = place.figures(step)
            ratio = figures["microseconds"] / result.get(names[0], figures)["microseconds"]
            figures |= {"ratio": round(ratio, 3), "host_microseconds": place.microseconds(step, on_host=True)}
            result[name] = {**figures, "added_bytes": added_memory(step, place.device)}
        return result

    yield from ((case.name, partial(run, case)) for case in cases_of(place))


def graphs(place: Place) -> Tasks:
    """Yield a comparison of a step in a graph with one outside of it."""

    def captured(form: Form) -> Row:
        step, x = place.step(form)
        step()
        if place.is_dry:
            return {}
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            results = step()
        x.data.neg_()
        graph.replay()
        error = max(error_of(*both, 0.0) for both in zip(results, step(), strict=True))
        times = {"microseconds": place.microseconds(step), "microseconds_of_graph": place.microseconds(graph.replay)}
        return {"error": error, **times}

    def compiled(form: Form) -> Row:
        step, _ = place.step(form)
        return {"error": max(error_of(*both, 1e-6) for both in zip(torch.compile(step)(), step(), strict=True))}

    for name in place.few(CHECKED):
        yield f"CUDA graph, {name}", partial(captured, FORMS[name])
        if not place.is_dry:
            yield f"torch.compile, {name}", partial(compiled, FORMS[name])


def scaler(place: Place) -> Tasks:
    """Yield a comparison of the gradient in float16, scaled, with that in float32."""

    def run(form: Form) -> Row:
        step, x = place.step(form)
        scale = torch.amp.GradScaler(place.device, init_scale=SCALE).scale(torch.ones((), device=place.device))
        x.data = x.data.half()
        gradient = step(scale)[1].float() / SCALE
        x.data = x.data.float()
        return {"error": error_of(gradient, step()[1], 2 * torch.finfo(torch.float16).eps)}

    yield from ((name, partial(run, FORMS[name])) for name in place.few(CHECKED))


def counters(place: Place) -> Tasks:
    """Yield what a profiler counts of the kernels of some cases."""

    def run(case: losses.Case) -> Row:
        launches, prototypes = beside_each_other(case, place)
        if place.is_dry or place.compiles:
            return {}
        config = torch._C._profiler._ExperimentalConfig(profiler_metrics=METRICS, profiler_measure_per_kernel=True)
        activities = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities, experimental_config=config) as profile:
            for launch in [*launches.values(), *(launch for prototype in prototypes for launch in prototype.launches)]:
                launch.run()
            torch.cuda.synchronize()
        with TemporaryDirectory() as folder:
            profile.export_chrome_trace(f"{folder}/trace.json")
            events = json.loads(Path(folder, "trace.json").read_text())["traceEvents"]
        return {"events": [[e.get("name"), e["args"]] for e in events if METRICS[0] in e.get("args", {})]}

    yield from ((case.name, partial(run, case)) for case in cases_of(place, TIMED))


UNTIMED, MACHINE = ("agreement", "scaler"), ("gpu", "torch", "triton")
STEPS = {step.__name__: step for step in (agreement, kernels, speed, graphs, scaler, counters)}


def key_of(row: Row) -> str:
    """Return the key of a row in the table."""
    return json.dumps([row[name] for name in ("step", "name", *MACHINE)])


def prepare(names: Sequence[str], place: Place) -> None:
    """Compile what the timed ones of some steps need, all at once; counters need what the kernels do."""
    timed = [name for name in names if name not in UNTIMED and not (name == "counters" and "kernels" in names)]
    tasks = [(name, task) for name in timed for task, _ in STEPS[name](place)]
    place = place._replace(compiles=True)
    run_all(partial(compile_task, place), tasks, place, place.workers, partial(print, file=sys.stderr))


def compile_task(place: Place, name: str, task: str) -> bool:
    """Run a task so that its kernels are compiled, and return whether it failed."""
    try:
        dict(STEPS[name](place))[task]()
    except Exception as error:  # what is left is to be tried
        print(f"{name}, {task}: {type(error).__name__}: {error}", file=sys.stderr)
        return True
    return False


def run_all(
    run: Callable[[str, str], bool], tasks: Sequence[Task], place: Place, workers: int, lose: Callable[..., object]
) -> int:
    """Run tasks in so many processes until the time is over; return how many failed or were not reached.

    A process in which one has failed is not used again, since the device may be unusable for it.

    Args:
        run: takes a step and a task, and returns whether it failed.
        tasks: the steps and tasks.
        place: where they run; without a device, in this process.
        workers: processes.
        lose: takes the step and the task of a process that ended, and a message.
    """
    waiting: SimpleQueue[Task] = SimpleQueue()
    for task in tasks:
        waiting.put(task)

    def take() -> Task:
        if time.monotonic() > place.end:
            raise Empty
        return waiting.get_nowait()

    def work(_: int) -> int:
        failed = 0
        with suppress(Empty):
            while True:
                task = take()
                with ThreadPoolExecutor(1) if place.is_dry else processes(1) as pool:
                    try:
                        while not pool.submit(run, *task).result():
                            task = take()
                    except BrokenExecutor as error:
                        lose(*task, f"{type(error).__name__}: {error}")
                    failed += 1
        return failed

    def left() -> Iterator[Task]:
        with suppress(Empty):
            while True:
                yield waiting.get_nowait()

    with ThreadPoolExecutor(workers) as threads:
        try:
            failed = sum(threads.map(work, range(workers)))
        except (KeyboardInterrupt, SystemExit):  # the threads wait for their processes
            print("not reached:", *left(), file=sys.stderr)
            for process in active_children():
                process.terminate()
            raise
    late = [*left()]
    for name, task in late:
        print(f"{name}, {task}: not reached", file=sys.stderr)
    return failed + len(late)


def run_step(name: str, place: Place, output: Path) -> int:
    """Run what a step has not done yet, and return how much of it failed."""
    done = {key_of(row) for row in read_rows(output) if row["status"] == "ok"}
    tasks = [(name, task) for task, _ in STEPS[name](place) if key_of(row_of(place, name, task)) not in done]
    workers = place.workers if name in UNTIMED and not place.is_dry else 1
    return run_all(partial(run_task, place, output), tasks, place, workers, partial(lose_task, place, output))


def row_of(place: Place, name: str, task: str) -> Row:
    """Return the row of a task without its results."""
    triton = importlib.import_module("triton").__version__ if importlib.util.find_spec("triton") else "none"
    gpu = "interpreter" if place.is_dry else torch.cuda.get_device_name()
    return {"step": name, "name": task, "gpu": gpu, "torch": torch.__version__, "triton": triton}


def lose_task(place: Place, output: Path, name: str, task: str, reason: str) -> None:
    """Add the row of a task whose process has ended."""
    row = {**row_of(place, name, task), "status": "failed", "reason": reason}
    add_rows(output, [row], key_of)
    print(f"{name}, {task}: {reason}", file=sys.stderr)


def run_task(place: Place, output: Path, name: str, task: str) -> bool:
    """Run a task of a step, add its row to the table, and return whether it failed."""
    row, start = row_of(place, name, task), time.monotonic()
    try:
        row |= {"status": "ok", **dict(STEPS[name](place))[task]()}
    except Exception as error:  # what is left is to be tried
        row |= {"status": "failed", "reason": f"{type(error).__name__}: {error}"}
    add_rows(output, [{**row, "seconds": round(time.monotonic() - start, 1)}], key_of)
    print(json.dumps({name: value for name, value in row.items() if name not in MACHINE}), flush=True)
    return row["status"] == "failed"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the steps; return 1 if something failed or was not reached."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="default: %(default)s")
    add("--only", nargs="+", choices=list(STEPS), metavar="STEP", default=list(STEPS), help="some of the steps")
    add("--output", type=Path, default=ROOT / "runs/gpu_day.jsonl", metavar="FILE", help="default: %(default)s")
    add("--workers", type=int, default=14, help="processes for what is not timed (default: %(default)s)")
    add("--minutes", type=float, default=8.0, help="after which nothing begins (default: %(default)s)")
    given = parser.parse_args(arguments)
    place = Place(given.device, given.workers, time.monotonic() + 60 * given.minutes)
    if not place.is_dry and not torch.cuda.is_available():
        parser.error("--device: expected a GPU, but torch finds none; cpu runs the same code in Triton's interpreter")
    if place.is_dry:
        os.environ["TRITON_INTERPRET"] = "1"  # as Triton reads it when it is imported
        import interpreted  # noqa: F401
    library.interprets = place.is_dry
    names, failed = [name for name in STEPS if name in given.only], 0
    for name in names:
        if name == next((other for other in names if other not in UNTIMED), None) and not place.is_dry:
            prepare(names, place)
        failed += run_step(name, place, given.output)
    if failed:
        print(f"{failed} failed or were not reached; the same command repeats these alone", file=sys.stderr)
    return min(1, failed)


if __name__ == "__main__":
    sys.exit(main())

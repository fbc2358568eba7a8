"""One step of training, one pass of evaluation, and a way to stop between two steps."""

import math
import random
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import chain, islice
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from edgeloss import EdgeAwareLoss
from edgeloss.functional import edge_aware_loss, loss_maps, normalizers
from segkit.checkpoint import load_weights
from segkit.data import SegmentationDataset, seed_worker
from segkit.distributed import rank, sum_over_ranks, world_size
from segkit.guard import NanGuard, NonFiniteLossError
from segkit.scores import WorstImages, flatten, gradient_shares, validation_metrics


class MicroBatch(NamedTuple):
    """Images that go through the network together.

    Attributes:
        names: of the images; none if this one only keeps step with the other processes: its labels are all void then,
            and it counts in nothing.
        images: [B, 3, H, W].
        labels: [B, H, W].
    """

    names: list[str]
    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Placement:
    """Where a network computes, and how.

    Attributes:
        device: where.
        dtype: of autocast; float32 for none.
        memory_format: of the images.
    """

    device: torch.device
    dtype: torch.dtype = torch.float32
    memory_format: torch.memory_format = torch.preserve_format

    def run(self, model: nn.Module, images: Tensor) -> Tensor:
        """The logits of images that lie anywhere; of `dtype`, which the loss reads as it is."""
        images = images.to(self.device, non_blocking=True, memory_format=self.memory_format)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            logits: Tensor = model(images)
        return logits


class DataError(ValueError):
    """An image or mask that can't be used, told in one line."""


class Interrupted(Exception):  # noqa: N818  (not an error: the user asked for it)
    """A signal asked the run to stop."""


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], None]]:
    """Turn Ctrl-C and SIGTERM into `Interrupted`, raised only where the loop calls the function this yields.

    So no optimizer step is cut in half, and all processes stop after the same one, whichever got the signal. A second
    signal meets the handler that was there before, and so ends a run that hangs.
    """
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, before[signal.Signals(number)])

    def check() -> None:
        if sum_over_ranks([len(received)])[0]:
            raise Interrupted

    for number in before:
        signal.signal(number, note)
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def seed_everything(seed: int, *position: int) -> None:
    """Seed the generators of Python, NumPy and PyTorch.

    Called before each step with its position it makes what the step draws, such as the masks of a dropout, depend
    on nothing that ran before: a resumed run needs no state of any generator.

    Args:
        seed: ≥ 0.
        position: further numbers ≥ 0, which give another seed each.
    """
    if position:
        seed = int(np.random.SeedSequence((seed, *position)).generate_state(1)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def lr_factor(step: int, *, total: int, warmup: int, power: float) -> float:
    """Share of the full learning rate at a step: a linear rise, times a polynomial fall to 0 at `total`."""
    left = max(0.0, 1 - step / total)  # a run that goes on with larger batches has planned fewer steps than it takes
    return min(1.0, (step + 1) / max(warmup, 1)) * math.pow(left, power)


def batches(
    dataset: SegmentationDataset,
    size: int,
    workers: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
    accumulate: int = 1,
    skip: int = 0,
) -> Iterator[list[MicroBatch]]:
    """Load a data set once, batch by batch: of each the share of this process.

    Order and augmentation depend on `seed` and `epoch` alone, not on what ran before nor on how many processes there
    are.

    Args:
        dataset: the images and masks.
        size: images in a batch, over all processes; the last batch may have fewer.
        workers: processes that read ahead; 0 reads in this one.
        seed: of the order; None keeps the data set's own.
        epoch: the epoch.
        accumulate: parts of this process's share.
        skip: batches to leave out at the beginning, without reading them.

    Yields:
        The micro-batches of a batch.

    Raises:
        DataError: if a file can't be used.
    """
    order = np.arange(len(dataset)) if seed is None else np.random.default_rng((seed, epoch)).permutation(len(dataset))
    dataset.set_epoch(epoch)
    steps = [share(order[start : start + size].tolist(), accumulate) for start in range(0, len(order), size)][skip:]
    parts = [part for step in steps for part in step]
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
        dataset,
        batch_sampler=[part or [0] for part in parts],
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=_start_worker,
        generator=torch.Generator().manual_seed(seed or 0),  # the workers' seeds take nothing from the global generator
    )
    loaded = zip(parts, loader, strict=True)
    try:
        for step in steps:
            micro_batches = []
            for part, (images, labels) in islice(loaded, len(step)):
                if not part:
                    labels.fill_(dataset.ignore_index)
                micro_batches.append(MicroBatch([dataset.names[index] for index in part], images, labels))
            yield micro_batches
    except (OSError, ValueError) as error:
        # A worker's error comes with the worker's traceback; its last line is the message.
        raise DataError(str(error).strip().splitlines()[-1]) from error


def share(batch: list[int], accumulate: int) -> list[list[int]]:
    """The images of a batch that this process takes, in micro-batches.

    Every process gets equally many of these, since each waits for the others once a micro-batch; where images run out
    they are empty.
    """
    mine = batch[rank() :: world_size()]
    parts = min(accumulate, math.ceil(len(batch) / world_size()))
    return [mine[part::parts] for part in range(parts)]


def _start_worker(worker: int) -> None:
    """Seed a worker, and let it live through a Ctrl-C until the main process, which gets it too, has seen to it.

    A forked worker inherits a handler that does; one started afresh, as on macOS and Windows, does not.
    """
    seed_worker(worker)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@dataclass
class Training:
    """All that training changes, and so what a checkpoint holds.

    Attributes:
        network: images to logits, without any wrapper.
        optimizer: of its parameters.
        scheduler: of the optimizer's learning rate, stepped after each of its steps.
        scaler: of the loss, for float16; a disabled one changes nothing.
        ema: exponential moving average of the weights; None for none.
        epoch: complete epochs.
        batch: batches of the epoch under way that are done.
        sums: over these batches: of figures times images, of images, of seconds and of those spent waiting.
        images: over these batches, of those that each figure was measured on.
        history: the figures of each complete epoch.
        best: the highest mean IoU so far.
    """

    network: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: LRScheduler
    scaler: torch.amp.GradScaler
    ema: AveragedModel | None = None
    epoch: int = 0
    batch: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)
    history: list[Mapping[str, float | None]] = field(default_factory=list)
    best: float = -1.0

    @property
    def step(self) -> int:
        """Optimizer steps so far."""
        return self.scheduler.last_epoch

    @property
    def averaged(self) -> nn.Module:
        """The network to measure and to use: the one with averaged weights where there is one."""
        return self.network if self.ema is None else self.ema.module

    def count(self, images: int, figures: Mapping[str, float], *, seconds: float, waiting: float) -> None:
        """Note a batch that is done: what was measured on its images, and how long it and the wait for it took."""
        self.batch += 1
        for name, value in figures.items():
            self.sums[name] = self.sums.get(name, 0.0) + value * images
            self.images[name] = self.images.get(name, 0) + images
        for name, value in {"images": images, "seconds": seconds, "waiting": waiting}.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def means(self) -> dict[str, float]:
        """The figures of the epoch under way, averaged over its images."""
        return {name: self.sums[name] / images for name, images in self.images.items()}

    def end_epoch(self, row: Mapping[str, float | None]) -> None:
        """Note an epoch that is done."""
        self.history.append(row)
        self.epoch, self.batch, self.sums, self.images = self.epoch + 1, 0, {}, {}

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values alone."""
        return {
            "model": self.network.state_dict(),
            "ema": None if self.ema is None else self.ema.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
            "step": self.step,
            "epoch": self.epoch,
            "batch": self.batch,
            "sums": self.sums,
            "images": self.images,
            "history": self.history,
            "metrics": self.history[-1] if self.history else None,
            "best": self.best,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was called.

        Raises:
            CheckpointError: if the weights are another network's.
        """
        load_weights(self.network, state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        if self.ema is not None:  # a run that begins to average begins with the weights it has
            load_weights(self.ema.module, state["ema"] or state["model"])
            self.ema.n_averaged.fill_(state["step"])
        for name in ("epoch", "batch", "sums", "images", "history", "best"):
            setattr(self, name, state[name])


def train_step(
    training: Training,
    model: nn.Module,
    criterion: EdgeAwareLoss,
    micro_batches: Sequence[MicroBatch],
    *,
    number: int,
    place: Placement,
    guard: NanGuard,
    clip: float | None = None,
    shares: bool = False,
) -> dict[str, float] | None:
    """Take one optimizer step, with the gradient of the whole batch: of all micro-batches of all processes.

    Args:
        training: what changes.
        model: the network of `training`, or the DistributedDataParallel around it.
        criterion: the loss, with ``sync_normalizer=True`` where there are several processes.
        micro_batches: this process's share of the batch.
        number: of the batch, from 1 over all epochs, skipped ones included; for the guard.
        place: where and how to compute.
        guard: looks at loss and gradient before they reach a weight. With a gradient scaler it looks at the loss alone:
            for an infinite gradient the step is left out, and the next is scaled less.
        clip: largest norm of the gradient; None leaves it as it is.
        shares: measure how hard each term pulls, on the last micro-batch of every process.

    Returns:
        The loss and its terms, of the whole batch; None if the guard left the step out.

    Raises:
        NonFiniteLossError: on every process, as `guard` does.
    """
    model.train()
    training.optimizer.zero_grad()
    targets = [labels.to(place.device, non_blocking=True) for _, _, labels in micro_batches]
    normalizer = None
    if len(targets) > 1:  # the denominators of the sum of all parts, so that the parts' losses add up to the whole's
        names = ("weight", "edge_class_weight", "ignore_index", "radius")
        options = {name: getattr(criterion, name) for name in names}
        counts = [torch.stack(normalizers(target, **options)) for target in targets]
        normalizer = torch.stack(counts).sum(0).unbind()
    totals, all_logits = [], []  # of each micro-batch
    for i, ((_, images, _), target) in enumerate(zip(micro_batches, targets, strict=True), start=1):
        is_last = i == len(targets)
        # The processes exchange gradients once a step, when the last part has added its own.
        with nullcontext() if is_last or not isinstance(model, DistributedDataParallel) else model.no_sync():
            logits = place.run(model, images)
            loss, terms = criterion(logits, target, normalizer=normalizer, return_terms=True)
            training.scaler.scale(loss).backward()
        valid = (target != criterion.ignore_index).sum()
        edges = terms.pop("edge_fraction") * valid
        if not criterion.false_edge_weight:
            del terms["false_edge"]
        totals.append(torch.stack([loss.detach(), *terms.values(), edges, valid]))
        all_logits.append(logits.detach())
    training.scaler.unscale_(training.optimizer)
    norm = nn.utils.clip_grad_norm_(training.network.parameters(), math.inf if clip is None else clip)

    # One read from the device a step, for all that the host wants to know.
    rows = torch.stack(totals)
    *losses, norm = torch.stack([*rows[:, 0], norm]).tolist()
    own_loss, *others = rows.sum(0).tolist()
    total_loss, *means, edges, valid = sum_over_ranks([own_loss, *others])
    # DDP averages over the processes, and so the loss of each is its part of the whole's times their number.
    figures = {name: value / world_size() for name, value in zip(["loss", *terms], [total_loss, *means], strict=True)}
    figures["edge_fraction"] = edges / max(valid, 1)
    # The micro-batch to blame: the first whose loss is not finite, or any, if it is the network's own gradient.
    worst = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), 0)
    names, images, _ = micro_batches[worst]
    checked = 0.0 if training.scaler.is_enabled() else norm
    if not guard.check(number, names, images, all_logits[worst], targets[worst], own_loss, checked):
        return None
    if shares:
        found = gradient_shares(criterion, all_logits[-1], targets[-1])
        figures |= {f"gradient_share/{name}": value for name, value in found.items()}
    if math.isfinite(norm):
        training.scaler.step(training.optimizer)
        training.scheduler.step()
        if training.ema is not None:
            training.ema.update_parameters(training.network)
    training.scaler.update()
    return figures


@torch.no_grad()
def evaluate(
    model: nn.Module,
    criterion: EdgeAwareLoss,
    data: Iterable[Sequence[MicroBatch]],
    *,
    classes: Sequence[str],
    place: Placement,
    worst: WorstImages | None = None,
    on_step: Callable[[int], None] = lambda images: None,
) -> dict[str, float | None]:
    """Measure a model on a whole data set, as if all of it were one batch: sums over sums, no mean of means.

    Several processes measure their shares, and each returns the figures of the whole. Edge pixels are those with a
    neighbour (of 8) of another class, whatever the criterion's own radius: one yardstick for every loss.

    Args:
        model: images to logits.
        criterion: the loss; with ``reduction="mean"``.
        data: what `batches` yields.
        classes: the classes' names.
        place: where and how to compute.
        worst: is shown every image.
        on_step: called after each batch with the number of images.

    Returns:
        ``loss`` and its terms, ``false_edge`` if it has a weight; ``accuracy``, ``edge_accuracy`` and
        ``interior_accuracy``, the share of right labels among all pixels, edge pixels and the others; ``iou/CLASS``,
        and ``miou``, their mean over the classes that occur in labels or predictions. None where there is nothing to
        measure.

    Raises:
        NonFiniteLossError: if the loss of the whole set is nan or infinite.
    """
    model.eval()
    ignore = criterion.ignore_index
    scores = validation_metrics(len(classes), ignore).to(place.device)  # add up over the processes by themselves
    options = {**criterion.options(), "sync_normalizer": False}
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])  # numerator and denominator
    for names, images, labels in chain.from_iterable(data):
        labels = labels.to(place.device)
        logits = place.run(model, images)
        _, maps, terms = edge_aware_loss(logits, labels, **options, return_maps=True, return_terms=True)
        weight, edges = normalizers(labels, weight=criterion.weight, ignore_index=ignore, radius=criterion.radius)
        valid = labels != ignore
        border = loss_maps(logits, labels, ignore_index=ignore, upsample=True).edge_mask
        if logits.shape[2:] != labels.shape[1:]:
            logits = F.interpolate(logits.float(), labels.shape[1:], mode="bilinear")
        prediction = logits.argmax(1)
        right = prediction == labels
        scores.update(prediction, labels)
        if worst is not None:
            worst.update(names, maps, prediction, labels)
        for name, (part, whole) in {
            "cross_entropy": (terms["cross_entropy"] * weight, weight),
            "same_side": (terms["same_side"] * edges, edges),
            "other_side": (terms["other_side"] * edges, edges),
            "edge": (terms["edge"] * edges, edges),
            # Not by the term, which is 0 over no edge: false edges are elsewhere.
            "false_edge": (maps.false_edge.sum(), edges),
            "edge_fraction": (edges, valid.sum()),
            "accuracy": (right.sum(), valid.sum()),
            "edge_accuracy": ((right & border).sum(), border.sum()),
            "interior_accuracy": ((right & ~border).sum(), (valid & ~border).sum()),
        }.items():
            sums[name][0] += part.item()
            sums[name][1] += whole.item()
        on_step(len(names))

    numbers = iter(sum_over_ranks(list(chain.from_iterable(sums.values()))))
    result = {name: part / whole if whole else None for name, part, whole in zip(sums, numbers, numbers, strict=False)}
    weights = {
        "cross_entropy": criterion.ce_weight,
        "edge": criterion.edge_weight,
        "false_edge": criterion.edge_weight * criterion.false_edge_weight,
    }
    loss = sum(weight * (result[name] or 0.0) for name, weight in weights.items())
    if not criterion.false_edge_weight:
        del result["false_edge"]
    if not math.isfinite(loss):
        raise NonFiniteLossError(f"the validation loss is {loss}")
    return {"loss": loss, **result, **flatten(scores.compute(), classes)}

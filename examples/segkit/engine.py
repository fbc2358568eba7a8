"""One epoch of training, one pass of evaluation, and a way to stop between two steps."""

import math
import random
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from torchmetrics.classification import MulticlassJaccardIndex

from edgeloss import EdgeAwareLoss
from edgeloss.functional import loss_maps, normalizers
from segkit.data import SegmentationFolder

OnStep = Callable[[int, dict[str, float]], None]  # takes a batch's number of images and, in training, its loss terms
Batches = Iterable[tuple[list[str], Tensor, Tensor]]  # names, images [B, 3, H, W], labels [B, H, W]


class DataError(ValueError):
    """An image or mask that can't be used, told in one line."""


class NonFiniteLossError(RuntimeError):
    """The loss became nan or infinite."""


class Interrupted(Exception):  # noqa: N818  (not an error: the user asked for it)
    """A signal asked the run to stop."""


@contextmanager
def stop_on_signals() -> Iterator[Callable[[], None]]:
    """Turn Ctrl-C and SIGTERM into `Interrupted`, raised only where the loop calls the function this yields.

    So no optimizer step is cut in half. A second signal meets the handler that was there before, and so ends a run that
    hangs.
    """
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        signal.signal(number, before[signal.Signals(number)])

    def check() -> None:
        if received:
            raise Interrupted

    for number in before:
        signal.signal(number, note)
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, NumPy and PyTorch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def lr_factor(step: int, *, total: int, warmup: int, power: float) -> float:
    """Share of the full learning rate at a step: a linear rise, times a polynomial fall to 0 at `total`."""
    return min(1.0, (step + 1) / max(warmup, 1)) * math.pow(1 - step / total, power)


def batches(
    dataset: SegmentationFolder, size: int, workers: int, *, seed: int | None = None, epoch: int = 0
) -> Iterator[tuple[list[str], Tensor, Tensor]]:
    """Load a data set once, batch by batch.

    Order and augmentation depend on `seed` and `epoch` alone, not on what ran before.

    Args:
        dataset: the images and masks.
        size: images in a batch; the last batch may have fewer.
        workers: processes that read ahead; 0 reads in this one.
        seed: of the order; None keeps the data set's own.
        epoch: the epoch.

    Yields:
        Names, images [B, 3, H, W] and labels [B, H, W].

    Raises:
        DataError: if a file can't be used.
    """
    order = np.arange(len(dataset)) if seed is None else np.random.default_rng((seed, epoch)).permutation(len(dataset))
    dataset.set_epoch(epoch)
    indices = [order[start : start + size].tolist() for start in range(0, len(order), size)]
    loader: DataLoader[tuple[Tensor, Tensor]] = DataLoader(
        dataset,
        batch_sampler=indices,
        num_workers=workers,
        pin_memory=torch.cuda.is_available(),
        worker_init_fn=_leave_signals_to_the_main_process,
    )
    try:
        for batch, (images, labels) in zip(indices, loader, strict=True):
            yield [dataset.names[index] for index in batch], images, labels
    except (OSError, ValueError) as error:
        # A worker's error comes with the worker's traceback; its last line is the message.
        raise DataError(str(error).strip().splitlines()[-1]) from error


def _leave_signals_to_the_main_process(worker: int) -> None:
    """Let workers live through a Ctrl-C, which a terminal sends to all processes, until the main one has seen to it.

    A forked worker inherits a handler that does; one started afresh, as on macOS and Windows, does not.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def train_epoch(
    model: nn.Module,
    criterion: EdgeAwareLoss,
    optimizer: torch.optim.Optimizer,
    scheduler: LRScheduler,
    data: Batches,
    *,
    device: torch.device,
    clip: float | None,
    on_step: OnStep,
) -> dict[str, float]:
    """Train for one pass over the data.

    Args:
        model: images to logits.
        criterion: the loss.
        optimizer: of the model's parameters.
        scheduler: stepped after each optimizer step.
        data: names, images and labels of each batch.
        device: where the model is.
        clip: largest norm of the gradient; None leaves it as it is.
        on_step: called after each step.

    Returns:
        The loss and its terms, averaged over the images.

    Raises:
        NonFiniteLossError: at the first loss that is nan or infinite, before it reaches the weights.
    """
    model.train()
    sums: dict[str, float] = defaultdict(float)
    seen = 0
    for step, (names, images, labels) in enumerate(data, start=1):
        loss, terms = criterion(model(images.to(device)), labels.to(device), return_terms=True)
        values = {"loss": loss.item()} | {name: term.item() for name, term in terms.items()}
        if not math.isfinite(values["loss"]):
            raise NonFiniteLossError(f"the loss is {values['loss']} at step {step} on the images {', '.join(names)}")
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        scheduler.step()
        for name, value in values.items():
            sums[name] += value * len(images)
        seen += len(images)
        on_step(len(images), values)
    return {name: value / seen for name, value in sums.items()}


@torch.no_grad()
def evaluate(
    model: nn.Module,
    criterion: EdgeAwareLoss,
    data: Batches,
    *,
    classes: Sequence[str],
    device: torch.device,
    on_step: OnStep = lambda images, terms: None,
) -> dict[str, float | None]:
    """Measure a model on a whole data set, as if all of it were one batch: sums over sums, no mean of means.

    Edge pixels are those with a neighbour (of 8) of another class, whatever the criterion's own radius: one yardstick
    for every loss.

    Args:
        model: images to logits.
        criterion: the loss; with ``reduction="mean"``.
        data: names, images and labels of each batch.
        classes: the classes' names.
        device: where the model is.
        on_step: called after each batch.

    Returns:
        ``loss`` and its terms; ``accuracy``, ``edge_accuracy`` and ``interior_accuracy``, the share of right labels
        among all pixels, edge pixels and the others; ``iou/CLASS``, and ``miou``, their mean over the classes that
        occur in labels or predictions. None where there is nothing to measure.

    Raises:
        NonFiniteLossError: if the loss of the whole set is nan or infinite.
    """
    model.eval()
    ignore = criterion.ignore_index
    iou = MulticlassJaccardIndex(len(classes), average="none", ignore_index=ignore, zero_division=math.nan).to(device)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])  # numerator and denominator
    for _, images, labels in data:
        labels = labels.to(device)
        logits = model(images.to(device))
        _, terms = criterion(logits, labels, return_terms=True)
        weight, edges = normalizers(labels, weight=criterion.weight, ignore_index=ignore, radius=criterion.radius)
        valid = labels != ignore
        border = loss_maps(logits, labels, ignore_index=ignore).edge_mask
        right = logits.argmax(1) == labels
        iou.update(logits, labels)
        for name, (part, whole) in {
            "cross_entropy": (terms["cross_entropy"] * weight, weight),
            "same_side": (terms["same_side"] * edges, edges),
            "other_side": (terms["other_side"] * edges, edges),
            "edge": (terms["edge"] * edges, edges),
            "edge_fraction": (edges, valid.sum()),
            "accuracy": (right.sum(), valid.sum()),
            "edge_accuracy": ((right & border).sum(), border.sum()),
            "interior_accuracy": ((right & ~border).sum(), (valid & ~border).sum()),
        }.items():
            sums[name][0] += part.item()
            sums[name][1] += whole.item()
        on_step(len(images), {})

    result = {name: part / whole if whole else None for name, (part, whole) in sums.items()}
    loss = criterion.ce_weight * (result["cross_entropy"] or 0.0) + criterion.edge_weight * (result["edge"] or 0.0)
    if not math.isfinite(loss):
        raise NonFiniteLossError(f"the validation loss is {loss}")
    by_class = [None if math.isnan(value) else value for value in iou.compute().tolist()]
    present = [value for value in by_class if value is not None]
    return {
        "loss": loss,
        **result,
        "miou": sum(present) / len(present) if present else None,
        **{f"iou/{name}": value for name, value in zip(classes, by_class, strict=True)},
    }

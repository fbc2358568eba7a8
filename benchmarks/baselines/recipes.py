"""The losses to train with: cross-entropy, and what each recipe adds to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from baselines import regions
from baselines.active_boundary import active_boundary
from baselines.affinity import affinity
from baselines.boundary import boundary
from baselines.boundary_dou import boundary_dou
from baselines.common import at_size, cross_entropy, weighted_mean
from baselines.control import edge_weights
from baselines.cpg import cpg
from baselines.frequencies import adjusted, class_prior, median_frequency_weight
from baselines.relational import relational
from baselines.rmi import rmi
from baselines.soft_labels import relaxed_cross_entropy, smoothed_cross_entropy
from baselines.unet_weights import unet_weights
from edgeloss import EdgeAwareLoss
from edgeloss.functional import balanced_edge_class_weight, edge_aware_loss

Options = dict[str, Any]


class Progress(NamedTuple):
    """Progress of a training.

    Attributes:
        step: number of complete steps.
        steps: number of all steps.
        epoch: number of complete epochs.
    """

    step: int = 0
    steps: int = 1
    epoch: int = 0


Loss = Callable[[Tensor, Tensor, Progress], Tensor]


def _ce(logits: Tensor, target: Tensor, *, ignore_index: int) -> Tensor:
    return cross_entropy(logits, target, ignore_index)


def _weighted(logits: Tensor, target: Tensor, *, ignore_index: int, pixel_weight: Tensor | None = None) -> Tensor:
    return cross_entropy(logits, target, ignore_index, pixel_weight=pixel_weight)


def _balanced(logits: Tensor, target: Tensor, *, ignore_index: int, edge_class_weight: Tensor | None = None) -> Tensor:
    """Compute cross-entropy with the class weights at all pixels, not only at edges."""
    return cross_entropy(logits, target, ignore_index, edge_class_weight)


def _median_frequency(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    frequency_weight: Tensor,
    pixel_weight: Tensor | None = None,
) -> Tensor:
    return cross_entropy(logits, target, ignore_index, frequency_weight, pixel_weight)


def _logit_adjusted(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    prior: Tensor,
    pixel_weight: Tensor | None = None,
    tau: float = 1.0,
) -> Tensor:
    return cross_entropy(adjusted(logits, prior, tau), target, ignore_index, pixel_weight=pixel_weight)


def _unet(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    pixel_weight: Tensor | None = None,
    w0: float = 10.0,
    sigma: float = 5.0,
) -> Tensor:
    """Compute cross-entropy with the U-Net's weights between objects, added to 1 or to the edge weights."""
    between = unet_weights(target, ignore_index=ignore_index, num_classes=logits.shape[1], w0=w0, sigma=sigma)
    weight = (target != ignore_index) if pixel_weight is None else pixel_weight
    return cross_entropy(logits, target, ignore_index, pixel_weight=weight + between)


def _relaxed(logits: Tensor, target: Tensor, *, ignore_index: int, pixel_weight: Tensor | None = None) -> Tensor:
    values = relaxed_cross_entropy(logits, target, ignore_index=ignore_index)
    return weighted_mean(values, (target != ignore_index) if pixel_weight is None else pixel_weight)


def _smoothed(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    pixel_weight: Tensor | None = None,
    sigma: float = 1.0,
) -> Tensor:
    values = smoothed_cross_entropy(logits, target, ignore_index=ignore_index, sigma=sigma)
    return weighted_mean(values, (target != ignore_index) if pixel_weight is None else pixel_weight)


def _ours(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    edge_class_weight: Tensor | None = None,
    edge_weight: float = 1.0,
    other_side_weight: float = 1.0,
    same_side_weight: float = 1.0,
    radius: int = 1,
    power: float = 0.0,
    decay: float | None = None,
) -> Tensor:
    """Compute EdgeAwareLoss as a function, without a region term."""
    return edge_aware_loss(
        logits,
        target,
        ignore_index=ignore_index,
        edge_class_weight=edge_class_weight,
        edge_weight=edge_weight,
        other_side_weight=other_side_weight,
        same_side_weight=same_side_weight,
        radius=radius,
        power=power,
        decay=decay,
    )


DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(EdgeAwareLoss).parameters.items()}


class Module(nn.Module):
    """Compute EdgeAwareLoss as a module, whose statistics run over the steps; by default ``EdgeAwareLoss()``.

    It also accepts logits of lower resolution than the labels.

    Args:
        ignore_index: the ignored label.
        running: 1 for ``edge_class_weight="running"``, 0 for equal weights.
        edge_weight: this and the other options are those of EdgeAwareLoss.
        edge_focus: see above.
        region_weight: see above.
        dice: weight of a Dice term in addition.
    """

    def __init__(
        self,
        *,
        ignore_index: int,
        running: int = 1,
        edge_weight: float = float(DEFAULTS["edge_weight"]),
        edge_focus: float = float(DEFAULTS["edge_focus"]),
        region_weight: float = float(DEFAULTS["region_weight"]),
        dice: float = 0.0,
    ) -> None:
        """Create the loss."""
        super().__init__()
        self.dice = dice
        self.criterion = EdgeAwareLoss(
            edge_class_weight="running" if running else None,
            ignore_index=ignore_index,
            edge_weight=edge_weight,
            edge_focus=edge_focus,
            region_weight=region_weight,
            upsample=True,
        )

    @property
    def current_edge_weight(self) -> float:
        """The weight of the edge terms in the next step."""
        return float(self.criterion.current_edge_weight)

    def forward(self, logits: Tensor, target: Tensor, progress: Progress) -> Tensor:
        """Compute the loss."""
        loss: Tensor = self.criterion(logits, target)
        if self.dice:
            loss = loss + self.dice * regions.dice(
                at_size(logits, target.shape[1:]), target, ignore_index=self.criterion.ignore_index
            )
        return loss


def _batch_balanced(logits: Tensor, target: Tensor, *, ignore_index: int, edge_weight: float = 1.0) -> Tensor:
    """Compute EdgeAwareLoss with the class weights of the batch, which depend on what else is in it."""
    balanced = balanced_edge_class_weight([target], logits.shape[1], ignore_index=ignore_index)
    return edge_aware_loss(
        logits, target, ignore_index=ignore_index, edge_class_weight=balanced.to(logits.device), edge_weight=edge_weight
    )


def _shifted(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    edge_class_weight: Tensor | None = None,
    edge_weight: float = 1.0,
    shift: int = 1,
) -> Tensor:
    """Compute EdgeAwareLoss with its edge terms on labels that are moved along every axis: a negative control."""
    moved = target
    for axis in range(1, target.dim()):
        index = torch.arange(target.shape[axis], device=target.device) - shift
        moved = moved.index_select(axis, index.clamp(0, target.shape[axis] - 1))  # the labels of the border go on
    edge = edge_aware_loss(
        logits,
        moved.where(target != ignore_index, ignore_index),
        ignore_index=ignore_index,
        edge_class_weight=edge_class_weight,
        ce_weight=0.0,
        edge_weight=edge_weight,
    )
    return cross_entropy(logits, target, ignore_index) + edge


def _relational(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    edge_class_weight: Tensor | None = None,
    weight: float = 0.5,
    agree: float = 0.1,
    edge_weight: float = 0.0,
) -> Tensor:
    """Compute cross-entropy and the relational term, with the edge terms of EdgeAwareLoss or without."""
    loss = edge_aware_loss(
        logits, target, ignore_index=ignore_index, edge_class_weight=edge_class_weight, edge_weight=edge_weight
    )
    return loss + weight * relational(logits, target, ignore_index=ignore_index, agree=agree)


def _abl(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    pixel_weight: Tensor | None = None,
    weight: float = 1.0,
    lovasz: float = 0.0,
) -> Tensor:
    """Compute the active boundary loss; its authors add the Lovász term with weight 1."""
    term = active_boundary(logits, target, ignore_index=ignore_index)
    loss = cross_entropy(logits, target, ignore_index, pixel_weight=pixel_weight) + weight * term
    return loss + lovasz * regions.lovasz(logits, target, ignore_index=ignore_index) if lovasz else loss


def _cldice(
    logits: Tensor,
    target: Tensor,
    *,
    ignore_index: int,
    pixel_weight: Tensor | None = None,
    weight: float = 1.0,
    thin_class: int = -1,
) -> Tensor:
    """Compute clDice of the class whose structures are thin, or of all classes with -1."""
    term = regions.cldice(logits, target, ignore_index=ignore_index, thin_class=thin_class)
    return cross_entropy(logits, target, ignore_index, pixel_weight=pixel_weight) + weight * term


def _with_cross_entropy(
    term: Callable[..., Tensor], default: float = 1.0, schedule: Callable[[Progress], float] = lambda progress: 1.0
) -> Callable[..., Tensor]:
    """Return cross-entropy + weight · schedule · term, where the weight is an option."""

    def loss(
        logits: Tensor,
        target: Tensor,
        *,
        progress: Progress,
        ignore_index: int,
        pixel_weight: Tensor | None = None,
        weight: float = default,
    ) -> Tensor:
        added = weight * schedule(progress) * term(logits, target, ignore_index=ignore_index)
        return cross_entropy(logits, target, ignore_index, pixel_weight=pixel_weight) + added

    return loss


# Each loss, and its title in tables.
_LOSSES: dict[str, tuple[Callable[..., Any], str]] = {
    "ce": (_ce, "cross-entropy"),
    "balanced": (_balanced, "class-weighted CE"),
    "median_frequency": (_median_frequency, "median-frequency CE"),
    "logit_adjusted": (_logit_adjusted, "logit-adjusted CE"),
    "weighted": (_weighted, "edge-weighted CE"),
    "random": (_weighted, "randomly weighted CE"),
    "unet": (_unet, "CE with U-Net weights"),
    "relaxed": (_relaxed, "CE with relaxed labels"),
    "svls": (_smoothed, "CE with SVLS"),
    "ours": (_ours, "edgeloss"),
    "module": (Module, "EdgeAwareLoss()"),
    "batch_balanced": (_batch_balanced, "edgeloss balanced by batch"),
    "shifted": (_shifted, "edgeloss on shifted edges"),
    "relational": (_relational, "CE + relational"),
    "dice": (_with_cross_entropy(regions.dice), "CE + Dice"),
    "lovasz": (_with_cross_entropy(regions.lovasz), "CE + Lovász"),
    "boundary": (_with_cross_entropy(boundary, 0.01, lambda progress: progress.epoch + 1), "CE + boundary loss"),
    "affinity": (
        _with_cross_entropy(affinity, schedule=lambda progress: 10 ** (-progress.step / progress.steps)),
        "CE + affinity 3×3",
    ),
    "abl": (_abl, "CE + active boundary"),
    "cpg": (_with_cross_entropy(cpg), "CE + CPG"),
    "hausdorff": (_with_cross_entropy(regions.hausdorff), "CE + Hausdorff DT"),
    "boundary_dou": (_with_cross_entropy(boundary_dou), "CE + Boundary DoU"),
    "rmi": (_with_cross_entropy(rmi), "CE + RMI"),
    "cldice": (_cldice, "CE + clDice"),
}
RECIPES = {name: recipe for name, (recipe, _) in _LOSSES.items()}
TITLES = {name: title for name, (_, title) in _LOSSES.items()}
# A recipe with the parameter ``pixel_weight`` takes the control's edge weights for its cross-entropy, with the options
# ``k`` and ``class_balance``. ``k`` is 0 by default, and for these:
DEFAULT_K = {"weighted": 4.0, "random": 4.0}
# Options of earlier versions, which rows and names of their runs have, with the values that left them out.
REMOVED: dict[str, Options] = {
    "ours": {
        "false_edge_weight": 0.0,
        "false_edge_start": 0.0,
        "start": 0.0,
        "final_edge_weight": None,
        "k": 0.0,
    },
    "module": {"false_edge_weight": 0.0, "old_focus": 0},  # 1: the weight of the edge terms as in version 0.2
}
# Parameters that are computed from the labels.
FROM_LABELS = {"prior": class_prior, "frequency_weight": median_frequency_weight}
COMPUTED = ("ignore_index", "progress", "edge_class_weight", "pixel_weight", *FROM_LABELS)


def defaults(name: str) -> Options:
    """Return the options of a loss and their defaults, with those that were removed.

    Raises:
        ValueError: if there is no such loss.
    """
    if name not in RECIPES:
        raise ValueError(f"loss: expected one of {list(RECIPES)}, but got {name!r}")
    parameters = inspect.signature(RECIPES[name]).parameters
    keywords = {key: p.default for key, p in parameters.items() if p.kind == p.KEYWORD_ONLY}
    options = {key: default for key, default in keywords.items() if key not in COMPUTED}
    if "pixel_weight" in keywords:
        options["k"] = DEFAULT_K.get(name, 0.0)
    if keywords.keys() & {"pixel_weight", "edge_class_weight"}:
        options["class_balance"] = 0.0
    return options | REMOVED.get(name, {})


def completed(name: str, options: Mapping[str, Any]) -> Options:
    """Return all options of a loss: the given values, and defaults for the others.

    Without edge weights in its cross-entropy, the options of these are left out, and so are those that were removed,
    unless a row of an earlier version has another value.

    Raises:
        ValueError: if the loss or an option does not exist, or classes are balanced where no edge is weighted.
        TypeError: if an option is not a number.
    """
    known = defaults(name)
    for key, value in options.items():
        if key not in known:
            raise ValueError(f"options of {name}: expected some of {list(known)}, but got {key!r}")
        if value is None and known[key] is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"option {key} of {name}: expected a number, but got {value!r}")
        known[key] = value if isinstance(known[key], int) else float(value)
    if "pixel_weight" in inspect.signature(RECIPES[name]).parameters and not known["k"]:
        if known["class_balance"]:
            raise ValueError(f"option k of {name}: expected a number > 0 for class_balance, but got 0")
        del known["k"], known["class_balance"]
    removed = REMOVED.get(name, {})
    return {key: value for key, value in known.items() if key not in removed or value != removed[key]}


def loss_title(loss: str, options: Options) -> str:
    """Return a loss as tables name it: its title, and options that are not defaults."""
    known = defaults(loss)
    changed = ", ".join(f"{key} {value:g}" for key, value in options.items() if value != known.get(key, value))
    return TITLES[loss] + (f" ({changed})" if changed else "")


def make(
    name: str,
    options: Mapping[str, Any],
    ignore_index: int,
    *,
    targets: Iterable[Tensor] = (),
    num_classes: int = 0,
    device: str = "cpu",
) -> Loss:
    """Return the loss: a function of logits [B, C, *S], labels and progress.

    Args:
        name: name of a recipe.
        options: of the loss. With ``k`` > 0 its cross-entropy has the weights of
            :func:`baselines.control.edge_weights`. ``class_balance`` > 0 is the exponent of class weights computed from
            the edge pixels: factors of ``k``, or those of the loss's own edge terms.
        ignore_index: the ignored label.
        targets: label maps [1, *S] to compute class weights and frequencies from.
        num_classes: number of classes C.
        device: of the logits.
    """
    options = completed(name, options)
    if removed := options.keys() & REMOVED.get(name, {}).keys():
        raise ValueError(f"options of {name}: expected none that was removed, but got {sorted(removed)}")
    parameters = inspect.signature(RECIPES[name]).parameters
    counted = parameters.keys() & FROM_LABELS.keys()
    balance, balanced = options.pop("class_balance", 0.0), None
    if balance and counted:
        targets = list(targets)  # for two passes
    if balance:
        balanced = balanced_edge_class_weight(targets, num_classes, exponent=balance, ignore_index=ignore_index)
        balanced = balanced.to(device)
    options |= {key: FROM_LABELS[key](targets, num_classes, ignore_index).to(device) for key in counted}
    if "edge_class_weight" in parameters:
        options["edge_class_weight"] = balanced
    k = options.pop("k", 0.0) if "pixel_weight" in parameters else 0.0
    if isinstance(RECIPES[name], type):  # it has state
        return RECIPES[name](ignore_index=ignore_index, **options).to(device)
    recipe = partial(RECIPES[name], ignore_index=ignore_index, **options)

    def loss(logits: Tensor, target: Tensor, progress: Progress) -> Tensor:
        given: dict[str, Any] = {"progress": progress} if "progress" in parameters else {}
        if k:
            draw = torch.Generator().manual_seed(progress.step) if name == "random" else None
            given["pixel_weight"] = edge_weights(
                target, ignore_index=ignore_index, k=k, edge_class_weight=balanced, draw=draw
            )
        return recipe(logits, target, **given)

    return loss

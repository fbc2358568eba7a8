"""The losses to train with: cross-entropy, and what each recipe adds to it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
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
from baselines.frequencies import adjusted, class_pixels, class_prior, median_frequency_weight
from baselines.relational import relational
from baselines.rmi import rmi
from baselines.soft_labels import relaxed_cross_entropy, smoothed_cross_entropy
from baselines.unet_weights import unet_weights
from edgeloss import EdgeAwareLoss
from edgeloss._checks.inputs import BALANCED
from edgeloss._reduction import PRIOR
from edgeloss.functional import balanced_edge_class_weight, edge_aware_loss, normalizers

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


@dataclass(frozen=True)
class Given:
    """What a recipe gets besides logits, labels and its options.

    Attributes:
        ignore_index: the ignored label.
        progress: of the training.
        pixel_weight: [B, *S], the edge weights of the control for its cross-entropy; None for none.
        edge_class_weight: [C], balanced class weights of edge pixels; None for none.
        counted: what the recipe counts in the training labels.
    """

    ignore_index: int
    progress: Progress
    pixel_weight: Tensor | None = None
    edge_class_weight: Tensor | None = None
    counted: Tensor | None = None

    def cross_entropy(self, logits: Tensor, target: Tensor, class_weight: Tensor | None = None) -> Tensor:
        """Return the mean with the pixel weights."""
        return cross_entropy(logits, target, self.ignore_index, class_weight, self.pixel_weight)

    def weight(self, target: Tensor) -> Tensor:
        """Return the pixel weights, by default 1 on valid pixels."""
        return target != self.ignore_index if self.pixel_weight is None else self.pixel_weight


def _ce(logits: Tensor, target: Tensor, given: Given) -> Tensor:
    return given.cross_entropy(logits, target)


def _class_weighted(logits: Tensor, target: Tensor, given: Given) -> Tensor:
    """Compute cross-entropy with class weights at all pixels: what is counted, or else the weights of edge pixels."""
    return given.cross_entropy(logits, target, given.edge_class_weight if given.counted is None else given.counted)


def _logit_adjusted(logits: Tensor, target: Tensor, given: Given, tau: float) -> Tensor:
    return given.cross_entropy(adjusted(logits, given.counted, tau), target)


def _unet(logits: Tensor, target: Tensor, given: Given, **options: float) -> Tensor:
    """Compute cross-entropy with the U-Net's weights between objects, added to 1 or to the edge weights."""
    between = unet_weights(target, ignore_index=given.ignore_index, num_classes=logits.shape[1], **options)
    return cross_entropy(logits, target, given.ignore_index, pixel_weight=given.weight(target) + between)


def _soft(map_of: Callable[..., Tensor], logits: Tensor, target: Tensor, given: Given, **options: float) -> Tensor:
    """Compute the mean of a cross-entropy with labels that are less strict near edges."""
    return weighted_mean(map_of(logits, target, ignore_index=given.ignore_index, **options), given.weight(target))


def _ours(logits: Tensor, target: Tensor, given: Given, **options: Any) -> Tensor:  # noqa: ANN401
    """Compute EdgeAwareLoss as a function, without a region term."""
    common = {"ignore_index": given.ignore_index, "edge_class_weight": given.edge_class_weight}
    return edge_aware_loss(logits, target, **common, **_ALONE, **options)


def _batch_balanced(logits: Tensor, target: Tensor, given: Given, edge_weight: float) -> Tensor:
    """Compute EdgeAwareLoss with the class weights of the batch, which depend on what else is in it."""
    balanced = balanced_edge_class_weight([target], logits.shape[1], ignore_index=given.ignore_index)
    own = replace(given, edge_class_weight=balanced.to(logits.device))
    return _ours(logits, target, own, edge_weight=edge_weight)


def _shifted(logits: Tensor, target: Tensor, given: Given, edge_weight: float, shift: int) -> Tensor:
    """Compute EdgeAwareLoss with its edge terms on labels that are moved along every axis: a negative control."""
    moved = target
    for axis in range(1, target.dim()):
        index = torch.arange(target.shape[axis], device=target.device) - shift
        moved = moved.index_select(axis, index.clamp(0, target.shape[axis] - 1))  # the labels of the border go on
    moved = moved.where(target != given.ignore_index, given.ignore_index)
    return given.cross_entropy(logits, target) + _ours(logits, moved, given, ce_weight=0.0, edge_weight=edge_weight)


def _abl(logits: Tensor, target: Tensor, given: Given, weight: float, lovasz: float) -> Tensor:
    """Compute the active boundary loss; its authors add the Lovász term with weight 1."""
    loss = _plus(active_boundary)(logits, target, given, weight)
    return loss + lovasz * regions.lovasz(logits, target, ignore_index=given.ignore_index) if lovasz else loss


def _plus(
    term: Callable[..., Tensor], schedule: Callable[[Progress], float] = lambda progress: 1.0
) -> Callable[..., Tensor]:
    """Return cross-entropy + weight · schedule · term; options other than the weight are the term's."""

    def loss(logits: Tensor, target: Tensor, given: Given, weight: float, **options: float) -> Tensor:
        added = term(logits, target, ignore_index=given.ignore_index, **options)
        return given.cross_entropy(logits, target) + weight * schedule(given.progress) * added

    return loss


class Module(nn.Module):
    """Compute EdgeAwareLoss as a module; by default ``EdgeAwareLoss()``.

    It also accepts logits of lower resolution than the labels.

    Args:
        ignore_index: the ignored label.
        edge_class_weight: that of EdgeAwareLoss.
        prior: of the balance of the batch, as a share of the mean number of edge pixels of a class.
        dice: weight of a Dice term in addition.
        options: of EdgeAwareLoss.
    """

    def __init__(
        self, *, ignore_index: int, edge_class_weight: Tensor | str | None, prior: float, dice: float, **options: float
    ) -> None:
        """Create the loss."""
        super().__init__()
        self.dice, self.prior = dice, prior
        options |= {"edge_class_weight": edge_class_weight, "ignore_index": ignore_index}
        self.criterion = EdgeAwareLoss(upsample=True, **options)

    def forward(self, logits: Tensor, target: Tensor, progress: Progress) -> Tensor:
        """Compute the loss."""
        if self.prior != PRIOR:
            self.criterion.edge_class_weight = self._balance(target, logits.shape[1])
        loss: Tensor = self.criterion(logits, target)
        if self.dice:
            whole = at_size(logits, target.shape[1:])
            loss = loss + self.dice * regions.dice(whole, target, ignore_index=self.criterion.ignore_index)
        return loss

    def _balance(self, target: Tensor, classes: int) -> Tensor:
        """Return the class weights of the batch with another prior."""
        n = normalizers(target, classes, ignore_index=self.criterion.ignore_index)[1]
        u = 1 / (n + self.prior * n.mean()).clamp(min=1e-9)
        return (u * n.sum() / torch.dot(u, n).clamp(min=1e-9)).float()


class Recipe(NamedTuple):
    """A loss to train with.

    Attributes:
        title: as tables name it.
        loss: of logits, labels, what is given, and its options.
        options: numbers that a plan may set, and their defaults.
        k: default of the option ``k``, the control's additional weight of edge pixels in its cross-entropy; None for
            losses without it. An option ``class_balance`` > 0 goes with it, the exponent of class weights computed from
            the edge pixels; a loss with weights of its own has this option alone.
        count: computes what it needs of the pixels per image and class of the training labels.
        earlier: options that rows of earlier versions have: what was computed otherwise then can't be trained again.
        former: defaults of those versions, where they were others.
    """

    title: str
    loss: Callable[..., Any]
    options: Options = {}  # noqa: RUF012
    k: float | None = None
    count: Callable[[Tensor], Tensor] | None = None
    earlier: Options = {}  # noqa: RUF012
    former: Options = {}  # noqa: RUF012


_BALANCE: Options = {"class_balance": 0.0}
_EDGES: Options = {"edge_weight": 1.0, "other_side_weight": 1.0, "same_side_weight": 1.0}
_OURS = _EDGES | {"radius": 1, "power": 0.0, "decay": None} | _BALANCE
_ALONE: Options = {"edge_focus": 0.0, "region_weight": 0.0}  # the cross-entropy and the edge terms
_DEFAULTS = {name: parameter.default for name, parameter in inspect.signature(EdgeAwareLoss).parameters.items()}
_OF_MODULE = {name: _DEFAULTS[name] for name in ("edge_weight", "edge_focus", "region_weight")}
# What the loss was in 0.2 and 0.3: a function of the steps before. ``running`` 0 was ``edge_class_weight=None``, and
# with ``old_focus`` 1 only the weight of the edge terms is that of 0.2.
_OF_EARLIER: Options = {"version": 0.0, "old_focus": 0, "running": 1}
_WEIGHT: Options = {"weight": 1.0}

RECIPES = {
    "ce": Recipe("cross-entropy", _ce),
    "balanced": Recipe("class-weighted CE", _class_weighted, _BALANCE),
    "median_frequency": Recipe("median-frequency CE", _class_weighted, k=0.0, count=median_frequency_weight),
    "logit_adjusted": Recipe("logit-adjusted CE", _logit_adjusted, {"tau": 1.0}, k=0.0, count=class_prior),
    "weighted": Recipe("edge-weighted CE", _ce, k=4.0),
    "random": Recipe("randomly weighted CE", _ce, k=4.0),
    "unet": Recipe("CE with U-Net weights", _unet, {"w0": 10.0, "sigma": 5.0}, k=0.0),
    "relaxed": Recipe("CE with relaxed labels", partial(_soft, relaxed_cross_entropy), k=0.0),
    "svls": Recipe("CE with SVLS", partial(_soft, smoothed_cross_entropy), {"sigma": 1.0}, k=0.0),
    "ours": Recipe("CE + edge terms", _ours, _OURS),
    "module": Recipe(
        "EdgeAwareLoss()",
        Module,
        _OF_MODULE | {"class_balance": 0.0, "prior": PRIOR, "dice": 0.0},
        earlier=_OF_EARLIER,
        former={"edge_focus": 8.0},
    ),
    "batch_balanced": Recipe("CE + edge terms by batch", _batch_balanced, {"edge_weight": 1.0}),
    "shifted": Recipe("CE + shifted edge terms", _shifted, {"edge_weight": 1.0, "shift": 1} | _BALANCE),
    "relational": Recipe("CE + relational", _plus(relational), {"weight": 0.5, "agree": 0.1}, k=0.0),
    "dice": Recipe("CE + Dice", _plus(regions.dice), _WEIGHT, k=0.0),
    "lovasz": Recipe("CE + Lovász", _plus(regions.lovasz), _WEIGHT, k=0.0),
    "boundary": Recipe(
        "CE + boundary loss", _plus(boundary, lambda progress: progress.epoch + 1), {"weight": 0.01}, k=0.0
    ),
    "affinity": Recipe(
        "CE + affinity 3×3", _plus(affinity, lambda progress: 10 ** (-progress.step / progress.steps)), _WEIGHT, k=0.0
    ),
    "abl": Recipe("CE + active boundary", _abl, _WEIGHT | {"lovasz": 0.0}, k=0.0),
    "cpg": Recipe("CE + CPG", _plus(cpg), _WEIGHT, k=0.0),
    "hausdorff": Recipe("CE + Hausdorff DT", _plus(regions.hausdorff), _WEIGHT, k=0.0),
    "boundary_dou": Recipe("CE + Boundary DoU", _plus(boundary_dou), _WEIGHT, k=0.0),
    "rmi": Recipe("CE + RMI", _plus(rmi), _WEIGHT, k=0.0),
    "cldice": Recipe("CE + clDice", _plus(regions.cldice), _WEIGHT | {"thin_class": -1}, k=0.0),
}


def defaults(name: str, options: Mapping[str, Any]) -> Options:
    """Return the options of a loss and their defaults, those of the version that the given ones name.

    Raises:
        ValueError: if there is no such loss.
    """
    if name not in RECIPES:
        raise ValueError(f"loss: expected one of {list(RECIPES)}, but got {name!r}")
    recipe = RECIPES[name]
    of_version = recipe.former if options.get("version") else {}
    return recipe.options | of_version | ({} if recipe.k is None else {"k": recipe.k} | _BALANCE) | recipe.earlier


def completed(name: str, options: Mapping[str, Any]) -> Options:
    """Return all options of a loss: the given values, and defaults for the others.

    Without edge weights in its cross-entropy, the options of these are left out, and so are those of earlier versions,
    unless a row has another value.

    Raises:
        ValueError: if the loss or an option does not exist, or classes are balanced where no edge is weighted.
        TypeError: if an option is not a number.
    """
    known = defaults(name, options)
    for key, value in options.items():
        if key not in known:
            raise ValueError(f"options of {name}: expected some of {list(known)}, but got {key!r}")
        if value is None and known[key] is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"option {key} of {name}: expected a number, but got {value!r}")
        known[key] = value if isinstance(known[key], int) else float(value)
    if RECIPES[name].k is not None and not known["k"]:
        if known["class_balance"]:
            raise ValueError(f"option k of {name}: expected a number > 0 for class_balance, but got 0")
        del known["k"], known["class_balance"]
    earlier = RECIPES[name].earlier
    return {key: value for key, value in known.items() if key not in earlier or value != earlier[key]}


def loss_title(loss: str, options: Options) -> str:
    """Return a loss as tables name it: its title, and options that are not defaults."""
    known = defaults(loss, options)
    changed = ", ".join(f"{key} {value:g}" for key, value in options.items() if value != known.get(key, value))
    return RECIPES[loss].title + (f" ({changed})" if changed else "")


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
        options: of the loss.
        ignore_index: the ignored label.
        targets: label maps [1, *S] to compute class weights and frequencies from.
        num_classes: number of classes C.
        device: of the logits.
    """
    recipe, options = RECIPES[name], completed(name, options)
    if earlier := options.keys() & recipe.earlier.keys():
        raise ValueError(f"options of {name}: expected none of an earlier version, but got {sorted(earlier)}")
    if isinstance(recipe.loss, type):
        balance, weight = options.pop("class_balance"), BALANCED
        if balance:
            weight = balanced_edge_class_weight(targets, num_classes, exponent=balance, ignore_index=ignore_index)
        return recipe.loss(ignore_index=ignore_index, edge_class_weight=weight, **options).to(device)
    balance, k, balanced, counted = options.pop("class_balance", 0.0), options.pop("k", 0.0), None, None
    if balance and recipe.count:
        targets = list(targets)  # for two passes
    if balance:
        balanced = balanced_edge_class_weight(targets, num_classes, exponent=balance, ignore_index=ignore_index)
        balanced = balanced.to(device)
    if recipe.count:
        counted = recipe.count(class_pixels(targets, num_classes, ignore_index)).to(device)

    def loss(logits: Tensor, target: Tensor, progress: Progress) -> Tensor:
        weight = None
        if k:
            draw = torch.Generator().manual_seed(progress.step) if name == "random" else None
            weight = edge_weights(target, ignore_index=ignore_index, k=k, edge_class_weight=balanced, draw=draw)
        given = Given(ignore_index, progress, weight, balanced, counted)
        return recipe.loss(logits, target, given, **options)

    return loss

r"""The region term: what the prediction of small regions leaves open about their labels, for each image.

Symbols: logits x [B, C, *S], labels y [B, *S]. For a class c of an image,

* q: the sigmoid of x(c), and y: 1 where the label is c, else 0; both 0 on ignored pixels, and averaged over ``POOL``
  pixels per axis.
* a *region* is ``SIDE`` such averages per axis, a vector of d = 9, or 27 in 3-D; Σ_qq, Σ_qy and Σ_yy are the scatter
  matrices of the regions of q and y over the whole image, with a = ``NOISE`` on the diagonals of Σ_qq and Σ_yy.

The residual scatter of the best linear estimate of y by q is M = Σ_yy - Σ_yqΣ_qq⁻¹Σ_qy, and

    R = Σ_c 1/(2d) · (log det M - d log a) ≥ 0

which is 0 for a class that the image does not have. R is the entropy of y given q, of normal distributions, up to a
constant: the less, the more mutual information. A single logit has the term of class 1 alone. An image that is less
than three averages wide along some axis has no regions, and R = 0.

log det M is read off the Cholesky factor of the joint matrix [[Σ_qq, Σ_qy], [Σ_yq, Σ_yy]], whose last d rows are that
of M; the subtraction would lose it where q explains nearly all of y.

Source: Zhao et al., "Region Mutual Information Loss for Semantic Segmentation", NeurIPS 2019. The constant, which makes
R ≥ 0, volumes and single logits are our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from edgeloss.inputs import Inputs, labels, result_dtype, widest
from edgeloss.opaque import opaque_to_compilers
from edgeloss.options import Options
from edgeloss.reduction import Regions, weights_of_pixels
from edgeloss.reference import at_label_resolution

POOL = 3  # pixels per axis that are averaged
SIDE = 3  # averages per axis of a region
NOISE = 5e-4  # a: what is added to the diagonals of the scatter matrices
NO_CLASS = -1  # the label that the kernels keep of a pixel that does not count


def evaluate(inputs: Inputs, options: Options, found: Regions | None, *, has_kernels: bool = False) -> Regions:
    """Return the region term of each image.

    Args:
        inputs: the checked tensors; labels that are no class count as ignored.
        options: of the call.
        found: what the backend has of an :class:`edgeloss.reduction.Evaluation`.
        has_kernels: whether the fused kernels serve the call.
    """
    if found is not None and inputs.pixel_weight is None:
        return found
    y, valid = labels(inputs.target, inputs.logits.shape[1], options.ignore_index)
    weight = weights_of_pixels(y, valid, inputs).flatten(1).sum(1)
    if found is not None:
        return found._replace(weight=weight)
    return Regions(
        _values(inputs.logits, y, valid, _interpolated if has_kernels and y.is_cpu else region_values), weight
    )


def _values(logits: Tensor, y: Tensor, valid: Tensor, of_image: Callable[..., Tensor]) -> Tensor:
    """Return R of each image, [B], one image after another, so that the memory is that of one."""
    if torch.compiler.is_compiling() or not len(logits):
        return region_values(logits, y, valid)
    # Transforms do not know checkpoints.
    is_transformed = torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    parts = []
    is_kept = is_transformed or not logits.requires_grad
    for b in range(len(logits)):
        image = logits[b : b + 1], y[b : b + 1], valid[b : b + 1]
        if is_kept:
            parts.append(of_image(*image))
        else:
            parts.append(checkpoint(of_image, *image, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(parts)


@opaque_to_compilers(lambda x, *_: x.new_empty(len(x), dtype=widest(x.device)))
def region_values(x: Tensor, y: Tensor, valid: Tensor) -> Tensor:
    """Return R of each image, [B].

    Args:
        x: [B, C, *S'] of any floating dtype; S' may be of lower resolution than S.
        y: [B, *S] int64.
        valid: [B, *S] bool.
    """
    dims, classes, wide = y.dim() - 1, x.shape[1], widest(y.device)
    x = at_label_resolution(x, valid)
    if any((size - 1) // POOL + 1 < SIDE for size in y.shape[1:]) or not len(y):
        return x.flatten(1)[:, :0].sum(1).to(wide)
    of_class = torch.arange(classes, device=y.device) if classes > 1 else torch.ones(1, device=y.device)
    is_class = (y[:, None] == of_class.view(-1, *[1] * dims)) & valid[:, None]
    # Select before any arithmetic: nan or inf logits of ignored pixels, or of a class that an image does not have, must
    # not reach the value or the gradient.
    is_read = valid[:, None] & is_class.flatten(2).any(2).view(*is_class.shape[:2], *[1] * dims)
    q = torch.where(is_read, x, 0.0).sigmoid() * is_read
    joint = torch.cat([_regions(q), _regions(is_class.to(x.dtype))], 2)
    d = joint.shape[2] // 2
    noise = NOISE * torch.eye(2 * d, dtype=joint.dtype, device=joint.device)
    factor, failed = torch.linalg.cholesky_ex(joint @ joint.mT + noise)
    log_det = 2 * factor.diagonal(dim1=-2, dim2=-1)[..., d:].log().sum(-1)
    value = ((log_det - d * math.log(NOISE)) / (2 * d)).masked_fill(failed > 0, math.nan)  # of nan logits
    sums: Tensor = value.sum(1)
    return sums.to(x.device, wide)


def _regions(x: Tensor) -> Tensor:
    """Return the centered regions of maps [B, C, *S]: [B, C, d, number of regions]."""
    pool = F.avg_pool2d if x.dim() == 4 else F.avg_pool3d
    x = pool(x, POOL, stride=POOL, padding=POOL // 2)
    # The noise is lost in the sums of float32.
    x = x.double() if widest(x.device) == torch.float64 else x.cpu().double()
    windows = x
    for axis in range(2, x.dim()):
        windows = windows.unfold(axis, SIDE, 1)
    values = windows.flatten(x.dim()).movedim(-1, 2).flatten(3)
    return values - values.mean(-1, keepdim=True)


# --------------------------------------------------------------------------------------------------- the fused kernels


def by_kernels(inputs: Inputs, logits: Tensor, label: Tensor, *, has_state: bool) -> Regions:
    """Return the region term; the weights of the images are without ``pixel_weight``.

    Args:
        inputs: of the call.
        logits: its logits, evenly spaced.
        label: [B, *S] as large as the logits, the class of each pixel, -1 where it does not count.
        has_state: whether the backward pass of the other terms adds its gradient.
    """
    if has_state:
        with torch._C._AutoDispatchBelowAutograd():
            value, counts, *state = torch.ops.edgeloss.region.default(logits, label, NO_CLASS)
    else:  # the operator has its own derivative
        value, counts, *state = torch.ops.edgeloss.region(logits, label, NO_CLASS)
    if inputs.weight is not None:
        weight = inputs.weight.to(counts.dtype).view(inputs.tables, -1)
        counts = (counts.view(-1, *weight.shape) * weight).flatten(0, 1)
    return Regions(value, counts.sum(1), (state[0], state[1]) if has_state else None)


def _interpolated(x: Tensor, y: Tensor, valid: Tensor) -> Tensor:
    """Return what :func:`region_values` does, of logits that are interpolated first."""
    label = torch.where(valid, y, NO_CLASS)
    value: Tensor = torch.ops.edgeloss.region(at_label_resolution(x, valid), label, NO_CLASS)[0]
    return value


def _fake(logits: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, ...]:
    batch, classes, *size = logits.shape
    averages = math.prod((length + POOL - 1) // POOL for length in size)
    value = logits.new_empty(batch, dtype=torch.float64)
    slope = logits.new_empty(batch * classes * averages, dtype=result_dtype(logits))
    counts = value.new_empty((batch, max(2, classes)))
    return value, counts, slope, logits.new_empty(batch * classes, dtype=torch.uint8)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:  # noqa: ANN401
    logits, target, ctx.ignore_index = inputs
    ctx.save_for_backward(logits, target, *output[2:])


def _backward(ctx: Any, grad: Tensor, *of_state: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
    logits, *others = ctx.saved_tensors
    gradient = torch.zeros_like(logits)
    torch.ops.edgeloss.region_backward(gradient, grad.contiguous(), logits, *others, ctx.ignore_index)
    return gradient, None, None


def register() -> None:
    """Register shapes and derivatives of the operators."""
    torch.library.register_fake("edgeloss::region", _fake)
    torch.library.register_autograd("edgeloss::region", _backward, setup_context=_setup_context)
    torch.library.register_fake("edgeloss::region_backward", lambda *args: None)

r"""The region term: the share of what the labels say about small regions that the prediction leaves open.

Symbols: logits x [B, C, *S], labels y [B, *S]. For a class c of an image,

* q: the softmax probability of c, and z: 1 where the label is c, else 0; both 0 on ignored pixels, and averaged over
  ``POOL`` pixels per axis. r = z - q is what is computed: it has full precision where q is near z.
* a *region* is ``SIDE`` such averages per axis, a vector of d = 9, or 27 in 3-D; Z, Q and R = Z - Q have the centered
  regions of the image as their columns.
* a = ``NOISE``, and a_q = a · max(1, tr QQᵀ / tr ZZᵀ).

With h(A) = ½ (log det A - d log a) and Σ_zz = ZZᵀ + aI,

    H = h(Σ_zz)                                                           what the labels say about their regions
    U = h(Σ_zz - ZQᵀ (QQᵀ + a_q I)⁻¹ QZᵀ)                                 what of it the prediction leaves open
    f = h(2aI - a² Σ_zz⁻¹) = h(2ZZᵀ + aI) - H                             what the labels themselves leave open

and ν = max(0, (U - f) / (H - f)) is the share that a linear map of the prediction does not explain. A linear map does
not see a sign: with the contrast of the prediction in the direction of the labels,

    σ = clamp(tr ZQᵀ / (0.05 tr ZZᵀ), -1, 1)

the term of the class is R = 1 - σ (1 - ν), in 0 ... 2. The term of an image is the mean over its classes that have one;
of two classes, or one logit, class 1 alone has one. It is 0 for an image without any, such as one of a single class.

U is read off the Cholesky factor of the joint scatter matrix of q and r, whose last d rows are those of the residual:

    [ QQᵀ + a_q I    QRᵀ - a_q I       ]
    [ RQᵀ - a_q I    RRᵀ + (a + a_q) I ]

Source: after Zhao et al., "Region Mutual Information Loss for Semantic Segmentation", NeurIPS 2019. Softmax
probabilities, the division by H - f, the noise a_q, the sign, volumes and single logits are our own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from edgeloss._checks.inputs import Inputs, widest
from edgeloss._reduction import Regions, weights_of_pixels
from edgeloss._reference.custom_ops import opaque_to_compilers
from edgeloss._reference.interpolate import readable_logits
from edgeloss._reference.parts import by_parts, of_images

POOL = 3  # pixels per axis that are averaged
SIDE = 3  # averages per axis of a region
NOISE = 5e-4  # a
LEAST_CONTRAST = 0.05  # of the prediction along the labels, relative to theirs, where σ is 1
LEAST_KNOWN = 0.1  # H - f is 0, or at least 0.96 (0.20 in 3-D): docs/loss.md derives it


def averages_of(shape: Sequence[int]) -> list[int]:
    """Return the number of averages along each axis of labels [B, *S]."""
    return [(length - 1) // POOL + 1 for length in shape[1:]]


def has_regions(shape: Sequence[int]) -> bool:
    """Return whether labels [B, *S] hold a region."""
    return all(length >= SIDE for length in averages_of(shape)) and math.prod(shape) > 0


def evaluate(inputs: Inputs) -> tuple[Inputs, Regions]:
    """Return the inputs of the other terms and the region term of each image.

    Labels that are no class count as ignored. The logits of the inputs may be a view, by which the region term adds its
    gradient to that of the other terms in its place.
    """
    y, valid = inputs.labels()
    of_pixels = weights_of_pixels(inputs, y, valid)
    weight = of_pixels.flatten(1).sum(1, dtype=widest(y.device)).view(-1, inputs.tables).sum(1)
    given = inputs.logits, y, valid, inputs.tables
    if torch.compiler.is_compiling():
        return inputs, Regions(region_values(*given), weight)
    logits, value = _logits_and_values(*given)
    return inputs._replace(logits=logits), Regions(value, weight)


@opaque_to_compilers(lambda x, y, valid, tables: x.new_empty(y.shape[0] // tables, dtype=widest(y.device)))
def region_values(x: Tensor, y: Tensor, valid: Tensor, tables: int) -> Tensor:
    """Return the term of each image, [B]; as many binary images as ``tables``, one after another, are its classes."""
    return _logits_and_values(x, y, valid, tables)[1]


def _logits_and_values(x: Tensor, y: Tensor, valid: Tensor, tables: int) -> tuple[Tensor, Tensor]:
    wide, classes, d = widest(y.device), max(2, x.shape[1]), SIDE ** (y.dim() - 1)
    if not has_regions(y.shape):
        return x, x.flatten(1)[:, :0].sum(1).view(-1, tables).sum(1).to(wide)
    of_image = classes * y[0].numel()
    home = y.device if wide == torch.float64 else torch.device("cpu")  # of sums that float32 would lose
    z = by_parts(partial(_label_averages, classes=classes), of_images(len(y), of_image), y, valid)[1].to(home)
    shape, z = z.shape[:2], z.flatten(0, 1)
    of_map = 2 * d * z[0].numel()
    zz = by_parts(_scatter, of_images(len(z), of_map), z)[1]
    noise = NOISE * torch.eye(d, dtype=zz.dtype, device=home)
    known, doubled = (entropy(k * zz + noise, d).view(shape) for k in (1, 2))  # H and H + f
    scale = 2 * known - doubled
    has_term = _has_others(y, valid, classes).to(home) & (scale > LEAST_KNOWN)
    # Select before any arithmetic: nan or inf logits of ignored pixels, or of images without a term, must not reach the
    # value or the gradient.
    is_read = valid & has_term.any(1).to(y.device).view(-1, *[1] * (y.dim() - 1))
    x, r = by_parts(_residual_averages, of_images(len(x), of_image), x, y, is_read)
    joint = by_parts(_joint_scatter, of_images(len(z), of_map), r.to(home).flatten(0, 1), z)[1]
    # Of small r, since differences of traces have no digits where r is below those of z: tr QQᵀ - tr ZZᵀ, and tr ZQᵀ.
    qr, rr, contrast = trace(joint[:, :d, d:]), trace(joint[:, d:, d:]), torch.where(has_term.flatten(), trace(zz), 1.0)
    excess, along = -(2 * qr + rr) / contrast, 1 - (qr + rr) / contrast
    of_q, of_z = noise.new_tensor([[1.0, -1.0], [-1.0, 1.0]]), noise.new_tensor([[0.0, 0.0], [0.0, 1.0]])
    joint = joint + (1 + excess.relu()).view(-1, 1, 1) * torch.kron(of_q, noise) + torch.kron(of_z, noise)
    left = entropy(joint, d).view(shape)
    unexplained = ((left + known - doubled) / torch.where(has_term, scale, 1.0)).clamp(min=0.0)
    sign = (along / LEAST_CONTRAST).clamp(-1.0, 1.0).view(shape)
    of_class = torch.where(has_term, 1 - sign * (1 - unexplained), 0.0)
    total, terms = (values.view(-1, tables * shape[1]).sum(1) for values in (of_class, has_term))
    return x, (total / terms.clamp(min=1)).to(y.device, wide)


# --------------------------------------------------------------------------------------------- averages and scatters


def _has_others(y: Tensor, valid: Tensor, classes: int) -> Tensor:
    """Return whether an image has valid pixels of a class and of another one, of the classes with a term, [B, K]."""
    count = torch.zeros(len(y), classes, dtype=torch.int64, device=y.device)
    count.scatter_add_(1, torch.where(valid, y, 0).flatten(1), valid.flatten(1).long())
    return _with_term((count > 0) & (count < count.sum(1, keepdim=True)))


def _with_term(of_classes: Tensor) -> Tensor:
    """Return [B, C, ...] of the classes that may have a term: of two classes the second alone."""
    return of_classes if of_classes.shape[1] > 2 else of_classes[:, 1:]


def _label_averages(y: Tensor, valid: Tensor, *, classes: int) -> Tensor:
    """Return the sums of z under each average, [B, K, *A]."""
    return _sums(_with_term(((y[:, None] == _classes(classes, y)) & valid[:, None]).float()))


def _residual_averages(x: Tensor, y: Tensor, is_read: Tensor) -> Tensor:
    """Return the sums of r under each average, [B, K, *A].

    All comes from the odds of the classes other than the likeliest, whose share is 1 / (1 + their sum): no digit of the
    value or of the gradient is lost where a pixel is nearly sure.
    """
    x = torch.where(is_read[:, None], readable_logits(x, is_read), 0.0)
    likeliest = x.detach().argmax(1, keepdim=True)
    odds = (x - x.gather(1, likeliest)).exp().scatter(1, likeliest, 0.0)
    total = odds.sum(1, keepdim=True)
    r = (y[:, None] == _classes(x.shape[1], y)).to(x.dtype) - odds / (1 + total)
    r = r.scatter(1, likeliest, torch.where(y[:, None] == likeliest, total, -1.0) / (1 + total))
    return _sums(torch.where(is_read[:, None], _with_term(r), 0.0))


def _classes(count: int, y: Tensor) -> Tensor:
    return torch.arange(count, device=y.device).view(-1, *[1] * (y.dim() - 1))


def _sums(maps: Tensor) -> Tensor:
    pool = F.avg_pool2d if maps.dim() == 4 else F.avg_pool3d
    return pool(maps, POOL, stride=POOL, padding=POOL // 2, divisor_override=1)


def _joint_scatter(r: Tensor, z: Tensor) -> Tensor:
    """Return the scatter matrices of the regions of q and r, [M, 2d, 2d], of the sums under averages [M, *A]."""
    r = r.double()  # the slopes by q and by r may cancel, so they are added before they are rounded
    return _scatter(z - r, r)


def _scatter(*sums: Tensor) -> Tensor:
    windows = []
    for maps in sums:
        for corner in itertools.product(range(SIDE), repeat=maps.dim() - 1):
            of_corner = (slice(i, size - SIDE + 1 + i) for i, size in zip(corner, maps.shape[1:], strict=True))
            window = slice(None), *of_corner
            windows.append(maps[window].flatten(1))
    regions = torch.stack(windows, 1).double()
    regions = (regions - regions.mean(-1, keepdim=True)) / POOL ** (sums[0].dim() - 1)
    scatter: Tensor = regions @ regions.mT
    return scatter


def trace(matrices: Tensor) -> Tensor:
    """Return the traces of matrices."""
    return matrices.diagonal(dim1=-2, dim2=-1).sum(-1)


def entropy(scatter: Tensor, d: int) -> Tensor:
    """Return h of the Schur complement of the last d rows; nan for nan."""
    factor, failed = torch.linalg.cholesky_ex(scatter)
    value: Tensor = factor.diagonal(dim1=-2, dim2=-1)[:, -d:].log().sum(-1) - d / 2 * math.log(NOISE)
    return value.masked_fill(failed > 0, math.nan)

"""The balance of the classes and the focus of the edge terms in long doubles, from docs/loss.md alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from oracle_pixels import LIMITS, SUMS, WIDE, Array, exp, rough

PRIOR = WIDE("0.05")  # of the balance, in mean numbers of edge pixels
# Double exponential quadrature on 0 … 1, since 0 may be a branch point of the integrand: places and weights.
STEP = WIDE(0.0625)
_STEPS = np.arange(-72, 73) * STEP
_RISE = WIDE(np.pi) * np.sinh(_STEPS)
PLACES = 1 / (1 + np.exp(-_RISE))
WEIGHTS = STEP * WIDE(np.pi) * np.cosh(_STEPS) * PLACES / (1 + np.exp(_RISE))


def balance(n: Array) -> Array:
    """Return u of classes with n edge pixels, whose mean over these is 1; 0 where there is none."""
    if not n.any():
        return 0 * n
    u = 1 / (n + PRIOR * n.sum() / n.size)
    return u * n.sum() / (u * n).sum()


class Focus:
    """What the focus makes of the mean edge terms t of classes of images.

    Attributes:
        slope: φ = Φ'(t).
        ratio: ρ = Φ(t) / t, and φ where t = 0.
        most: ρ of the largest t that roundings allow, in float64.
        slope_unit: the unit of φ. It is no derivative: φ grows by factors where roundings are as large as t.
        ratio_unit: the unit of ρ.
    """

    def __init__(self, t: Array, unit: Array, o: dict[str, Any], classes: int, kind: Any) -> None:
        """Compute them from t and its unit, for the options of a call and the float type that computes them."""
        same, other = WIDE(o["same_side_weight"]), WIDE(o["other_side_weight"])
        self.gamma, self.scale = WIDE(o["edge_focus"]), same + other
        self.uniform = other * np.log(classes / WIDE(classes - 1)) + same * np.log(WIDE(classes))
        reach = LIMITS[kind.bits] * kind.eps
        self.slope, self.ratio = self.of(t)
        least, most = self.of(np.maximum(t - reach * unit, 0)), self.of(t + reach * unit)
        self.most = rough(most[1])
        rounding = 1 + (1 + float(self.gamma)) * SUMS / kind.eps  # they are float64, for every dtype
        self.slope_unit, self.ratio_unit = (
            rough(np.maximum(high - value, value - low)) / reach + rough(value * rounding)
            for low, value, high in zip(least, (self.slope, self.ratio), most, strict=True)
        )

    def of(self, t: Array) -> tuple[Array, Array]:
        """Return φ and ρ of mean edge terms."""
        if not (self.gamma and self.scale):
            return np.ones(t.shape, WIDE), np.ones(t.shape, WIDE)
        ratio, (rows,) = self.phi(t), np.nonzero(t.ravel())
        some = t.ravel()[rows]
        inside = np.minimum(some, self.uniform)[:, None]
        mean = self.phi(inside * PLACES) @ WEIGHTS  # of φ, up to t_0
        ratio.reshape(-1)[rows] = (inside[:, 0] * mean + np.maximum(some - self.uniform, 0)) / some
        return self.phi(t), ratio

    def phi(self, t: Array) -> Array:
        """Return φ = min(1, ε / ε_0)^γ."""
        share = np.minimum(np.expm1(-t / self.scale) / np.expm1(-self.uniform / self.scale), 1)
        return np.where(share > 0, exp(self.gamma * np.log(np.where(share > 0, share, 1))), 0)

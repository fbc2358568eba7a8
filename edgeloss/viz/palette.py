"""Colors for any number of classes, distinct for normal and red-green-blind vision."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

VOID = (0.62, 0.62, 0.62)  # ignored pixels
LOUD = (1.0, 0.0, 1.0)  # nan and inf
NOTHING = (0.0, 0.0, 0.0)  # off the edges, or a gradient of exactly 0
WRONG = (0.84, 0.19, 0.15)  # predicted as another class
# Two networks: blue where the second one is better, red where it is worse, since wrong pixels are red on every page; of
# wrong pixels those that are wrong in both differ from these in lightness. Texts have --better and --worse of base.css.
BETTER, WORSE, WRONG_IN_BOTH = (0.11, 0.36, 0.84), WRONG, (0.1, 0.08, 0.12)
# Photographs below wrong pixels are in gray between these two: lighter than every color above, and than VOID. The same
# as of .gray in page/base.css and PALE in page/drawing.js.
PALE = (0.80, 0.98)
RIGHT = (0.89, 0.89, 0.89)  # predicted as labeled: as gray without a photograph as over one
TRUE_BORDER, RIM = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)  # lines over predicted labels

# Sky blue and orange of Okabe and Ito, then each the one farthest from all before it and from VOID, LOUD and NOTHING:
# in OKLab (Ottosson 2020), to the reader to whom they differ least, of normal vision, deuteranopia and protanopia
# (Machado, Oliveira & Fernandes 2009). The choice is among 12 levels per channel without near blacks, whites and grays.
_COLORS = bytes.fromhex(
    "56b4e9e69f008b1746b9ffd11746a2008b2ea25da2e8d1ff74d18bffe85d5d5d002e7474178be85d467474a25d8bd1d1d1d12e5d5db9"
    "e88bd1b9748b8b4646b98b17a2e88bb95d00748bb9b94674a2745db9b95d8bb9a2b9b9ffffd1b98b46a28b74d1b9ff8b465d8bd18b74"
    "742e8b00b9b95de8e85d74464674b98bffffe8b9b92e5d5da28bd1b9e8d100a2e8d1a274b9a2ff74462eb9d174ffd15d8b8b468b5d8b"
    "d1d1a2a274a2ff8bb900d1e8a2a246ffe8b98bb92eb95d8b5db98ba2462e0074d117ffe8a22e5da25d5d8b8bff8bffa2ffd18bb974b9"
    "e8b94646b9d1d15d2e74a28ba2e8b95d74a2745d2e5d8b74d1b974a22e00b9a25d00b9ff8ba274a2d1ffe8741774e8ff46e8a28b5d00"
    "a2d15dd174a2d1b9e82ee8d1465da2ffb974e8b98b8b468ba2742ee8a2a28b2e4674a22ea246748b74b946468bb9e8a2a28be8d15d74"
    "e8e874468b4600d1ff8b2e17a2ffb92ed1a28bd1b98b74178b2e5d74b9e800a2a2d1b917b9ffe8d18bb9d15d5d8b2e74d1a28b005db9"
    "46b95de8a246748bd1ffd12ee8d174008bd1a2b946ffe8a2a28bb9d1d18b5da246468b8bd1a2b9b98b465d46a246745dffb9d1748be8"
    "a25d002e5d17468b5db974008b5d5d74b974ff8bd18b4674a25d8bd1d15da27474a25db9b9a200b98b5db98b8b8b5db98b74e8a25d46"
    "ffd1e8a2d1a2e8e88be8d1468b4617a2744646742effa246d18b2e74ffd15d74d1005d46e88bb9d1a2d1d17400e88b74a28b2e74a2e8"
    "e8a274a2e8e800a25dffd1a2e8b9ff8b74a274b9b9d174b9a28b5d8bb95d745d8b8b462effb9b98bb9ff745da2745d17e874a2e8b95d"
    "5d8b2effb91700a28b5d5d2e46a2ffb98bffd1a25da2d1e8b98bd12e7446b98be8b974a2b98ba2b98bb9a2d18bb9a2d17474008b465d"
    "d1b98bb9e874b9e8ffd1b946e8b917a28b00e8748b8bb98bffd174745db974d1e8a2a2e8ffd1ff5db9a2005d8b7474b9b9a2468bffe8"
    "8b742ed1b95db974d1b9b92ee88b0074e8b9e8745dd1ffa2e8d1a2a274175da2a2e8d15da2a2ffd1b9ffe8e8a2ffe874e8e85d8b8b2e"
    "00e8b9ff8b8b008b74747446"
)


@functools.lru_cache
def distinct_colors(count: int) -> npt.NDArray[np.float64]:
    """Return distinct colors for classes, for normal and red-green-blind vision.

    Class k has the same color for any ``count``; from 256 classes on, colors repeat. Gray, magenta and black are
    reserved: they mean *ignored*, *not finite* and *no edge*.

    Args:
        count: the number of colors.

    Returns:
        [count, 3] float64, sRGB in [0, 1]; read-only.

    Example:
        >>> distinct_colors(150).shape
        (150, 3)
        >>> bool((distinct_colors(150)[:20] == distinct_colors(20)).all())
        True
    """
    colors = np.resize(np.frombuffer(_COLORS, np.uint8), (count, 3)) / 255
    colors.setflags(write=False)
    return colors

#!/usr/bin/env python3
"""Draw a small segmentation data set whose class borders are hard to get right.

Each class is a texture. Color helps, but is not reliable: classes share their favorite colors, and sometimes use those
of their neighbors. Objects touch and overlap, thin structures cross them, shadows and uneven light create edges where
the class does not change, and blur, noise and low contrast hide edges where it does. Part of most images is void, as in
real annotations: thin rims around objects, strips along the frame, small smudges.

    OUT/classes.txt                     a line "<index> <name>" per class
    OUT/{train,val}/images/NNN.png      RGB, 8 bits
    OUT/{train,val}/masks/NNN.png       one channel, 8 bits: the class index, 255 for void

The same seed gives the same pixels on every machine, for three reasons. Random numbers are the raw PCG64 stream, which
NumPy guarantees never to change (it gives no such guarantee for distributions). All drawing is integer arithmetic on
3 × 3 samples per pixel, without a drawing or filtering library. The only table computed in floating point, the sine, is
rounded to 1/4096, which is coarser than any difference between math libraries. The PNG *bytes* depend on the version of
zlib, so ``--check`` compares decoded pixels.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from shapegen.dice import Dice
from shapegen.scene import CLASSES, VOID, WIRE, Bytes, Scene

SPLITS = ("train", "val")


def draw(seed: int, split: int, index: int, size: int) -> tuple[Bytes, Bytes]:
    """Draw one image and its mask.

    Args:
        seed: The data set's seed, ≥ 0.
        split: Index into `SPLITS`.
        index: The image's number in its split; also chooses the layout, so that all occur equally often.
        size: Side length in pixels.

    Returns:
        The image [size, size, 3] and the mask [size, size], both uint8.
    """
    dice = Dice(seed, split, index)
    scene = Scene(dice, size)
    (scene.scatter, scene.mosaic, scene.layers, scene.nests)[index % 4]()
    thin = (scene.lines, scene.hoops, scene.masts, scene.fence)
    for add in dice.shuffled(thin)[: dice.between(1, 2)]:
        add()
    mask = scene.mask()  # before the photo: smudges are seen, too
    return scene.photo(), mask


def merged(mask: Bytes) -> Bytes:
    """Return a mask with one class for all textures: background 0, shape 1, wire 2."""
    labels = np.ones(256, dtype=np.uint8)
    labels[[0, WIRE, VOID]] = 0, 2, VOID
    return labels[mask]


def pictures(seed: int, counts: Sequence[int], size: int, *, merge: bool = False) -> Iterator[tuple[str, Bytes]]:
    """Yield the path in the output folder and the pixels of every file, in order."""
    for split, count in enumerate(counts):
        for index in range(count):
            image, mask = draw(seed, split, index, size)
            mask = merged(mask) if merge else mask
            yield f"{SPLITS[split]}/images/{index:03d}.png", image
            yield f"{SPLITS[split]}/masks/{index:03d}.png", mask


def classes_text(*, merge: bool = False) -> str:
    """Return the content of classes.txt."""
    names = ("background", "shape", "wire") if merge else CLASSES
    return "".join(f"{index} {name}\n" for index, name in [*enumerate(names), (VOID, "void")])


def write(out: Path, seed: int, counts: Sequence[int], size: int, *, merge: bool = False) -> None:
    """Write the data set to `out`."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "classes.txt").write_text(classes_text(merge=merge), encoding="utf-8", newline="\n")
    for name, pixels in pictures(seed, counts, size, merge=merge):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(out / name, optimize=True)


def difference(out: Path, seed: int, counts: Sequence[int], size: int, *, merge: bool = False) -> str | None:
    """Return how the first file in `out` differs from what `write` writes, or None."""
    expected_names = {"classes.txt"}
    path = out / "classes.txt"
    if not path.is_file():
        return f"{path}: missing"
    if path.read_text(encoding="utf-8") != classes_text(merge=merge):
        return f"{path}: other classes"
    for name, pixels in pictures(seed, counts, size, merge=merge):
        expected_names.add(name)
        path = out / name
        if not path.is_file():
            return f"{path}: missing"
        try:
            with Image.open(path) as file:
                actual = np.asarray(file)
        except (OSError, SyntaxError) as error:  # Pillow reports a broken PNG chunk as a SyntaxError
            return f"{path}: unreadable ({error})"
        if actual.shape != pixels.shape or actual.dtype != pixels.dtype:
            return f"{path}: expected {pixels.dtype} {list(pixels.shape)}, but got {actual.dtype} {list(actual.shape)}"
        if (actual != pixels).any():
            return f"{path}: {int((actual != pixels).sum())} of {pixels.size} values differ"
    for path in sorted(out.rglob("*.png")):
        if path.relative_to(out).as_posix() not in expected_names:
            return f"{path}: not part of the set"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = argparse.ArgumentParser(
        description="Draw a small segmentation data set of textured shapes with hard borders, or check one.",
        epilog="Example: python data/make_shapes.py --out /tmp/big --train 1000 --val 200 --seed 7",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )

    def at_least(least: int) -> Callable[[str], int]:
        def parse(text: str) -> int:
            if int(text) < least:
                raise argparse.ArgumentTypeError(f"expected at least {least}, but got {text}")
            return int(text)

        parse.__name__ = "int"  # for argparse: "invalid int value"
        return parse

    here = Path(__file__).resolve().parent / "shapes"
    parser.add_argument("--out", type=Path, default=here, metavar="DIR", help="folder of the set")
    parser.add_argument("--seed", type=at_least(0), default=0, metavar="N", help="seed of the pixels")
    parser.add_argument("--train", type=at_least(0), default=64, metavar="N", help="images to train on")
    parser.add_argument("--val", type=at_least(0), default=16, metavar="N", help="images to validate on")
    parser.add_argument("--size", type=at_least(64), default=128, metavar="PX", help="side length of an image")
    parser.add_argument("--merge", action="store_true", help="one class for all textures: background, shape and wire")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; compare the pixels in DIR with the generated ones"
    )
    options = parser.parse_args(arguments)

    counts = (options.train, options.val)
    if options.check:
        problem = difference(options.out, options.seed, counts, options.size, merge=options.merge)
        print(
            problem or f"{options.out}: {sum(counts)} images and masks as generated",
            file=sys.stderr if problem else sys.stdout,
        )
        return int(problem is not None)
    write(options.out, options.seed, counts, options.size, merge=options.merge)
    print(f"wrote {sum(counts)} images and masks to {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Label images with a network that train.py trained.

For each image, this writes OUTPUT/labels/NAME.png with the class index of each pixel and a palette of the class
colors, and OUTPUT/classes.txt with the class names. To compute metrics, run
`edgeloss metrics --pred OUTPUT/labels --mask ... --classes OUTPUT/classes.txt`.

    python examples/predict.py --checkpoint runs/shapes/best.ckpt --images data/shapes/val/images -o out --overlay
    python examples/predict.py --checkpoint runs/camvid/best.ckpt --images aerial.png -o out --scale 1 --window 512 512

Images are resized as in training, or by --scale, and the logits are resized back. With --window, the image goes through
the network in overlapping windows, whose logits are blended by MONAI.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from rich.console import Console
from rich.progress import track
from torch import Tensor

from edgeloss.io import IMAGE_SUFFIXES, InputError, atomic_write, files_by_stem, read_image
from segkit import layouts
from segkit.checkpoint import open_network
from segkit.data import normalize, resize
from segkit.model import UNet


def compute_logits(network: UNet, pixels: npt.NDArray[np.uint8], size: Any, options: argparse.Namespace) -> Tensor:  # noqa: ANN401
    """Return the logits [C, H, W] of an image [H, W, 3]."""
    height, width = pixels.shape[:2]
    if options.scale is not None:
        size = [max(1, round(options.scale * length)) for length in (height, width)]
    image = normalize(resize(pixels, *(size or (height, width))))[None].to(options.device)

    def predict(windows: Tensor) -> Tensor:
        logits: Tensor = network(windows.contiguous(memory_format=torch.channels_last))
        return logits

    if options.window is None:
        logits = predict(image)
    else:
        from monai.inferers import sliding_window_inference  # here, since its import takes seconds

        logits = sliding_window_inference(
            image, options.window, options.batch_size, predict, options.overlap, mode="gaussian"
        )
    if not logits.isfinite().all():
        raise InputError("expected finite logits, but the network returned nan or inf")
    return F.interpolate(logits, (height, width), mode="bilinear")[0]


def find_images(path: Path, output: Path) -> list[Path]:
    """Return the images to label, after checking that the output would not overwrite them."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    folder = path if path.is_dir() else path.parent
    if folder.resolve() in [(output / name).resolve() for name in ("labels", "overlays")]:
        raise InputError(f"{output}: expected another folder than that of the images; change --output")
    return list(files_by_stem(path, IMAGE_SUFFIXES).values()) if path.is_dir() else [path]


@torch.inference_mode()
def predict(options: argparse.Namespace) -> Iterator[Path]:
    """Label all images, and yield each one that is done."""
    images = find_images(options.images, options.output)
    network, about = open_network(options.checkpoint)
    network.to(options.device)
    classes, size = about["classes"], about["data"].get("size")
    if len(classes) > 256 or about["network"]["dims"] != 2:
        raise InputError(f"{options.checkpoint}: expected a network for images, of at most 256 classes")
    if options.window is not None and options.scale is None and size is not None:
        raise InputError(
            f"--window: expected --scale too, since training resized all images to {size[0]} × {size[1]}; give the"
            " factor by which it resized them, or 1 to keep their size"
        )
    colors = layouts.colors(about["data"].get("layout", ""), len(classes))
    kinds = {"labels": True, "overlays": options.overlay, "probabilities": options.probabilities}
    for kind in (kind for kind, wanted in kinds.items() if wanted):
        (options.output / kind).mkdir(parents=True, exist_ok=True)
    names = [*enumerate(classes), (about["ignore_index"], "void")]
    with atomic_write(options.output / "classes.txt") as file:
        file.write("".join(f"{index} {name}\n" for index, name in names if index >= 0).encode())
    for path in images:
        pixels = read_image(path).permute(1, 2, 0).numpy()
        try:
            logits = compute_logits(network, pixels, size, options)
        except (InputError, torch.OutOfMemoryError) as error:
            raise InputError(f"{path}: {str(error).splitlines()[0]}") from error
        picture = Image.fromarray(logits.argmax(0).to("cpu", torch.uint8).numpy())
        picture.putpalette(colors.tobytes())
        if options.probabilities:
            with atomic_write(options.output / "probabilities" / f"{path.stem}.npy") as file:
                np.save(file, logits.float().softmax(0).cpu().numpy())
        if options.overlay:
            with atomic_write(options.output / "overlays" / f"{path.stem}.jpg") as file:
                Image.blend(Image.fromarray(pixels), picture.convert("RGB"), 0.5).save(file, "jpeg", quality=90)
        with atomic_write(options.output / "labels" / f"{path.stem}.png") as file:
            picture.save(file, "png")
        yield path


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, best = parser.add_argument, torch.accelerator.current_accelerator(check_available=True) or "cpu"
    add("--checkpoint", type=Path, required=True, metavar="FILE", help="best.ckpt or last.ckpt of a run")
    add("--images", type=Path, required=True, metavar="PATH", help="an image, or a folder of them")
    add("-o", "--output", type=Path, required=True, metavar="FOLDER", help="output folder; its files are replaced")
    add("--overlay", action="store_true", help="also write overlays/NAME.jpg: the class colors over the image")
    add("--probabilities", action="store_true", help="also write probabilities/NAME.npy, [C, H, W] float32")
    add("--scale", type=float, metavar="FACTOR", help="resize images by this factor instead of to the size of training")
    add("--window", type=int, nargs=2, metavar=("H", "W"), help="compute each image in windows of this size")
    add("--overlap", type=float, default=0.25, help="overlap of windows as a share of them (default: %(default)s)")
    add("--batch-size", type=int, default=1, metavar="N", help="windows per forward pass (default: %(default)s)")
    add("--device", default=str(best), help="cpu, cuda, cuda:1, mps, ... (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.scale is not None and not 0 < options.scale < float("inf"):
        parser.error(f"--scale: expected a factor > 0, but got {options.scale}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, predict, and turn a user's error into one line."""
    options = parse(arguments)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    try:
        shown = track(predict(options), "labeling", console=console, transient=True, disable=not console.is_terminal)
        console.print(f"{sum(1 for _ in shown)} images: {options.output}")
    except (OSError, ValueError) as error:
        print(f"predict.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("predict.py: interrupted; all files written so far are complete", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

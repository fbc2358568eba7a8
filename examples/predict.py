#!/usr/bin/env python3
"""Label images with a network that train.py trained.

For each image, this writes OUTPUT/labels/NAME.png with the class index of each pixel and a palette of the class
colors, and OUTPUT/classes.txt with the class names. To compute metrics, run
`edgeloss metrics --pred OUTPUT/labels --mask ... --classes OUTPUT/classes.txt`.

    python examples/predict.py --checkpoint runs/shapes/best.ckpt --images data/shapes/val/images -o out --overlay
    python examples/predict.py --checkpoint runs/camvid/best.ckpt --images aerial.png -o out --scale 1 --window 512 512

Images are resized as in training, or by --scale, and the logits are resized back. With --window, the image goes through
the network in overlapping windows, whose logits are blended by MONAI.

Files that this program has not written are never replaced, and those of an earlier call only with --overwrite. An image
that can't be labeled is skipped and listed at the end. Exit codes: 0 success, 1 an error, 2 a wrong command line, or
images were skipped, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from edgeloss.cli.messages import printable
from edgeloss.cli.progress import with_progress
from edgeloss.io import IMAGE_SUFFIXES, PALETTES, InputError, files_by_stem, read_image
from edgeloss.viz import distinct_colors
from segkit.checkpoint import open_network
from segkit.data import normalize, resize
from segkit.model import UNet
from segkit.outputs import Outputs


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


def class_colors(layout: str, count: int) -> npt.NDArray[np.uint8]:
    """Return the colors of classes, [count, 3] in sRGB: those of a data set's own tools, or distinct ones."""
    palette = PALETTES.get(layout)
    if palette is None:
        return np.round(distinct_colors(count) * 255).astype(np.uint8)
    return np.array([palette[k] for k in range(count)], dtype=np.uint8)


def find_images(path: Path, output: Path) -> dict[str, Path]:
    """Return the images to label by their names, which contain subfolders where several have the same name."""
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    folder = path if path.is_dir() else path.parent
    if folder.resolve() in [(output / name).resolve() for name in ("labels", "overlays", "probabilities")]:
        raise InputError(f"{output}: expected another folder than that of the images; change -o")
    return files_by_stem(path, IMAGE_SUFFIXES) if path.is_dir() else {path.stem: path}


class Predictor:
    """Label images with the network of a checkpoint, and write what was asked for.

    Args:
        options: Those of the command line.

    Attributes:
        failed: What could not be labeled, a line each.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        """Open the network, and check that all outputs can be written."""
        self.options, self.failed = options, list[str]()
        self._images = find_images(options.images, options.output)
        self._network, about = open_network(options.checkpoint)
        self._network.to(options.device)
        classes, self._size = about["classes"], about["data"].get("size")
        if len(classes) > 256 or about["network"]["dims"] != 2:
            raise InputError(f"{options.checkpoint}: expected a network for images, of at most 256 classes")
        if options.window is not None and options.scale is None and self._size is not None:
            raise InputError(
                f"--window: expected --scale too, since training resized all images to {self._size[0]} ×"
                f" {self._size[1]}; give the factor by which it resized them, or 1 to keep their size"
            )
        self._colors = class_colors(about["data"].get("layout", ""), len(classes))
        kinds = {
            "labels/{}.png": True,
            "overlays/{}.jpg": options.overlay,
            "probabilities/{}.npy": options.probabilities,
        }
        forms = [form for form, is_wanted in kinds.items() if is_wanted]
        names = [form.format(name) for name in self._images for form in forms]
        self._outputs = Outputs(options.output, ["classes.txt", *names], is_overwriting=options.overwrite)
        listed = [*enumerate(classes), (about["ignore_index"], "void")]
        with self._outputs.write("classes.txt") as file:
            file.write("".join(f"{index} {name}\n" for index, name in listed if index >= 0).encode())

    def run(self) -> int:
        """Label all images; return how many were."""
        for name in with_progress([*self._images], "images"):
            self._label(name, self._images[name])
        return len(self._images) - len(self.failed)

    def _label(self, name: str, path: Path) -> None:
        try:
            pixels, logits = self._compute(path)
        except InputError as error:
            if self.options.strict:
                raise
            self.failed.append(str(error))
        else:  # where an error is not that of the image, such as of a full disk
            self._write(name, pixels, logits)

    @torch.inference_mode()
    def _compute(self, path: Path) -> tuple[npt.NDArray[np.uint8], Tensor]:
        pixels = read_image(path).permute(1, 2, 0).numpy()
        try:
            return pixels, compute_logits(self._network, pixels, self._size, self.options)
        except (InputError, torch.OutOfMemoryError) as error:
            raise InputError(f"{path}: {str(error).splitlines()[0]}") from error

    def _write(self, name: str, pixels: npt.NDArray[np.uint8], logits: Tensor) -> None:
        picture = Image.fromarray(logits.argmax(0).to("cpu", torch.uint8).numpy())
        picture.putpalette(self._colors.tobytes())
        if self.options.probabilities:
            with self._outputs.write(f"probabilities/{name}.npy") as file:
                np.save(file, logits.float().softmax(0).cpu().numpy())
        if self.options.overlay:
            with self._outputs.write(f"overlays/{name}.jpg") as file:
                Image.blend(Image.fromarray(pixels), picture.convert("RGB"), 0.5).save(file, "jpeg", quality=90)
        with self._outputs.write(f"labels/{name}.png") as file:
            picture.save(file, "png")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, best = parser.add_argument, torch.accelerator.current_accelerator(check_available=True) or "cpu"
    add("--checkpoint", type=Path, required=True, metavar="FILE", help="best.ckpt or last.ckpt of a run")
    add("--images", type=Path, required=True, metavar="PATH", help="an image, or a folder of them")
    add("-o", "--output", type=Path, required=True, metavar="FOLDER", help="folder for the outputs")
    add("--overwrite", action="store_true", help="replace the outputs of an earlier call in that folder")
    add("--strict", action="store_true", help="stop at the first image that can't be labeled")
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
    try:
        predictor = Predictor(options)
        count = predictor.run()
    except (OSError, ValueError) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; all files written so far are complete")
        return 130
    print(f"{count} images: {options.output}", file=sys.stderr)
    for line in predictor.failed:
        say(line)
    if predictor.failed:
        say(f"skipped {len(predictor.failed)} of {count + len(predictor.failed)} images")
    return 2 if predictor.failed else 0


def say(text: str) -> None:
    """Print a line on stderr."""
    print(printable(f"predict.py: {text}"), file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Label images with a network that train.py trained.

Writes OUTPUT/labels/NAME.png for each image: the class index of each pixel, with a palette of the class colours, and
OUTPUT/classes.txt with their names. `edgeloss metrics --pred OUTPUT/labels --mask ... --classes OUTPUT/classes.txt`
measures them.

An image is resized as in training, or by --scale, and the logits are brought to its own size. With --window it goes
through the network in overlapping windows: then the memory depends on the window and the image's width alone, but for
the image itself and its labels, up to 20 bytes a pixel while they are read and drawn.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

from edgeloss.io import IMAGE_SUFFIXES, InputError, atomic_write, files_by_stem, read_image
from edgeloss.viz import distinct_colors
from segkit import layouts
from segkit.checkpoint import CheckpointError, load_checkpoint
from segkit.config import ConfigError
from segkit.data import normalize, resize
from segkit.model import UNet
from segkit.sliding_window import upsample, window_logits
from train import find_device

EXAMPLES = """\
examples:
  python examples/predict.py --checkpoint runs/shapes/best.pt --images data/shapes/val/images -o predictions --overlay
  python examples/predict.py --checkpoint runs/camvid/best.pt --images aerial.png -o predictions \\
      --scale 1 --window 512 512 --overlap 128 --probabilities
"""


class Predictor(NamedTuple):
    """A trained network and how images reach it.

    Attributes:
        network: images [B, 3, h, w] to logits [B, C, h, w].
        device: where it is.
        classes: names of the classes.
        colors: [C, 3] uint8.
        ignore_index: the label of pixels that did not count in training.
        size: (h, w) that images are resized to; None for none.
        scale: factor that images are resized by; None for none.
        window: (h, w) of a window; None takes the whole image at once.
        overlap: of windows, in pixels.
        batch_size: windows that go through the network together.
    """

    network: nn.Module
    device: torch.device
    classes: list[str]
    colors: layouts.Colors
    ignore_index: int
    size: tuple[int, int] | None
    scale: float | None
    window: tuple[int, int] | None
    overlap: int
    batch_size: int

    def logits(self, image: npt.NDArray[np.uint8]) -> Iterator[Tensor]:
        """The logits of an image [H, W, 3], by bands of rows [C, k, W] from top to bottom."""
        height, width = image.shape[:2]
        size = self.size or (height, width)
        if self.scale is not None:
            size = (max(1, round(height * self.scale)), max(1, round(width * self.scale)))
        small = resize(image, *size)

        def crop(rows: slice, columns: slice) -> Tensor:
            return normalize(small[rows, columns]).to(self.device)

        def network(images: Tensor) -> Tensor:
            logits: Tensor = self.network(images.contiguous(memory_format=torch.channels_last))
            return logits

        bands = window_logits(network, crop, size, self.window or size, self.overlap, batch_size=self.batch_size)
        return upsample(bands, size, (height, width))


def open_predictor(options: argparse.Namespace) -> Predictor:
    """The network of a checkpoint, as the command line wants it.

    Raises:
        CheckpointError: if the checkpoint can't be read or isn't one of train.py, or has not the weights asked for.
        ConfigError: if there is no such device.
        InputError: if the options do not fit each other.
    """
    path, device = options.checkpoint, find_device(options.device)
    checkpoint = load_checkpoint(path)
    averaged = checkpoint.get("ema")
    if options.weights == "ema" and averaged is None:
        raise CheckpointError(f"{path} holds no averaged weights; expected --weights model")
    weights = checkpoint["model"] if options.weights == "model" or averaged is None else averaged
    try:
        config, classes = checkpoint["config"], list(checkpoint["classes"])
        network = UNet(len(classes), **config["model"])
        network.load_state_dict(weights)
        size = config["data"]["size"]
        ignore_index = int(checkpoint["ignore_index"])
    except KeyError as error:
        raise CheckpointError(f"{path} isn't a checkpoint of train.py: it holds no {error}") from error
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise CheckpointError(f"{path} isn't a checkpoint of this network: {reason}") from error
    if len(classes) > 256:
        raise CheckpointError(f"{path}: expected at most 256 classes, which a PNG can hold, but got {len(classes)}")
    if options.scale is not None:
        size = None
    elif options.window is not None and size is not None:
        raise InputError(
            f"--window: expected --scale too: training resized images to {size[0]} × {size[1]}, and only you know by"
            " what factor that was; 1 leaves them as they are"
        )
    colors = layouts.colors(config["data"].get("layout", ""))
    return Predictor(
        network=network.to(device).eval(),
        device=device,
        classes=classes,
        colors=np.round(distinct_colors(len(classes)) * 255).astype(np.uint8) if colors is None else colors,
        ignore_index=ignore_index,
        size=None if size is None else (size[0], size[1]),
        scale=options.scale,
        window=None if options.window is None else tuple(options.window),
        overlap=options.overlap,
        batch_size=options.batch_size,
    )


def find_images(path: Path, output: Path) -> dict[str, Path]:
    """The images to label, by name.

    Raises:
        InputError: if there are none, two share a name, or the output would overwrite them.
    """
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    folder = path if path.is_dir() else path.parent
    if folder.resolve() in [(output / name).resolve() for name in ("labels", "overlays")]:
        raise InputError(f"{output}: is where the images are; expected another place to write to")
    return files_by_stem(path, IMAGE_SUFFIXES) if path.is_dir() else {path.stem: path}


def label(
    predictor: Predictor, path: Path, name: str, output: Path, *, overlay: bool, probabilities: bool
) -> Iterator[float]:
    """Label one image and write what was asked for.

    Yields:
        The share of the image that is done, now and then.

    Raises:
        InputError: if the image can't be used, the network gives nan, or a file can't be written.
    """
    image = read_image(path).permute(1, 2, 0).numpy()
    height, width = image.shape[:2]
    labels = np.empty((height, width), np.uint8)
    row = 0
    with ExitStack() as files:
        planes = None
        if probabilities:
            file = files.enter_context(atomic_write(output / "probabilities" / f"{name}.npy"))
            planes = Planes(file, (len(predictor.classes), height, width))
        for logits in predictor.logits(image):
            if not logits.isfinite().all():
                raise InputError(f"{path}: expected finite logits but the network gives nan or inf for it")
            below = row + logits.shape[1]
            labels[row:below] = logits.argmax(0).to("cpu", torch.uint8).numpy()
            if planes is not None:
                planes.write(row, logits.softmax(0).to("cpu", torch.float16).numpy())
            row = below
            yield row / height
    picture = Image.fromarray(labels)
    picture.putpalette(predictor.colors.tobytes())
    if overlay:
        with atomic_write(output / "overlays" / f"{name}.jpg") as file:
            Image.blend(Image.fromarray(image), picture.convert("RGB"), 0.5).save(file, "jpeg", quality=90)
    with atomic_write(output / "labels" / f"{name}.png") as file:
        picture.save(file, "png")


class Planes:
    """A .npy file of an array [C, H, W], float16, written by bands of rows.

    Args:
        file: to write to from its beginning.
        shape: (C, H, W).
    """

    def __init__(self, file: IO[bytes], shape: tuple[int, int, int]) -> None:
        """Write the header."""
        header: dict[str, Any] = {"descr": "<f2", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        self._file, self._shape, self._start = file, shape, file.tell()

    def write(self, row: int, values: npt.NDArray[np.float16]) -> None:
        """Write rows [C, k, W], the first of which is `row`."""
        _, height, width = self._shape
        for c, plane in enumerate(values):
            self._file.seek(self._start + (c * height + row) * width * 2)
            self._file.write(plane.astype("<f2").tobytes())


def predict(options: argparse.Namespace, console: Console) -> None:
    """Label all images.

    Raises:
        CheckpointError: if the checkpoint can't be used.
        ConfigError: if there is no such device.
        InputError: if an image can't be used or a file can't be written.
    """
    output: Path = options.output
    images = find_images(options.images, output)
    predictor = open_predictor(options)
    kinds = {"labels": True, "overlays": options.overlay, "probabilities": options.probabilities}
    wanted = [kind for kind, asked in kinds.items() if asked]
    try:
        for kind in wanted:
            (output / kind).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{output}: can't be made ({error.strerror})") from error
    names = [*enumerate(predictor.classes), (predictor.ignore_index, "void")]
    with atomic_write(output / "classes.txt") as file:
        file.write("".join(f"{index} {name}\n" for index, name in names if index >= 0).encode())

    start = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with torch.inference_mode(), bar:
        task = bar.add_task("", total=len(images))
        for done, (name, path) in enumerate(images.items()):
            bar.update(task, completed=done, description=path.name)
            try:
                parts = label(
                    predictor, path, name, output, overlay=options.overlay, probabilities=options.probabilities
                )
                for part in parts:
                    bar.update(task, completed=done + part)
            except torch.OutOfMemoryError as error:
                raise InputError(f"{path}: does not fit into the memory of {predictor.device}; try --window") from error
    seconds = time.perf_counter() - start
    where = ", ".join(str(output / kind) for kind in wanted)
    count = f"{len(images)} image{'s' if len(images) > 1 else ''}"
    console.print(f"{count} in {seconds:.1f} s ({len(images) / seconds:.1f} a second): {where}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--checkpoint", type=Path, required=True, metavar="FILE", help="best.pt or last.pt of a run")
    add("--images", type=Path, required=True, metavar="PATH", help="an image, or a folder of them")
    add("-o", "--output", type=Path, required=True, metavar="FOLDER", help="made if missing; replaces what it wrote")
    add("--overlay", action="store_true", help="write overlays/NAME.jpg too: the classes' colours over the image")
    add(
        "--probabilities",
        action="store_true",
        help="write probabilities/NAME.npy too, [C, H, W] float16; edgeloss view --pred reads it",
    )
    add("--scale", type=float, help="resize images by this factor, not to the size of training")
    add("--window", type=int, nargs=2, metavar=("H", "W"), help="take an image by windows of this size")
    add("--overlap", type=int, metavar="PIXELS", help="of windows (default: a quarter of the window)")
    add("--batch-size", type=int, default=1, metavar="N", help="windows at a time (default: %(default)s)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps, ... (default: %(default)s)")
    add(
        "--weights",
        choices=("auto", "model", "ema"),
        default="auto",
        help="the last weights or their moving average; auto takes the average if there is one",
    )
    options = parser.parse_args(arguments)
    if options.scale is not None and not 0 < options.scale < float("inf"):
        parser.error(f"--scale: expected a factor > 0 but got {options.scale}")
    if options.window is not None and min(options.window) < 1:
        parser.error(f"--window: expected height and width >= 1 but got {options.window}")
    if options.overlap is not None and options.window is None:
        parser.error("--overlap: expected --window too")
    side = min(options.window or [0])
    if options.overlap is None:
        options.overlap = side // 4
    if not 0 <= options.overlap <= side // 2:
        parser.error(f"--overlap: expected 0 to {side // 2}, half a window, but got {options.overlap}")
    if options.batch_size < 1:
        parser.error(f"--batch-size: expected at least 1 but got {options.batch_size}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, predict, and turn a user's error into one line."""
    options = parse(arguments)
    try:
        predict(options, Console(stderr=True, highlight=False, markup=False, soft_wrap=True))
    except (CheckpointError, ConfigError, InputError) as error:
        print(f"predict.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("predict.py: interrupted; what is written is whole", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that nothing half written stays
    sys.exit(main())

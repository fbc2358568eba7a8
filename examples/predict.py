#!/usr/bin/env python3
"""Label images with a network that train.py trained.

For each image, this writes OUTPUT/labels/NAME.png with the class index of each pixel and a palette of the class
colors, and OUTPUT/classes.txt with the class names. To compute metrics, run
`edgeloss metrics --pred OUTPUT/labels --mask ... --classes OUTPUT/classes.txt`.

Images are resized as in training, or by --scale, and the logits are resized back. With --window, the image goes through
the network in overlapping windows. Memory then depends on the window and on the width of the image only, except for the
image itself and its labels: up to 20 bytes per pixel while they are read and drawn.
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
from rich.table import Column
from torch import Tensor, nn

from edgeloss.io import IMAGE_SUFFIXES, InputError, atomic_write, files_by_stem, read_image
from edgeloss.viz import distinct_colors
from segkit import layouts
from segkit.checkpoint import CheckpointError, load_checkpoint, load_weights
from segkit.config import ConfigError
from segkit.data import normalize, resize
from segkit.model import UNet
from segkit.placement import find_device
from segkit.sliding_window import upsample, window_logits

EXAMPLES = """\
examples:
  python examples/predict.py --checkpoint runs/shapes/best.pt --images data/shapes/val/images -o predictions --overlay
  python examples/predict.py --checkpoint runs/camvid/best.pt --images aerial.png -o predictions \\
      --scale 1 --window 512 512 --overlap 128 --probabilities
"""


class Predictor(NamedTuple):
    """A trained network, and how images are given to it.

    Attributes:
        network: images [B, 3, h, w] to logits [B, C, h, w].
        device: device of the network.
        classes: names of the classes.
        colors: colors of the classes, [C, 3] uint8.
        ignore_index: label of the pixels that were ignored in training.
        size: (h, w) that images are resized to; None to keep their size.
        scale: factor that images are resized by; None for none.
        window: (h, w) of a window; None computes the whole image at once.
        overlap: overlap of windows, in pixels.
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
        """Yield the logits of an image [H, W, 3] as rows [C, k, W], top to bottom."""
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
    """Load the network of a checkpoint with the options of the command line.

    Raises:
        CheckpointError: if the checkpoint can't be read, isn't one of train.py, or lacks the weights asked for.
        ConfigError: if there is no such device.
        InputError: if the options contradict each other.
    """
    path, device = options.checkpoint, find_device(options.device)
    checkpoint = load_checkpoint(path)
    averaged = checkpoint.get("ema")
    if options.weights == "ema" and averaged is None:
        raise CheckpointError(f"{path}: expected averaged weights, but got none; use --weights model")
    weights = checkpoint["model"] if options.weights == "model" or averaged is None else averaged
    try:
        config, classes = checkpoint["config"], list(checkpoint["classes"])
        network = UNet(len(classes), **config["model"])
        load_weights(network, weights)
        size = config["data"]["size"]
        size = None if size is None else (int(size[0]), int(size[1]))
        colors = layouts.colors(config["data"].get("layout", ""))
        ignore_index = int(checkpoint["ignore_index"])
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except KeyError as error:
        raise CheckpointError(f"{path}: expected a checkpoint of train.py, but got one without {error}") from error
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1].strip()
        raise CheckpointError(f"{path}: expected a checkpoint of this network, but got another: {reason}") from error
    if len(classes) > 256:
        raise CheckpointError(f"{path}: expected at most 256 classes, as a PNG can store, but got {len(classes)}")
    if options.scale is not None:
        size = None
    elif options.window is not None and size is not None:
        raise InputError(
            f"--window: expected --scale too, since training resized all images to {size[0]} × {size[1]}; give the"
            " factor by which it resized them, or 1 to keep their size"
        )
    return Predictor(
        network=network.to(device).eval(),
        device=device,
        classes=classes,
        colors=np.round(distinct_colors(len(classes)) * 255).astype(np.uint8) if colors is None else colors,
        ignore_index=ignore_index,
        size=size,
        scale=options.scale,
        window=None if options.window is None else tuple(options.window),
        overlap=options.overlap,
        batch_size=options.batch_size,
    )


class Outputs(NamedTuple):
    """What is written, and where.

    Attributes:
        folder: the output folder.
        overlay: write the class colors over the image, too.
        probabilities: write probabilities, too.
    """

    folder: Path
    overlay: bool
    probabilities: bool

    @property
    def subfolders(self) -> list[Path]:
        """The folders that files are written to."""
        kinds = {"labels": True, "overlays": self.overlay, "probabilities": self.probabilities}
        return [self.folder / kind for kind, wanted in kinds.items() if wanted]

    def prepare(self, predictor: Predictor) -> None:
        """Create the folders and write the class list.

        Raises:
            InputError: if that fails.
        """
        try:
            for folder in self.subfolders:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{self.folder}: can't be created ({error.strerror})") from error
        names = [*enumerate(predictor.classes), (predictor.ignore_index, "void")]
        with atomic_write(self.folder / "classes.txt") as file:
            file.write("".join(f"{index} {name}\n" for index, name in names if index >= 0).encode())


def find_images(path: Path, output: Path) -> list[Path]:
    """Return the images to label.

    Raises:
        InputError: if there are none, two have the same name, or the output would overwrite them.
    """
    if not path.exists():
        raise InputError(f"{path}: no such file or folder")
    folder = path if path.is_dir() else path.parent
    if folder.resolve() in [(output / name).resolve() for name in ("labels", "overlays")]:
        raise InputError(
            f"{output}: expected a folder other than that of the images, but got the same; change --output"
        )
    return list(files_by_stem(path, IMAGE_SUFFIXES).values()) if path.is_dir() else [path]


def label(predictor: Predictor, path: Path, outputs: Outputs) -> Iterator[float]:
    """Label one image and write what was asked for.

    Yields:
        The share of the image that is done.

    Raises:
        InputError: if the image can't be used, the network returns nan, or a file can't be written.
    """
    image = read_image(path).permute(1, 2, 0).numpy()
    height, width = image.shape[:2]
    labels = np.empty((height, width), np.uint8)
    row = 0
    with ExitStack() as files:
        planes = None
        if outputs.probabilities:
            file = files.enter_context(atomic_write(outputs.folder / "probabilities" / f"{path.stem}.npy"))
            planes = Planes(file, (len(predictor.classes), height, width))
        for logits in predictor.logits(image):
            if not logits.isfinite().all():
                raise InputError(f"{path}: expected finite logits, but the network returned nan or inf")
            below = row + logits.shape[1]
            labels[row:below] = logits.argmax(0).to("cpu", torch.uint8).numpy()
            if planes is not None:
                planes.write(row, logits.softmax(0).to("cpu", torch.float16).numpy())
            row = below
            yield row / height
    picture = Image.fromarray(labels)
    picture.putpalette(predictor.colors.tobytes())
    if outputs.overlay:
        with atomic_write(outputs.folder / "overlays" / f"{path.stem}.jpg") as file:
            Image.blend(Image.fromarray(image), picture.convert("RGB"), 0.5).save(file, "jpeg", quality=90)
    with atomic_write(outputs.folder / "labels" / f"{path.stem}.png") as file:
        picture.save(file, "png")


class Planes:
    """Write an array [C, H, W], float16, to a .npy file, band by band.

    Args:
        file: an empty file.
        shape: (C, H, W).
    """

    def __init__(self, file: IO[bytes], shape: tuple[int, int, int]) -> None:
        """Write the header."""
        header: dict[str, Any] = {"descr": "<f2", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        self._file, self._shape, self._start = file, shape, file.tell()

    def write(self, row: int, values: npt.NDArray[np.float16]) -> None:
        """Write rows [C, k, W], from row `row` on."""
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
    images = find_images(options.images, options.output)
    predictor = open_predictor(options)
    outputs = Outputs(options.output, options.overlay, options.probabilities)
    outputs.prepare(predictor)
    start = time.perf_counter()
    name = Column(no_wrap=True, overflow="ellipsis", max_width=max(8, console.width - 35))
    columns = (TextColumn("{task.description}", table_column=name), BarColumn(10))
    columns += (MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with torch.inference_mode(), bar:
        task = bar.add_task("", total=len(images))
        for done, path in enumerate(images):
            bar.update(task, completed=done, description=path.name)
            try:
                for share in label(predictor, path, outputs):
                    bar.update(task, completed=done + share)
            except torch.OutOfMemoryError as error:
                raise InputError(f"{path}: does not fit into the memory of {predictor.device}; try --window") from error
    seconds = time.perf_counter() - start
    where = ", ".join(map(str, outputs.subfolders))
    count = f"{len(images)} image{'s' if len(images) > 1 else ''}"
    console.print(f"{count} in {seconds:.1f} s ({len(images) / seconds:.1f} images/s): {where}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--checkpoint", type=Path, required=True, metavar="FILE", help="best.pt or last.pt of a run")
    add("--images", type=Path, required=True, metavar="PATH", help="an image, or a folder of them")
    add(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="output folder, created if missing; files of an earlier call are replaced",
    )
    add("--overlay", action="store_true", help="also write overlays/NAME.jpg: the class colors over the image")
    add(
        "--probabilities",
        action="store_true",
        help="also write probabilities/NAME.npy, [C, H, W] float16, which edgeloss view --pred reads",
    )
    add("--scale", type=float, metavar="FACTOR", help="resize images by this factor instead of to the size of training")
    add("--window", type=int, nargs=2, metavar=("H", "W"), help="compute each image in windows of this size")
    add(
        "--overlap",
        type=int,
        metavar="PIXELS",
        help="overlap of windows (default: a quarter of the shorter side of the window)",
    )
    add("--batch-size", type=int, default=1, metavar="N", help="windows per forward pass (default: %(default)s)")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps, ... (default: %(default)s)")
    add(
        "--weights",
        choices=("auto", "model", "ema"),
        default="auto",
        help="the last weights or their moving average; auto is the average if there is one (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.scale is not None and not 0 < options.scale < float("inf"):
        parser.error(f"--scale: expected a factor > 0, but got {options.scale}")
    if options.window is not None and min(options.window) < 1:
        parser.error(f"--window: expected height and width >= 1, but got {options.window}")
    if options.overlap is not None and options.window is None:
        parser.error("--overlap: expected --window too, but got none")
    side = min(options.window or [0])
    if options.overlap is None:
        options.overlap = side // 4
    if not 0 <= options.overlap <= side // 2:
        parser.error(f"--overlap: expected 0 to {side // 2}, half a window, but got {options.overlap}")
    if options.batch_size < 1:
        parser.error(f"--batch-size: expected at least 1, but got {options.batch_size}")
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
        print("predict.py: interrupted; all files written so far are complete", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C, so that no partial file is left
    sys.exit(main())

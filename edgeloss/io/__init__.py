"""Read images, masks, predictions, class lists and palettes from files, find data sets, and write files atomically.

Reading runs no code from a file: arrays are loaded without pickle, tensors with ``weights_only=True``. Memory is
limited by ``edgeloss.io.limits`` and Pillow's ``Image.MAX_IMAGE_PIXELS``. Every failure is an :class:`InputError` that
names the file.
"""

from edgeloss._checks.remap import REMAPS, parse_remap
from edgeloss.io.arrays import Size
from edgeloss.io.class_lists import PALETTES, Classes, Rgb, color_labels, read_classes, read_palette
from edgeloss.io.files import (
    ARRAY_SUFFIXES,
    IMAGE_SUFFIXES,
    LABEL_SUFFIXES,
    VOID_INDEX,
    InputError,
    OutputError,
    atomic_write,
    check_file,
)
from edgeloss.io.images import read_image
from edgeloss.io.labels import read_labels, remap_labels
from edgeloss.io.layouts import LAYOUTS, Pair, Split, find_split, find_volumes, pair_folders
from edgeloss.io.pairs import Folder, files_by_stem, match_files, pair_files
from edgeloss.io.predictions import LABEL_PROBABILITY, Prediction, PredictionKind, read_prediction

__all__ = [
    "ARRAY_SUFFIXES",
    "IMAGE_SUFFIXES",
    "LABEL_PROBABILITY",
    "LABEL_SUFFIXES",
    "LAYOUTS",
    "PALETTES",
    "REMAPS",
    "VOID_INDEX",
    "Classes",
    "Folder",
    "InputError",
    "OutputError",
    "Pair",
    "Prediction",
    "PredictionKind",
    "Rgb",
    "Size",
    "Split",
    "atomic_write",
    "check_file",
    "color_labels",
    "files_by_stem",
    "find_split",
    "find_volumes",
    "match_files",
    "pair_files",
    "pair_folders",
    "parse_remap",
    "read_classes",
    "read_image",
    "read_labels",
    "read_palette",
    "read_prediction",
    "remap_labels",
]

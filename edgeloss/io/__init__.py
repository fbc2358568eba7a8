"""Read images, masks, predictions, class lists and palettes from files, and write files atomically.

Reading runs no code from a file: arrays are loaded without pickle, tensors with ``weights_only=True``. Every failure is
an :class:`InputError` that names the file.
"""

from edgeloss.io.class_lists import PALETTES, Classes, Rgb, color_labels, read_classes, read_palette
from edgeloss.io.files import (
    ARRAY_SUFFIXES,
    IMAGE_SUFFIXES,
    LABEL_SUFFIXES,
    VOID_INDEX,
    InputError,
    atomic_write,
    check_file,
    files_by_stem,
)
from edgeloss.io.readers import LABEL_PROBABILITY, Prediction, PredictionKind, read_image, read_labels, read_prediction

__all__ = [
    "ARRAY_SUFFIXES",
    "IMAGE_SUFFIXES",
    "LABEL_PROBABILITY",
    "LABEL_SUFFIXES",
    "PALETTES",
    "VOID_INDEX",
    "Classes",
    "InputError",
    "Prediction",
    "PredictionKind",
    "Rgb",
    "atomic_write",
    "check_file",
    "color_labels",
    "files_by_stem",
    "read_classes",
    "read_image",
    "read_labels",
    "read_palette",
    "read_prediction",
]

"""Volumes as samples: crops, padding, augmentation, and errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from edgeloss import EdgeAwareLoss
from edgeloss.functional import edge_aware_loss
from edgeloss.metrics import boundary_f1
from segkit.scores import LossFigures, flatten, validation_metrics
from segkit.volumes import VolumeAugment, VolumeFolder

SHAPE = (5, 8, 6)
NOTHING = VolumeAugment(flip=(0, 0, 0), intensity=0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Write two volumes whose intensities show the labels."""
    for n in range(2):
        labels = np.random.default_rng(n).integers(0, 3, SHAPE, dtype=np.uint8)
        np.savez(tmp_path / f"v{n}.npz", image=labels * 80, label=labels)
    return tmp_path


def stored(root: Path) -> torch.Tensor:
    return torch.from_numpy(np.load(root / "v0.npz")["label"].astype(np.int64))


def test_a_sample(root: Path) -> None:
    folder = VolumeFolder(root, num_classes=3)
    assert (len(folder), folder.names) == (2, ["v0", "v1"])
    image, labels = folder[0]
    assert (image.dtype, image.shape) == (torch.float32, (1, *SHAPE))
    assert labels.dtype == torch.int64
    assert torch.equal(labels, stored(root))
    gray = 80.0 * labels[None]
    torch.testing.assert_close(image, (gray - gray.mean()) / gray.std(correction=0))
    assert torch.equal(folder[-1][1], folder[1][1])
    with pytest.raises(IndexError):
        folder[2]


def test_size(root: Path) -> None:
    # Two planes of padding before and one after along the first axis, a crop to the middle 4 of 8 along the second.
    image, labels = VolumeFolder(root, num_classes=3, ignore_index=9, size=(8, 4, 6))[0]
    assert torch.equal(labels[2:7], stored(root)[:, 2:6])
    void = labels == 9
    assert void[:2].all()
    assert void[7:].all()
    assert void.sum() == 3 * 4 * 6
    assert not image[0][void].any()
    assert image[0][~void].all()


@pytest.mark.parametrize("size", [(7, 4, 6), None])
def test_random_places(root: Path, size: tuple[int, int, int] | None) -> None:
    augment = NOTHING if size else VolumeAugment((0, 0, 0), 0, crop=(7, 4, 6))
    folder = VolumeFolder(root, num_classes=3, size=size, augment=augment)
    original, seen = stored(root), set()
    for epoch in range(40):
        folder.set_epoch(epoch)
        _, labels = folder[0]
        (place,) = (
            (a, b)
            for a in range(3)
            for b in range(5)
            if torch.equal(labels[a : a + 5], original[:, b : b + 4]) and (labels != 255).sum() == 5 * 4 * 6
        )
        seen.add(place)
    assert {a for a, _ in seen} == {0, 1, 2}
    assert {b for _, b in seen} == {0, 1, 2, 3, 4}
    assert torch.equal(folder.labels(0), original)


def test_spacing_reaches_loss_and_metrics(root: Path) -> None:
    """Planes are three times as far apart as voxels within a plane: distances and radii are in millimetres."""
    for n in range(2):
        with np.load(root / f"v{n}.npz") as arrays:
            np.savez(root / f"v{n}.npz", **arrays, spacing=np.array([3, 1, 1.5]))
    folder = VolumeFolder(root, num_classes=3)
    assert folder.spacing == (3, 1, 1.5)
    target, logits = folder[0][1][None], torch.randn(1, 3, *SHAPE)
    micrometres = tuple(1e3 * size for size in folder.spacing)  # radii are in units of the shortest side
    scores = [validation_metrics(3, 255, spacing) for spacing in (folder.spacing, micrometres)]
    for one in scores:
        one.update(logits.argmax(1), target)
    found, same = (flatten(one.compute(), ["a", "b", "c"]) for one in scores)
    assert found == same
    options = {"ignore_index": 255, "spacing": folder.spacing}
    assert found["boundary_f1_1"] == pytest.approx(boundary_f1(logits, target, 3, radius=1, **options).item())
    criterion = EdgeAwareLoss(radius=(1, 2, 2), decay=1.0, **options)
    figures = LossFigures(criterion.eval())
    figures.update(logits, target)
    edge = edge_aware_loss(logits, target, radius=(1, 2, 2), decay=1.0, return_terms=True, **options)[1]["edge"]
    assert figures.compute()["edge"] == pytest.approx(edge.item(), rel=1e-5)


def test_spacing_of_files(root: Path) -> None:
    assert VolumeFolder(root, num_classes=3).spacing is None
    labels = np.zeros(SHAPE, np.uint8)
    for size, message in {
        (1.0, 2.0, 3.0): r"v1.npz: expected spacing None as in .*v0.npz, but got \(1.0, 2.0, 3.0\); resample",
        (1.0, 2.0): r"v1.npz: expected spacing of three numbers > 0, but got \(1.0, 2.0\)",
        (1.0, 2.0, -1.0): r"v1.npz: expected spacing of three numbers > 0, but got",
    }.items():
        np.savez(root / "v1.npz", image=labels, label=labels, spacing=np.array(size))
        with pytest.raises(ValueError, match=message):
            VolumeFolder(root, num_classes=3).spacing  # noqa: B018


@pytest.mark.parametrize("axis", range(3))
def test_flips(root: Path, axis: int) -> None:
    flip = tuple(float(other == axis) for other in range(3))
    plain, flipped = (VolumeFolder(root, num_classes=3, augment=VolumeAugment(f, 0)) for f in ((0, 0, 0), flip))
    for expected, actual in zip(plain[1], flipped[1], strict=True):
        assert torch.equal(actual, expected.flip(axis - 3))
    assert (VolumeAugment().flip[axis] > 0) == (axis == 0)


def test_intensity(root: Path) -> None:
    plain = VolumeFolder(root, num_classes=3)[0][0]
    folder = VolumeFolder(root, num_classes=3, augment=VolumeAugment((0, 0, 0), 0.2))
    changes = []
    for epoch in range(30):
        folder.set_epoch(epoch)
        image = folder[0][0]
        contrast, brightness = image.std() / plain.std(), image.mean()
        torch.testing.assert_close(image, plain * contrast + brightness)
        changes.append((contrast - 1, brightness))
    spread = torch.tensor(changes).abs().amax(0)
    assert (spread > 0.15).all()
    assert (spread < 0.2).all()


def test_samples_repeat(root: Path) -> None:
    def samples(seed: int, epoch: int, order: tuple[int, ...] = (0, 1)) -> list[torch.Tensor]:
        folder = VolumeFolder(root, num_classes=3, size=SHAPE, augment=VolumeAugment(), seed=seed)
        folder.set_epoch(epoch)
        read = {i: folder[i] for i in (*order, *order)}
        return [*read[0], *read[1]]

    first = samples(3, 5)
    assert all(torch.equal(a, b) for a, b in zip(first, samples(3, 5, (1, 0)), strict=True))
    for other in (samples(4, 5), samples(3, 6)):
        assert not torch.equal(first[0], other[0])


def test_a_cache_reads_a_file_once(root: Path) -> None:
    folder = VolumeFolder(root, num_classes=3, cache=True)
    image, _ = folder[0]
    before = image.clone()
    image += 1  # samples are copies
    (root / "v0.npz").unlink()
    assert torch.equal(folder[0][0], before)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda root: VolumeFolder(root, num_classes=0), "num_classes: expected an integer >= 1, but got 0"),
        (
            lambda root: VolumeFolder(root, num_classes=3, size=(4, 4)),
            r"size: expected \(depth, height, width\), all >= 1, but got \(4, 4\)",
        ),
        (lambda root: VolumeFolder(root, num_classes=3, seed=-1), "seed: expected an integer >= 0, but got -1"),
        (
            lambda _: VolumeAugment(flip=(2, 0, 0)),
            r"flip: expected three probabilities in \[0, 1\], but got",
        ),
        (lambda _: VolumeAugment(intensity=-1), r"intensity: expected a number in \[0, 1\], but got -1"),
        (lambda _: VolumeAugment(crop=(8, 8)), r"crop: expected \(depth, height, width\), all >= 1, but got \(8, 8\)"),
        (
            lambda root: VolumeFolder(root, num_classes=2)[0],
            r"v0.npz: expected labels 0 to 1 or 255, but got 2",
        ),
    ],
)
def test_wrong_options(root: Path, wrong: Callable[[Path], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wrong(root)


def test_wrong_files(root: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"expected NAME.npz files, but there are none"):
        VolumeFolder(root / "train", num_classes=3)
    flat = np.zeros((4, 4))
    np.savez(root / "v0.npz", image=flat, label=flat)
    np.savez(root / "v1.npz", image=flat)
    folder = VolumeFolder(root, num_classes=3)
    with pytest.raises(ValueError, match=r"v0.npz: expected image and label of one shape \[D, H, W\], but got"):
        folder[0]
    with pytest.raises(ValueError, match=r"v1.npz: can't be read as a volume \("):
        folder[1]

"""The documents: their examples and programs run, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from documents import DOCUMENTS, ROOT, name_of, programs, run_examples, sections
from torch import nn

from edgeloss import EdgeAwareLoss, metrics

# Those of frameworks.md run in tests/integrations.
SECTIONS = {
    f"{name_of(document)}: {title}": examples
    for document in DOCUMENTS
    if document.name != "frameworks.md"
    for title, examples in sections(document).items()
}
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
SOURCE = re.compile(r'\bsrc(?:set)?="([^"]+)"')  # of a <picture>


# gradcheck warns about float32, and the document shows that it fails there.
@pytest.mark.filterwarnings("ignore:Input #0 requires gradient and is not a double precision:UserWarning")
@pytest.mark.parametrize("examples", SECTIONS.values(), ids=SECTIONS)
def test_examples(
    examples: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some write files
    run_examples(examples, request.node.callspec.id)


def test_every_pitfall_has_an_example() -> None:
    pitfalls = re.findall("^## ", (ROOT / "docs" / "pitfalls.md").read_text(), re.MULTILINE)
    assert len(pitfalls) == sum(section.startswith("docs/pitfalls.md") for section in SECTIONS)


def anchors(document: Path) -> set[str]:
    """The headings as GitHub names them: lower case, without punctuation, hyphens for spaces."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in HEADING.findall(document.read_text())}


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links(document: Path) -> None:
    text = document.read_text()
    for path, anchor in [*LINK.findall(text), *((path, "") for path in SOURCE.findall(text))]:
        target = document.parent / path if path else document
        assert target.exists(), f"{name_of(document)}: {path}"
        assert not anchor or anchor in anchors(target), f"{name_of(document)}: {path}#{anchor}"


def stand_ins(folder: Path) -> dict[str, Any]:
    """Return what the programs expect of their readers: data, a model, and names that an earlier section imports."""
    labels = torch.zeros(2, 24, 32, dtype=torch.long)
    labels[:, 4:20, 8:24], labels[:, 10:12], labels[:, :2] = 1, 2, 255
    images, model = torch.rand(2, 3, 24, 32), nn.Conv2d(3, 11, 3, padding=1)
    loader = [(images, labels)]
    (folder / "train").mkdir()
    (folder / "classes.txt").write_text("0 background\n1 body\n2 head\n")
    volume = np.random.default_rng(0).normal(size=(40, 50, 40)).astype(np.float32)
    np.savez(folder / "train" / "a.npz", image=volume, label=(volume > 1).astype(np.uint8), spacing=[2.0, 1.0, 1.0])
    return {
        "EdgeAwareLoss": EdgeAwareLoss,
        "BoundaryF1": metrics.BoundaryF1,
        "device": "cpu",
        "loader": loader,
        "train_loader": loader,
        "images": images,
        "labels": labels,
        "model": model,
        "logits": model(images).detach(),
        "step": 0,
    }


@pytest.mark.parametrize("document", [document for document in DOCUMENTS if programs(document)], ids=name_of)
def test_programs(
    document: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = stand_ins(tmp_path)
    if any("writer" in program for program, _ in programs(document)):
        tensorboard = pytest.importorskip("torch.utils.tensorboard", reason="TensorBoard is not installed")
        names["writer"] = tensorboard.SummaryWriter(tmp_path)
    try:
        for program, output in programs(document):
            exec(compile(program, name_of(document), "exec"), names)
            printed = capsys.readouterr().out
            assert not output or printed == output
    except ModuleNotFoundError as missing:
        if str(missing.name).startswith("edgeloss"):
            raise
        pytest.skip(f"{missing.name} is not installed")

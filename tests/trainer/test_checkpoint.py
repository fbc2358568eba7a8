"""Checkpoints are written completely or not at all."""

import multiprocessing
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from edgeloss.io import InputError
from segkit.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from segkit.model import UNet


def replace_on_a_full_disk(path: Path, report: Connection) -> None:
    """Limit the size of files, as a full disk would, and try to replace a small checkpoint by a large one."""
    import resource  # Unix has it

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    save_checkpoint(path, {"model": {"w": torch.ones(3)}})
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        save_checkpoint(path, {"model": {"w": torch.zeros(50000)}})
    except InputError as error:
        report.send(str(error))
    finally:
        report.close()


@pytest.mark.skipif(sys.platform != "linux", reason="limits the size of files")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")  # Python 3.12 and later
def test_a_full_disk_is_one_line_and_keeps_the_old_file(tmp_path: Path) -> None:
    path, (received, sent) = tmp_path / "last.pt", multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=replace_on_a_full_disk, args=(path, sent))
    process.start()
    sent.close()
    assert received.recv() == f"{path}: can't be written (File too large)"
    process.join()
    assert load_checkpoint(path)["model"]["w"].tolist() == [1, 1, 1]
    assert list(tmp_path.iterdir()) == [path]


def test_errors_tell_missing_damaged_and_other_files_apart(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="expected a checkpoint, but there is no such file"):
        load_checkpoint(tmp_path / "none.pt")
    save_checkpoint(tmp_path / "last.pt", {"model": UNet(3, width=8, levels=2).state_dict()})
    whole = (tmp_path / "last.pt").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"text"):
        (tmp_path / "damaged.pt").write_bytes(content)
        with pytest.raises(CheckpointError, match="damaged"):
            load_checkpoint(tmp_path / "damaged.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="a file without a model"):
        load_checkpoint(tmp_path / "list.pt")

"""Writing files: whole or not at all, and never in place of what is no file."""

from __future__ import annotations

import os
import resource
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from edgeloss.io import InputError, atomic_write

ROOT = Path(__file__).resolve().parents[2]


def write(path: Path, content: bytes) -> None:
    with atomic_write(path) as file:
        file.write(content)


def test_two_writers_of_one_file_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with atomic_write(path) as first:
        first.write(b"a" * 10)
        with atomic_write(path) as second:
            second.write(b"b" * 5)
        assert path.read_bytes() == b"b" * 5
    assert path.read_bytes() == b"a" * 10
    assert os.listdir(tmp_path) == ["t"]


@pytest.mark.slow
def test_processes_that_write_one_file_leave_one_of_them_whole(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom edgeloss.io import atomic_write\n"
        "for at in range(50):\n with atomic_write(sys.argv[1]) as file:\n"
        "  for part in range(100): file.write(sys.argv[2].encode() * 100)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "t")]
    writers = [subprocess.Popen([*command, letter], cwd=ROOT) for letter in "abc"]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    content = (tmp_path / "t").read_bytes()
    assert len(content) == 10_000
    assert len(set(content)) == 1
    assert os.listdir(tmp_path) == ["t"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/real")
    for content in (b"new", b"replaced"):  # a link to nothing, then to a file
        write(tmp_path / "link", content)
        assert (tmp_path / "link").is_symlink()
        assert (tmp_path / "folder" / "real").read_bytes() == content
    assert os.listdir(tmp_path / "folder") == ["real"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "private"
    path.touch()
    path.chmod(mode)
    write(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_has_the_permissions_of_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "new", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_a_pipe_and_a_device_are_written_through(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe: can't be written \(No such device or address\)"):  # no reader
        write(tmp_path / "pipe", b"")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    for _ in range(1000):  # until it has opened the pipe
        try:
            write(tmp_path / "pipe", b"through")
            break
        except InputError:
            time.sleep(0.01)
    reader.join(10)
    assert read == [b"through"]
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    (tmp_path / "null").symlink_to(os.devnull)
    write(tmp_path / "null", b"gone")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)


@pytest.mark.parametrize(
    "name", ["/dev/stdout", *(pytest.param(name, marks=pytest.mark.slow) for name in ("/proc/self/fd/1", "link"))]
)
def test_standard_output_is_written_through(tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to("/proc/self/fd/1")
    program = f"from edgeloss.io import atomic_write\nwith atomic_write({name!r}) as file: file.write(b'through')"
    with (tmp_path / "file").open("wb") as file:
        file.write(b"from before, ")
        file.flush()
        before = os.stat(tmp_path / "file").st_ino
        ran = subprocess.run(
            [sys.executable, "-c", program], stdout=file, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
        )
    assert ran.returncode == 0
    assert (tmp_path / "file").read_bytes() == b"from before, through"
    assert os.stat(tmp_path / "file").st_ino == before
    assert (tmp_path / "link").is_symlink()


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "page"
    path.write_bytes(b"from before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(InputError, match=r"page: can't be written \(File too large\)"):
            write(path, b"x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"from before"
    assert os.listdir(tmp_path) == ["page"]


def test_what_a_killed_process_left_is_removed_after_a_day(tmp_path: Path) -> None:
    for name, age in {".edgeloss-0123": 2 * 86400, ".edgeloss-4567": 60, "page": 2 * 86400}.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    write(tmp_path / "new", b"")
    assert sorted(os.listdir(tmp_path)) == [".edgeloss-4567", "new", "page"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "expected a file to write to, but got something else, such as a folder"),
        ("n" * 300, r"can't be written \(File name too long\)"),
        ("no/file", r"can't be written \(No such file or directory\)"),
        ("loop", r"can't be written \(Too many levels of symbolic links\)"),
        ("a\0b", r"can't be written \(.*null byte"),
    ],
)
def test_what_cannot_be_written_is_named(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match=message):
        write(tmp_path / name, b"")

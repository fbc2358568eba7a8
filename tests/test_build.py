"""The build: what a wheel holds, what an install does without a compiler, and that both say so."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("LICENSE", "csrc", "edgeloss", "pyproject.toml", "setup.py", "tools")
STATE = "import edgeloss; print(edgeloss.backends()['cpu'])"

pytestmark = pytest.mark.slow
needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or not any(map(shutil.which, ("c++", "g++", "clang++"))),
    reason="no C++ compiler for Linux to build the library with",
)


@pytest.fixture(scope="module")
def setuptools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The one build requirement, fetched once, for builds that share it without isolation."""
    target = tmp_path_factory.mktemp("setuptools")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), "setuptools>=77"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"pip reaches no index with setuptools: {done.stderr.strip().splitlines()[-1]}")
    return target


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of what the build reads, without what earlier builds left in it."""
    tree = tmp_path / "source"
    tree.mkdir()
    built = shutil.ignore_patterns("__pycache__", "*.so", "_build.txt")
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, tree / part, ignore=built)
        else:
            shutil.copy(ROOT / part, tree)
    return tree


def run(
    *command: str | Path, cwd: Path | None = None, path: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command that finds modules in `path`, its output and errors in one."""
    env = {key: value for key, value in os.environ.items() if key not in ("CXX", "EDGELOSS_BUILD", "PYTHONPATH")}
    env |= variables | ({"PYTHONPATH": str(path)} if path else {})
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def pip_wheel(source: Path, setuptools: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build the wheel of `source` beside it."""
    options = ["--verbose", "--no-deps", "--no-build-isolation", "--wheel-dir", source.parent / "wheel"]
    return run(sys.executable, "-m", "pip", "wheel", *options, source, path=setuptools, **variables)


def unpack(source: Path) -> tuple[str, Path]:
    """The tag of the one wheel that was built, and its files."""
    (wheel,) = (source.parent / "wheel").glob("*.whl")
    site = source.parent / "site"
    with zipfile.ZipFile(wheel) as files:
        files.extractall(site)
    return wheel.stem.split("-", 2)[2], site


def reason(site: Path) -> str:
    """What `backends` says of the CPU kernels in an unpacked wheel."""
    # Without `site`, since the finder of an editable install would supply the library that the wheel lacks.
    done = run(sys.executable, "-S", "-c", STATE, cwd=site, path=Path(sysconfig.get_path("purelib")))
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


@needs_compiler
def test_sdist_builds_the_wheel(source: Path, setuptools: Path) -> None:
    script = "import sys; sys.path.insert(0, 'tools'); import build_backend; build_backend.build_sdist(sys.argv[1])"
    done = run(sys.executable, "-c", script, source.parent, cwd=source, path=setuptools)
    assert done.returncode == 0, done.stdout
    (archive,) = source.parent.glob("*.tar.gz")
    with tarfile.open(archive) as members:
        names = {name.partition("/")[2] for name in members.getnames()}
    assert {path.relative_to(source).as_posix() for path in (source / "csrc").rglob("*.*")} <= names
    assert {"setup.py", "tools/build_backend.py"} <= names

    done = pip_wheel(archive, setuptools, EDGELOSS_BUILD="cpu", CXXFLAGS="-Werror")
    assert done.returncode == 0, done.stdout
    assert "edgeloss: CPU kernels, built against torch" in done.stdout
    tag, site = unpack(archive)
    assert tag.startswith("cp310-abi3-")
    assert (site / "edgeloss" / "_C.abi3.so").exists()
    assert not (site / "edgeloss" / "_build.txt").exists()
    assert reason(site) == "available"

    (site / "edgeloss" / "_C.abi3.so").write_bytes(b"")
    assert reason(site).startswith("unavailable: the library does not load with torch")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"EDGELOSS_BUILD": "none"}, "it was installed with EDGELOSS_BUILD=none"),
        ({"PATH": ""}, "no C++ compiler was found when it was installed"),
        ({"CXX": "false"}, "it did not compile when it was installed: false ended with status 1"),
        ({"CXX": "/nowhere/c++"}, "the C++ compiler can't be run: "),
    ],
    ids=["none", "no compiler", "failing compiler", "absent compiler"],
)
@needs_compiler
def test_without_a_library_says_why(source: Path, setuptools: Path, variables: dict[str, str], expected: str) -> None:
    # What an earlier build with the library leaves must not get into a wheel without it.
    stale = source / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}" / "edgeloss"
    stale.mkdir(parents=True)
    (stale / "_C.abi3.so").touch()
    done = pip_wheel(source, setuptools, **variables)
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(f"edgeloss: pure Python, without compiled kernels: {expected}") == 1, done.stdout
    tag, site = unpack(source)
    assert tag == "py3-none-any"
    assert not list(site.rglob("*.so"))
    assert reason(site).startswith(f"unavailable: {expected}")


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"EDGELOSS_BUILD": "gpu"}, "EDGELOSS_BUILD: expected one of 'cpu', 'none', but got 'gpu'"),
        ({"EDGELOSS_BUILD": "cpu", "CXX": "false"}, "edgeloss: EDGELOSS_BUILD=cpu, but it did not compile"),
    ],
    ids=["unknown", "forced"],
)
@needs_compiler
def test_refuses(source: Path, setuptools: Path, variables: dict[str, str], message: str) -> None:
    done = pip_wheel(source, setuptools, **variables)
    assert done.returncode != 0
    assert message in done.stdout


@needs_compiler
def test_editable_under_isolation(source: Path, setuptools: Path, tmp_path: Path) -> None:
    """Isolated, it takes the torch of the environment; again, it compiles only what has changed."""
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "edgeloss" not in entry.name and not (site / entry.name).exists():
            (site / entry.name).symlink_to(entry)
    install = [python, "-m", "pip", "install", "--verbose", "--no-deps"]

    first = run(*install, "--editable", source, EDGELOSS_BUILD="cpu")
    assert first.returncode == 0, first.stdout
    assert "Collecting torch" not in first.stdout
    assert first.stdout.count(" -c ") == len(list((source / "csrc").rglob("*.cpp")))
    assert run(python, "-c", STATE, cwd=tmp_path).stdout.strip() == "available"

    (source / "csrc" / "edge_loss.cpp").touch()
    again = [*install, "--no-build-isolation", "--editable", source]
    second = run(*again, path=setuptools)
    assert second.returncode == 0, second.stdout
    assert second.stdout.count(" -c ") == 1

    third = run(*again, path=setuptools, EDGELOSS_BUILD="none")
    assert third.returncode == 0, third.stdout
    assert "EDGELOSS_BUILD=none" in run(python, "-c", STATE, cwd=tmp_path).stdout


def test_requires_torch_only_where_there_is_none(source: Path, setuptools: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    script = "import build_backend; print(*build_backend.get_requires_for_build_wheel())"
    # Through a shell, since the Python that calls a build is asked for torch too.
    shell = ["sh", "-c", '"$0" -c "$1"; true']
    where = Path(f"{source / 'tools'}{os.pathsep}{setuptools}")
    for python, variables, expected in (
        (tmp_path / "venv" / "bin" / "python", {"CXX": "c++"}, "torch>=2.10"),
        (tmp_path / "venv" / "bin" / "python", {"EDGELOSS_BUILD": "none"}, ""),
        (Path(sys.executable), {"CXX": "c++"}, ""),
    ):
        done = run(*shell, python, script, cwd=source, path=where, **variables)
        assert done.stdout.splitlines()[-1].strip() == expected, done.stdout

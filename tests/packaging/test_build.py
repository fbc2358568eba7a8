"""The build: the contents of a wheel, and what an install without a compiler or nvcc does and reports."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch

import check_abi
import edgeloss
import toolchain
from edgeloss._kernels import library

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(edgeloss.__file__).with_name("_C.abi3.so")
PARTS = ("LICENSE", "README.md", "csrc", "edgeloss", "pyproject.toml", "setup.py", "tools")
STATE = "import edgeloss; print(edgeloss.backends()['cpu'])"
CUDA_STATE = "from edgeloss._kernels import library; print(library.why_not_on_cuda(None))"
# Variables that change a build: each test sets its own.
STEERING = ["CUDA_HOME", "CUDA_PATH", "CXX", "CXXFLAGS", "LDFLAGS", "NVCCFLAGS", "PYTHONPATH"]
STEERING += ["EDGELOSS_BUILD", "EDGELOSS_CUDA_ARCHS"]
NVCC = shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")

pytestmark = pytest.mark.slow
needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or not any(map(shutil.which, ("c++", "g++", "clang++"))),
    reason="no C++ compiler for Linux to build the library with",
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of what the build reads, without what earlier builds left in it."""
    return copy(tmp_path / "source")


def copy(tree: Path, *more: str) -> Path:
    """Copy what the build reads, and more where it exists, to a new folder; return it."""
    tree.mkdir()
    for part in [*PARTS, *more]:
        if (ROOT / part).is_dir():
            built = shutil.ignore_patterns("__pycache__", "*.so", "_build.json")
            shutil.copytree(ROOT / part, tree / part, ignore=built)
        elif (ROOT / part).exists():
            shutil.copy(ROOT / part, tree)
    return tree


def run(
    *command: str | Path, cwd: Path | None = None, path: Path | None = None, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a command that finds modules in `path`, its output and errors in one."""
    env = {key: value for key, value in os.environ.items() if key not in STEERING}
    env |= variables | ({"PYTHONPATH": str(path)} if path else {})
    return subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def pip_wheel(source: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Build the wheel of `source` in the directory `wheel` next to it."""
    options = ["--verbose", "--no-deps", "--no-build-isolation", "--wheel-dir", source.parent / "wheel"]
    return run(sys.executable, "-m", "pip", "wheel", *options, source, **variables)


def unpack(source: Path) -> tuple[str, Path]:
    """The tag of the one wheel that was built, and its files; every wheel has the kernels of GPUs."""
    (wheel,) = (source.parent / "wheel").glob("*.whl")
    site = source.parent / "site"
    with zipfile.ZipFile(wheel) as files:
        files.extractall(site)
    of_gpus = Path("edgeloss", "_kernels", "triton")
    assert {path.name for path in (site / of_gpus).iterdir()} == {path.name for path in (ROOT / of_gpus).glob("*.py")}
    return wheel.stem.split("-", 2)[2], site


def reason(site: Path, state: str = STATE) -> str:
    """Return what `backends` reports about the CPU kernels of an unpacked wheel."""
    # Without `site`, since the finder of an editable install would supply the library that the wheel lacks.
    done = run(sys.executable, "-S", "-c", state, cwd=site, path=Path(sysconfig.get_path("purelib")))
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


@needs_compiler
def test_sdist_is_the_repository_and_builds_the_wheel(source: Path) -> None:
    files = run("git", "ls-files", cwd=ROOT).stdout.split() if (ROOT / ".git").exists() else []
    for name in files:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    files += [path.relative_to(source).as_posix() for path in (source / "csrc").rglob("*.*")]
    script = "import sys; sys.path.insert(0, 'tools'); import build_backend; build_backend.build_sdist(sys.argv[1])"
    done = run(sys.executable, "-c", script, source.parent, cwd=source)
    assert done.returncode == 0, done.stdout
    (archive,) = source.parent.glob("*.tar.gz")
    with tarfile.open(archive) as members:
        names = {name.partition("/")[2] for name in members.getnames()}
        page = members.extractfile(f"{archive.name.removesuffix('.tar.gz')}/PKG-INFO").read().decode()  # type: ignore[union-attr]
    wanted = {"setup.py", "tools/build_backend.py", "tools/toolchain.py", *files}
    assert {name for name in wanted if not name.startswith((".github/", ".gitignore"))} - names == set()
    # On the page of an index nothing is next to it.
    assert "criterion = EdgeAwareLoss(" in page
    assert re.findall(r"\]\((?!https?:|#)[^)]*|<picture>|<img", page) == []

    done = pip_wheel(archive, EDGELOSS_BUILD="cpu", CXXFLAGS="-Werror")
    assert done.returncode == 0, done.stdout
    assert "edgeloss: CPU kernels, built against torch" in done.stdout
    tag, site = unpack(archive)
    assert tag.startswith("cp310-abi3-")
    assert (site / "edgeloss" / "_C.abi3.so").exists()
    pages = [path.name for path in (source / "edgeloss" / "viz" / "page").iterdir()]
    assert {path.name for path in (site / "edgeloss" / "viz" / "page").iterdir()} == set(pages) != set()
    assert reason(site) == "available"
    without = "the library was built without CUDA kernels: it was installed with EDGELOSS_BUILD=cpu"
    assert reason(site, CUDA_STATE) == without

    (site / "edgeloss" / "_C.abi3.so").write_bytes(b"")
    assert reason(site).startswith("unavailable: the library does not load with torch")


def version() -> str:
    """The version in pyproject.toml."""
    return re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)[0]


def test_citation_names_the_version() -> None:
    assert f"version: {version()}\n" in (ROOT / "CITATION.cff").read_text()


def test_no_address_where_the_package_is_not() -> None:
    """An address that anyone could register would install a stranger's code."""
    files = [
        "README.md",
        "pyproject.toml",
        "CITATION.cff",
        *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
    ]
    found = [name for name in files if re.search(r"git\+http|github\.com/edgeloss", (ROOT / name).read_text())]
    assert found == []


def test_a_wheel_without_a_library(source: Path) -> None:
    # One that an earlier build left must not get into it.
    stale = source / "build" / f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}" / "edgeloss"
    stale.mkdir(parents=True)
    (stale / "_C.abi3.so").touch()
    done = pip_wheel(source, EDGELOSS_BUILD="none")
    assert done.returncode == 0, done.stdout
    tag, site = unpack(source)
    assert tag == "py3-none-any"
    assert not list(site.rglob("*.so"))
    assert reason(site) == "unavailable: it was installed with EDGELOSS_BUILD=none"


@needs_compiler
def test_editable_under_isolation(source: Path, tmp_path: Path) -> None:
    """Under isolation it uses the torch of the environment; a second install compiles changed files only."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout.strip())
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "edgeloss" not in entry.name:
            (site / entry.name).symlink_to(entry)
    install = [python, "-m", "pip", "install", "--verbose", "--no-deps"]

    # Unoptimized, as it is only loaded.
    first = run(*install, "--editable", source, EDGELOSS_BUILD="cpu", CXXFLAGS="-O0")
    assert first.returncode == 0, first.stdout
    assert "Collecting torch" not in first.stdout
    assert first.stdout.count(" -c ") == len(list((source / "csrc").rglob("*.cpp")))
    assert run(python, "-c", STATE, cwd=tmp_path).stdout.strip() == "available"

    (source / "csrc" / "library.cpp").touch()
    again = [*install, "--no-build-isolation", "--editable", source]
    second = run(*again, EDGELOSS_BUILD="cpu", CXXFLAGS="-O0")
    assert second.returncode == 0, second.stdout
    assert second.stdout.count(" -c ") == 1

    third = run(*again, EDGELOSS_BUILD="none")
    assert third.returncode == 0, third.stdout
    assert "EDGELOSS_BUILD=none" in run(python, "-c", STATE, cwd=tmp_path).stdout


def test_requires_torch_only_where_there_is_none(source: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    site = Path(sysconfig.get_path("purelib"))
    (tmp_path / "packages").mkdir()
    for entry in [*site.glob("setuptools*"), site / "_distutils_hack"]:  # not the others, as torch
        (tmp_path / "packages" / entry.name).symlink_to(entry)
    script = "import build_backend; print(*build_backend.get_requires_for_build_wheel())"
    # Through a shell, since the Python that calls a build is asked for torch too.
    shell = ["sh", "-c", '"$0" -c "$1"; true']
    where = Path(f"{source / 'tools'}{os.pathsep}{tmp_path / 'packages'}")
    for python, variables, expected in (
        (tmp_path / "venv" / "bin" / "python", {"CXX": "c++"}, "torch>=2.10"),
        (tmp_path / "venv" / "bin" / "python", {"EDGELOSS_BUILD": "none"}, ""),
        (Path(sys.executable), {"CXX": "c++"}, ""),
    ):
        done = run(*shell, python, script, cwd=source, path=where, **variables)
        assert done.stdout.splitlines()[-1].strip() == expected, done.stdout


FAKE_NVCC = """#!/bin/sh
case "$1" in
    --version) echo "Cuda compilation tools, release {release}, V{release}.0";;
    --list-gpu-code) printf 'sm_80\\nsm_86\\nsm_90\\n';;
    --dryrun) echo '#$ LIBRARIES=  "-L{lib}"' >&2;;
    *) {compile};;
esac
"""
# For `nvcc ... -c source -o object`: an empty object, or a failure.
COMPILES = 'for object in "$@"; do :; done; c++ -x c++ -c /dev/null -o "$object"'
FAILS = "echo 'kernels.cu(7): error: no such kernel' >&2; exit 2"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the build reads, with an empty source for each compiler."""
    tree = copy(tmp_path_factory.mktemp("tree") / "source")
    shutil.rmtree(tree / "csrc")
    for source in ("library.cpp", "device/kernels.cu"):
        (tree / "csrc" / source).parent.mkdir(exist_ok=True)
        (tree / "csrc" / source).touch()
    return tree


def build_with_fake_nvcc(
    tree: Path, home: Path, *, release: str = "13.0", compiles: str = COMPILES, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Build `home/edgeloss` with a fake nvcc in `home`, which runs the command `compiles`."""
    (home / "bin").mkdir()
    (home / "bin" / "nvcc").write_text(FAKE_NVCC.format(release=release, lib=home, compile=compiles))
    (home / "bin" / "nvcc").chmod(0o755)
    run("ar", "rcs", home / "libcudart_static.a")
    variables = {"CUDA_HOME": str(home)} | variables
    command = (sys.executable, "setup.py", "build_ext", "--build-lib", home)
    return run(*command, cwd=tree, path=tree / "tools", **variables)


@needs_compiler
def test_nvcc_compiles_the_cuda_kernels(tree: Path, tmp_path: Path) -> None:
    done = build_with_fake_nvcc(tree, tmp_path, EDGELOSS_BUILD="cuda", NVCCFLAGS="--use_fast_math")
    assert done.returncode == 0, done.stdout
    assert "edgeloss: CPU and CUDA kernels (sm_80, sm_90, PTX), built against torch" in done.stdout
    (command,) = [line for line in done.stdout.splitlines() if "-c csrc/device/kernels.cu" in line]
    assert "-gencode=arch=compute_90,code=sm_90 -gencode=arch=compute_90,code=compute_90" in command
    assert "-DUSE_CUDA" in command
    assert "--use_fast_math -c" in command
    assert "edgeloss: compiling csrc/device/kernels.cu (1 of 2)" in done.stdout
    record = json.loads((tmp_path / "edgeloss" / "_build.json").read_text())
    assert (record["toolkit"], record["cubins"], record["ptx"]) == ([13, 0], [80, 90], [90])

    shutil.rmtree(tmp_path / "bin")
    again = build_with_fake_nvcc(tree, tmp_path, EDGELOSS_BUILD="cuda", NVCCFLAGS="--use_fast_math")
    assert " -c " not in again.stdout


@pytest.mark.parametrize(
    ("part", "fake", "expected"),
    [
        ("cpu", {"PATH": ""}, "no C++ compiler was found when it was installed"),
        ("cpu", {"CXX": "false"}, "it did not compile: false ended with status 1"),
        ("cpu", {"CXX": "/nowhere/c++"}, "/nowhere/c++ can't be run: "),
        ("cuda", {"CUDA_HOME": "/nowhere"}, "no nvcc was found in CUDA_HOME=/nowhere"),
        ("cuda", {"release": "11.8"}, "nvcc 11.8 is older than 12.0"),
        ("cuda", {"release": "unknown"}, "--version does not report its version"),
        ("cuda", {"EDGELOSS_CUDA_ARCHS": "all"}, "nvcc 13.0 can't compile for sm_75, sm_89, sm_100, sm_120;"),
        ("cuda", {"compiles": FAILS}, "it did not compile: kernels.cu(7): error: no such kernel"),
        ("cuda", {"compiles": "exit 3"}, "nvcc ended with status 3"),
    ],
)
@needs_compiler
def test_a_build_without_a_part_reports_why(
    tree: Path, tmp_path: Path, part: str, fake: dict[str, str], expected: str
) -> None:
    done = build_with_fake_nvcc(tree, tmp_path, **fake)
    assert done.returncode == 0, done.stdout
    (summary,) = re.findall(r"^edgeloss: (?:pure Python|CPU kernels, built against).*", done.stdout, re.MULTILINE)
    assert {"cpu": "without compiled kernels: ", "cuda": "; no CUDA kernels: "}[part] in summary
    assert expected in summary
    record = json.loads((tmp_path / "edgeloss" / "_build.json").read_text())
    assert expected in record[{"cpu": "missing", "cuda": "without_cuda"}[part]]

    shutil.rmtree(tmp_path / "bin")
    forced = build_with_fake_nvcc(tree, tmp_path, EDGELOSS_BUILD=part, **fake)
    assert forced.returncode != 0
    (refusal,) = re.findall(rf"^edgeloss: EDGELOSS_BUILD={part}, but .*", forced.stdout, re.MULTILINE)
    assert expected in refusal


def test_variables_that_mean_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGELOSS_BUILD", "gpu")
    with pytest.raises(SystemExit, match="EDGELOSS_BUILD: expected one of 'cuda', 'cpu', 'none', but got 'gpu'"):
        toolchain.choice()
    with pytest.raises(SystemExit, match=r"EDGELOSS_CUDA_ARCHS: expected 'all' or a list as .*, but got 'sm_90'"):
        toolchain.parse_architectures("sm_90")


@pytest.mark.skipif(not NVCC, reason="no nvcc on PATH or in /usr/local/cuda")
@needs_compiler
def test_wheel_with_cuda_kernels(tmp_path: Path) -> None:
    """It loads without a device and without a torch for CUDA, and reports what is missing."""
    source = copy(tmp_path / "source", "build/objects")  # compiled CUDA kernels are not compiled again
    done = pip_wheel(source, EDGELOSS_BUILD="cuda", EDGELOSS_CUDA_ARCHS="90")  # as CI builds it
    assert done.returncode == 0, done.stdout
    assert "edgeloss: CPU and CUDA kernels (sm_90), built against torch" in done.stdout
    tag, site = unpack(source)
    assert tag.startswith("cp310-abi3-")
    assert reason(site) == "available"
    if torch.version.cuda is None:
        assert reason(site, CUDA_STATE) == f"torch {torch.__version__} is built without CUDA"
    assert check_abi.problems(site / "edgeloss" / "_C.abi3.so") == []


@pytest.mark.skipif(library.MISSING is not None, reason=f"no library: {library.MISSING}")
def test_uses_stable_interfaces_only() -> None:
    assert check_abi.problems(LIBRARY) == []


def test_audit_finds_what_is_not_stable() -> None:
    """On torch's own library, which uses C++ interfaces of its parts and much of CPython's."""
    found = check_abi.problems(Path(torch.__file__).parent / "lib" / "libtorch_python.so")
    assert "needs libshm.so" in found
    assert any(line.startswith("uses _ZN3c10") for line in found)
    assert any(line.startswith("uses _ZN2at") for line in found)

"""Build the kernels in other ways than for use: run the kernels' tests over them, or compile them without a warning.

Usage, from the repository's root: python tools/check_builds.py {targets,sanitized,clang,nvcc} [words for pytest]

targets: for AVX2 alone and for SSE2 alone. The library holds every loop for AVX-512, AVX2 and SSE2, and the other tests
see only those of the processor that they run on. The CUDA kernels, stepped on the host, with products and sums fused
into one operation, as nvcc does. It needs g++ and an x86-64 processor.

sanitized: with AddressSanitizer and UndefinedBehaviorSanitizer, which stop at the first access outside of an array, use
of freed memory, overflow of a signed integer and so on; the CUDA kernels too, stepped on the host. These also with
ThreadSanitizer, which stops where two threads of a block use one address. It needs g++.

clang: compile the CPU kernels for x86-64 and for aarch64, by zig, which is a clang with the headers of both.

nvcc: compile the CUDA kernels for sm_80 and sm_90. A spilled register goes through memory at every use, so that is a
warning. It needs nvcc, not a device.

The builds are in build/AVX2, build/SSE2 and build/sanitized, apart from that of the environment.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path

import progress
from toolchain import CUDA_SOURCES, HOST_SOURCES, Architectures, Unbuildable, find_nvcc, find_torch, host_command

# vptr: it needs the types of torch's classes, which the library does not see.
SANITIZERS = "-O1 -g -fsanitize=address,undefined -fno-sanitize=vptr"
# As a sanitizer reports and ends the process; Python itself leaks at its end.
SANITIZER_OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1"}
NEIGHBOR_TESTS = "tests/kernels/test_neighbor_kernels.py"
AGREEMENT_TESTS = ["tests/loss/test_agreement.py", "tests/loss/test_numerics.py"]
TARGET_TESTS = [*AGREEMENT_TESTS, NEIGHBOR_TESTS, "tests/loss/test_region.py"]
TARGET_TESTS += ["-k", "not cuda and not gathered and not [reference and not -reference] and not compile and not graph"]
SANITIZED_TESTS = ["tests/kernels", *AGREEMENT_TESTS, "tests/loss/test_autograd.py"]
# Not CamVid, which is large, nor torch.compile, whose own compiler can't load a sanitizer late.
SANITIZED_TESTS += ["-k", "not [reference and not -reference] and not camvid and not compile and not one_graph"]
STEPPED_TESTS = [NEIGHBOR_TESTS, AGREEMENT_TESTS[0], "-k", "stepped or pair_terms or of_cuda"]
CONTRACTED = "g++ -O2 -mfma -ffp-contract=fast"
RACES = "g++ -O1 -g -fsanitize=thread"
PATHS = os.pathsep.join(["tests", "tools", str(Path.cwd())])
# Loops that clang leaves as they are cost time, not correctness.
CLANG = ["-O1", "-Werror", "-Wno-pass-failed"]
NVCC = ["-Xptxas=-warn-spills,-Werror", "-Werror=all-warnings", "-Xcompiler=-Werror"]
RACE_FOUND = 66  # the status of a process that ThreadSanitizer ends
STATE = "import edgeloss; print(edgeloss.__file__, edgeloss.backends()['cpu'])"


def check(name: str, flags: str, tests: list[str], *, sanitized: bool = False) -> None:
    """Build the CPU kernels with these flags, and run tests over them."""
    print(f"==> {name}: building the CPU kernels", flush=True)
    site = Path("build", name).resolve()
    shutil.rmtree(site, ignore_errors=True)  # the objects are elsewhere, and stay
    variables = {"EDGELOSS_BUILD": "cpu", "CXX": "g++", "CXXFLAGS": flags, "LDFLAGS": SANITIZERS if sanitized else ""}
    # PYTHONPATH: setup.py finds its own modules there, as it does under pip.
    build = [sys.executable, "setup.py", "build", "--build-lib", str(site)]
    progress.run(build, {**os.environ, **variables, "PYTHONPATH": "tools"})
    # PYTHONSAFEPATH: the working directory holds edgeloss too.
    env, options = {**os.environ, "PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}, []
    if sanitized:
        env |= {"CXX": f"g++ {SANITIZERS}", "LD_PRELOAD": preload("libasan.so", "libubsan.so")} | SANITIZER_OPTIONS
        build_stepped(name, env["CXX"])  # before the tests, as the compiler would run under the preloaded runtimes
        # By file descriptors pytest would capture, and lose, what a process reports as it dies.
        options += ["--capture=sys"]
    state = subprocess.run([sys.executable, "-c", STATE], env=env, capture_output=True, text=True)
    if state.stdout.split() != [f"{site}/edgeloss/__init__.py", "available"]:
        raise SystemExit(f"check_builds: the library in {site} does not load: {state.stdout}{state.stderr}")
    run_tests(name, [*options, *tests], env)


def run_tests(name: str, words: list[str], env: Mapping[str, str]) -> None:
    """Run pytest in an environment, without slow tests."""
    print(f"==> {name}: running the tests", flush=True)
    start, env = time.monotonic(), {key: value for key, value in env.items() if key != "CI"}
    command = [sys.executable, "-m", "pytest", "-n", "auto", "--dist", "worksteal", *words]
    code = subprocess.run(command, env=env | {"OMP_NUM_THREADS": "1"}, preexec_fn=progress.end_with_parent).returncode
    print(f"==> {name}: {time.monotonic() - start:.0f} s", flush=True)
    if code:
        raise SystemExit(code)


def preload(*runtimes: str) -> str:
    """Return the sanitizers' runtimes, to which Python is not linked, and libstdc++ for their view of exceptions."""
    names = (*runtimes, "libstdc++.so")
    return " ".join(subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in names)


def build_stepped(name: str, compiler: str) -> str:
    """Build the CUDA kernels for the host, and return the path of the library."""
    print(f"==> {name}: building the CUDA kernels for the host", flush=True)
    shim = "import host_shim; print(host_shim.build(host_shim.compiler()))"
    env = {**os.environ, "CXX": compiler, "PYTHONPATH": PATHS}
    return subprocess.check_output([sys.executable, "-c", shim], env=env, text=True).strip()


def check_contracted() -> None:
    """Run the tests of the stepped kernels with products and sums in one operation."""
    build_stepped("contracted", CONTRACTED)
    run_tests("contracted", STEPPED_TESTS, {**os.environ, "CXX": CONTRACTED})


def check_races() -> None:
    """Look for races between the threads of a block; where two take the same pixels there must be one."""
    library = build_stepped("races", RACES)
    options = f"halt_on_error=1 exitcode={RACE_FOUND} report_signal_unsafe=0 ignore_noninstrumented_modules=1"
    env = os.environ | {"LD_PRELOAD": preload("libtsan.so"), "TSAN_OPTIONS": options, "PYTHONPATH": PATHS}
    command = [sys.executable, "tests/host_shim/races.py", library]
    if code := subprocess.run(command, env=env, preexec_fn=progress.end_with_parent).returncode:
        raise SystemExit(code)
    racing = subprocess.run(command, env=env | {"DOUBLED_THREADS": "1"}, capture_output=True, text=True)
    # In a kernel, not in what steps it.
    found = re.search(r"SUMMARY: ThreadSanitizer: data race \S*csrc/", racing.stderr)
    if racing.returncode != RACE_FOUND or not found:
        raise SystemExit(f"check_builds: a race is not found: {racing.stdout}{racing.stderr[-4000:]}")
    print("==> races: one that was made was found")


def check_targets(tests: list[str]) -> None:
    """Check those of the targets that this processor can run, but for the one that other tests run on."""
    if platform.machine() != "x86_64":
        print(f"==> nothing to check: on {platform.machine()} the kernels are compiled for one target only")
        return
    processor = Path("/proc/cpuinfo").read_text().split()
    if "avx512f" in processor:
        check("AVX2", "-DEDGELOSS_NO_CLONES -march=x86-64-v3", tests)
    elif "avx2" in processor:
        print("==> AVX2 is what the other tests run on: this processor has no AVX-512")
    else:
        print("==> AVX2 is not checked: this processor has none")
    check("SSE2", "-DEDGELOSS_NO_CLONES", tests)


def check_warnings(compiler: str) -> None:
    """Compile the sources by clang or nvcc, and end with the warnings."""
    torch = find_torch()
    if torch is None:
        raise SystemExit("there is no torch whose headers the sources could be compiled with")
    commands: dict[str, Sequence[str]] = {}
    if compiler == "clang":
        for machine in ("x86_64", "aarch64"):
            zig = [sys.executable, "-m", "ziglang", "c++", "-target", f"{machine}-linux-gnu"]
            commands[machine] = [*host_command(zig, torch), *CLANG]
    else:
        try:
            nvcc = find_nvcc()
        except Unbuildable as reason:
            print(f"==> skipped, the CUDA kernels are not checked: {reason}")
            return
        commands = {f"sm_{arch}": [*nvcc.command(torch, Architectures([arch], [])), *NVCC] for arch in (80, 90)}
    jobs = product(commands, HOST_SOURCES if compiler == "clang" else CUDA_SOURCES)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        if errors := "".join(pool.map(partial(compile_one, commands), *zip(*jobs, strict=True))):
            raise SystemExit(errors)


def compile_one(commands: Mapping[str, Sequence[str]], target: str, source: Path) -> str:
    """Compile a source for a target, and return what the compiler says if it fails."""
    with tempfile.TemporaryDirectory() as directory:  # zig does not write to /dev/null
        command = [*commands[target], "-c", str(source), "-o", f"{directory}/object.o"]
        done = subprocess.run(command, capture_output=True, text=True)
    print(f"    {target} {source}", flush=True)
    return f"{done.stdout}{done.stderr}" if done.returncode else ""


def main() -> None:
    """Check the builds that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("builds", choices=("targets", "sanitized", "clang", "nvcc"))
    parser.add_argument("tests", nargs=argparse.REMAINDER, metavar="words for pytest")
    arguments = parser.parse_args()
    progress.exit_on_sigterm()
    if arguments.builds == "targets":
        check_targets(arguments.tests or TARGET_TESTS)
        if not arguments.tests:
            check_contracted()
    elif arguments.builds in ("clang", "nvcc"):
        check_warnings(arguments.builds)
    else:
        check("sanitized", SANITIZERS, arguments.tests or SANITIZED_TESTS, sanitized=True)
        if not arguments.tests:
            check_races()


if __name__ == "__main__":
    main()

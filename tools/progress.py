"""Run pip install, or another build, with one short line per step, and with the whole output if it fails.

Usage: python tools/progress.py pip [words for pip install]
       python tools/progress.py uv [words for uv pip install]

uv is much faster. pip builds edgeloss, since it shows the compiler's lines, and installs on top of another environment.
"""

from __future__ import annotations

import ast
import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

# A directory of packages that the machine's pip is set to look in, but that lacks this package.
NOISE = re.compile(r"WARNING: Location .* is ignored: it is neither a file nor a directory")
# What setup.py reports, and what pip and the compilers complain of.
SHOWN = re.compile(r"edgeloss: |ERROR|WARNING|DEPRECATION|Installed \d+ package|\S+: (fatal error|error|warning): ")
WIDTH = 100
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class Progress:
    """Prints what is worth showing of pip's output: names of packages side by side, other lines as they are."""

    def __init__(self) -> None:
        """Start at the beginning of a line."""
        self._column = 0

    def show(self, line: str) -> None:
        """Print a line of pip's output, or leave it out."""
        if found := re.match(r"Collecting ([\w.-]+)", line):
            self._add(found[1])
        elif found := re.match(r"Installing collected packages: (.*)", line):
            count = len(found[1].split(", "))
            self.print(f"installing {count} package{'s' if count > 1 else ''}")
        elif SHOWN.match(line) and not NOISE.match(line):
            self.print(line.removeprefix("edgeloss: "))

    def print(self, line: str) -> None:
        """Print a line of its own."""
        print("\n" if self._column else "", f"    {line}", sep="", flush=True)
        self._column = 0

    def _add(self, word: str) -> None:
        if self._column + len(word) > WIDTH:
            print()
            self._column = 0
        print(" " if self._column else "    ", word, sep="", end="", flush=True)
        self._column += len(word) + 1


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """Run a command and show its progress.

    Raises:
        SystemExit: if it fails, with its whole output.
    """
    start, progress, log = time.monotonic(), Progress(), []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env=env, **pipes, text=True, preexec_fn=end_with_parent) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.append(line)
                progress.show(line.strip())
        except BaseException:  # a signal ends the command too
            process.kill()
            raise
    if process.returncode:
        progress.print("failed; the whole output:")
        raise SystemExit("".join(log))
    progress.print(f"done in {time.monotonic() - start:.0f} s")


def end_with_parent() -> None:
    """Let this process, a new one, end with its parent, even if that is killed; on Linux only."""
    if LIBC is not None:
        LIBC.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def exit_on_sigterm() -> None:
    """Turn SIGTERM into an exception, so that the processes that this one has started end with it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


# uv does not read the settings of pip.
SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "constraint": "UV_CONSTRAINT",
    "cert": "SSL_CERT_FILE",
}


def settings_for_uv() -> dict[str, str]:
    """Return variables by which uv finds packages where pip is set to look for them; those that are set win."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, stdout=subprocess.PIPE, text=True
    )
    variables = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # the newest of all indexes, as pip
    for setting, value in re.findall(r"^[^=]*\.([a-z-]+)=(.*)$", listed.stdout, re.MULTILINE):
        if variable := SETTINGS.get(setting):
            words = str(ast.literal_eval(value)).split()
            variables.setdefault(variable, ("," if setting == "find-links" else " ").join(words))
    return variables | os.environ


def main() -> None:
    """Install; Python compiles the modules that are imported, which are a small part of all."""
    exit_on_sigterm()
    installer, *words = sys.argv[1:]
    if installer == "uv":
        run([sys.executable, "-m", "uv", "pip", "install", "--python", sys.executable, *words], settings_for_uv())
    else:
        run([sys.executable, "-m", "pip", "install", "--verbose", "--progress-bar=off", "--no-compile", *words])


if __name__ == "__main__":
    main()

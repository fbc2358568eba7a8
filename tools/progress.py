"""Run pip install, or another build, with one short line per step, and with the whole output if it fails.

Usage: python tools/progress.py pip [words for pip install]
       python tools/progress.py uv [words for uv pip install]

uv is much faster. pip builds edgeloss, since it shows the compiler's lines, and installs on top of another environment.
It runs in a new environment, before anything is installed, so it uses the standard library only, not a library for
progress such as rich.
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

# A directory of packages that the machine's pip is set to look in, but that lacks this package; and a package that
# another installer is just writing.
NOISE = re.compile(
    r"WARNING: (Location .* is ignored: it is neither a file nor a directory|Skipping .* due to invalid metadata entry)"
)
# What setup.py reports, what uv installs, and what they, pip and the compilers complain of.
SHOWN = re.compile(r"edgeloss: |ERROR|WARNING|DEPRECATION|Installed \d+ package|\S+: (fatal error|error|warning): ")
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def run(command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
    """Run a command and show its progress.

    Raises:
        SystemExit: if it fails, with its whole output.
    """
    start, log = time.monotonic(), []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, env=env, **pipes, text=True, preexec_fn=end_with_parent) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                log.append(line)
                shown = line.strip()
                if SHOWN.match(shown) and not NOISE.match(shown):
                    print(f"    {shown.removeprefix('edgeloss: ')}", flush=True)
        except BaseException:  # a signal ends the command too
            process.kill()
            raise
    if process.returncode:
        raise SystemExit("".join(["    failed; the whole output:\n", *log]))
    print(f"    done in {time.monotonic() - start:.0f} s", flush=True)


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

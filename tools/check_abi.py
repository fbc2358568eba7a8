"""Check that a built library uses only the stable interfaces of torch, Python and the system."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

# torch comes as libtorch_cpu and libc10 in every build. CUDA's runtime is linked statically, and what is of
# libtorch_cuda is looked up at run time: a library linked to either would not load with a CPU build of torch.
TORCH = r"(libtorch_cpu|libc10)\.so"
SYSTEM = r"(libstdc\+\+|libm|libgcc_s|libc|libdl|librt|libpthread|ld-linux-(x86-64|aarch64))\.so\.\d"
NEEDED = re.compile(f"{TORCH}|{SYSTEM}")
# The C functions of the stable ABI; the limited API of Python (audited by abi3audit); std::, which torch's libraries
# export too, then without a version.
STABLE = re.compile(r"(aoti_)?torch_\w+|_?Py\w+|_Z(N|NK|T[IVS])?St\w+")


def problems(library: Path) -> list[str]:
    """Return what keeps a library from loading with other versions of torch, Python or CUDA."""
    found = [f"needs {name}" for name in needed(library) if not NEEDED.fullmatch(name)]
    found += [f"uses {symbol}" for symbol in unversioned(library) if not STABLE.fullmatch(symbol)]
    audit = subprocess.run(
        [sys.executable, "-m", "abi3audit", "--strict", "--assume-minimum-abi3", "3.10", "--report", str(library)],
        capture_output=True,
        text=True,
    )
    return found if audit.returncode == 0 else [*found, f"abi3audit: {audit.stdout}{audit.stderr}"]


def needed(library: Path) -> list[str]:
    """Return the libraries that it is linked to."""
    with library.open("rb") as file:
        sections = ELFFile(file).iter_sections()
        tags = [tag for section in sections if isinstance(section, DynamicSection) for tag in section.iter_tags()]
        return [tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"]


def unversioned(library: Path) -> list[str]:
    """Return undefined symbols without a version, except for optional ones; those of the system have versions."""
    with library.open("rb") as file:
        elf = ELFFile(file)
        symbols, versions = elf.get_section_by_name(".dynsym"), elf.get_section_by_name(".gnu.version")
        return sorted(
            symbol.name
            for index, symbol in enumerate(symbols.iter_symbols())
            if symbol.name
            and symbol["st_shndx"] == "SHN_UNDEF"
            and symbol["st_info"]["bind"] != "STB_WEAK"
            and versions.get_symbol(index)["ndx"] in ("VER_NDX_LOCAL", "VER_NDX_GLOBAL")
        )

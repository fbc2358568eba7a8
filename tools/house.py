#!/usr/bin/env python3
"""The rooms of the library: which may import which, and a drawing of them for CONTRIBUTING.md.

python tools/house.py docs/images/house.png    # needs matplotlib
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# From the lowest layer up; the parts of a layer do not import each other. edgeloss alone is what `import edgeloss` is.
LAYERS = (
    ("_checks",),
    ("_reduction",),
    ("_reference",),
    ("_kernels", "_C"),
    ("_call",),
    ("functional",),
    ("loss", "adapters", "numerics"),
    ("fields", "metrics"),
    ("io",),
    ("viz",),
    ("debug",),
    ("doctor", "integrations"),
    ("cli",),
    ("__main__",),
)
RANK = {part: rank for rank, parts in enumerate(LAYERS) for part in parts}


# What a room makes of what it gets, for the drawing.
FLOW = {
    "_checks": "what a user passes → checked values",
    "_reduction": "sums → balance, focus → loss",
    "_reference": "labels → weights; logits → sums, maps (plain PyTorch)",
    "_kernels": "the same by kernels of CPUs and GPUs",
    "_call": "arguments → call → backend → loss",
    "functional": "the public functions",
    "loss": "EdgeAwareLoss",
    "metrics": "label maps → boundary scores",
    "io": "files → labels, predictions",
    "viz": "maps → figures, reports",
    "debug": "a loss → findings",
    "integrations": "frameworks",
    "cli": "the command",
}


def imports_of(tree: ast.AST) -> set[str]:
    """Return what a module imports, in functions and by ``import_module`` too, but not for types alone."""
    names: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ImportFrom):
            names |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            assert isinstance(node.args[0], ast.Constant), f"line {node.lineno}: a module whose name is computed"
            names.add(str(node.args[0].value))
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            names |= imports_of(node)
    return names


def graph() -> dict[str, set[str]]:
    """Return the modules of the repository and what each imports of them."""
    found = {}
    for folder, pattern in (("", "edgeloss/**/*.py"), *((name, "**/*.py") for name in ("examples", "benchmarks"))):
        for path in (ROOT / folder).glob(pattern):
            name = ".".join(path.relative_to(ROOT / folder).with_suffix("").parts).removesuffix(".__init__")
            found[name] = imports_of(ast.parse(path.read_text("utf-8")))
    for name, imported in found.items():  # `from package import module` needs the module, not all of the package
        known = imported & found.keys() - {name}
        found[name] = {other for other in known if not any(one.startswith(f"{other}.") for one in known)}
    return found


def room_of(module: str) -> str:
    """Return the room of a module of edgeloss, a folder or a file by itself; "" of the package."""
    return module.removeprefix("edgeloss").removeprefix(".").partition(".")[0]


def arrows() -> set[tuple[str, str]]:
    """Return which rooms import which others."""
    pairs = {
        (room_of(name), room_of(other))
        for name, imported in graph().items()
        for other in imported
        if name.startswith("edgeloss.") and other.startswith("edgeloss.")
    }
    return {(one, other) for one, other in pairs if one != other}


def draw(path: Path) -> None:
    """Draw the rooms, those that import on top of those that they import."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import FancyBboxPatch

    floors = [room for layer in LAYERS for room in layer if room in FLOW]
    found = {room: [other for other in floors if (room, other) in arrows()] for room in floors}
    figure, axes = plt.subplots(figsize=(10, 0.6 * len(floors)))
    for height, room in enumerate(floors):
        box = FancyBboxPatch((0.01, height - 0.3), 0.98, 0.6, boxstyle="round,pad=0.01")
        box.set(facecolor="#eef3fa", edgecolor="#4a6b94")
        axes.add_patch(box)
        axes.text(0.02, height + 0.1, f"{room}:  {FLOW[room]}", va="center", fontsize=11)
        below = ", ".join(reversed(found[room]))
        axes.text(0.02, height - 0.19, f"imports {below}" if below else "", va="center", fontsize=8, color="#555555")
    count = sum(map(len, found.values()))
    axes.set(xlim=(0, 1), ylim=(-0.5, len(floors) - 0.5))
    axes.set_title(f"{len(floors)} rooms, and {count} imports between them", fontsize=11)
    axes.axis("off")
    figure.savefig(path, dpi=110, bbox_inches="tight")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))

"""Read machine code (SASS) from a cubin: the kernels, what they occupy, and the loops of their instructions.

It decodes only what counting takes: where branches lead, and which memory an instruction reads or writes. From sm_70 on
an instruction has 16 bytes, with its operation in the low 12 bits; the rest of the encoding is the same on sm_80 and
sm_90, except for the offset of a branch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

SIZE = 16  # bytes of an instruction
BRANCH, INDIRECT_BRANCH, RETURN, EXIT, NOP = 0x947, 0x949, 0x950, 0x94D, 0x918
# Of global memory: LDG, LDGSTS and STG; LD and ST, whose address may be in any memory.
LOADS, STORES = (0x980, 0x981, 0x3AE, 0xFAE), (0x985, 0x986, 0x386)
ALWAYS = 7  # the predicate that is always true
WIDTHS = (1, 1, 2, 2, 4, 8, 16, 16)  # bytes, by the field of a memory instruction


@dataclass(frozen=True)
class Instruction:
    """One instruction: its address in the kernel, its operation, and whether it may be skipped."""

    address: int
    operation: int
    conditional: bool = False
    target: int | None = None  # of a branch
    width: int = 0  # bytes that a thread reads or writes, of global memory

    @property
    def loaded(self) -> int:
        """Bytes that it reads from global memory."""
        return self.width if self.operation in LOADS else 0

    @property
    def stored(self) -> int:
        """Bytes that it writes to global memory."""
        return self.width if self.operation in STORES else 0


@dataclass
class Loop:
    """A natural loop: the instructions of its body, without those of the loops inside, and these loops in order."""

    head: int
    own: list[Instruction] = field(default_factory=list)
    inner: list[Loop] = field(default_factory=list)
    serving: set[int] = field(default_factory=set)  # addresses outside that lead only into it, or come only from it

    def walk(self) -> Iterable[Loop]:
        """Yield the loop and all loops inside of it, in the order of their addresses."""
        yield self
        for loop in self.inner:
            yield from loop.walk()


@dataclass
class Kernel:
    """A kernel of a cubin."""

    name: str  # mangled
    registers: int
    shared: int  # bytes per block, without what a launch adds
    threads: int  # of a block at most, by __launch_bounds__
    instructions: list[Instruction]

    @cached_property
    def body(self) -> Loop:
        """The whole kernel, as a loop that runs once."""
        return loops(self.instructions)


def decode(code: bytes, arch: int) -> list[Instruction]:
    """Decode the instructions of a kernel for an architecture such as 90, without NOP."""
    instructions = []
    for address in range(0, len(code) - SIZE + 1, SIZE):
        low, high = struct.unpack_from("<QQ", code, address)
        operation = low & 0xFFF
        # A second predicate stands in the upper half; bit 91 marks the way of a warp that is not together, which the
        # kernels' exchanges between threads never are in: it is left out, and with it what nothing else leads to.
        conditional = (low >> 12 & 0xF) != ALWAYS
        target, width = None, 0
        if operation == BRANCH:
            conditional |= (high >> 23 & 0x1F) != ALWAYS
            apart = high >> 27 & 1
            offset = (high & 0x3FFFF) << 30 | low >> 34
            if arch >= 90:
                offset = offset << 8 | low >> 16 & 0xFF
            bits = 56 if arch >= 90 else 48
            target = None if apart else address + SIZE + 4 * (offset - (offset >> (bits - 1) << bits))
        elif operation in (*LOADS, *STORES):
            width = WIDTHS[high >> 9 & 7]
        if operation != NOP:
            instructions.append(Instruction(address, operation, conditional, target, width))
    return instructions


def loops(instructions: list[Instruction]) -> Loop:
    """Return the tree of natural loops, those whose head every way into them passes."""
    blocks, successors = _flow(instructions)
    order, dominator = _dominators(successors)
    bodies: dict[int, set[int]] = {}
    predecessors: list[list[int]] = [[] for _ in blocks]
    for block in order:
        for after in successors[block]:
            predecessors[after].append(block)
    for block in order:
        for head in successors[block]:
            if _dominates(head, block, dominator):
                _grow(bodies.setdefault(head, {head}), block, predecessors)
    # From the outermost to the innermost: a block belongs to the last loop that it is in.
    root = Loop(0)
    owner = dict.fromkeys(order, root)
    for head, body in sorted(bodies.items(), key=lambda item: -len(item[1])):
        loop = Loop(blocks[head][0].address)
        owner[head].inner.append(loop)
        owner |= dict.fromkeys(body, loop)
        serving = _serving(body, order, successors, predecessors)
        loop.serving = {i.address for block in serving for i in blocks[block]}
    for block in sorted(order):
        owner[block].own.extend(blocks[block])
    for loop in root.walk():
        loop.inner.sort(key=lambda inner: inner.head)
    return root


def _flow(instructions: list[Instruction]) -> tuple[list[list[Instruction]], list[list[int]]]:
    """Return basic blocks and the numbers of those that follow each."""
    end = instructions[-1].address + SIZE
    starts = {0} | {i.target for i in instructions if i.target is not None and 0 <= i.target < end}
    starts |= {i.address + SIZE for i in instructions if i.operation in (BRANCH, INDIRECT_BRANCH, RETURN, EXIT)}
    blocks: list[list[Instruction]] = []
    first: dict[int, int] = {}  # the block of an address at its start
    waiting: list[int] = []  # addresses whose block has not begun, as a NOP stands there
    for instruction in instructions:
        waiting += sorted(start for start in starts if start <= instruction.address)
        starts -= set(waiting)
        if waiting or not blocks:
            first |= dict.fromkeys([*waiting, instruction.address], len(blocks))
            blocks.append([])
            waiting = []
        blocks[-1].append(instruction)
    successors: list[list[int]] = []
    end_of_all = len(blocks)  # an empty block, where the kernel ends
    for number, block in enumerate(blocks):
        last, following = block[-1], []
        if last.operation in (RETURN, EXIT):
            following.append(end_of_all)
        if last.target is not None and last.target in first:
            following.append(first[last.target])
        falls = last.conditional or last.operation not in (BRANCH, INDIRECT_BRANCH, RETURN, EXIT)
        if falls and number + 1 < len(blocks):
            following.append(number + 1)
        successors.append(following)
    return [*blocks, []], [*successors, []]


def _dominators(successors: list[list[int]]) -> tuple[list[int], dict[int, int]]:
    """Return the reachable blocks in reverse postorder, and the immediate dominator of each."""
    order: list[int] = []
    seen, stack = {0}, [(0, iter(successors[0]))]
    while stack:
        block, rest = stack[-1]
        after = next((b for b in rest if b not in seen), None)
        if after is None:
            order.append(block)
            stack.pop()
        else:
            seen.add(after)
            stack.append((after, iter(successors[after])))
    order.reverse()
    rank = {block: position for position, block in enumerate(order)}
    dominator = {0: 0}
    # One pass is enough where every loop has one way in, as those of compilers have.
    for block in order:
        for after in successors[block]:
            at, other = block, dominator.get(after, block)
            while at != other:
                if rank[at] > rank[other]:
                    at = dominator[at]
                else:
                    other = dominator[other]
            dominator[after] = at
    return order, dominator


def _dominates(head: int, block: int, dominator: dict[int, int]) -> bool:
    while block not in (head, 0):
        block = dominator[block]
    return block == head


def _serving(body: set[int], order: list[int], successors: list[list[int]], predecessors: list[list[int]]) -> set[int]:
    """Return the blocks outside of a loop that lead only into it, or that only it leads to."""
    known, size = set(body), 0
    while size != len(known):
        size = len(known)
        for block in order:
            for around in (successors[block], predecessors[block]):
                if around and known.issuperset(around):
                    known.add(block)
    return known - body


def _grow(body: set[int], tail: int, predecessors: list[list[int]]) -> None:
    """Add all blocks that reach the tail of a loop without passing its head, which is in the body."""
    stack = [tail]
    while stack:
        block = stack.pop()
        if block not in body:
            body.add(block)
            stack += predecessors[block]


def read(cubin: Path) -> list[Kernel]:
    """Return the kernels of a cubin."""
    with cubin.open("rb") as file:
        elf = ELFFile(file)
        arch = _architecture(elf)
        symbols = elf.get_section_by_name(".symtab")
        assert isinstance(symbols, SymbolTableSection)
        registers = dict(_attributes(elf.get_section_by_name(".nv.info").data(), REGISTERS))
        kernels = []
        for number, symbol in enumerate(symbols.iter_symbols()):
            text = elf.get_section_by_name(f".text.{symbol.name}") if symbol.name else None
            if text is None or symbol["st_info"]["type"] != "STT_FUNC":
                continue
            # What the compiler did not inline, such as a division's rare cases, stands behind the kernel.
            section = symbol["st_shndx"]
            others = [s["st_value"] for s in symbols.iter_symbols() if s["st_shndx"] == section and s["st_value"]]
            instructions = decode(text.data()[: min(others, default=None)], arch)
            shared = elf.get_section_by_name(f".nv.shared.{symbol.name}")
            attributes = elf.get_section_by_name(f".nv.info.{symbol.name}").data()
            threads = next((x * y * z for x, y, z in _attributes(attributes, MOST_THREADS)), 1024)
            size = shared["sh_size"] if shared else 0
            kernels.append(Kernel(symbol.name, registers[number], size, threads, instructions))
    return kernels


REGISTERS, MOST_THREADS = (0x2F, "<II"), (0x05, "<III")  # attributes of .nv.info, and the format of their values


def _attributes(data: bytes, kind: tuple[int, str]) -> Iterable[tuple[int, ...]]:
    """Yield the values of one kind of attribute: each has a format, a kind, and a value or its size and the value."""
    at = 0
    while at + 4 <= len(data):
        form, found, size = struct.unpack_from("<BBH", data, at)
        if form == 4:
            if found == kind[0]:
                yield struct.unpack_from(kind[1], data, at + 4)
            at += size
        at += 4


def _architecture(elf: ELFFile) -> int:
    flags = int(elf.header["e_flags"])
    return flags >> 8 & 0xFF if elf.header["e_ident"]["EI_ABIVERSION"] >= 8 else flags & 0xFF


def show(kernel: Kernel) -> str:
    """Format the loops of a kernel: instructions, bytes loaded and stored."""
    lines = []

    def add(loop: Loop, depth: int) -> None:
        loaded, stored = (sum(getattr(i, kind) for i in loop.own) for kind in ("loaded", "stored"))
        lines.append(f"{'  ' * depth}{loop.head:#x}: {len(loop.own)} instructions, {loaded} + {stored} bytes")
        for inner in loop.inner:
            add(inner, depth + 1)

    add(kernel.body, 1)
    return "\n".join(lines)

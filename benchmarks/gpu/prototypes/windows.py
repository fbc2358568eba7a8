"""Labels → the weights of the edge terms: four neighboring pixels in a thread share the labels of a row.

``sides_few_kernel`` is for read_labels_kernel and find_sides_kernel of edgeloss/_kernels/triton/label_weights.py, and
``weights_few_kernel`` for its weigh_pixels_kernel. They are for radii up to 3 along rows, without decay.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from edgeloss._kernels.triton.label_weights import EDGES, MANY, NEAR_EDGES, ROWS_OF_SUMS, VALID, WEIGHT, WRONG
from edgeloss._kernels.triton.tiles import EXACT, IGNORED, of_class, of_pixel, total

PIXELS = tl.constexpr(4)  # of a thread, next to each other


@triton.jit
def tile_of_groups(size, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Return the image of a program, its first pixel, the first pixel of each thread, [ROWS, TILE], and their place."""
    parts = tl.cdiv(size.width, TILE * PIXELS)
    blocks = parts * tl.cdiv(size.height, ROWS)
    slices, block = tl.program_id(0) // blocks, tl.program_id(0) % blocks
    top, start = block // parts * ROWS, block % parts * (TILE * PIXELS)
    row, column = tl.arange(0, ROWS)[:, None], tl.arange(0, TILE)[None, :] * PIXELS
    first = (slices.to(tl.int64) * size.height + top) * size.width + start
    place = slices % size.depth, top + row, start + column
    return slices // size.depth, first, first + (row * size.width + column), place


@triton.jit
def in_row(place, dz, dy, size):
    """Return which pixels of a row are inside the image along the first two axes."""
    inside = (place[1] + dy).to(tl.uint32) < size.height
    if size.depth > 1:
        inside = inside & ((place[1] * 0 + place[0] + dz).to(tl.uint32) < size.depth)
    return inside


@triton.jit
def label_of(given, ignore, classes):
    """Return the labels that count, of given numbers."""
    ok = (given >= 0) & (given < classes) & (given != ignore)
    return tl.where(ok, given, IGNORED).to(tl.int32)


@triton.jit
def row_of_labels(target, inside, x, ignore, grid, columns):
    """Return the labels of a row from the radius before the first pixel to the radius after the last one."""
    labels = ()
    for i in tl.static_range(len(columns)):
        mask = inside & ((x + columns[i]).to(tl.uint32) < grid.size.width)
        labels += (label_of(tl.load(target + columns[i], mask=mask, other=IGNORED).to(tl.int64), ignore, grid.classes),)
    return labels


@triton.jit
def reciprocal(x):
    """Return 1 / x of numbers that are neither tiny nor huge."""
    return 1 / x if EXACT or x.dtype == tl.float64 else libdevice.fast_dividef(1.0, x)


@triton.jit
def read_own(target, place, ignore, grid):
    """Return the labels of the pixels of threads, which of them exist, and which are not ignored."""
    own, masks, read, inside = (), (), (), in_row(place, 0, 0, grid.size)
    for j in tl.static_range(PIXELS):
        mask = inside & (place[2] + j < grid.size.width)
        given = tl.load(target + j, mask=mask, other=0).to(tl.int64)
        is_read = mask & (given != ignore)
        masks, read = masks + (mask,), read + (is_read,)
        own += (tl.where(is_read, label_of(given, ignore, grid.classes), IGNORED),)
    return own, masks, read


@triton.jit
def differs(target, begin, to, place, reach, grid):
    """Return whether given labels within twice the radius of a tile are not all the same."""
    size, one, others = grid.size, tl.load(target + begin).to(tl.int64), tl.zeros(to.shape, tl.int64)
    for dz in range(-2 * grid.radius.depth, 2 * grid.radius.depth + 1):
        for side in tl.static_range(2):
            row = place[1] + (4 * side - 2) * grid.radius.height
            row = tl.minimum(tl.maximum(row, 0), size.height - 1) - place[1]
            if size.depth > 1:
                row += (tl.minimum(tl.maximum(place[0] + dz, 0), size.depth - 1) - place[0]) * size.height
            for i in tl.static_range(len(reach)):
                x = tl.minimum(tl.maximum(place[2] + reach[i], 0), size.width - 1)
                others |= tl.load(target + to + (row * size.width + x - place[2])).to(tl.int64) ^ one
    return tl.max((others != 0).to(tl.int32)) > 0


@triton.jit
def sides_few_kernel(
    target, maps, present, sums, flags, ignore, columns, reach, rows, grid, ROWS: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Write labels and what edge pixels give to their neighbors; add up weights, and count pixels.

    ``columns`` are those of the windows of four pixels, ``reach`` those within twice the radius: labels there decide
    whether a tile is near edges.
    """
    size = grid.size
    image, begin, to, place = tile_of_groups(size, ROWS, TILE)
    own, masks, read = read_own(target + to, place, ignore, grid)
    both, weight, largest = tl.zeros(to.shape, tl.int32), tl.zeros(to.shape, grid.real), tl.zeros(to.shape, tl.int32)
    largest += IGNORED
    for j in tl.static_range(PIXELS):
        ok = own[j] >= 0
        both += ok.to(tl.int32) * MANY + read[j].to(tl.int32)
        weight += of_pixel(0, to + j, ok, grid) * of_class(grid.weight, image, own[j], ok, grid)
        largest = tl.maximum(largest, own[j])
        tl.store(maps.label + to + j, own[j].to(tl.int16), mask=masks[j])
    if present is not None:
        k = tl.max(largest)
        while k >= 0:
            tl.store(present + image * grid.classes + k, 1)
            next_k = tl.zeros(to.shape, tl.int32) + IGNORED
            for j in tl.static_range(PIXELS):
                next_k = tl.maximum(next_k, tl.where(own[j] < k, own[j], IGNORED))
            k = tl.max(next_k)
    both = tl.sum(both)
    of_program, number = sums + tl.program_id(0).to(tl.int64) * ROWS_OF_SUMS, tl.zeros(to.shape, tl.int32)
    tl.store(of_program + WEIGHT, total(weight))
    tl.store(of_program + VALID, (both // MANY).to(tl.float64))
    tl.store(of_program + WRONG, (both % MANY - both // MANY).to(tl.float64))
    is_near = differs(target, begin, to, place, reach, grid)
    tl.store(flags + tl.program_id(0), is_near.to(tl.int8))
    tl.store(of_program + NEAR_EDGES, is_near.to(tl.float64))
    of_same = (weight * 0, weight * 0, weight * 0, weight * 0)
    if is_near:
        zero = tl.zeros(to.shape, tl.int32)
        same, there, height = (zero, zero, zero, zero), (zero, zero, zero, zero), 2 * grid.radius.height + 1
        for n in tl.range(rows):
            dz, dy = n // height - grid.radius.depth, n % height - grid.radius.height
            start = target + to + (dz * size.height + dy) * size.width
            row = row_of_labels(start, in_row(place, dz, dy, size), place[2], ignore, grid, columns)
            new_same, new_there = (), ()
            for j in tl.static_range(PIXELS):
                s, t = same[j], there[j]
                for i in tl.static_range(len(columns) - PIXELS + 1):
                    s += tl.where(row[j + i] == own[j], 1, 0)
                    t += tl.where(row[j + i] >= 0, 1, 0)
                new_same, new_there = new_same + (s,), new_there + (t,)
            same, there = new_same, new_there
        of_same = ()
        for j in tl.static_range(PIXELS):
            # Neighbors on the other side, and on the same side without the pixel itself.
            on_other, on_same = there[j] - same[j], same[j] - 1
            is_edge = (on_other > 0) & (own[j] >= 0)
            v = of_pixel(0, to + j, is_edge, grid)
            of_same += (tl.where(on_same > 0, v * reciprocal(tl.maximum(on_same, 1).to(grid.real)), 0.0),)
            tl.store(maps.other_scale + to + j, v * reciprocal(tl.maximum(on_other, 1).to(grid.real)), mask=masks[j])
            number += is_edge.to(tl.int32)
    for j in tl.static_range(PIXELS):
        tl.store(maps.same_scale + to + j, of_same[j], mask=masks[j])
    tl.store(of_program + EDGES, tl.sum(number).to(tl.float64))


@triton.jit
def row_of(values, inside, x, grid, columns, OTHER: tl.constexpr):
    """Return values of a row from the radius before the first pixel to the radius after the last one."""
    row = ()
    for i in tl.static_range(len(columns)):
        mask = inside & ((x + columns[i]).to(tl.uint32) < grid.size.width)
        row += (tl.load(values + columns[i], mask=mask, other=OTHER),)
    return row


@triton.jit
def weights_few_kernel(maps, flags, columns, rows, grid, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Write the weights of the edge terms."""
    size = grid.size
    image, begin, to, place = tile_of_groups(size, ROWS, TILE)
    x, inside, zero = place[2], in_row(place, 0, 0, size), tl.zeros(to.shape, grid.real)
    nothing = tl.zeros(to.shape, tl.int32)
    toward, against, more = (zero, zero, zero, zero), (zero, zero, zero, zero), (nothing, nothing, nothing, nothing)
    first = (nothing + IGNORED, nothing + IGNORED, nothing + IGNORED, nothing + IGNORED)
    if tl.load(flags + tl.program_id(0)) > 0:
        own, height = row_of(maps.label + to, inside, x, grid, (0, 1, 2, 3), IGNORED), 2 * grid.radius.height + 1
        for n in tl.range(rows):
            dz, dy = n // height - grid.radius.depth, n % height - grid.radius.height
            start, there = to + (dz * size.height + dy) * size.width, in_row(place, dz, dy, size)
            labels = row_of(maps.label + start, there, x, grid, columns, IGNORED)
            same = row_of(maps.same_scale + start, there, x, grid, columns, 0.0)
            across = ()
            for i in tl.static_range(len(columns)):
                # Only edge pixels have given something, and have a part of it in each neighbor.
                k, is_needed = labels[i].to(tl.int32), nothing > 0
                for j in tl.static_range(PIXELS):
                    if i - j >= 0:
                        if i - j <= len(columns) - PIXELS:
                            is_needed = is_needed | ((own[j] >= 0) & (k >= 0) & (k != own[j]))
                across += (tl.load(maps.other_scale + start + columns[i], mask=is_needed, other=0.0),)
            new_toward, new_against, new_first, new_more = (), (), (), ()
            for j in tl.static_range(PIXELS):
                a, b, f, m = toward[j], against[j], first[j], more[j]
                for i in tl.static_range(len(columns) - PIXELS + 1):
                    k, is_other = labels[j + i].to(tl.int32), nothing + n >= 0
                    if i == (len(columns) - PIXELS) // 2:  # a pixel gives nothing to itself
                        is_other = (nothing + dz != 0) | (nothing + dy != 0)
                    counts = (own[j] >= 0) & (k >= 0)
                    a += tl.where(counts & (k == own[j]) & is_other, same[j + i], 0.0)
                    value = tl.where(counts & (k != own[j]), across[j + i], 0.0)
                    if grid.classes > 2:
                        f = tl.where((f < 0) & (value > 0), k, f)
                        m |= ((value > 0) & (k != f)).to(tl.int32)
                        value = tl.where(k == f, value, 0.0)
                    b += value
                new_toward, new_against = new_toward + (a,), new_against + (b,)
                new_first, new_more = new_first + (f,), new_more + (m,)
            toward, against, first, more = new_toward, new_against, new_first, new_more
    for j in tl.static_range(PIXELS):
        mask = inside & (x + j < size.width)
        tl.store(maps.same_side + to + j, toward[j], mask=mask)
        tl.store(maps.other_side + to + j, tl.where(more[j] > 0, -against[j], against[j]), mask=mask)
        if grid.classes > 2:
            tl.store(maps.other_class + to + j, first[j].to(tl.int16), mask=mask)

"""Labels → the weights of the edge terms: four neighboring pixels in a thread share the labels of a row.

``sides_few_kernel`` is for read_labels_kernel and find_sides_kernel of edgeloss/_kernels/triton/label_weights.py, and
``weights_few_kernel`` for its weigh_pixels_kernel. With decay the distances come from labels that have been read, and
``sides_few_kernel`` is for find_sides_kernel alone. Windows are divided into strips of the same number of columns.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from edgeloss._kernels.triton.label_weights import EDGES, MANY, NEAR_EDGES, ROWS_OF_SUMS, VALID, WEIGHT, WRONG
from edgeloss._kernels.triton.tiles import EXACT, FAR, IGNORED, of_class, of_pixel, total

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
    """Return the labels of some columns of a row, the first of which are given."""
    labels = ()
    for i in tl.static_range(len(columns)):
        mask = inside & ((x + columns[i]).to(tl.uint32) < grid.size.width)
        labels += (label_of(tl.load(target + columns[i], mask=mask, other=IGNORED).to(tl.int64), ignore, grid.classes),)
    return labels


@triton.jit
def row_of(values, inside, x, grid, columns, OTHER: tl.constexpr):
    """Return values of some columns of a row, the first of which are given."""
    row = ()
    for i in tl.static_range(len(columns)):
        mask = inside & ((x + columns[i]).to(tl.uint32) < grid.size.width)
        row += (tl.load(values + columns[i], mask=mask, other=OTHER),)
    return row


@triton.jit
def strip_of(n, place, window, grid):
    """Return how far strip n of the windows of pixels is in memory, and along each axis, and which are in the image."""
    columns, strips = window
    row, height = n // strips, 2 * grid.radius.height + 1
    dz, dy = row // height - grid.radius.depth, row % height - grid.radius.height
    dx = n % strips * (len(columns) - PIXELS + 1) - grid.radius.width
    return (dz * grid.size.height + dy) * grid.size.width + dx, (dz, dy, dx), in_row(place, dz, dy, grid.size)


@triton.jit
def neighbor_at(labels, j, i, at, window, grid, SELF: tl.constexpr):
    """Return the label of column i of a strip of the window of pixel j; itself is no neighbor, unless it counts."""
    k, dz, dy, dx = labels[j + i], at[0], at[1], at[2]
    if window[1] == 1:
        if i == grid.radius.width and not SELF:
            k = tl.where((dz == 0) & (dy == 0), IGNORED, k)
    else:  # the last strip may reach further than the window
        is_neighbor = dx + i <= grid.radius.width
        if not SELF:
            is_neighbor = is_neighbor & ((dz != 0) | (dy != 0) | (dx + i != 0))
        k = tl.where(is_neighbor, k, IGNORED)
    return k


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
def differs(target, begin, to, place, times, grid, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Return whether given labels within twice the radius of a tile are not all the same.

    Displaced by no more than its size the tile covers all of them; ``times`` are how many times, and along two axes.
    """
    size, one, others = grid.size, tl.load(target + begin).to(tl.int64), tl.zeros(to.shape, tl.int64)
    depth, down, right = 2 * grid.radius.depth, 2 * grid.radius.height, 2 * grid.radius.width
    count, times_down, times_right = times
    for n in tl.range(count, loop_unroll_factor=4):
        dy = tl.minimum(n // times_right % times_down * ROWS - down, down)
        dx = tl.minimum(n % times_right * (TILE * PIXELS) - right, right)
        row = tl.minimum(tl.maximum(place[1] + dy, 0), size.height - 1) - place[1]
        if size.depth > 1:
            z = place[0] + n // (times_right * times_down) - depth
            row += (tl.minimum(tl.maximum(z, 0), size.depth - 1) - place[0]) * size.height
        for i in tl.static_range(PIXELS):
            x = tl.minimum(tl.maximum(place[2] + (dx + i), 0), size.width - 1)
            others |= tl.load(target + to + (row * size.width + x - place[2])).to(tl.int64) ^ one
    return tl.max((others != 0).to(tl.int32)) > 0


@triton.jit
def nearest_of_sides(target, maps, to, place, own, ignore, window, rows, grid):
    """Return the distances of the nearest pixels of each side of the windows of pixels."""
    far = tl.full(to.shape, FAR, grid.real)
    of_same, of_other = (far, far, far, far), (far, far, far, far)
    for n in tl.range(rows):
        step, at, inside = strip_of(n, place, window, grid)
        labels = row_of_labels(target + to + step, inside, place[2] + at[2], ignore, grid, window[0])
        fields = row_of(maps.field + to + step, inside, place[2] + at[2], grid, window[0], FAR)
        new_same, new_other = (), ()
        for j in tl.static_range(PIXELS):
            same, other = of_same[j], of_other[j]
            for i in tl.static_range(len(window[0]) - PIXELS + 1):
                k = neighbor_at(labels, j, i, at, window, grid, False)
                same = tl.where((k >= 0) & (k == own[j]), tl.minimum(same, fields[j + i]), same)
                other = tl.where((k >= 0) & (k != own[j]), tl.minimum(other, fields[j + i]), other)
            new_same, new_other = new_same + (same,), new_other + (other,)
        of_same, of_other = new_same, new_other
    return of_same, of_other


@triton.jit
def add_sides(target, maps, to, place, own, least, ignore, window, rows, grid):
    """Return the sums of w over each side of the windows of pixels, with decay, or how many neighbors they have.

    Without decay those of the same side are one less than what is returned: a pixel itself counts.
    """
    zero = tl.zeros(to.shape, grid.real if grid.decay > 0 else tl.int32)
    of_same, of_other = (zero, zero, zero, zero), (zero, zero, zero, zero)
    for n in tl.range(rows):
        step, at, inside = strip_of(n, place, window, grid)
        labels = row_of_labels(target + to + step, inside, place[2] + at[2], ignore, grid, window[0])
        if grid.decay > 0:
            fields = row_of(maps.field + to + step, inside, place[2] + at[2], grid, window[0], FAR)
        new_same, new_other = (), ()
        for j in tl.static_range(PIXELS):
            same, other = of_same[j], of_other[j]
            for i in tl.static_range(len(window[0]) - PIXELS + 1):
                k = neighbor_at(labels, j, i, at, window, grid, grid.decay == 0)
                w = 1
                if grid.decay > 0:
                    of_side = tl.where(k == own[j], least[0][j], least[1][j])
                    w = tl.exp((of_side - tl.where(k >= 0, fields[j + i], FAR)) / grid.decay)
                same += tl.where(k == own[j], w, 0)
                other += tl.where((k >= 0) & (k != own[j]), w, 0)
            new_same, new_other = new_same + (same,), new_other + (other,)
        of_same, of_other = new_same, new_other
    return of_same, of_other


@triton.jit
def read_labels(own, masks, read, maps, present, sums, image, to, grid):
    """Write labels and which classes are in an image; add up weights, and count pixels."""
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
    tl.store(sums + WEIGHT, total(weight))
    tl.store(sums + VALID, (both // MANY).to(tl.float64))
    tl.store(sums + WRONG, (both % MANY - both // MANY).to(tl.float64))


@triton.jit
def sides_few_kernel(
    target, maps, present, sums, flags, ignore, window, rows, times, grid, ROWS: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """Write labels and what edge pixels give to their neighbors; add up weights, and count pixels.

    ``window`` has the columns of a strip of the windows of four pixels and the number of strips, ``rows`` is that of
    all strips. Labels within twice the radius decide whether a tile is near edges.
    """
    image, begin, to, place = tile_of_groups(grid.size, ROWS, TILE)
    own, masks, read = read_own(target + to, place, ignore, grid)
    sums += tl.program_id(0).to(tl.int64) * ROWS_OF_SUMS
    if grid.decay == 0:
        read_labels(own, masks, read, maps, present, sums, image, to, grid)
    is_near, number = differs(target, begin, to, place, times, grid, ROWS, TILE), tl.zeros(to.shape, tl.int32)
    tl.store(flags + tl.program_id(0), is_near.to(tl.int8))
    tl.store(sums + NEAR_EDGES, is_near.to(tl.float64))
    zero, far = tl.zeros(to.shape, grid.real), tl.full(to.shape, FAR, grid.real)
    of_same, least = (zero, zero, zero, zero), ((far, far, far, far), (far, far, far, far))
    if is_near:
        if grid.decay > 0:
            least = nearest_of_sides(target, maps, to, place, own, ignore, window, rows, grid)
        same, other = add_sides(target, maps, to, place, own, least, ignore, window, rows, grid)
        of_same = ()
        for j in tl.static_range(PIXELS):
            on_same, on_other = same[j], other[j]
            if grid.decay == 0:
                on_same -= 1
            is_edge = (on_other != 0) & (own[j] >= 0)  # also with distances of nan
            v = of_pixel(0, to + j, is_edge, grid)
            per_same = reciprocal(tl.where(on_same != 0, on_same, 1).to(grid.real))
            per_other = reciprocal(tl.where(on_other != 0, on_other, 1).to(grid.real))
            of_same += (tl.where(on_same != 0, v * per_same, 0.0),)
            tl.store(maps.other_scale + to + j, v * per_other, mask=masks[j])
            number += is_edge.to(tl.int32)
    for j in tl.static_range(PIXELS):
        tl.store(maps.same_scale + to + j, of_same[j], mask=masks[j])
        if grid.decay > 0:
            tl.store(maps.same_least + to + j, least[0][j], mask=masks[j])
            tl.store(maps.other_least + to + j, least[1][j], mask=masks[j])
    tl.store(sums + EDGES, tl.sum(number).to(tl.float64))


@triton.jit
def decayed(value, least, field, grid):
    """Return what a pixel gives to a neighbor, with decay less the further that is."""
    if grid.decay > 0:
        value *= tl.exp(tl.minimum(least - field, 0.0) / grid.decay)
    return value


@triton.jit
def weights_few_kernel(maps, flags, window, rows, grid, ROWS: tl.constexpr, TILE: tl.constexpr):
    """Write the weights of the edge terms."""
    size = grid.size
    image, begin, to, place = tile_of_groups(size, ROWS, TILE)
    x, inside, zero = place[2], in_row(place, 0, 0, size), tl.zeros(to.shape, grid.real)
    nothing, columns = tl.zeros(to.shape, tl.int32), window[0]
    toward, against, more = (zero, zero, zero, zero), (zero, zero, zero, zero), (nothing, nothing, nothing, nothing)
    first = (nothing + IGNORED, nothing + IGNORED, nothing + IGNORED, nothing + IGNORED)
    if tl.load(flags + tl.program_id(0)) > 0:
        own, field = row_of(maps.label + to, inside, x, grid, (0, 1, 2, 3), IGNORED), toward
        if grid.decay > 0:
            field = row_of(maps.field + to, inside, x, grid, (0, 1, 2, 3), 0.0)
        for n in tl.range(rows):
            step, at, there = strip_of(n, place, window, grid)
            start = to + step
            labels = row_of(maps.label + start, there, x + at[2], grid, columns, IGNORED)
            same = row_of(maps.same_scale + start, there, x + at[2], grid, columns, 0.0)
            same_least, other_least, across = same, (), ()
            if grid.decay > 0:
                same_least = row_of(maps.same_least + start, there, x + at[2], grid, columns, 0.0)
            for i in tl.static_range(len(columns)):
                # Only edge pixels have given something, and have a part of it in each neighbor.
                k, is_needed = labels[i].to(tl.int32), nothing > 0
                for j in tl.static_range(PIXELS):
                    if i - j >= 0:
                        if i - j <= len(columns) - PIXELS:
                            is_needed = is_needed | ((own[j] >= 0) & (k >= 0) & (k != own[j]))
                across += (tl.load(maps.other_scale + start + columns[i], mask=is_needed, other=0.0),)
                if grid.decay > 0:
                    other_least += (tl.load(maps.other_least + start + columns[i], mask=is_needed, other=0.0),)
                else:
                    other_least += (zero,)
            new_toward, new_against, new_first, new_more = (), (), (), ()
            for j in tl.static_range(PIXELS):
                a, b, f, m = toward[j], against[j], first[j], more[j]
                for i in tl.static_range(len(columns) - PIXELS + 1):
                    k = neighbor_at(labels, j, i, at, window, grid, False).to(tl.int32)
                    counts = (own[j] >= 0) & (k >= 0)
                    value = decayed(same[j + i], same_least[j + i], field[j], grid)
                    a += tl.where(counts & (k == own[j]), value, 0.0)
                    value = decayed(across[j + i], other_least[j + i], field[j], grid)
                    value = tl.where(counts & (k != own[j]), value, 0.0)
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

// The loops of interpolate.h.
#include "interpolate.h"

#include <cmath>

#include "vectorize.h"

namespace edgeloss {
namespace {

// mixed[k] = pixel k of two low-resolution rows.
template <typename T, typename A>
EDGELOSS_INLINE void mix_rows(const T* first, const T* second, int64_t step, int64_t n, A weight, A* mixed) {
  if (weight == A(0)) {
    EDGELOSS_INDEPENDENT
    for (int64_t k = 0; k < n; ++k) mixed[k] = widen(first[k * step]);
  } else if (step == 1) {
    EDGELOSS_INDEPENDENT
    for (int64_t k = 0; k < n; ++k) mixed[k] = mix(widen(first[k]), widen(second[k]), weight);
  } else {
    EDGELOSS_INDEPENDENT
    for (int64_t k = 0; k < n; ++k) mixed[k] = mix(widen(first[k * step]), widen(second[k * step]), weight);
  }
}

// The same of all four rows that `taps` names; row(which) points to the first pixel. N: pixels at most.
template <int64_t N, typename A, typename F>
EDGELOSS_INLINE void mix_slices(const F& row, const RowTaps<A>& taps, int64_t step, int64_t n, A* mixed) {
  mix_rows(row(0), row(1), step, n, taps.row_weight, mixed);
  if (taps.slice_weight == A(0)) return;
  A other[N];
  mix_rows(row(2), row(3), step, n, taps.row_weight, other);
  EDGELOSS_INDEPENDENT
  for (int64_t k = 0; k < n; ++k) mixed[k] = mix(mixed[k], other[k], taps.slice_weight);
}

// The numbers of a block's cells, and of one more at each end.
template <typename A>
struct Column {
  A value[kTile + 2];
};

// Slots [first, last) of a block: those up to `left` lie between the cell before and their own.
struct Slots {
  int64_t first, last, left, cells, first_cell, count;

  template <typename A>
  Slots(const Upsample<A>& up, const Block& block)
      : first(block.first_slot),
        last(block.last_slot),
        left(up.left),
        cells(up.cells),
        first_cell(block.first_cell),
        count(block.cells()) {}
  int64_t weights(int64_t slot) const { return slot * cells + first_cell; }
};

}  // namespace

template <typename A>
Upsample<A>::Upsample(const Axis<A>& z, const Axis<A>& y, const Axis<A>& x)
    : along_z(z), along_y(y), along_x(x), cells(x.low) {
  const auto taps = [](const Axis<A>& axis) {
    std::vector<Taps<A>> all(axis.high);
    for (int64_t i = 0; i < axis.high; ++i) all[i] = axis.at(i);
    return all;
  };
  slice = taps(z);
  row = taps(y);
  column = taps(x);
  std::vector<int64_t> count[2] = {std::vector<int64_t>(cells), std::vector<int64_t>(cells)};  // left and right
  const auto for_each_pixel = [&](const auto& body) {
    for (auto& n : count) std::fill(n.begin(), n.end(), 0);
    for (int64_t i = 0; i < x.high; ++i) {
      const A place = x.position(i);
      const int64_t cell = std::clamp<int64_t>(static_cast<int64_t>(std::floor(place + A(0.5))), 0, cells - 1);
      const int side = place >= static_cast<A>(cell);
      body(i, cell, side, count[side][cell]++);
    }
  };
  for_each_pixel([](int64_t, int64_t, int, int64_t) {});
  left = *std::max_element(count[0].begin(), count[0].end());
  slots = left + *std::max_element(count[1].begin(), count[1].end());
  pixel.assign(slots * cells, -1);
  weight.assign(slots * cells, A(0));
  home.resize(x.high);
  for_each_pixel([&](int64_t i, int64_t cell, int side, int64_t n) {
    const int64_t at = (side ? left + n : n) * cells + cell;
    pixel[at] = static_cast<int32_t>(i);
    home[i] = static_cast<int32_t>(at);
    weight[at] = column[i].weight;
  });
}

template <typename A>
RowTaps<A> Upsample<A>::row_taps(int64_t z, int64_t y) const {
  const Taps<A>&in_z = slice[z], &in_y = row[y];
  const int64_t first = in_z.first * along_y.low, second = in_z.second * along_y.low;
  return {
      {first + in_y.first, first + in_y.second, second + in_y.first, second + in_y.second}, in_z.weight, in_y.weight};
}

template <typename A>
void Upsample<A>::list_pixels(const Block& block, int32_t* places) const {
  for (int64_t slot = block.first_slot; slot < block.last_slot; ++slot) {
    places = std::copy_n(pixel.data() + slot * cells + block.first_cell, block.cells(), places);
  }
}

template <typename A>
A Upsample<A>::at(const Stored<A>& x, int64_t pixel, int64_t c) const {
  const int64_t high_row = pixel / along_x.high;
  A value;
  along_row(x, row_taps(high_row), pixel - high_row * along_x.high, 1, c, &value);
  return value;
}

template <typename A>
void Upsample<A>::along_row(const Stored<A>& x, const RowTaps<A>& taps, int64_t first, int64_t n, int64_t c,
                            A* out) const {
  if (x.binary && c == 0) {
    std::fill_n(out, n, A(0));
    return;
  }
  constexpr int64_t kMost = 16;  // pixels at a time
  x.by_type([&](const auto* data) {
    const auto* logits = data + (x.binary ? 0 : c) * x.class_step;
    for (int64_t done = 0; done < n; done += kMost) {
      const Taps<A>* at = column.data() + first + done;
      const int64_t count = std::min(n - done, kMost), start = at[0].first, low = at[count - 1].second - start + 1;
      A mixed[kMost + 2];
      const auto row = [&](int which) { return logits + (taps.row[which] * cells + start) * x.pixel_step; };
      mix_slices<kMost + 2>(row, taps, x.pixel_step, low, mixed);
      for (int64_t j = 0; j < count; ++j) {
        out[done + j] = mix(mixed[at[j].first - start], mixed[at[j].second - start], at[j].weight);
      }
    }
  });
}

template <typename A>
void Upsample<A>::interpolate_tile(const RowTaps<A>& taps, const Stored<A>& x, int64_t logits, const Block& block,
                                   A* tile, int64_t ld) const {
  if (x.binary) {
    std::fill_n(tile, block.pixels(), A(0));
    tile += ld;
  }
  const Slots slots(*this, block);
  const int64_t before = block.first_cell > 0 ? 1 : 0, after = block.last_cell < cells ? 1 : 0;
  const int64_t n = before + slots.count + after, start = block.first_cell - before;
  const int64_t class_step = x.class_step, pixel_step = x.pixel_step;
  x.by_type([&](const auto* data) {
    vectorized<A>([=, weights = weight.data()]() EDGELOSS_LOOP {
      Column<A> column;
      A* low = column.value + 1 - before;
      for (int64_t c = 0; c < logits; ++c) {
        const auto row = [&](int which) EDGELOSS_LOOP {
          return data + c * class_step + (taps.row[which] * slots.cells + start) * pixel_step;
        };
        mix_slices<kTile + 2>(row, taps, pixel_step, n, low);
        if (before == 0) column.value[0] = column.value[1];
        if (after == 0) column.value[slots.count + 1] = column.value[slots.count];
        A* out = tile + c * ld;
        for (int64_t slot = slots.first; slot < slots.last; ++slot, out += slots.count) {
          const A* a = column.value + (slot < slots.left ? 0 : 1);
          const A* second = weights + slots.weights(slot);
          EDGELOSS_INDEPENDENT
          for (int64_t i = 0; i < slots.count; ++i) out[i] = mix(a[i], a[i + 1], second[i]);
        }
      }
    });
  });
}

template <typename A>
void Upsample<A>::share_tile(const RowTaps<A>& taps, int64_t logits, const Block& block, const A* tile, int64_t ld,
                             A* const* rows) const {
  const Slots slots(*this, block);
  vectorized<A>([=, weights = weight.data()]() EDGELOSS_LOOP {
    Column<A> column;
    const int64_t count = slots.count;
    for (int64_t c = 0; c < logits; ++c) {
      EDGELOSS_INDEPENDENT
      for (int64_t k = 0; k < count + 2; ++k) column.value[k] = A(0);
      const A* g = tile + c * ld;
      for (int64_t slot = slots.first; slot < slots.last; ++slot, g += count) {
        A* a = column.value + (slot < slots.left ? 0 : 1);
        const A* second = weights + slots.weights(slot);
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < count; ++i) a[i] += (A(1) - second[i]) * g[i];
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < count; ++i) a[i + 1] += second[i] * g[i];
      }
      for (int k = 0; k < 4; ++k) {
        if (!rows[k]) continue;
        A* sum = rows[k] + c * (slots.cells + 2) + slots.first_cell;
        const A weight = taps.weight_of(k);
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < count + 2; ++i) sum[i] += weight * column.value[i];
      }
    }
  });
}

template struct Upsample<float>;
template struct Upsample<double>;

}  // namespace edgeloss

// The whole loss on the CPU.
//
// Forward, in passes over chunks of rows: (1) labels, the two numbers of edge_math.h for each pixel, and the
// cross-entropy, by tiles of pixels × classes that stay in cache; (2) the edge mask from the labels; (3) the pixels in
// reach of it, and their distances; (4) both edge terms, on edge pixels only. Backward takes a tile at a time again:
// the softmax is formed anew, and a pixel in reach of the edge gathers its share from the edge pixels around it. Chunks
// do not depend on the number of threads and each sum is added up in their order, so every run gives the same bits.
#include <torch/csrc/stable/library.h>

#include "../edge_math.h"
#include "../image.h"
#include "../labels.h"
#include "../tensors.h"
#include "parallel.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <vector>

// One build serves every x86-64: the loops below are compiled for each of these, and the loader picks.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define EDGELOSS_VECTORIZED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EDGELOSS_VECTORIZED
#endif

namespace edgeloss {
namespace {

constexpr int64_t kTile = 256;  // pixels at most: their statistics stay in the first-level cache
constexpr int64_t kBlock = 32;  // classes summed up by themselves
constexpr int16_t kIgnored = -1;

// ---------------------------------------------------------------------------------------- loops over tiles, vectorised

// m, r and -log p(y) of n pixels, n ≤ kTile; x has its classes ld apart. A pixel whose y is none of them gets no sense.
template <typename A>
EDGELOSS_INLINE void statistics(const A* __restrict x, int64_t ld, int64_t classes, int64_t n,
                                const int32_t* __restrict y, A* __restrict m, A* __restrict r, A* __restrict nll) {
  A x_y[kTile];     // x(y) - m
  A part[kTile];    // of r, over some classes: a sum of sums keeps more digits than one of a thousand terms
  A others[kTile];  // classes that reach the max, but one: an integer, so that r keeps all digits of a small sum
  for (int64_t j = 0; j < n; ++j) m[j] = x[j];
  for (int64_t c = 1; c < classes; ++c) {
    const A* row = x + c * ld;
    for (int64_t j = 0; j < n; ++j) m[j] = row[j] > m[j] ? row[j] : m[j];
  }
  for (int64_t j = 0; j < n; ++j) {
    r[j] = A(0);
    others[j] = A(-1);
    x_y[j] = A(0);
  }
  for (int64_t first = 0; first < classes; first += kBlock) {
    for (int64_t j = 0; j < n; ++j) part[j] = A(0);
    for (int64_t c = first; c < std::min(first + kBlock, classes); ++c) {
      const A* row = x + c * ld;
      for (int64_t j = 0; j < n; ++j) {
        const A below = row[j] - m[j];
        part[j] += below == A(0) ? A(0) : exp_negative(below);
        others[j] += below == A(0) ? A(1) : A(0);
        x_y[j] = y[j] == static_cast<int32_t>(c) ? below : x_y[j];
      }
    }
    for (int64_t j = 0; j < n; ++j) r[j] += part[j];
  }
  for (int64_t j = 0; j < n; ++j) {
    r[j] += others[j];
    nll[j] = log1p_positive(r[j]) - x_y[j];
  }
}
EDGELOSS_VECTORIZED void tile_statistics(const float* x, int64_t ld, int64_t classes, int64_t n, const int32_t* y,
                                         float* m, float* r, float* nll) {
  statistics(x, ld, classes, n, y, m, r, nll);
}
void tile_statistics(const double* x, int64_t ld, int64_t classes, int64_t n, const int32_t* y, double* m, double* r,
                     double* nll) {
  statistics(x, ld, classes, n, y, m, r, nll);
}

// g(c) = alpha · p(c) - at_y · [c = y] where y ≥ 0; exactly 0 elsewhere, whatever the logits are. x and g have their
// classes ld apart.
template <typename A>
EDGELOSS_INLINE void scaled_softmax(const A* __restrict x, int64_t ld, int64_t classes, int64_t n,
                                    const int32_t* __restrict y, const A* __restrict m, const A* __restrict r,
                                    const A* __restrict alpha, const A* __restrict at_y, A* __restrict g) {
  A scale[kTile];
  for (int64_t j = 0; j < n; ++j) scale[j] = alpha[j] / (A(1) + r[j]);
  for (int64_t c = 0; c < classes; ++c) {
    const A* row = x + c * ld;
    A* out = g + c * ld;
    for (int64_t j = 0; j < n; ++j) {
      const A value = scale[j] * exp_negative(row[j] - m[j]) - (y[j] == static_cast<int32_t>(c) ? at_y[j] : A(0));
      out[j] = y[j] < 0 ? A(0) : value;
    }
  }
}
EDGELOSS_VECTORIZED void tile_softmax(const float* x, int64_t ld, int64_t classes, int64_t n, const int32_t* y,
                                      const float* m, const float* r, const float* alpha, const float* at_y, float* g) {
  scaled_softmax(x, ld, classes, n, y, m, r, alpha, at_y, g);
}
void tile_softmax(const double* x, int64_t ld, int64_t classes, int64_t n, const int32_t* y, const double* m,
                  const double* r, const double* alpha, const double* at_y, double* g) {
  scaled_softmax(x, ld, classes, n, y, m, r, alpha, at_y, g);
}

// Smallest and largest valid label of a window, from rows; ignored pixels are -1 in `label`.
EDGELOSS_VECTORIZED void widen_row(const int16_t* label, int64_t n, int16_t* low, int16_t* high) {
  for (int64_t x = 0; x < n; ++x) {
    const int16_t as_low = label[x] < 0 ? INT16_MAX : label[x];
    low[x] = as_low < low[x] ? as_low : low[x];
    high[x] = label[x] > high[x] ? label[x] : high[x];
  }
}
// out[x] = min or max of the 2 · reach + 1 values from in[x] on.
EDGELOSS_VECTORIZED void window_min(const int16_t* in, int64_t n, int64_t reach, int16_t* out) {
  std::copy_n(in, n, out);
  for (int64_t d = 1; d <= 2 * reach; ++d) {
    for (int64_t x = 0; x < n; ++x) out[x] = in[x + d] < out[x] ? in[x + d] : out[x];
  }
}
EDGELOSS_VECTORIZED void window_max(const int16_t* in, int64_t n, int64_t reach, int16_t* out) {
  std::copy_n(in, n, out);
  for (int64_t d = 1; d <= 2 * reach; ++d) {
    for (int64_t x = 0; x < n; ++x) out[x] = in[x + d] > out[x] ? in[x + d] : out[x];
  }
}
EDGELOSS_VECTORIZED void or_row(const uint8_t* mask, int64_t n, uint8_t* any) {
  for (int64_t x = 0; x < n; ++x) any[x] |= mask[x];
}

// -------------------------------------------------------------------------------------------------------------- passes

// Everything that the passes share: arguments, and the state that forward leaves to backward.
template <typename T, typename A>
struct Call {
  const Geometry& g;
  const T* x;
  Steps steps;
  const A* weight;        // [C] or null
  const A* pixel_weight;  // [B, P] or null
  A label_smoothing, power, inverse_decay;
  bool has_decay;
  int16_t* label;         // [B, P]
  uint8_t *edge, *reach;  // [B, P] each: in E; valid and in E or a neighbour of it
  A *m, *r;               // [B, P] each
  int32_t* slot;          // [B, P], on E only: the pixel's number among the edge pixels
  Side<A>* sides;         // same and other side of each edge pixel; only as many as there are take up memory
  A* field;               // [B, P]; read in reach of E only

  Logits<T, A> image(int64_t b) const { return {x + b * steps.image, steps.channel, steps.pixel, g.logits == 1}; }
  A weight_of(int64_t c) const { return weight ? weight[c] : A(1); }
  A pixel_weight_of(int64_t i) const { return pixel_weight ? pixel_weight[i] : A(1); }
  A total_weight() const {
    A sum = 0;
    for (int64_t c = 0; c < g.classes; ++c) sum += weight_of(c);
    return sum;
  }
  int64_t tile() const {
    // 64 KB: a tile of pixels × classes stays in the second-level cache, its gradient beside it.
    return std::clamp<int64_t>((1 << 16) / (g.classes * static_cast<int64_t>(sizeof(A))) & ~15, 16, kTile);
  }
};

// Copies the tile of n pixels from p on into the buffer, as A, its classes ld apart. It is copied even where it
// could be read in place: the classes of a picture of 512 × 512 lie a power of two apart, and so would all meet in a
// few sets of the cache and drive each other out between two looks at them.
template <typename T, typename A>
void read_tile(const Logits<T, A>& x, int64_t classes, int64_t p, int64_t n, A* tile, int64_t ld) {
  if (x.binary) {
    std::fill_n(tile, n, A(0));
    for (int64_t j = 0; j < n; ++j) tile[ld + j] = static_cast<A>(x.data[(p + j) * x.pixel_step]);
  } else if (x.class_step == 1 && classes > 1) {
    for (int64_t j = 0; j < n; ++j) {
      const T* pixel = x.data + (p + j) * x.pixel_step;
      for (int64_t c = 0; c < classes; ++c) tile[c * ld + j] = static_cast<A>(pixel[c]);
    }
  } else {
    for (int64_t c = 0; c < classes; ++c) {
      const T* __restrict row = x.data + c * x.class_step + p * x.pixel_step;
      A* __restrict to = tile + c * ld;
      if (x.pixel_step == 1) {
        for (int64_t j = 0; j < n; ++j) to[j] = static_cast<A>(row[j]);
      } else {
        for (int64_t j = 0; j < n; ++j) to[j] = static_cast<A>(row[j * x.pixel_step]);
      }
    }
  }
}

// Writes the gradient's tile, as T, to where it belongs.
template <typename T, typename A>
void write_tile(const A* tile, int64_t ld, const Geometry& g, int64_t p, int64_t n, T* out, const Steps& steps) {
  const A* first = tile + (g.logits == 1 ? ld : 0);  // binary: of the second class
  for (int64_t c = 0; c < g.logits; ++c) {
    const A* __restrict row = first + c * ld;
    T* __restrict to = out + c * steps.channel + p * steps.pixel;
    if (steps.pixel == 1) {
      for (int64_t j = 0; j < n; ++j) to[j] = static_cast<T>(row[j]);
    } else {
      for (int64_t j = 0; j < n; ++j) to[j * steps.pixel] = static_cast<T>(row[j]);
    }
  }
}

struct Sums {
  double cross_entropy = 0, same = 0, other = 0, weight = 0, edges_weight = 0, valid = 0, edges = 0, wrong = 0;
};

// Pass 1: labels, statistics and cross-entropy of a chunk.
template <typename T, typename A, typename L>
void cross_entropy_chunk(const Call<T, A>& call, const L* target, int64_t ignore_index, const Chunk& chunk, A* ce_map,
                         Sums& sums) {
  const Geometry& g = call.g;
  const Logits<T, A> x = call.image(chunk.image);
  const int64_t base = chunk.image * g.pixels, last = chunk.last_row * g.width, step = call.tile();
  const A smoothing = call.label_smoothing, total_weight = call.total_weight();
  std::vector<A> buffer(g.classes * step);
  A* tile = buffer.data();
  A nll[kTile];
  int32_t y[kTile];
  for (int64_t p = chunk.first_row * g.width; p < last; p += step) {
    const int64_t n = std::min(step, last - p);
    read_tile(x, g.classes, p, n, tile, step);
    double wrong = 0;
    for (int64_t j = 0; j < n; ++j) {
      const int64_t label = static_cast<int64_t>(target[base + p + j]);
      const bool valid = label != ignore_index && label >= 0 && label < g.classes;
      y[j] = valid ? static_cast<int32_t>(label) : kIgnored;
      call.label[base + p + j] = static_cast<int16_t>(y[j]);
      wrong += label != ignore_index && !valid;
    }
    tile_statistics(tile, step, g.classes, n, y, call.m + base + p, call.r + base + p, nll);
    double ce_sum = 0, weight_sum = 0, valid_sum = 0;
    for (int64_t j = 0; j < n; ++j) {
      const int64_t i = base + p + j;
      const bool valid = y[j] >= 0;
      A ce = valid ? nll[j] : A(0), w = valid;
      if (valid && call.weight) {
        w = call.weight[y[j]];
        ce *= w;
      }
      if (valid && smoothing != A(0)) {
        const A m = call.m[i], log_sum = log1p_positive(call.r[i]);
        A every = total_weight * log_sum;
        for (int64_t c = 0; c < g.classes; ++c) every -= call.weight_of(c) * (tile[c * step + j] - m);
        ce = (A(1) - smoothing) * ce + smoothing / static_cast<A>(g.classes) * every;
      }
      const A v = valid ? call.pixel_weight_of(i) : A(0);
      ce_sum += static_cast<double>(v) * ce;
      weight_sum += static_cast<double>(v) * w;
      valid_sum += valid;
      if (ce_map) ce_map[i] = ce;
    }
    sums.cross_entropy += ce_sum;
    sums.weight += weight_sum;
    sums.valid += valid_sum;
    sums.wrong += wrong;
  }
}

// Pass 2: the edge mask. Some label of the window differs from the centre's if and only if its smallest or largest
// does.
template <typename T, typename A>
void edge_mask_chunk(const Call<T, A>& call, const Chunk& chunk, Sums& sums) {
  const Geometry& g = call.g;
  const int16_t* label = call.label + chunk.image * g.pixels;
  uint8_t* edge = call.edge + chunk.image * g.pixels;
  // A margin of neutral values at both ends, so that the window along the row needs no bounds.
  const int64_t reach = std::min(g.radius[2], g.width);
  std::vector<int16_t> low(g.width + 2 * reach), high(g.width + 2 * reach), smallest(g.width), largest(g.width);
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    std::fill(low.begin(), low.end(), INT16_MAX);
    std::fill(high.begin(), high.end(), kIgnored);
    for_each_row(g, row, g.radius,
                 [&](int64_t first) { widen_row(label + first, g.width, low.data() + reach, high.data() + reach); });
    const int16_t* own = label + row * g.width;
    window_min(low.data(), g.width, reach, smallest.data());
    window_max(high.data(), g.width, reach, largest.data());
    for (int64_t x = 0; x < g.width; ++x) {
      const bool is_edge = own[x] >= 0 && (smallest[x] < own[x] || largest[x] > own[x]);
      edge[row * g.width + x] = is_edge;
      if (is_edge) {
        sums.edges += 1;
        sums.edges_weight += call.pixel_weight_of(chunk.image * g.pixels + row * g.width + x);
      }
    }
  }
}

// Pass 3: the valid pixels in reach of the edge mask, and their distances by a search through the offsets, sorted by
// length.
struct Offset {
  std::array<int64_t, 3> d;
  double length;
};

template <typename T, typename A>
void reach_chunk(const Call<T, A>& call, const Chunk& chunk, bool searches, const std::vector<Offset>& offsets,
                 bool whole_field) {
  const Geometry& g = call.g;
  const int16_t* label = call.label + chunk.image * g.pixels;
  const uint8_t* edge = call.edge + chunk.image * g.pixels;
  uint8_t* reached = call.reach + chunk.image * g.pixels;
  A* field = call.field + chunk.image * g.pixels;
  const int64_t reach = std::min(g.radius[2], g.width);
  std::vector<uint8_t> any(g.width + 2 * reach);
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    std::fill(any.begin(), any.end(), 0);
    for_each_row(g, row, g.radius, [&](int64_t first) { or_row(edge + first, g.width, any.data() + reach); });
    for (int64_t x = 0; x < g.width; ++x) {
      const int64_t p = row * g.width + x;
      uint8_t is_reached = 0;
      for (int64_t d = 0; d <= 2 * reach; ++d) is_reached |= any[x + d];
      reached[p] = is_reached && label[p] >= 0;
      if (!searches || !(reached[p] || whole_field)) continue;
      field[p] = INFINITY;
      if (label[p] < 0) continue;
      const int64_t z = row / g.height, y = row % g.height;
      for (const Offset& o : offsets) {
        const int64_t nz = z + o.d[0], ny = y + o.d[1], nx = x + o.d[2];
        if (nz < 0 || nz >= g.depth || ny < 0 || ny >= g.height || nx < 0 || nx >= g.width) continue;
        const int16_t other = label[(nz * g.height + ny) * g.width + nx];
        if (other >= 0 && other != label[p]) {
          field[p] = static_cast<A>(o.length);
          break;
        }
      }
    }
  }
}

// The first place from `at` on where the mask is set, or `end`.
int64_t next_set(const uint8_t* mask, int64_t at, int64_t end) {
  const void* found = std::memchr(mask + at, 1, end - at);
  return found ? static_cast<const uint8_t*>(found) - mask : end;
}

// Pass 4: both edge terms at the edge pixels of a chunk, whose first one has the number `slot`.
template <typename T, typename A>
void edge_terms_chunk(const Call<T, A>& call, const Chunk& chunk, int64_t slot, A* same_map, A* other_map, Sums& sums) {
  const Geometry& g = call.g;
  const Logits<T, A> x = call.image(chunk.image);
  const int64_t base = chunk.image * g.pixels;
  const int16_t* label = call.label + base;
  const A *m = call.m + base, *r = call.r + base, *field = call.field + base;
  std::vector<A> t[2], log_w[2];
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const uint8_t* edge = call.edge + base + row * g.width;
    if (same_map) {
      std::fill_n(same_map + base + row * g.width, g.width, A(0));
      std::fill_n(other_map + base + row * g.width, g.width, A(0));
    }
    for (int64_t column = 0; (column = next_set(edge, column, g.width)) < g.width; ++column) {
      const int64_t p = row * g.width + column, i = base + p;
      const int16_t k = label[p];
      Side<A>* sides = call.sides + 2 * slot;
      call.slot[i] = static_cast<int32_t>(slot++);
      sides[0] = sides[1] = Side<A>();
      if (call.has_decay) {
        sides[0].nearest = sides[1].nearest = INFINITY;
        for_each_neighbor(g, row, column, [&](int64_t n) {
          if (label[n] < 0) return;
          A& nearest = sides[label[n] != k].nearest;
          nearest = std::min(nearest, field[n]);
        });
      }
      const auto log_weight = [&](int side, int64_t n) {
        return call.has_decay ? (sides[side].nearest - field[n]) * call.inverse_decay : A(0);
      };

      A value[2] = {0, 0};
      A right[2] = {0, 0}, wrong[2] = {0, 0};  // Σ w p(k) and Σ w (1 - p(k))
      if (call.power == A(1)) {
        // The mean of probabilities, formed of them: one exponential a neighbour.
        for_each_neighbor(g, row, column, [&](int64_t n) {
          if (label[n] < 0) return;
          const int side = label[n] != k;
          const A w = call.has_decay ? exp_negative(log_weight(side, n)) : A(1);
          A p_k, complement;
          probabilities(x.at(n, k), m[n], r[n], p_k, complement);
          right[side] += w * p_k;
          wrong[side] += w * complement;
        });
      }
      // Where all of a side's probabilities are so small that float has none of them left, logarithms do.
      const A least = std::numeric_limits<A>::min() / std::numeric_limits<A>::epsilon();
      const A mean[2] = {right[0], wrong[1]}, complement[2] = {wrong[0], right[1]};
      for (int side = 0; side < 2; ++side) {
        if (mean[side] > least) {
          const A total = mean[side] + complement[side];
          value[side] = negative_log(mean[side] / total, complement[side] / total);
          sides[side].inverse = A(1) / mean[side];
          continue;
        }
        t[side].clear();
        log_w[side].clear();
        for_each_neighbor(g, row, column, [&](int64_t n) {
          if (label[n] < 0 || (label[n] != k) != side) return;
          t[side].push_back(term(x, n, g.classes, k, side == 0, m[n], r[n]));
          log_w[side].push_back(log_weight(side, n));
        });
        if (t[side].empty()) continue;
        const int64_t n = static_cast<int64_t>(t[side].size());
        value[side] = negative_log_mean(t[side].data(), log_w[side].data(), n, call.power, sides[side]);
      }
      const double v = call.pixel_weight_of(i);
      sums.same += v * value[0];
      sums.other += v * value[1];
      if (same_map) {
        same_map[i] = value[0];
        other_map[i] = value[1];
      }
    }
  }
}

// What arrives at each pixel's terms in the backward pass.
template <typename A>
struct Upstream {
  A sums[3];        // of Σ v CE, Σ v S, Σ v O
  const A* map[3];  // of the maps, [B, P] each, or null

  A at(int term, int64_t i, A v) const { return sums[term] * v + (map[term] ? map[term][i] : A(0)); }
};

// The backward pass of a chunk.
template <typename T, typename A>
void backward_chunk(const Call<T, A>& call, const Upstream<A>& upstream, const Chunk& chunk, T* grad,
                    const Steps& grad_steps) {
  const Geometry& g = call.g;
  const Logits<T, A> x = call.image(chunk.image);
  const int64_t base = chunk.image * g.pixels, last = chunk.last_row * g.width, step = call.tile();
  const int16_t* label = call.label + base;
  const A smoothing = call.label_smoothing, uniform = smoothing / static_cast<A>(g.classes);
  const A total_weight = call.total_weight();
  T* out = grad + chunk.image * grad_steps.image;
  std::vector<A> buffer(g.classes * step), grad_buffer(g.classes * step);
  A *tile = buffer.data(), *to = grad_buffer.data();
  A alpha[kTile], at_y[kTile];  // the gradient is alpha · p(c) - at_y · [c = y], but for the corrections
  int32_t labels[kTile];

  // An addition to one class of one pixel of the tile, after the rest; `likely` ones concern all other classes too.
  struct Correction {
    int64_t j, k;
    A value;
    bool likely;
  };
  std::vector<Correction> corrections;
  struct Share {
    int16_t k;
    A p, complement, sum;
  };
  std::vector<Share> shares;

  for (int64_t p = chunk.first_row * g.width; p < last; p += step) {
    const int64_t n = std::min(step, last - p);
    read_tile(x, g.classes, p, n, tile, step);
    const A *m = call.m + base + p, *r = call.r + base + p;
    corrections.clear();
    for (int64_t j = 0; j < n; ++j) {
      const int16_t y = label[p + j];
      labels[j] = y;
      const A ce = y < 0 ? A(0) : upstream.at(0, base + p + j, call.pixel_weight_of(base + p + j));
      const A at_label = (A(1) - smoothing) * (call.weight && y >= 0 ? call.weight[y] : A(1));
      alpha[j] = ce * (at_label + uniform * total_weight);
      at_y[j] = ce * at_label;
    }
    const uint8_t* reach = call.reach + base + p;
    for (int64_t j = 0; (j = next_set(reach, j, n)) < n; ++j) {
      const int64_t i = base + p + j;
      const int16_t y = label[p + j];
      // Each edge pixel around gives the share π of its gradient; those that look at the same class k share t.
      const int64_t row = (p + j) / g.width, column = (p + j) % g.width;
      shares.clear();
      for_each_neighbor(g, row, column, [&](int64_t centre) {
        if (!call.edge[base + centre]) return;
        const int16_t k = label[centre];
        auto s = std::find_if(shares.begin(), shares.end(), [&](const Share& known) { return known.k == k; });
        if (s == shares.end()) {
          s = shares.insert(shares.end(), {k, A(0), A(0), A(0)});
          probabilities(tile[k * step + j], m[j], r[j], s->p, s->complement);
        }
        const int side = k != y;
        const int64_t c = base + centre;
        const Side<A>& of = call.sides[2 * call.slot[c] + side];
        const A log_w = call.has_decay ? (of.nearest - call.field[i]) * call.inverse_decay : A(0);
        const A pi = share(of, call.power, side ? s->complement : s->p, log_w,
                           [&] { return term(x, p + j, g.classes, k, side == 0, m[j], r[j]); });
        s->sum += upstream.at(1 + side, c, call.pixel_weight_of(c)) * pi;
      });
      for (const Share& s : shares) {
        if (s.k == y) {  // ∂S = π (p(c) - δ_cy)
          alpha[j] += s.sum;
          at_y[j] += s.sum;
          continue;
        }
        if (is_likely(tile[s.k * step + j], m[j], r[j])) {
          corrections.push_back({j, s.k, s.sum * s.p, true});
        } else {  // ∂O = π p(k) at k, -π p(c) p(k) / (1 - p(k)) elsewhere
          const A odds = s.p / s.complement;
          alpha[j] -= s.sum * odds;
          corrections.push_back({j, s.k, s.sum * odds, false});
        }
      }
    }

    tile_softmax(tile, step, g.classes, n, labels, m, r, alpha, at_y, to);
    for (const Correction& c : corrections) {
      to[c.k * step + c.j] += c.value;
      if (!c.likely) continue;
      // The others' shares of -π p(k), from logits that may lie so far below the top that r is 0.
      const A top = log_rest(x, p + c.j, g.classes, m[c.j], r[c.j]);
      for (int64_t other = 0; other < g.classes; ++other) {
        if (other != c.k) to[other * step + c.j] -= c.value * exp_negative((tile[other * step + c.j] - m[c.j]) - top);
      }
    }
    if (smoothing != A(0)) {
      for (int64_t j = 0; j < n; ++j) {
        if (label[p + j] < 0) continue;
        const A ce = upstream.at(0, base + p + j, call.pixel_weight_of(base + p + j));
        for (int64_t c = 0; c < g.classes; ++c) to[c * step + j] -= ce * uniform * call.weight_of(c);
      }
    }
    write_tile(to, step, g, p, n, out, grad_steps);
  }
}

// ----------------------------------------------------------------------------------------------------------- operators

template <typename T, typename A>
Call<T, A> make_call(const Geometry& g, const Tensor& logits, const std::optional<Tensor>& weight,
                     const std::optional<Tensor>& pixel_weight, double label_smoothing, double power, double decay,
                     const Tensor& label, const Tensor& flags, const Tensor& stats, const Tensor& slot,
                     const Tensor& sides, const Tensor& field) {
  const int64_t all = g.batch * g.pixels;
  A* m = static_cast<A*>(stats.mutable_data_ptr());
  uint8_t* edge = static_cast<uint8_t*>(flags.mutable_data_ptr());
  const bool has_decay = decay > 0;
  return {g,
          static_cast<const T*>(logits.const_data_ptr()),
          Steps(logits),
          data_or_null<A>(weight),
          data_or_null<A>(pixel_weight),
          static_cast<A>(label_smoothing),
          static_cast<A>(power),
          has_decay ? static_cast<A>(1 / decay) : A(0),
          has_decay,
          static_cast<int16_t*>(label.mutable_data_ptr()),
          edge,
          edge + all,
          m,
          m + all,
          static_cast<int32_t*>(slot.mutable_data_ptr()),
          static_cast<Side<A>*>(sides.mutable_data_ptr()),
          static_cast<A*>(field.mutable_data_ptr())};
}

// The offsets of the search for d, from near to far: no neighbour of an edge pixel has a larger d than 2 ‖radius ·
// spacing‖.
std::vector<Offset> search_offsets(const Geometry& g, const std::vector<double>& spacing, int64_t dims) {
  const std::array<double, 3> s = {dims == 3 ? spacing[0] : 1.0, spacing[dims - 2], spacing[dims - 1]};
  const auto length = [&](double z, double y, double x) { return std::hypot(z * s[0], y * s[1], x * s[2]); };
  const double limit = 2 * length(g.radius[0], g.radius[1], g.radius[2]);
  std::array<int64_t, 3> reach;  // rounded up, since rounding could take the last pixel away: the length decides
  for (int a = 0; a < 3; ++a) reach[a] = static_cast<int64_t>(std::ceil(limit / s[a]));
  const std::array<int64_t, 3> last = {g.depth - 1, g.height - 1, g.width - 1};
  for (int a = 0; a < 3; ++a) reach[a] = std::min(reach[a], last[a]);
  std::vector<Offset> offsets;
  for (int64_t z = -reach[0]; z <= reach[0]; ++z) {
    for (int64_t y = -reach[1]; y <= reach[1]; ++y) {
      for (int64_t x = -reach[2]; x <= reach[2]; ++x) {
        const double d = length(z, y, x);
        if (d > 0 && d <= limit) offsets.push_back({{z, y, x}, d});
      }
    }
  }
  std::sort(offsets.begin(), offsets.end(), [](const Offset& a, const Offset& b) { return a.length < b.length; });
  return offsets;
}

// Throws if a label is neither a class nor ignored.
template <typename L>
void throw_if_wrong(const Geometry& g, const L* target, int64_t ignore_index, const std::vector<Sums>& parts) {
  double all = 0;
  for (const Sums& part : parts) all += part.wrong;
  if (all == 0) return;
  const int64_t count = g.batch * g.pixels;
  const auto at = [&](int64_t i) { return static_cast<int64_t>(target[i]); };
  int64_t first = 0, same = 0;
  while (at(first) == ignore_index || (at(first) >= 0 && at(first) < g.classes)) ++first;
  for (int64_t i = first; i < count; ++i) same += at(i) == at(first);
  const int64_t others = static_cast<int64_t>(all) - same;
  throw std::invalid_argument(
      "target: " + unexpected_label(g, ignore_index, at(first)) + " at " + count_of_pixels(same) + ", first at " +
      position(g, first) + (others ? ", and other labels out of range at " + count_of_pixels(others) + " more" : ""));
}

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

template <typename T, typename A>
Forward forward(const Tensor& logits, const Tensor& target, const std::optional<Tensor>& weight,
                const std::optional<Tensor>& pixel_weight, const std::optional<Tensor>& distance, int64_t ignore_index,
                double label_smoothing, const std::vector<int64_t>& radius, double power, double decay,
                const std::vector<double>& spacing, bool edges, bool maps, bool check) {
  const Geometry g = geometry_of(logits, radius);
  const Chunks chunks(g);
  const int64_t all = g.batch * g.pixels;
  const auto empty = [&](int64_t count, ScalarType type) {
    return torch::stable::new_empty(logits, {count, all}, type);
  };
  constexpr ScalarType type = kScalarType<A>;
  Tensor label = empty(1, ScalarType::Short), flags = empty(edges ? 2 : 0, ScalarType::Byte), stats = empty(2, type);
  Tensor slot = empty(edges, ScalarType::Int), sides = empty(edges ? 8 : 0, type);
  const bool searches = edges && decay > 0 && !distance;
  Tensor field = empty(searches ? 1 : 0, type);
  Tensor ce = empty(maps, type), same = empty(maps && edges, type), other = empty(maps && edges, type);
  const auto map_of = [&](const Tensor& t) { return maps ? static_cast<A*>(t.mutable_data_ptr()) : nullptr; };
  const Call<T, A> call = make_call<T, A>(g, logits, weight, pixel_weight, label_smoothing, power, edges ? decay : 0.0,
                                          label, flags, stats, slot, sides, distance ? *distance : field);

  std::vector<Sums> parts(chunks.count);
  const auto first_pass = [&](const auto* y) {
    for_each_chunk(chunks, [&](int64_t i, const Chunk& chunk) {
      cross_entropy_chunk<T, A>(call, y, ignore_index, chunk, map_of(ce), parts[i]);
    });
    if (check) throw_if_wrong(g, y, ignore_index, parts);  // not from within: a parallel loop loses the message
  };
  const void* y = target.const_data_ptr();
  switch (target.scalar_type()) {
    case ScalarType::Long:
      first_pass(static_cast<const int64_t*>(y));
      break;
    case ScalarType::Int:
      first_pass(static_cast<const int32_t*>(y));
      break;
    case ScalarType::Short:
      first_pass(static_cast<const int16_t*>(y));
      break;
    default:
      first_pass(static_cast<const uint8_t*>(y));
      break;  // uint8 and bool
  }
  if (edges) {
    const std::vector<Offset> offsets = searches ? search_offsets(g, spacing, logits.dim() - 2) : std::vector<Offset>();
    for_each_chunk(chunks, [&](int64_t i, const Chunk& chunk) { edge_mask_chunk(call, chunk, parts[i]); });
    for_each_chunk(chunks, [&](int64_t, const Chunk& chunk) { reach_chunk(call, chunk, searches, offsets, maps); });
    std::vector<int64_t> slots(parts.size());
    int64_t count = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      slots[i] = count;
      count += static_cast<int64_t>(parts[i].edges);
    }
    for_each_chunk(chunks, [&](int64_t i, const Chunk& chunk) {
      edge_terms_chunk(call, chunk, slots[i], map_of(same), map_of(other), parts[i]);
    });
  }

  Tensor sums = torch::stable::new_empty(logits, {8}, ScalarType::Double);
  double* out = static_cast<double*>(sums.mutable_data_ptr());
  std::fill_n(out, 8, 0.0);
  for (const Sums& part : parts) {
    const double values[8] = {part.cross_entropy, part.same,  part.other, part.weight,
                              part.edges_weight,  part.valid, part.edges, part.wrong};
    for (int k = 0; k < 8; ++k) out[k] += values[k];
  }
  return {sums, ce, same, other, label, flags, stats, slot, sides, field};
}

// A new tensor's first touch costs a page fault every 4 KB, more than the arithmetic that fills it: ask for 2 MB pages.
void want_large_pages(void* data, int64_t bytes) {
#ifdef __linux__
  constexpr uintptr_t kPage = uintptr_t(1) << 21;
  const uintptr_t first = (reinterpret_cast<uintptr_t>(data) + kPage - 1) & ~(kPage - 1);
  const uintptr_t last = (reinterpret_cast<uintptr_t>(data) + bytes) & ~(kPage - 1);
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // a wish: no failure matters
#else
  (void)data;
  (void)bytes;
#endif
}

template <typename T, typename A>
Tensor backward(const Tensor& grad_sums, const std::optional<Tensor>& grad_ce, const std::optional<Tensor>& grad_same,
                const std::optional<Tensor>& grad_other, const Tensor& logits, const std::optional<Tensor>& weight,
                const std::optional<Tensor>& pixel_weight, const Tensor& label, const Tensor& flags,
                const Tensor& stats, const Tensor& slot, const Tensor& sides, const Tensor& field,
                double label_smoothing, const std::vector<int64_t>& radius, double power, double decay) {
  const Geometry g = geometry_of(logits, radius);
  const Chunks chunks(g);
  Tensor grad = torch::stable::empty_like(logits);
  want_large_pages(grad.mutable_data_ptr(), grad.numel() * static_cast<int64_t>(sizeof(T)));
  // Without edges there is no state of them, and nothing reads it where no pixel is in reach.
  std::vector<uint8_t> none;
  const bool edges = flags.numel() > 0;
  Call<T, A> call = make_call<T, A>(g, logits, weight, pixel_weight, label_smoothing, power, edges ? decay : 0.0, label,
                                    flags, stats, slot, sides, field);
  if (!edges) {
    none.assign(g.batch * g.pixels, 0);
    call.edge = call.reach = none.data();
  }
  const double* sums = static_cast<const double*>(grad_sums.const_data_ptr());
  const Upstream<A> upstream = {{static_cast<A>(sums[0]), static_cast<A>(sums[1]), static_cast<A>(sums[2])},
                                {data_or_null<A>(grad_ce), data_or_null<A>(grad_same), data_or_null<A>(grad_other)}};
  const Steps steps(grad);
  T* out = static_cast<T*>(grad.mutable_data_ptr());
  for_each_chunk(chunks, [&](int64_t, const Chunk& chunk) { backward_chunk(call, upstream, chunk, out, steps); });
  return grad;
}

Forward edge_loss(const Tensor& logits, const Tensor& target, const std::optional<Tensor>& weight,
                  const std::optional<Tensor>& pixel_weight, const std::optional<Tensor>& distance,
                  int64_t ignore_index, double label_smoothing, std::vector<int64_t> radius, double power, double decay,
                  std::vector<double> spacing, bool edges, bool maps, int64_t validate) {
  return by_type(logits, [&](auto t, auto a) {
    return forward<decltype(t), decltype(a)>(logits, target, weight, pixel_weight, distance, ignore_index,
                                             label_smoothing, radius, power, decay, spacing, edges, maps,
                                             validate != 0);
  });
}

Tensor edge_loss_backward(const Tensor& grad_sums, const std::optional<Tensor>& grad_ce,
                          const std::optional<Tensor>& grad_same, const std::optional<Tensor>& grad_other,
                          const Tensor& logits, const std::optional<Tensor>& weight,
                          const std::optional<Tensor>& pixel_weight, const Tensor& label, const Tensor& flags,
                          const Tensor& stats, const Tensor& slot, const Tensor& sides, const Tensor& field,
                          double label_smoothing, std::vector<int64_t> radius, double power, double decay) {
  return by_type(logits, [&](auto t, auto a) {
    return backward<decltype(t), decltype(a)>(grad_sums, grad_ce, grad_same, grad_other, logits, weight, pixel_weight,
                                              label, flags, stats, slot, sides, field, label_smoothing, radius, power,
                                              decay);
  });
}

}  // namespace
}  // namespace edgeloss

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CPU, m) {
  m.impl("edge_loss", TORCH_BOX(&edgeloss::edge_loss));
  m.impl("edge_loss_backward", TORCH_BOX(&edgeloss::edge_loss_backward));
}

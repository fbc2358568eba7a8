// The whole loss on the CPU.
//
// Forward, in passes over chunks of rows: (1) labels, the two numbers of edge_math.h for each pixel, and the
// cross-entropy, by tiles of pixels × classes that stay in cache (tiles.h); (2) the edge pixels, from the labels, and
// the false ones, from the prediction, with their term (false_edges.h); (3) with decay, the distances of what edge
// pixels see; (4) the edge terms, on edge pixels only (windows.h). Backward takes a chunk at a time: the edge pixels
// around share their gradient out to its pixels, and the softmax of its tiles is formed anew. Of logits of lower
// resolution, tiles are interpolated (upsample.h), and backward takes a box of their rows at a time, with all pixels
// that are mixed from it. What a chunk is does not depend on the number of threads, and sums are added up in the
// chunks' order, so every run gives the same bits.
#include <torch/csrc/stable/library.h>

#include "../edge_math.h"
#include "../image.h"
#include "../labels.h"
#include "../tensors.h"
#include "false_edges.h"
#include "parallel.h"
#include "tiles.h"
#include "upsample.h"
#include "windows.h"

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

namespace edgeloss {
namespace {

// -------------------------------------------------------------------------------------------------------------- passes

// An image's logits one by one, upsampled or not.
template <typename T, typename A>
struct Reader {
  Logits<T, A> x;
  const Upsample<A>* up;

  A at(int64_t pixel, int64_t c) const { return up ? up->at(x, pixel, c) : x.at(pixel, c); }
};

// Everything that the passes share: arguments, and the state that forward leaves to backward.
template <typename T, typename A>
struct Call {
  const Geometry& g;
  const T* x;
  Steps steps;
  const Upsample<A>* up;       // null where the logits are of the labels' resolution
  const A* weight;             // [C] or null
  const A* pixel_weight;       // [B, P] or null
  const A* edge_class_weight;  // [C] or null
  A label_smoothing, power, inverse_decay;
  bool has_decay;
  int16_t* label;      // [B, P]
  int16_t* predicted;  // [B, P], in forward, or null: nobody asks for false edges
  A *m, *r;            // [B, P] each; null of two classes that are not upsampled
  uint8_t* edge;       // [B, P], the edge mask, or null
  FalseEdges<A> false_edges;
  // The edge pixels of each chunk in order, from the number of its first pixel on; the rest is left untouched, and so
  // takes up no memory. Of each row the first and the end among them.
  int32_t* edge_pixel;           // [B, P], of the image
  A* sides;                      // [B, P, 2, numbers()], same and other side
  int32_t *row_first, *row_end;  // [B, D · H] each
  A* field;                      // [B, P]; read in reach of E only

  Logits<T, A> image(int64_t b) const { return {x + b * steps.image, steps.channel, steps.pixel, g.logits == 1}; }
  Reader<T, A> reader(int64_t b) const { return {image(b), up}; }
  A weight_of(int64_t c) const { return weight ? weight[c] : A(1); }
  A pixel_weight_of(int64_t i) const { return pixel_weight ? pixel_weight[i] : A(1); }
  A edge_weight_of(int64_t i) const {
    return edge_class_weight ? pixel_weight_of(i) * edge_class_weight[label[i]] : pixel_weight_of(i);
  }
  A total_weight() const {
    A sum = 0;
    for (int64_t c = 0; c < g.classes; ++c) sum += weight_of(c);
    return sum;
  }
  // What is kept of a side: with power 0 or 1 `inverse` alone, and where that can't serve, it is 0 on the other side of
  // the edge pixel, whose terms were formed by logarithms then and are formed anew.
  static int64_t numbers(double power, double decay) { return (is_plain_mean(power) ? 1 : 2) + (decay > 0 ? 1 : 0); }
  int64_t numbers() const { return numbers(power, has_decay ? 1 : 0); }
  void keep(int64_t at, int64_t n, const Side<A>* from) const {
    A* to = sides + 2 * at * numbers();
    for (const Side<A>* of = from; of < from + 2 * n; ++of) {
      if (is_plain_mean(power)) {
        *to++ = of->inverse;
      } else {
        *to++ = of->first;
        *to++ = of->log_sum;
      }
      if (has_decay) *to++ = of->nearest;
    }
  }
  void recall(int64_t at, int64_t n, Side<A>* to) const {
    const A* from = sides + 2 * at * numbers();
    for (Side<A>* of = to; of < to + 2 * n; ++of) {
      *of = Side<A>();
      if (is_plain_mean(power)) {
        of->inverse = *from++;
      } else {
        of->first = *from++;
        of->log_sum = *from++;
      }
      if (has_decay) of->nearest = *from++;
    }
  }
  bool is_of_means(int64_t at) const { return is_plain_mean(power) && sides[(2 * at + 1) * numbers()] > A(0); }

  int64_t tile() const {
    // 64 KB: a tile of pixels × classes stays in the second-level cache, its gradient beside it.
    return std::clamp<int64_t>((1 << 16) / (g.classes * static_cast<int64_t>(sizeof(A))) & ~15, 16, kTile);
  }
};

struct Sums {
  double cross_entropy = 0, same = 0, other = 0, false_edge = 0, weight = 0, edges_weight = 0, valid = 0, edges = 0,
         wrong = 0;
};

// The cross-entropy of a tile of n pixels from what tile_statistics found; pixel(j) is the number of the j-th one.
template <typename T, typename A, typename F>
void cross_entropy_tile(const Call<T, A>& call, const A* tile, int64_t ld, int64_t n, const int32_t* y, const A* m,
                        const A* r, const A* nll, const F& pixel, A* ce, Sums& sums) {
  const A smoothing = call.label_smoothing;
  const double valid = static_cast<double>(n - std::count(y, y + n, kIgnored));
  sums.valid += valid;
  const double plain_sum = tile_cross_entropy(nll, y, n, ce);
  if (!call.weight && !call.pixel_weight && smoothing == A(0)) {
    sums.cross_entropy += plain_sum;
    sums.weight += valid;
    return;
  }
  const A total_weight = call.total_weight();
  for (int64_t j = 0; j < n; ++j) {
    if (y[j] < 0) continue;
    const A w = call.weight_of(y[j]), v = call.pixel_weight_of(pixel(j));
    ce[j] *= w;
    if (smoothing != A(0)) {
      A every = total_weight * log1p_positive(r[j]);
      for (int64_t c = 0; c < call.g.classes; ++c) every -= call.weight_of(c) * (tile[c * ld + j] - m[j]);
      ce[j] = (A(1) - smoothing) * ce[j] + smoothing / static_cast<A>(call.g.classes) * every;
    }
    sums.cross_entropy += static_cast<double>(v) * ce[j];
    sums.weight += static_cast<double>(v) * w;
  }
}

// Pass 1: labels, statistics and cross-entropy of a chunk.
template <typename T, typename A, typename L>
void cross_entropy_chunk(const Call<T, A>& call, const L* target, int64_t ignore_index, const Chunk& chunk, A* ce_map,
                         Sums& sums) {
  const Geometry& g = call.g;
  const Logits<T, A> x = call.image(chunk.image);
  const int64_t base = chunk.image * g.pixels, last = chunk.last_row * g.width, step = call.tile();
  const bool in_place = fits_in_place(x, g.classes, step);
  const int64_t ld = in_place ? x.class_step : step;
  std::vector<A> buffer(in_place ? 0 : g.classes * step);
  A nll[kTile], kept[kTile];
  int32_t y[kTile];
  for (int64_t p = chunk.first_row * g.width; p < last; p += step) {
    const int64_t n = std::min(step, last - p);
    if (!in_place) read_tile(x, g.classes, p, n, buffer.data(), step);
    const A* tile = in_place ? reinterpret_cast<const A*>(x.data) + p : buffer.data();
    sums.wrong +=
        static_cast<double>(read_labels(target + base + p, n, g.classes, ignore_index, call.label + base + p, y));
    A own_m[kTile], own_r[kTile], *m = call.m ? call.m + base + p : own_m, *r = call.m ? call.r + base + p : own_r;
    tile_statistics(tile, ld, g.classes, n, y, m, r, nll);
    if (call.predicted) {
      const FalseEdges<A>& f = call.false_edges;
      tile_prediction(tile, ld, g.classes, n, y, m, call.predicted + base + p);
      tile_terms(nll, y, n, f.sign(), f.ignored(), f.term + base + p);
    }
    cross_entropy_tile(
        call, tile, ld, n, y, m, r, nll, [&](int64_t j) { return base + p + j; }, ce_map ? ce_map + base + p : kept,
        sums);
  }
}

// The same of logits to be upsampled.
template <typename T, typename A, typename L>
void upsampled_cross_entropy_chunk(const Call<T, A>& call, const L* target, int64_t ignore_index, const Chunk& chunk,
                                   A* ce_map, Sums& sums) {
  const Geometry& g = call.g;
  const Logits<T, A> x = call.image(chunk.image);
  const Upsample<A>& up = *call.up;
  const FalseEdges<A>& f = call.false_edges;
  const int64_t step = call.tile();
  std::vector<A> tile(g.classes * step);
  A m[kTile], r[kTile], nll[kTile], ce[kTile], term[kTile];
  int32_t y[kTile];
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const int64_t start = chunk.image * g.pixels + row * g.width;
    for (int64_t p = 0; p < g.width; p += kTile) {
      const int64_t n = std::min(kTile, g.width - p);
      sums.wrong +=
          static_cast<double>(read_labels(target + start + p, n, g.classes, ignore_index, call.label + start + p, y));
    }
    const RowTaps<A> taps = up.row_taps(row);
    for_each_block(up, step, [&](const Block& block) {
      const int64_t n = block.pixels();
      int32_t place[kTile];
      int16_t predicted[kTile];
      up.list_pixels(block, place);
      for (int64_t j = 0; j < n; ++j) y[j] = place[j] < 0 ? kIgnored : call.label[start + place[j]];
      interpolate_tile(up, taps, x, g.logits, block, tile.data(), step);
      tile_statistics(tile.data(), step, g.classes, n, y, m, r, nll);
      if (call.predicted) {
        tile_prediction(tile.data(), step, g.classes, n, y, m, predicted);
        tile_terms(nll, y, n, f.sign(), f.ignored(), term);
      }
      cross_entropy_tile(
          call, tile.data(), step, n, y, m, r, nll, [&](int64_t j) { return start + place[j]; }, ce, sums);
      for (int64_t j = 0; j < n; ++j) {
        if (place[j] < 0) continue;
        call.m[start + place[j]] = m[j];
        call.r[start + place[j]] = r[j];
        if (call.predicted) {
          call.predicted[start + place[j]] = predicted[j];
          f.term[start + place[j]] = term[j];
        }
        if (ce_map) ce_map[start + place[j]] = ce[j];
      }
    });
  }
}

// Pass 2: the edge pixels, and the term of the false ones.
template <typename T, typename A>
void edge_pixels_chunk(const Call<T, A>& call, const Chunk& chunk, A* false_map, Sums& sums) {
  const Geometry& g = call.g;
  const int64_t base = chunk.image * g.pixels, rows = chunk.image * g.depth * g.height;
  const int16_t* label = call.label + base;
  // A margin of neutral values at both ends, so that the window along the row needs no bounds.
  const int64_t reach = std::min(g.radius[2], g.width);
  std::vector<int16_t> low(g.width + 2 * reach), high(g.width + 2 * reach);
  std::vector<uint8_t> mask(g.width), drawn(g.width);
  const auto mark = [&](const int16_t* of, int64_t row, uint8_t* edge) {
    std::fill(low.begin(), low.end(), INT16_MAX);
    std::fill(high.begin(), high.end(), kIgnored);
    for_each_row(g, row, g.radius,
                 [&](int64_t first) { widen_range(of + first, g.width, low.data() + reach, high.data() + reach); });
    mark_edges(of + row * g.width, g.width, reach, low.data(), high.data(), edge);
  };
  const FalseEdges<A>& f = call.false_edges;
  RowWindows<A> windows(g);
  std::vector<A> value(g.width);
  int64_t end = chunk.first_row * g.width;
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const int64_t start = base + row * g.width;
    uint8_t* edge = call.edge ? call.edge + start : mask.data();
    mark(label, row, edge);
    const int64_t count = list_places(edge, g.width, row * g.width, call.edge_pixel + base + end);
    call.row_first[rows + row] = static_cast<int32_t>(end);
    if (call.pixel_weight || call.edge_class_weight) {
      for (int64_t e = end; e < end + count; ++e) {
        sums.edges_weight += call.edge_weight_of(base + call.edge_pixel[base + e]);
      }
    }
    end += count;
    call.row_end[rows + row] = static_cast<int32_t>(end);
    if (!call.predicted) continue;
    mark(call.predicted + base, row, drawn.data());
    const int64_t false_edges = keep_false(edge, g.width, drawn.data());
    f.count[rows + row] = static_cast<int32_t>(false_edges);
    A* of = false_map ? false_map + start : value.data();
    std::fill_n(of, g.width, A(0));
    if (false_edges == 0) continue;
    windows.find_terms(f, base, label, drawn.data(), row, of);
    if (call.pixel_weight) {
      for (int64_t x = 0; x < g.width; ++x)
        sums.false_edge += static_cast<double>(call.pixel_weight[start + x]) * of[x];
    } else {
      sums.false_edge += row_sum(of, g.width);
    }
  }
  sums.edges = static_cast<double>(end - chunk.first_row * g.width);
  if (!call.pixel_weight && !call.edge_class_weight) sums.edges_weight = sums.edges;
}

// Pass 3: the distances of the valid pixels that edge pixels see, by a search through the offsets, sorted by length.
struct Offset {
  std::array<int64_t, 3> d;
  double length;
};

template <typename T, typename A>
void distance_chunk(const Call<T, A>& call, const Chunk& chunk, const std::vector<Offset>& offsets, bool whole_field) {
  const Geometry& g = call.g;
  const int16_t* label = call.label + chunk.image * g.pixels;
  const uint8_t* edge = call.edge + chunk.image * g.pixels;
  A* field = call.field + chunk.image * g.pixels;
  const int64_t reach = std::min(g.radius[2], g.width);
  std::vector<uint8_t> any(g.width + 2 * reach);
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    std::fill(any.begin(), any.end(), 0);
    for_each_row(g, row, g.radius, [&](int64_t first) { merge_row(edge + first, g.width, any.data() + reach); });
    const int64_t z = row / g.height, y = row % g.height;
    for (int64_t x = 0; x < g.width; ++x) {
      const int64_t p = row * g.width + x;
      if (!whole_field && !std::memchr(any.data() + x, 1, 2 * reach + 1)) continue;
      field[p] = INFINITY;
      if (label[p] < 0) continue;
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

// What edge pixels give a tile, as `Gathered` has it of a chunk; null where there are none near.
template <typename A>
struct TileShares {
  const A *same = nullptr, *other = nullptr;
  const int32_t* k = nullptr;
};

// What the edge pixels around give the pixels of a chunk: Σ upstream · π on the pixel's own side, and on the other side
// Σ upstream · π · slope for each class k that edge pixels look at.
template <typename A>
struct Gathered {
  struct Entry {
    int64_t pixel;  // counted from the chunk's first
    int32_t k;
    A sum;
  };
  std::vector<A> same, other;    // Σ on the own side; on the other side, for class k
  std::vector<int32_t> k;        // the first class that is seen, or -1
  std::vector<Entry> more;       // of further classes, by pixel
  std::vector<uint8_t> is_near;  // the rows that edge pixels see; the others' sums are not set
  int64_t width;                 // of a row

  void start(const Geometry& g, int64_t rows, int64_t margin) {
    width = g.width;
    for (auto* sums : {&same, &other}) sums->resize(rows * width + margin);
    k.resize(rows * width + margin);
    more.clear();
    is_near.assign(rows, 0);
  }

  // Makes the rows of the pixels [first, last] ready.
  void approach(int64_t first, int64_t last) {
    for (int64_t row = first / width; row <= last / width; ++row) {
      if (is_near[row]) continue;
      is_near[row] = 1;
      std::fill_n(same.begin() + row * width, width, A(0));
      std::fill_n(other.begin() + row * width, width, A(0));
      std::fill_n(k.begin() + row * width, width, -1);
    }
  }

  // Whether any of the pixels [first, last] may be near the edge; if so, all of them are ready.
  bool reaches(int64_t first, int64_t last) {
    const auto rows = is_near.begin();
    if (std::find(rows + first / width, rows + last / width + 1, 1) == rows + last / width + 1) return false;
    approach(first, last);
    return true;
  }

  TileShares<A> from(int64_t pixel) const { return {same.data() + pixel, other.data() + pixel, k.data() + pixel}; }

  // Calls body(k, sum) for a pixel's further classes.
  template <typename F>
  void for_each_more(int64_t pixel, const F& body) const {
    auto entry =
        std::lower_bound(more.begin(), more.end(), pixel, [](const Entry& e, int64_t p) { return e.pixel < p; });
    for (; entry != more.end() && entry->pixel == pixel; ++entry) body(entry->k, entry->sum);
  }
};

// A few edge pixels of an image, and how it looks from them.
template <typename T, typename A>
struct Group {
  const Call<T, A>& call;
  int64_t image, count;
  const int32_t* pixel;
  int64_t first[kEdges];                         // the pixel in the first lane, in the edge pixel's own row
  int32_t column[kEdges], y[kEdges], z[kEdges];  // where that is
  int32_t offset[kEdges];                        // where it stands among its lanes
  int16_t k[kEdges];                             // its class

  Group(const Call<T, A>& call, int64_t image, const int32_t* pixel, int64_t count, Lanes<A>& lanes)
      : call(call), image(image), count(count), pixel(pixel) {
    const Geometry& g = call.g;
    const int16_t* label = call.label + image * g.pixels;
    const int64_t last = std::max<int64_t>(g.width - lanes.width, 0);
    int32_t wide[kEdges];
    for (int64_t e = 0; e < count; ++e) {
      const uint32_t p = static_cast<uint32_t>(pixel[e]);  // 32 bits divide several times as fast as 64
      const uint32_t row = p / static_cast<uint32_t>(g.width);
      const int64_t own = p - static_cast<int64_t>(row) * g.width;
      column[e] = static_cast<int32_t>(std::clamp<int64_t>(own - lanes.radius, 0, last));
      offset[e] = static_cast<int32_t>(own - column[e]);
      first[e] = p - offset[e];
      z[e] = static_cast<int32_t>(row / static_cast<uint32_t>(g.height));
      y[e] = static_cast<int32_t>(row) - z[e] * static_cast<int32_t>(g.height);
      wide[e] = k[e] = label[p];
    }
    repeat_each(wide, count, lanes.width, lanes.k.data());
  }

  // Fills the lanes with the row of their windows at (dz, dy), as far as it lies in [begin, end); false if none does.
  bool see(int64_t dz, int64_t dy, int64_t begin, int64_t end, bool logits, Lanes<A>& lanes) const {
    const Geometry& g = call.g;
    const int64_t shift = (dz * g.height + dy) * g.width;
    if (first[0] + shift >= end || first[count - 1] + shift < begin) return false;  // they are in order
    bool any = false;
    for (int64_t e = 0; e < count; ++e) {
      const int64_t p = first[e] + shift;
      const bool inside = y[e] + dy >= 0 && y[e] + dy < g.height && z[e] + dz >= 0 && z[e] + dz < g.depth;
      const bool wanted = inside && p >= begin && p < end;
      lanes.first[e] = wanted ? p : -1;
      any |= wanted;
    }
    if (!any) return false;
    const int64_t base = image * g.pixels;
    const View<T, A> view = {call.image(image),
                             g.width,
                             call.label + base,
                             call.m ? call.m + base : nullptr,
                             call.m ? call.r + base : nullptr,
                             call.has_decay ? call.field + base : nullptr,
                             call.up != nullptr};
    const bool centre = dz == 0 && dy == 0;
    if (lanes.width == 4 && g.width >= 4) {
      fill_lanes<4>(view, k, offset, count, centre, logits, lanes);
    } else if (lanes.width == 8 && g.width >= 8) {
      fill_lanes<8>(view, k, offset, count, centre, logits, lanes);
    } else {
      fill_lanes<0>(view, k, offset, count, centre, logits, lanes);
    }
    if (logits && call.up) {
      const Logits<T, A> x = call.image(image);
      const int64_t in_row = std::min(lanes.width, g.width);
      for (int64_t e = 0; e < count; ++e) {
        if (lanes.first[e] < 0) continue;
        const RowTaps<A> taps = call.up->row_taps(z[e] + dz, y[e] + dy);
        call.up->along_row(x, taps, column[e], in_row, k[e], lanes.x.data() + e * lanes.width);
      }
    } else if (logits && !call.m) {
      tile_statistics_of_two(lanes.logit[0].data(), lanes.logit[1].data(), count * lanes.width, lanes.m.data(),
                             lanes.r.data());
    }
    return true;
  }

  // Calls body() for each row of the windows, the lanes filled with it.
  template <typename F>
  void for_each_row_seen(int64_t begin, int64_t end, bool logits, Lanes<A>& lanes, const F& body) const {
    const Geometry& g = call.g;
    const int64_t reach_z = std::min(g.radius[0], g.depth - 1), reach_y = std::min(g.radius[1], g.height - 1);
    for (int64_t dz = -reach_z; dz <= reach_z; ++dz) {
      for (int64_t dy = -reach_y; dy <= reach_y; ++dy) {
        if (see(dz, dy, begin, end, logits, lanes)) body();
      }
    }
  }

  // t of the lanes into out[4], as log_terms, and exact where r underflowed.
  void find_terms(Lanes<A>& lanes) const {
    if (!find_log_terms(lanes, count * lanes.width)) return;
    const Reader<T, A> x = call.reader(image);
    for (int64_t e = 0; e < count; ++e) {
      for (int64_t i = e * lanes.width; i < (e + 1) * lanes.width; ++i) {
        if (lanes.label[i] < 0 || lanes.label[i] == k[e] || is_exact(lanes.r[i]) || lanes.x[i] != lanes.m[i]) continue;
        const int64_t n = lanes.first[e] + (i - e * lanes.width);
        lanes.out[4][i] = term(x, n, call.g.classes, k[e], false, lanes.m[i], lanes.r[i]);
      }
    }
  }

  // Adds the shares in the lanes to the pixels of a chunk that begins at pixel `start`.
  void add_to(Gathered<A>& to, int64_t start, const Lanes<A>& lanes) const {
    int64_t e = 0, last = count - 1;  // in order, but for those that see nothing
    while (lanes.first[e] < 0) ++e;
    while (lanes.first[last] < 0) --last;
    to.approach(lanes.first[e] - start, lanes.first[last] - start);
    const auto more = [&](int64_t at, int32_t of, A sum) { to.more.push_back({at, of, sum}); };
    A *same = to.same.data(), *other = to.other.data();
    if (lanes.width == 4) {
      add_shares<4>(lanes, k, count, start, same, other, to.k.data(), more);
    } else if (lanes.width == 8) {
      add_shares<8>(lanes, k, count, start, same, other, to.k.data(), more);
    } else {
      add_shares<0>(lanes, k, count, start, same, other, to.k.data(), more);
    }
  }
};

// The edge terms of a group by logarithms: every power but 0, and whatever float can't hold of probabilities.
template <typename T, typename A>
void terms_of_logs(const Group<T, A>& group, Lanes<A>& lanes, A (*value)[kEdges], Side<A>* sides) {
  const Call<T, A>& call = group.call;
  const int64_t width = lanes.width;
  std::vector<A> t[kEdges][2], d[kEdges][2];
  group.for_each_row_seen(0, call.g.pixels, true, lanes, [&] {
    group.find_terms(lanes);
    for (int64_t e = 0; e < group.count; ++e) {
      for (int64_t i = e * width; i < (e + 1) * width; ++i) {
        if (lanes.label[i] < 0) continue;
        const int side = lanes.label[i] != group.k[e];
        t[e][side].push_back(lanes.out[4][i]);
        d[e][side].push_back(call.has_decay ? lanes.d[i] : A(0));
      }
    }
  });
  for (int64_t e = 0; e < group.count; ++e) {
    for (int side = 0; side < 2; ++side) {
      Side<A>& of = sides[2 * e + side];
      of = Side<A>();
      value[side][e] = 0;
      if (t[e][side].empty()) continue;
      std::vector<A>& log_w = d[e][side];
      of.nearest = *std::min_element(log_w.begin(), log_w.end());
      for (A& w : log_w) w = (of.nearest - w) * call.inverse_decay;
      const int64_t n = static_cast<int64_t>(log_w.size());
      value[side][e] = negative_log_mean(t[e][side].data(), log_w.data(), n, call.power, of);
    }
  }
}

// The edge terms of a group at power 0 or 1: the plain mean of logarithms or of probabilities.
template <typename T, typename A>
void terms_of_means(const Group<T, A>& group, Lanes<A>& lanes, A (*value)[kEdges], Side<A>* sides) {
  const Call<T, A>& call = group.call;
  const int64_t width = lanes.width, all = group.count * width, n = group.count;
  A nearest[2][kEdges] = {};
  if (call.has_decay) {
    for (int side = 0; side < 2; ++side) std::fill_n(lanes.out[side].begin(), all, A(INFINITY));
    group.for_each_row_seen(0, call.g.pixels, false, lanes, [&] { find_least_distance(lanes, all); });
    for (int side = 0; side < 2; ++side) {
      for (int64_t e = 0; e < n; ++e) {
        const A* d = lanes.out[side].data() + e * width;
        nearest[side][e] = *std::min_element(d, d + width);
      }
      repeat_each(nearest[side], n, width, lanes.own[side][3].data());
    }
  }
  const bool logs = call.power == A(0);
  for (int v = 0; v < 4; ++v) std::fill_n(lanes.out[v].begin(), all, A(0));
  group.for_each_row_seen(0, call.g.pixels, true, lanes, [&] {
    if (logs) {
      group.find_terms(lanes);
      find_sum_logs(lanes, all, call.has_decay, call.inverse_decay);
    } else {
      find_sum_probabilities(lanes, all, call.has_decay, call.inverse_decay);
    }
  });
  A sums[4][kEdges];
  for (int v = 0; v < 4; ++v) {
    for (int64_t e = 0; e < n; ++e) {
      const A* of = lanes.out[v].data() + e * width;
      A sum = 0;
      for (int64_t j = 0; j < width; ++j) sum += of[j];
      sums[v][e] = sum;
    }
  }
  A inverse[2][kEdges];
  if (logs) {
    find_means_of_logs(sums[0], sums[1], n, value[0], inverse[0]);
    find_means_of_logs(sums[2], sums[3], n, value[1], inverse[1]);
  } else {
    find_means(sums[0], sums[1], n, value[0], inverse[0]);
    find_means(sums[3], sums[2], n, value[1], inverse[1]);
  }
  for (int64_t e = 0; e < n; ++e) {
    const bool has_same = sums[0][e] + sums[1][e] != A(0);  // nan too
    if (logs || (inverse[1][e] > A(0) && (inverse[0][e] > A(0) || !has_same))) {
      sides[2 * e] = {A(0), A(0), nearest[0][e], inverse[0][e]};
      sides[2 * e + 1] = {A(0), A(0), nearest[1][e], inverse[1][e]};
      continue;
    }
    A alone[2][kEdges];
    terms_of_logs(Group<T, A>(call, group.image, group.pixel + e, 1, lanes), lanes, alone, sides + 2 * e);
    for (int side = 0; side < 2; ++side) value[side][e] = alone[side][0];
  }
}

// Pass 4: both edge terms at the edge pixels of a chunk.
template <typename T, typename A>
void edge_terms_chunk(const Call<T, A>& call, const Chunk& chunk, A* same_map, A* other_map, Lanes<A>& lanes,
                      Sums& sums) {
  const Geometry& g = call.g;
  const int64_t base = chunk.image * g.pixels, rows = chunk.image * g.depth * g.height;
  A* const maps[2] = {same_map, other_map};
  for (A* map : maps) {
    if (map) std::fill_n(map + base + chunk.first_row * g.width, (chunk.last_row - chunk.first_row) * g.width, A(0));
  }
  const int32_t end = call.row_end[rows + chunk.last_row - 1];
  for (int64_t at = call.row_first[rows + chunk.first_row]; at < end; at += lanes.edges) {
    const Group<T, A> group(call, chunk.image, call.edge_pixel + base + at, std::min(lanes.edges, end - at), lanes);
    A value[2][kEdges];
    Side<A> sides[2 * kEdges];
    if (is_plain_mean(call.power)) {
      terms_of_means(group, lanes, value, sides);
    } else {
      terms_of_logs(group, lanes, value, sides);
    }
    call.keep(base + at, group.count, sides);
    for (int64_t e = 0; e < group.count; ++e) {
      const int64_t i = base + group.pixel[e];
      const double v = call.edge_weight_of(i);
      sums.same += v * value[0][e];
      sums.other += v * value[1][e];
      for (int side = 0; side < 2; ++side) {
        if (maps[side]) maps[side][i] = value[side][e];
      }
    }
  }
}

// What arrives at each pixel's terms in the backward pass.
template <typename A>
struct Upstream {
  A sums[4];        // of Σ v CE, Σ v u S, Σ v u O, and Σ v S of false edges
  const A* map[4];  // of the maps, [B, P] each, or null

  A at(int term, int64_t i, A v) const { return sums[term] * v + (map[term] ? map[term][i] : A(0)); }
};

// Adds to a chunk's pixels the shares of the edge pixels in rows [first, last), which lie in one chunk themselves.
template <typename T, typename A>
void gather_rows(const Call<T, A>& call, const Upstream<A>& upstream, const Chunk& chunk, int64_t first, int64_t last,
                 Lanes<A>& lanes, Gathered<A>& to) {
  const Geometry& g = call.g;
  const int64_t base = chunk.image * g.pixels, rows = chunk.image * g.depth * g.height;
  const int64_t start = chunk.first_row * g.width, stop = chunk.last_row * g.width;
  const int32_t end = call.row_end[rows + last - 1];
  for (int32_t done = call.row_first[rows + first]; done < end;) {
    // The ones whose terms were formed of probabilities and the ones of logarithms take turns.
    const bool means = call.is_of_means(base + done);
    int32_t n = 1;
    while (n < lanes.edges && done + n < end && call.is_of_means(base + done + n) == means) ++n;
    const Group<T, A> group(call, chunk.image, call.edge_pixel + base + done, n, lanes);
    Side<A> sides[2 * kEdges];
    call.recall(base + done, n, sides);
    if (!means && call.power == A(1)) {
      A value[2][kEdges];
      terms_of_logs(group, lanes, value, sides);
    }
    for (int side = 0; side < 2; ++side) {
      const auto fill = [&](int which, const auto& of) {
        A own[kEdges];
        for (int32_t e = 0; e < n; ++e) own[e] = of(e, sides[2 * e + side]);
        repeat_each(own, n, lanes.width, lanes.own[side][which].data());
      };
      const auto up = [&](int32_t e) {
        const int64_t i = base + group.pixel[e];
        return upstream.at(1 + side, i, call.edge_weight_of(i));
      };
      if (means) {
        fill(0, [&](int32_t e, const Side<A>& of) { return up(e) * of.inverse; });
      } else {
        fill(0, [&](int32_t e, const Side<A>&) { return up(e); });
        fill(1, [&](int32_t, const Side<A>& of) { return of.first; });
        fill(2, [&](int32_t, const Side<A>& of) { return of.log_sum; });
      }
      if (call.has_decay) fill(3, [&](int32_t, const Side<A>& of) { return of.nearest; });
    }
    group.for_each_row_seen(start, stop, true, lanes, [&] {
      if (means) {
        find_mean_shares(lanes, n * lanes.width, call.power == A(0), call.has_decay, call.inverse_decay);
      } else {
        group.find_terms(lanes);
        find_log_shares(lanes, n * lanes.width, call.power, call.inverse_decay);
      }
      group.add_to(to, start, lanes);
    });
    done += n;
  }
}

// Adds to a chunk's pixels the shares of the false edges around.
template <typename T, typename A>
void gather_false_edges(const Call<T, A>& call, const Upstream<A>& upstream, const Chunk& chunk, RowWindows<A>& windows,
                        Gathered<A>& to) {
  const Geometry& g = call.g;
  const int32_t* count = call.false_edges.count + chunk.image * g.depth * g.height;
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    int64_t around = 0;
    for_each_row(g, row, g.radius, [&](int64_t first) { around += count[quotient(first, g.width)]; });
    if (around == 0) continue;
    const int64_t first = (row - chunk.first_row) * g.width;
    to.approach(first, first + g.width - 1);
    windows.add_shares(
        call.false_edges, chunk.image, row, [&](int64_t i) { return upstream.at(3, i, call.pixel_weight_of(i)); },
        to.same.data() + first);
  }
}

// Gathers the shares of a chunk's pixels.
template <typename T, typename A>
void gather_chunk(const Call<T, A>& call, const Upstream<A>& upstream, const Chunks& chunks, const Chunk& chunk,
                  Lanes<A>& lanes, RowWindows<A>& windows, Gathered<A>& to) {
  const Geometry& g = call.g;
  to.start(g, chunk.last_row - chunk.first_row, lanes.width);
  const int64_t reach_z = std::min(g.radius[0], g.depth - 1), reach_y = std::min(g.radius[1], g.height - 1);
  int64_t row = 0;
  for (int64_t dz = -reach_z; dz <= reach_z; ++dz) {  // the rows that see the chunk's, slice by slice
    row = std::max(row, chunk.first_row + dz * g.height - reach_y);
    const int64_t last = std::min(chunk.last_row + dz * g.height + reach_y, chunks.rows);
    while (row < last) {
      const int64_t next = std::min((row / chunks.rows_per_chunk + 1) * chunks.rows_per_chunk, last);
      gather_rows(call, upstream, chunk, row, next, lanes, to);
      row = next;
    }
  }
  if (call.false_edges.exist()) gather_false_edges(call, upstream, chunk, windows, to);
  std::stable_sort(to.more.begin(), to.more.end(), [](const auto& a, const auto& b) { return a.pixel < b.pixel; });
}

// What the backward pass of a thread works in.
template <typename T, typename A>
struct Workspace {
  // An addition to one class of one pixel of a tile, after the rest; `likely` ones concern all other classes too.
  struct Correction {
    int64_t j, k;
    A value;
    bool likely;
  };
  std::vector<A> buffer;
  std::vector<A> sums;  // of a box
  std::vector<Correction> corrections;
  Gathered<A> gathered;
  Lanes<A> lanes;
  RowWindows<A> windows;

  explicit Workspace(const Geometry& g) : lanes(g.radius[2], g.width), windows(g) {}
};

// The gradient of a tile of n pixels, to[c · to_ld + j]; pixel(j) is the number of the j-th one. for_each_more(body)
// calls body(j, k, share) for what edge pixels of further classes give.
template <typename T, typename A, typename F, typename M>
void gradient_tile(const Call<T, A>& call, const Upstream<A>& upstream, const A* tile, int64_t ld, int64_t n,
                   const int16_t* label, const A* m, const A* r, const F& pixel, const TileShares<A>& shares,
                   const M& for_each_more, A* to, int64_t to_ld, Workspace<T, A>& space) {
  const Geometry& g = call.g;
  const A smoothing = call.label_smoothing, uniform = smoothing / static_cast<A>(g.classes);
  const A total_weight = call.total_weight();
  A alpha[kTile], at_y[kTile];  // the gradient is alpha · p(c) - at_y · [c = y], but for the corrections
  int32_t labels[kTile];
  tile_factors(label, n, (A(1) - smoothing + uniform * total_weight) * upstream.sums[0],
               (A(1) - smoothing) * upstream.sums[0], labels, alpha, at_y);
  if (call.weight || call.pixel_weight || upstream.map[0]) {
    for (int64_t j = 0; j < n; ++j) {
      if (labels[j] < 0) continue;
      const A ce = upstream.at(0, pixel(j), call.pixel_weight_of(pixel(j)));
      at_y[j] = ce * (A(1) - smoothing) * call.weight_of(labels[j]);
      alpha[j] = at_y[j] + ce * uniform * total_weight;
    }
  }
  auto& corrections = space.corrections;
  corrections.clear();
  if (shares.same) {
    for (int64_t j = 0; j < n; ++j) {  // ∂S = π (p(c) - δ_cy)
      alpha[j] += shares.same[j];
      at_y[j] += shares.same[j];
    }
    const auto correct = [&](int64_t j, int64_t k, A value) {
      const bool likely = is_likely(tile[k * ld + j], m[j], r[j]);
      if (!likely) alpha[j] -= value;
      corrections.push_back({j, k, value, likely});
    };
    const int32_t* k = shares.k;
    for (int64_t j = 0; j < n; ++j) {
      if (j + 4 <= n && (k[j] & k[j + 1] & k[j + 2] & k[j + 3]) < 0) {
        j += 3;  // all four are -1
      } else if (k[j] >= 0) {
        correct(j, k[j], shares.other[j]);
      }
    }
    for_each_more(correct);
  }

  tile_softmax(tile, ld, g.classes, n, labels, m, r, alpha, at_y, to, to_ld);
  for (const auto& c : corrections) {
    to[c.k * to_ld + c.j] += c.value;
    if (!c.likely) continue;
    // The others' shares, from logits that may lie so far below the top that r is 0.
    const bool exact = is_exact(r[c.j]);
    const Logits<A, A> x = {tile, ld, 1, false};
    const A top = exact ? A(0) : log_rest(x, c.j, g.classes, m[c.j], r[c.j]);
    const A value = exact ? c.value / r[c.j] : c.value;
    for (int64_t other = 0; other < g.classes; ++other) {
      if (other != c.k) to[other * to_ld + c.j] -= value * exp_negative((tile[other * ld + c.j] - m[c.j]) - top);
    }
  }
  if (smoothing != A(0)) {
    for (int64_t j = 0; j < n; ++j) {
      if (label[j] < 0) continue;
      const A ce = upstream.at(0, pixel(j), call.pixel_weight_of(pixel(j)));
      for (int64_t c = 0; c < g.classes; ++c) to[c * to_ld + j] -= ce * uniform * call.weight_of(c);
    }
  }
}

// The backward pass of a chunk.
template <typename T, typename A>
void backward_chunk(const Call<T, A>& call, const Upstream<A>& upstream, const Chunks& chunks, const Chunk& chunk,
                    T* grad, const Steps& grad_steps, Workspace<T, A>& space) {
  const Geometry& g = call.g;
  const Logits<T, A> x = call.image(chunk.image);
  const int64_t start = chunk.first_row * g.width, last = chunk.last_row * g.width, step = call.tile();
  const int64_t base = chunk.image * g.pixels;
  T* out = grad + chunk.image * grad_steps.image;
  const bool in_place = fits_in_place(x, g.classes, step) && grad_steps.pixel == 1;
  const int64_t ld = in_place ? x.class_step : step, to_ld = in_place ? grad_steps.channel : step;
  space.buffer.resize(in_place ? 0 : 2 * g.classes * step);
  Gathered<A>& gathered = space.gathered;
  if (call.row_first) gather_chunk(call, upstream, chunks, chunk, space.lanes, space.windows, gathered);
  auto more = gathered.more.begin();

  for (int64_t p = start; p < last; p += step) {
    const int64_t n = std::min(step, last - p);
    if (!in_place) read_tile(x, g.classes, p, n, space.buffer.data(), step);
    const A* tile = in_place ? reinterpret_cast<const A*>(x.data) + p : space.buffer.data();
    A* to = in_place ? reinterpret_cast<A*>(out) + p : space.buffer.data() + g.classes * step;
    A own_m[kTile], own_r[kTile];
    const A *m = call.m ? call.m + base + p : own_m, *r = call.m ? call.r + base + p : own_r;
    if (!call.m) tile_statistics_of_two(tile, tile + ld, n, own_m, own_r);
    TileShares<A> shares;
    if (call.row_first && gathered.reaches(p - start, p - start + n - 1)) shares = gathered.from(p - start);
    gradient_tile(
        call, upstream, tile, ld, n, call.label + base + p, m, r, [&](int64_t j) { return base + p + j; }, shares,
        [&](const auto& correct) {
          for (; more != gathered.more.end() && more->pixel < p - start + n; ++more) {
            correct(more->pixel - (p - start), more->k, more->sum);
          }
        },
        to, to_ld, space);
    if (in_place) continue;
    // Of a binary pixel, the second class has the logit.
    write_tile(to + (g.logits == 1 ? step : 0), step, g.logits, n, out + p * grad_steps.pixel, grad_steps.channel,
               grad_steps.pixel);
  }
}

// A box of low-resolution rows of an image: what the backward pass of logits to be upsampled works on. The rows at the
// labels' resolution that two boxes are mixed into are gone through for each of them.
struct Box {
  int64_t image, first_slice, last_slice, first_row, last_row;
};

struct Boxes {
  int64_t depth, height, slices, rows;  // of the image; of a box
  int64_t per_slice, per_image, count;

  Boxes(int64_t batch, int64_t depth, int64_t height) : depth(depth), height(height) {
    // Large, so that few rows are gone through twice, and yet enough of them for all threads.
    const int64_t most = std::clamp<int64_t>(batch * depth * height / 32, 2, 16);
    slices = std::min<int64_t>(depth, 4);
    rows = std::min(height, most);
    per_slice = (height + rows - 1) / rows;
    per_image = (depth + slices - 1) / slices * per_slice;
    count = batch * per_image;
  }
  Box at(int64_t index) const {
    const int64_t slice = index % per_image / per_slice * slices, row = index % per_slice * rows;
    return {index / per_image, slice, std::min(slice + slices, depth), row, std::min(row + rows, height)};
  }
};

// The places along an axis that are mixed from some in [first, last): from `begin` to `end`.
template <typename A>
void find_support(const std::vector<Taps<A>>& taps, int64_t first, int64_t last, int64_t& begin, int64_t& end) {
  begin =
      std::partition_point(taps.begin(), taps.end(), [&](const Taps<A>& t) { return t.second < first; }) - taps.begin();
  end = std::partition_point(taps.begin(), taps.end(), [&](const Taps<A>& t) { return t.first < last; }) - taps.begin();
}

// The backward pass of a box.
template <typename T, typename A>
void backward_box(const Call<T, A>& call, const Upstream<A>& upstream, const Chunks& chunks, const Box& box, T* grad,
                  const Steps& grad_steps, Workspace<T, A>& space) {
  const Geometry& g = call.g;
  const Upsample<A>& up = *call.up;
  const Logits<T, A> x = call.image(box.image);
  const int64_t base = box.image * g.pixels, step = call.tile(), rows = box.last_row - box.first_row;
  const int64_t stride = up.cells + 2;  // of a class, in a row of sums
  std::vector<A>& sums = space.sums;
  sums.assign((box.last_slice - box.first_slice) * rows * g.logits * stride, A(0));
  const auto sums_of = [&](int64_t slice, int64_t row) {
    return sums.data() + ((slice - box.first_slice) * rows + row - box.first_row) * g.logits * stride;
  };
  space.buffer.resize(2 * g.classes * step);
  A *tile = space.buffer.data(), *to = tile + g.classes * step;
  Gathered<A>& gathered = space.gathered;

  int64_t first_slice, last_slice, first_row, last_row;
  find_support(up.slice, box.first_slice, box.last_slice, first_slice, last_slice);
  find_support(up.row, box.first_row, box.last_row, first_row, last_row);
  for (int64_t slice = first_slice; slice < last_slice; ++slice) {
    for (int64_t part = first_row; part < last_row; part += chunks.rows_per_chunk) {
      const Chunk chunk = {box.image, slice * g.height + part,
                           slice * g.height + std::min(part + chunks.rows_per_chunk, last_row)};
      if (call.row_first) gather_chunk(call, upstream, chunks, chunk, space.lanes, space.windows, gathered);
      for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
        const RowTaps<A> taps = up.row_taps(row);
        A* wanted[4];
        for (int k = 0; k < 4; ++k) {
          const int64_t of_slice = taps.row[k] / up.along_y.low, of_row = taps.row[k] % up.along_y.low;
          const bool inside = of_slice >= box.first_slice && of_slice < box.last_slice && of_row >= box.first_row &&
                              of_row < box.last_row && taps.weight_of(k) != A(0);
          wanted[k] = inside ? sums_of(of_slice, of_row) : nullptr;
        }
        const int64_t start = base + row * g.width, in_chunk = (row - chunk.first_row) * g.width;
        const bool near = call.row_first && gathered.reaches(in_chunk, in_chunk + g.width - 1);
        for_each_block(up, step, [&](const Block& block) {
          const int64_t n = block.pixels();
          int32_t place[kTile], k[kTile];
          int16_t label[kTile];
          A m[kTile], r[kTile], same[kTile], other[kTile];
          up.list_pixels(block, place);
          for (int64_t j = 0; j < n; ++j) {
            const int64_t at = std::max(place[j], 0);
            label[j] = place[j] < 0 ? kIgnored : call.label[start + at];
            m[j] = call.m[start + at];
            r[j] = call.r[start + at];
          }
          TileShares<A> shares;
          if (near) {
            const TileShares<A> of = gathered.from(in_chunk);
            for (int64_t j = 0; j < n; ++j) {
              same[j] = place[j] < 0 ? A(0) : of.same[place[j]];
              other[j] = place[j] < 0 ? A(0) : of.other[place[j]];
              k[j] = place[j] < 0 ? -1 : of.k[place[j]];
            }
            shares = {same, other, k};
          }
          interpolate_tile(up, taps, x, g.logits, block, tile, step);
          gradient_tile(
              call, upstream, tile, step, n, label, m, r, [&](int64_t j) { return start + place[j]; }, shares,
              [&](const auto& correct) {
                if (gathered.more.empty()) return;
                for (int64_t j = 0; j < n; ++j) {
                  if (place[j] >= 0) {
                    gathered.for_each_more(in_chunk + place[j], [&](int32_t of, A sum) { correct(j, of, sum); });
                  }
                }
              },
              to, step, space);
          share_tile(up, taps, g.logits, block, to + (g.logits == 1 ? step : 0), step, wanted);
        });
      }
    }
  }

  T* out = grad + box.image * grad_steps.image;
  for (int64_t slice = box.first_slice; slice < box.last_slice; ++slice) {
    for (int64_t row = box.first_row; row < box.last_row; ++row) {
      A* of = sums_of(slice, row);
      for (int64_t c = 0; c < g.logits; ++c) of[c * stride + 1] += of[c * stride];  // the first cell has none before it
      write_tile(of + 1, stride, g.logits, up.cells, out + (slice * up.along_y.low + row) * up.cells * grad_steps.pixel,
                 grad_steps.channel, grad_steps.pixel);
    }
  }
}

// ----------------------------------------------------------------------------------------------------------- operators

// What upsamples the logits to the labels' resolution; nothing where they have it.
template <typename A>
std::optional<Upsample<A>> upsample_for(const Geometry& g, const Tensor& logits) {
  if (!is_upsampled(g, logits) || g.batch * g.pixels == 0) return std::nullopt;
  const Geometry low = geometry_of(logits, {0, 0, 0});
  return Upsample<A>({low.depth, g.depth}, {low.height, g.height}, {low.width, g.width});
}

template <typename T, typename A>
Call<T, A> make_call(const Geometry& g, const std::optional<Upsample<A>>& up, const Tensor& logits,
                     const std::optional<Tensor>& weight, const std::optional<Tensor>& pixel_weight,
                     const std::optional<Tensor>& edge_class_weight, double label_smoothing, double power, double decay,
                     const Tensor& label, const Tensor& flags, const Tensor& stats, const Tensor& edge_list,
                     const Tensor& sides, const Tensor& field) {
  const int64_t all = g.batch * g.pixels, rows = g.batch * g.depth * g.height;
  A* m = stats.numel() > 0 ? static_cast<A*>(stats.mutable_data_ptr()) : nullptr;
  const bool edges = edge_list.numel() > 0, has_decay = edges && decay > 0;
  int32_t* edge_pixel = edges ? static_cast<int32_t*>(edge_list.mutable_data_ptr()) : nullptr;
  A* side = static_cast<A*>(sides.mutable_data_ptr());
  const int64_t numbers = 2 * Call<T, A>::numbers(power, decay);
  FalseEdges<A> false_edges = {static_cast<A>(power), nullptr, nullptr, nullptr, nullptr};
  if (edges && sides.size(0) > numbers) {  // they follow the sides
    false_edges.share = side + numbers * all;
    if (sides.size(0) > numbers + 1) {
      false_edges.least = false_edges.share + all;
      false_edges.term = false_edges.least + all;
    }
    false_edges.count = edge_pixel + all + 2 * rows;
  }
  return {g,
          static_cast<const T*>(logits.const_data_ptr()),
          Steps(logits),
          up ? &*up : nullptr,
          data_or_null<A>(weight),
          data_or_null<A>(pixel_weight),
          data_or_null<A>(edge_class_weight),
          static_cast<A>(label_smoothing),
          static_cast<A>(power),
          has_decay ? static_cast<A>(1 / decay) : A(0),
          has_decay,
          static_cast<int16_t*>(label.mutable_data_ptr()),
          nullptr,
          m,
          m ? m + all : nullptr,
          flags.numel() > 0 ? static_cast<uint8_t*>(flags.mutable_data_ptr()) : nullptr,
          false_edges,
          edge_pixel,
          side,
          edges ? edge_pixel + all : nullptr,
          edges ? edge_pixel + all + rows : nullptr,
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

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

template <typename T, typename A>
Forward forward(const Tensor& logits, const Tensor& target, const std::optional<Tensor>& weight,
                const std::optional<Tensor>& pixel_weight, const std::optional<Tensor>& edge_class_weight,
                const std::optional<Tensor>& distance, int64_t ignore_index, double label_smoothing,
                const std::vector<int64_t>& radius, double power, double decay, const std::vector<double>& spacing,
                bool edges, bool false_edges, bool maps, bool check) {
  const Geometry g = geometry_of(logits, target, radius);
  const Chunks chunks(g);
  const std::optional<Upsample<A>> up = upsample_for<A>(g, logits);
  const int64_t all = g.batch * g.pixels;
  const auto empty = [&](int64_t count, ScalarType type) {
    return torch::stable::new_empty(logits, {count, all}, type);
  };
  constexpr ScalarType type = kScalarType<A>;
  Tensor label = torch::stable::new_empty(logits, sizes_of(target), ScalarType::Short),
         stats = empty(g.classes > 2 || is_upsampled(g, logits) ? 2 : 0, type),
         sides = empty(
             edges ? 2 * Call<T, A>::numbers(power, decay) + (false_edges ? FalseEdges<A>::numbers(power) : 0) : 0,
             type);
  Tensor edge_list = torch::stable::new_empty(
      logits, {edges ? all + (false_edges ? 3 : 2) * g.batch * g.depth * g.height : 0}, ScalarType::Int);
  const bool searches = edges && decay > 0 && !distance;
  Tensor field = empty(searches, type), flags = empty(edges && (maps || searches), ScalarType::Byte);
  Tensor ce = empty(maps, type), same = empty(maps && edges, type), other = empty(maps && edges, type),
         false_edge = empty(maps && false_edges, type);
  const auto map_of = [&](const Tensor& t) { return t.numel() ? static_cast<A*>(t.mutable_data_ptr()) : nullptr; };
  Call<T, A> call = make_call<T, A>(g, up, logits, weight, pixel_weight, edge_class_weight, label_smoothing, power,
                                    decay, label, flags, stats, edge_list, sides, distance ? *distance : field);
  // Backward does without the prediction, and with power 0 without the terms.
  Tensor predicted = empty(false_edges, ScalarType::Short), term = empty(false_edges && power == 0, type);
  if (edges && false_edges) call.predicted = static_cast<int16_t*>(predicted.mutable_data_ptr());
  if (term.numel() > 0) call.false_edges.term = static_cast<A*>(term.mutable_data_ptr());

  std::vector<Sums> parts(chunks.count);
  const auto find_terms = [&](int64_t i, Lanes<A>& lanes) {
    edge_terms_chunk(call, chunks.at(i), map_of(same), map_of(other), lanes, parts[i]);
  };
  std::vector<uint8_t> is_done(chunks.count);
  const auto find_edges = [&](int64_t i, Lanes<A>& lanes) {
    edge_pixels_chunk(call, chunks.at(i), map_of(false_edge), parts[i]);
    if (!searches) find_terms(i, lanes);
    is_done[i] = 1;
  };
  const auto first_pass = [&](const auto* y) {
    using L = std::decay_t<decltype(*y)>;
    on_each_thread(chunks.count, std::max(chunks.count / 16, 8 * chunks.reach), [&](Tasks& tasks) {
      Lanes<A> lanes(g.radius[2], g.width);
      for (int64_t begin, end; tasks.take(begin, end);) {
        for (int64_t i = begin; i < end; ++i) {
          const auto cross_entropy = up ? upsampled_cross_entropy_chunk<T, A, L> : cross_entropy_chunk<T, A, L>;
          cross_entropy(call, y, ignore_index, chunks.at(i), map_of(ce), parts[i]);
          // The edges of a chunk follow, as soon as all that its windows see is there, and still in cache.
          if (edges && i - 2 * chunks.reach >= begin) find_edges(i - chunks.reach, lanes);
        }
      }
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
  if (edges) {  // those at the ends of the ranges are left
    on_each_thread(chunks.count, 1, [&](Tasks& tasks) {
      Lanes<A> lanes(g.radius[2], g.width);
      for (int64_t i, end; tasks.take(i, end);) {
        if (!is_done[i]) find_edges(i, lanes);
      }
    });
  }
  if (searches) {
    const std::vector<Offset> offsets = search_offsets(g, spacing, logits.dim() - 2);
    for_each_chunk(chunks, [&](int64_t, const Chunk& chunk) { distance_chunk(call, chunk, offsets, maps); });
    on_each_thread(chunks.count, 1, [&](Tasks& tasks) {
      Lanes<A> lanes(g.radius[2], g.width);
      for (int64_t i, end; tasks.take(i, end);) find_terms(i, lanes);
    });
  }

  constexpr int kSums = 9;
  Tensor sums = torch::stable::new_empty(logits, {kSums}, ScalarType::Double);
  double* out = static_cast<double*>(sums.mutable_data_ptr());
  std::fill_n(out, kSums, 0.0);
  for (const Sums& part : parts) {
    const double values[kSums] = {part.cross_entropy, part.same,  part.other, part.false_edge, part.weight,
                                  part.edges_weight,  part.valid, part.edges, part.wrong};
    for (int k = 0; k < kSums; ++k) out[k] += values[k];
  }
  return {sums, ce, same, other, false_edge, label, flags, stats, edge_list, sides, field};
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
                const std::optional<Tensor>& grad_other, const std::optional<Tensor>& grad_false, const Tensor& logits,
                const std::optional<Tensor>& weight, const std::optional<Tensor>& pixel_weight,
                const std::optional<Tensor>& edge_class_weight, const Tensor& label, const Tensor& flags,
                const Tensor& stats, const Tensor& edge_list, const Tensor& sides, const Tensor& field,
                double label_smoothing, const std::vector<int64_t>& radius, double power, double decay) {
  const Geometry g = geometry_of(logits, label, radius);
  const Chunks chunks(g);
  const std::optional<Upsample<A>> up = upsample_for<A>(g, logits);
  Tensor grad = torch::stable::empty_like(logits);
  want_large_pages(grad.mutable_data_ptr(), grad.numel() * static_cast<int64_t>(sizeof(T)));
  const Call<T, A> call = make_call<T, A>(g, up, logits, weight, pixel_weight, edge_class_weight, label_smoothing,
                                          power, decay, label, flags, stats, edge_list, sides, field);
  const double* sums = static_cast<const double*>(grad_sums.const_data_ptr());
  Upstream<A> upstream;
  const std::optional<Tensor>* const of_maps[4] = {&grad_ce, &grad_same, &grad_other, &grad_false};
  for (int k = 0; k < 4; ++k) {
    upstream.sums[k] = static_cast<A>(sums[k]);
    upstream.map[k] = data_or_null<A>(*of_maps[k]);
  }
  const Steps steps(grad);
  T* out = static_cast<T*>(grad.mutable_data_ptr());
  if (up) {
    const Boxes boxes(g.batch, up->along_z.low, up->along_y.low);
    on_each_thread(boxes.count, 1, [&](Tasks& tasks) {
      Workspace<T, A> space(g);
      for (int64_t i, end; tasks.take(i, end);) backward_box(call, upstream, chunks, boxes.at(i), out, steps, space);
    });
    return grad;
  }
  on_each_thread(chunks.count, 1, [&](Tasks& tasks) {
    Workspace<T, A> space(g);
    for (int64_t i, end; tasks.take(i, end);) backward_chunk(call, upstream, chunks, chunks.at(i), out, steps, space);
  });
  return grad;
}

Forward edge_loss(const Tensor& logits, const Tensor& target, const std::optional<Tensor>& weight,
                  const std::optional<Tensor>& pixel_weight, const std::optional<Tensor>& edge_class_weight,
                  const std::optional<Tensor>& distance, int64_t ignore_index, double label_smoothing,
                  std::vector<int64_t> radius, double power, double decay, std::vector<double> spacing, bool edges,
                  bool false_edges, bool maps, int64_t validate) {
  return by_type(logits, [&](auto t, auto a) {
    return forward<decltype(t), decltype(a)>(logits, target, weight, pixel_weight, edge_class_weight, distance,
                                             ignore_index, label_smoothing, radius, power, decay, spacing, edges,
                                             false_edges, maps, validate != 0);
  });
}

Tensor edge_loss_backward(const Tensor& grad_sums, const std::optional<Tensor>& grad_ce,
                          const std::optional<Tensor>& grad_same, const std::optional<Tensor>& grad_other,
                          const std::optional<Tensor>& grad_false, const Tensor& logits,
                          const std::optional<Tensor>& weight, const std::optional<Tensor>& pixel_weight,
                          const std::optional<Tensor>& edge_class_weight, const Tensor& label, const Tensor& flags,
                          const Tensor& stats, const Tensor& edge_list, const Tensor& sides, const Tensor& field,
                          double label_smoothing, std::vector<int64_t> radius, double power, double decay) {
  return by_type(logits, [&](auto t, auto a) {
    return backward<decltype(t), decltype(a)>(grad_sums, grad_ce, grad_same, grad_other, grad_false, logits, weight,
                                              pixel_weight, edge_class_weight, label, flags, stats, edge_list, sides,
                                              field, label_smoothing, radius, power, decay);
  });
}

}  // namespace
}  // namespace edgeloss

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CPU, m) {
  m.impl("edge_loss", TORCH_BOX(&edgeloss::edge_loss));
  m.impl("edge_loss_backward", TORCH_BOX(&edgeloss::edge_loss_backward));
}

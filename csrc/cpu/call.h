// The whole loss on the CPU: what forward and backward share.
//
// Forward (forward.cpp), in passes over chunks of rows: (1) labels, the two numbers of math.h for each
// pixel, and the cross-entropy, by tiles of pixels × classes that stay in cache (tiles.h); (2) the edge pixels, from
// the labels, and the false ones, from the prediction, with their term (false_edges.h); (3) with decay, the distances
// of what edge pixels see; (4) the edge terms, on edge pixels only (lanes.h). Backward (backward.cpp) takes
// a chunk at a time: the edge pixels around share their gradient out to its pixels, and the softmax of its tiles is
// formed anew. Of logits of lower resolution, tiles are interpolated (interpolate.h), and backward takes a box of their
// rows at a time, with all pixels that are mixed from it. What a chunk is does not depend on the number of threads, and
// sums are added up in the chunks' order, so every run gives the same bits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "../geometry.h"
#include "../math.h"
#include "../tensors.h"
#include "false_edges.h"
#include "interpolate.h"
#include "lanes.h"
#include "tiles.h"

namespace edgeloss {
namespace {

// ----------------------------------------------------------------------------------------------------------- arguments

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

// --------------------------------------------------------------------------------------------------------- edge pixels

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

}  // namespace
}  // namespace edgeloss

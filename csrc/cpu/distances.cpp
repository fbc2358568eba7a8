// The search of distances.h.
#include "distances.h"

#include <algorithm>
#include <cmath>

#include "vectorize.h"

namespace edgeloss {
namespace {

constexpr int64_t kAtOnce = 32;     // pixels next to each other
constexpr int32_t kNone = 1 << 30;  // farther than any pixel of a row

// Whether all labels of a box of an image, [first, last) along each axis, are the same.
bool is_uniform(const Geometry& g, const int16_t* label, const int64_t* first, const int64_t* last) {
  const int64_t n = last[2] - first[2];
  const int16_t* top = label + (first[0] * g.height + first[1]) * g.width + first[2];
  const int64_t slices = last[0] - first[0], rows = last[1] - first[1], width = g.width, slice = g.height * g.width;
  return vectorized([=]() EDGELOSS_LOOP {
    const int16_t one = *top;
    for (int64_t z = 0; z < slices; ++z) {
      for (int64_t y = 0; y < rows; ++y) {
        const int16_t* row = top + z * slice + y * width;
        int16_t differs = 0;
        for (int64_t x = 0; x < n; ++x) differs |= static_cast<int16_t>(row[x] ^ one);
        if (differs) return false;
      }
    }
    return true;
  });
}

}  // namespace

Distances::Distances(const Geometry& g, const Options& options) : g_(g), search_(g, options) {
  for (Side& side : sides_) {
    side.label.resize(g.batch * g.pixels);
    side.nearest.resize(g.batch * g.pixels);
    side.next.resize(g.batch * g.pixels);
  }
}

void Distances::prepare(const Slab& slab, const int16_t* label) {
  for_each_row(slab, [&](int64_t z, int64_t y) {
    const int64_t row = z * g_.height + y;
    const int16_t* own = label + row * g_.width;
    for (int s = 0; s < 2; ++s) {
      int16_t last = -1;
      int32_t nearest = kNone, next = kNone;
      for (int64_t j = 0; j < g_.width; ++j) {
        const int64_t x = s ? g_.width - 1 - j : j, i = slab.image * g_.pixels + row * g_.width + x;
        nearest += nearest < kNone;
        next += next < kNone;
        if (own[x] >= 0) {
          if (own[x] != last) next = nearest;
          last = own[x];
          nearest = 0;
        }
        sides_[s].label[i] = last;
        sides_[s].nearest[i] = nearest;
        sides_[s].next[i] = next;
      }
    }
  });
}

template <typename A>
void Distances::find(const Slab& slab, const int16_t* label, A* distance) const {
  for_each_row(slab, [&](int64_t z, int64_t y) { find_row(slab.image, z, y, label, distance); });
}

template <typename A>
void Distances::find_row(int64_t image, int64_t z, int64_t y, const int16_t* label, A* distance) const {
  const int64_t width = g_.width, row = z * g_.height + y;
  const double along_row = search_.spacing[2];
  for (int64_t x = 0; x < width; x += kAtOnce) {
    const int64_t n = std::min(kAtOnce, width - x);
    int64_t first[3] = {z, y, x}, last[3] = {z + 1, y + 1, x + n};
    const int64_t size[3] = {g_.depth, g_.height, width};
    for (int a = 0; a < 3; ++a) {  // what decides whether an edge pixel sees one of them
      first[a] = std::max<int64_t>(0, first[a] - 2 * g_.radius[a]);
      last[a] = std::min(size[a], last[a] + 2 * g_.radius[a]);
    }
    if (is_uniform(g_, label, first, last)) continue;
    const int16_t* own = label + row * width + x;
    double nearest[kAtOnce], farthest = search_.limit;
    for (int64_t j = 0; j < n; ++j) nearest[j] = own[j] >= 0 ? search_.limit : 0;
    search_.along(0, z, g_.depth, 0, farthest, [&](int64_t v, double across) {
      search_.along(1, y, g_.height, across, farthest, [&](int64_t u, double square) {
        const int64_t first = image * g_.pixels + (v * g_.height + u) * width + x;
        for (const Side& side : sides_) {
          vectorized<float>([=, to = &nearest[0], last = side.label.data() + first, one = side.nearest.data() + first,
                             other = side.next.data() + first]() EDGELOSS_LOOP {
            EDGELOSS_INDEPENDENT
            for (int64_t j = 0; j < n; ++j) {
              const int32_t places = last[j] == own[j] ? other[j] : one[j];
              const double length = along_row * places, found = places < kNone ? square + length * length : INFINITY;
              to[j] = found < to[j] ? found : to[j];
            }
          });
        }
        farthest = *std::max_element(nearest, nearest + n);
      });
    });
    for (int64_t j = 0; j < n; ++j) {
      const bool is_found = own[j] >= 0 && nearest[j] < search_.limit;
      distance[row * width + x + j] = is_found ? static_cast<A>(std::sqrt(nearest[j]) * search_.unit) : A(INFINITY);
    }
  }
}

template void Distances::find(const Slab&, const int16_t*, float*) const;
template void Distances::find(const Slab&, const int16_t*, double*) const;

}  // namespace edgeloss

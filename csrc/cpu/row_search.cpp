// The search of row_search.h.
#include "row_search.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "vectorize.h"

namespace edgeloss {
namespace {

constexpr int64_t kAtOnce = 32;     // pixels next to each other
constexpr int32_t kNone = 1 << 30;  // farther than any pixel of a row

}  // namespace

RowSearch::RowSearch(const Geometry& g, const Options& options) : g_(g), search_(g, options) {
  for (Side& side : sides_) {
    side.label.resize(g.batch * g.pixels);
    side.nearest.resize(g.batch * g.pixels);
    side.next.resize(g.batch * g.pixels);
  }
}

void RowSearch::prepare(const Chunk& chunk, const int16_t* label) {
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const int16_t* own = label + row * g_.width;
    for (int s = 0; s < 2; ++s) {
      int16_t last = -1;
      int32_t nearest = kNone, next = kNone;
      for (int64_t j = 0; j < g_.width; ++j) {
        const int64_t x = s ? g_.width - 1 - j : j, i = chunk.image * g_.pixels + row * g_.width + x;
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
  }
}

template <typename A>
void RowSearch::find(int64_t image, int64_t row, const int16_t* label, const uint8_t* seen, A* distance) const {
  const int64_t z = quotient(row, g_.height), y = row - z * g_.height, width = g_.width;
  const double along_row = search_.spacing[2];
  for (int64_t x = 0; x < width; x += kAtOnce) {
    const int64_t n = std::min(kAtOnce, width - x);
    if (!std::memchr(seen + x, 1, n)) continue;
    const int16_t* own = label + row * width + x;
    double nearest[kAtOnce], farthest = search_.limit;
    for (int64_t j = 0; j < n; ++j) nearest[j] = seen[x + j] && own[j] >= 0 ? search_.limit : 0;
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
      distance[x + j] = is_found ? static_cast<A>(std::sqrt(nearest[j]) * search_.unit) : A(INFINITY);
    }
  }
}

template void RowSearch::find(int64_t, int64_t, const int16_t*, const uint8_t*, float*) const;
template void RowSearch::find(int64_t, int64_t, const int16_t*, const uint8_t*, double*) const;

}  // namespace edgeloss

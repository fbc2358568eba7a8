// The loops of pairs.h.
#include "pairs.h"

#include <algorithm>
#include <cstring>

#include "edge_mask.h"
#include "vectorize.h"

namespace edgeloss {
namespace {

// The logits of pixels next to each other. first: null of one logit, where those of the first class are 0.
template <typename A>
struct Rows {
  const A *first, *second;
};

// Reads logits in place where they are stored as A next to each other.
template <typename A>
class Reading {
 public:
  explicit Reading(const Stored<A>& x) : x_(x), in_place_(x.type == kScalarType<A> && x.pixel_step == 1) {}

  bool in_place() const { return in_place_; }
  // n ≤ kTile, unless in place.
  Rows<A> at(int64_t p, int64_t n) {
    if (!in_place_) read_tile(x_, 2, p, n, tile_, kTile);
    const A* second = in_place_ ? static_cast<const A*>(x_.data) + p + (x_.binary ? 0 : x_.class_step) : tile_ + kTile;
    return {x_.binary ? nullptr : in_place_ ? second - x_.class_step : tile_, second};
  }

 private:
  const Stored<A> x_;
  const bool in_place_;
  A tile_[2 * kTile];
};

constexpr int64_t kParts = 16;

// Σ -log p(y), in parts whose order is fixed, and the number of valid pixels.
struct Sum {
  double nll[kParts] = {};
  int64_t valid = 0;

  // Adds those of n pixels.
  template <typename A>
  EDGELOSS_INLINE void add(const A* of_pixel, const int32_t* y, int64_t n) {
    double parts[kParts];  // a copy: the compiler has to assume that a store changes any of the members
    std::memcpy(parts, nll, sizeof(parts));
    int64_t j = 0;
    for (; j + kParts <= n; j += kParts) {
      for (int64_t part = 0; part < kParts; ++part) parts[part] += static_cast<double>(of_pixel[j + part]);
    }
    for (; j < n; ++j) parts[0] += static_cast<double>(of_pixel[j]);
    std::memcpy(nll, parts, sizeof(parts));
    int32_t count = 0;
    EDGELOSS_INDEPENDENT
    for (j = 0; j < n; ++j) count += y[j] >= 0;
    valid += count;
  }
};

// Pixels in a loop. Then some of those to come are fetched: not more, so that the arithmetic goes on meanwhile.
constexpr int64_t kStep = 64, kAhead = 256;

template <typename T>
EDGELOSS_INLINE void fetch_step(const T* from) {
  for (int64_t j = 0; j < kStep; j += 64 / sizeof(T)) __builtin_prefetch(from + kAhead + j);
}

// x(y) - x(the other class).
template <bool HasFirst, typename A>
EDGELOSS_INLINE A margin(const A* first, const A* second, int64_t j, int32_t y) {
  const A difference = HasFirst ? second[j] - first[j] : second[j], negative = -difference;
  return y == 0 ? negative : difference;
}

// Calls body(whether there are logits of the first class, a constant).
template <typename A, typename F>
EDGELOSS_INLINE auto by_rows(const Rows<A>& x, const F& body) {
  return x.first ? body(std::true_type()) : body(std::false_type());
}

// Labels and -log p(y) of n pixels; returns how many labels are out of range.
template <typename A>
int64_t pair_nll(const Rows<A>& x, const Target& target, int64_t first, int64_t n, int16_t* label, A* nll, Sum& sum) {
  return target.labels.by_type([&](const auto* labels) {
    return vectorized<A>([=, from = labels + first, sum = &sum, ignore_index = target.ignore_index]() EDGELOSS_LOOP {
      return by_rows(x, [=](auto has_first) EDGELOSS_LOOP {
        int64_t wrong = 0;
        for (int64_t at = 0; at < n; at += kStep) {
          A* out = nll + at;
          const int64_t count = std::min(kStep, n - at);
          int32_t y[kStep];
          fetch_step(from + at);
          wrong += classes_of(from + at, count, ignore_index, 2, y);
          narrow_labels(y, count, label + at);
          EDGELOSS_INDEPENDENT
          for (int64_t j = 0; j < count; ++j) {
            const A value = nll_of_pair(margin<decltype(has_first)::value>(x.first, x.second, at + j, y[j]));
            out[j] = y[j] < 0 ? A(0) : value;
          }
          sum->add(out, y, count);
        }
        return wrong;
      });
    });
  });
}

// The gradient of n ≤ kTile pixels, where `everywhere` arrives at the cross-entropy. same may be null, and `first` with
// x.first.
template <typename A>
void pair_gradient(const Rows<A>& x, const int16_t* label, A everywhere, const A* same, int64_t n, A* first,
                   A* second) {
  vectorized<A>([=]() EDGELOSS_LOOP {
    int32_t y[kTile];
    EDGELOSS_INDEPENDENT  // by itself: labels of two bytes would halve the vectors of the loop below
        for (int64_t j = 0; j < n; ++j) y[j] = label[j];
    const auto with = [=, y = &y[0]](auto has_first, auto has_same) EDGELOSS_LOOP {
      EDGELOSS_INDEPENDENT
      for (int64_t j = 0; j < n; ++j) {
        A at = everywhere, p, complement;
        if constexpr (decltype(has_same)::value) at += same[j];
        probabilities_of_pair(margin<decltype(has_first)::value>(x.first, x.second, j, y[j]), p, complement);
        const A value = at * complement, to_second = y[j] == 0 ? value : -value, kept = y[j] < 0 ? A(0) : to_second;
        second[j] = kept;
        if constexpr (decltype(has_first)::value) first[j] = -kept;
      }
    };
    by_rows(x, [=](auto has_first)
                   EDGELOSS_LOOP { same ? with(has_first, std::true_type()) : with(has_first, std::false_type()); });
  });
}

}  // namespace

template <typename A>
void pair_cross_entropy_chunk(const Call<A>& call, const Target& target, const Chunk& chunk, A* ce_map, Sums& sums) {
  const Geometry& g = call.g;
  Reading<A> logits(call.image(chunk.image));
  Sum sum;
  A own_nll[kTile];
  const int64_t base = chunk.image * g.pixels, first = chunk.first_row * g.width, last = chunk.last_row * g.width;
  const int64_t step = call.nll && logits.in_place() ? last - first : kTile;
  for (int64_t p = first; p < last; p += step) {
    const int64_t n = std::min(step, last - p), i = base + p;
    A* nll = call.nll ? call.nll + i : own_nll;
    sums[Row::kWrong] += static_cast<double>(pair_nll(logits.at(p, n), target, i, n, call.label + i, nll, sum));
    if (ce_map) std::memcpy(ce_map + i, nll, n * sizeof(A));
  }
  const int64_t words = call.class_bits ? PairEdges(g).words() : 0, rows = chunk.image * g.depth * g.height;
  for (int64_t row = chunk.first_row; call.class_bits && row < chunk.last_row; ++row) {
    pack_classes(call.label + base + row * g.width, g.width, call.class_bits + (rows + row) * words);
  }
  for (double part : sum.nll) sums[Row::kCrossEntropy] += part;
  sums[Row::kValid] = sums[Row::kWeight] = static_cast<double>(sum.valid);
}

template <typename A>
void pair_backward_chunk(const Call<A>& call, A everywhere, const Chunk& chunk, const Stored<A, void*>& out,
                         bool streams, Gathered<A>& gathered) {
  const Geometry& g = call.g;
  Reading<A> logits(call.image(chunk.image));
  A buffer[2 * kTile];
  const bool in_place = out.type == kScalarType<A> && out.pixel_step == 1 && !streams;
  const int64_t base = chunk.image * g.pixels, start = chunk.first_row * g.width, last = chunk.last_row * g.width;
  for (int64_t p = start; p < last; p += kTile) {
    const int64_t n = std::min(kTile, last - p);
    const A* same = nullptr;
    if (call.list.row_first && gathered.reaches(p - start, p - start + n - 1)) same = gathered.from(p - start).same;
    A* gradient = in_place ? static_cast<A*>(out.data) + p : buffer;
    const int64_t ld = in_place ? out.class_step : kTile;
    const Rows<A> x = logits.at(p, n);
    pair_gradient(x, call.label + base + p, everywhere, same, n, gradient, x.first ? gradient + ld : gradient);
    if (!in_place) write_tile(gradient, ld, g.logits, n, out, p, streams);
  }
}

#define EDGELOSS_INSTANTIATE(A)                                                                   \
  template void pair_cross_entropy_chunk(const Call<A>&, const Target&, const Chunk&, A*, Sums&); \
  template void pair_backward_chunk(const Call<A>&, A, const Chunk&, const Stored<A, void*>&, bool, Gathered<A>&);
EDGELOSS_INSTANTIATE(float)
EDGELOSS_INSTANTIATE(double)

}  // namespace edgeloss

// neighbor_nll on the CPU, in passes over chunks of rows: the formulas of math.h, with the exponentials of many classes
// or pairs formed together, so that they vectorize. Each pixel is computed by itself, so the number of threads
// changes no bit.
#include "nll.h"

#include <algorithm>
#include <vector>

#include "../cpu/parallel.h"
#include "../cpu/pixels.h"
#include "../kernels.h"
#include "exponentials.h"

namespace edgeloss {
namespace {

constexpr int64_t kPixels = 64;  // 19 classes of them stay in the first-level cache
constexpr int64_t kPairs = 512;  // of a center and a neighbor

template <typename A, typename W>
using Image = NeighborNll<Stored<A>, A, W>;

// Pass 1, as NeighborNll::find_largest.
template <typename A, typename W>
void largest_chunk(const Image<A, W>& image, const Chunk& chunk) {
  const int64_t width = image.g.width, step = image.weight.pixel_step;
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    W* largest = image.largest + row * width;
    std::fill_n(largest, width, W(0));
    for_each_shift(image.g, row, [&](int64_t number, int64_t, int64_t first, int64_t last) {
      const W* w = image.weight.data + number * image.weight.class_step + row * width * step;
      for (int64_t x = first; x < last; ++x) largest[x] = w[x * step] > largest[x] ? w[x * step] : largest[x];
    });
    for (int64_t x = 0; x < width; ++x) {
      if (largest[x] > W(0) && !image.may_count(row * width + x)) largest[x] = W(0);
    }
  }
}

// NeighborNll::is_read of a row's pixels.
template <typename A, typename W>
void find_read(const Image<A, W>& image, int64_t row, uint8_t* read) {
  const int64_t width = image.g.width, step = image.weight.pixel_step;
  std::fill_n(read, width, uint8_t(0));
  for_each_shift(image.g, row, [&](int64_t number, int64_t shift, int64_t first, int64_t last) {
    const int64_t center = row * width + shift;
    const W* largest = image.largest + center;
    const W* w = image.weight.data + (last_number(image.g) - number) * image.weight.class_step + center * step;
    for (int64_t x = first; x < last; ++x) read[x] |= (largest[x] > W(0)) & (w[x * step] > W(0));
  });
}

// Pass 2: the statistics of the pixels that are read, a tile of them at a time.
template <typename A, typename W>
void statistics_chunk(const Image<A, W>& image, const Chunk& chunk) {
  const Geometry& g = image.g;
  std::vector<A> x(g.logits * kPixels);
  int64_t pixels[kPixels], count = 0;
  A m[kPixels], r[kPixels], unused[kPixels];
  const std::vector<int32_t> no_label(kPixels, kIgnored);
  const auto flush = [&] {
    image.x.by_type([&](const auto* data) {
      for (int64_t c = 0; c < g.logits; ++c, data += image.x.class_step) {
        for (int64_t j = 0; j < count; ++j) x[c * kPixels + j] = widen(data[pixels[j] * image.x.pixel_step]);
      }
    });
    tile_statistics({x.data(), kPixels, g.logits, count}, no_label.data(), m, r, unused);
    for (int64_t j = 0; j < count; ++j) {
      image.m[pixels[j]] = m[j];
      image.r[pixels[j]] = r[j];
    }
    count = 0;
  };
  std::vector<uint8_t> read(g.width);
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    find_read(image, row, read.data());
    for (int64_t column = 0; column < g.width; ++column) {
      if (!read[column]) continue;
      pixels[count++] = row * g.width + column;
      if (count == kPixels) flush();
    }
  }
  flush();
}

// Pass 3: the values, of as many centers at a time as have kPairs neighbors.
template <typename A, typename W>
void values_chunk(const Image<A, W>& image, const Chunk& chunk, A* value) {
  using Chosen = typename Image<A, W>::Chosen;
  struct Pair {
    int64_t n;
    A weight;
  };
  struct Center {
    int64_t row, column, pairs;
  };
  const Geometry& g = image.g;
  const int64_t size = image.choice.is_index() ? 1 : g.logits;  // exponentials a pair
  std::vector<Pair> pairs;
  std::vector<Center> centers;
  std::vector<A> e;
  const auto flush = [&] {
    exponentials(e.data(), static_cast<int64_t>(e.size()));
    const A* of_pair = e.data();
    const Pair* pair = pairs.data();
    for (const Center& center : centers) {
      const int64_t i = center.row * g.width + center.column;
      A right = 0, wrong = 0;
      for (int64_t j = 0; j < center.pairs; ++j, ++pair, of_pair += size) {
        const Chosen chosen_n = image.chosen(i, pair->n, [&](int64_t c) { return of_pair[size == 1 ? 0 : c]; });
        right += pair->weight * chosen_n.p;
        wrong += pair->weight * chosen_n.complement;
      }
      value[i] = image.finish(center.row, center.column, right, wrong);
    }
    e.clear();
    pairs.clear();
    centers.clear();
  };
  const auto add = [&](int64_t row, int64_t column) {
    const int64_t i = row * g.width + column;
    const size_t before = pairs.size();
    image.for_each_weighted(row, column, [&](int64_t n, W w) {
      pairs.push_back({n, image.relative(w, i)});
      if (image.choice.is_index()) {
        e.push_back(image.x.at(n, image.choice.index(i)) - image.m[n]);
      } else {
        image.x.by_type([&](const auto* data) {
          const auto* x_n = data + n * image.x.pixel_step;
          for (int64_t c = 0; c < g.logits; ++c) e.push_back(widen(x_n[c * image.x.class_step]) - image.m[n]);
        });
      }
    });
    centers.push_back({row, column, static_cast<int64_t>(pairs.size() - before)});
    if (static_cast<int64_t>(pairs.size()) >= kPairs) flush();
  };
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    for (int64_t column = 0; column < g.width; ++column) {
      const int64_t i = row * g.width + column;
      value[i] = A(0);
      if (image.largest[i] > W(0)) add(row, column);
    }
  }
  flush();
}

// The gradient of a chunk, a tile of pixels at a time.
template <typename A, typename W>
void backward_chunk(const Image<A, W>& image, const Chunk& chunk, const A* upstream, const Stored<A, void*>& out) {
  const Geometry& g = image.g;
  const int64_t last = chunk.last_row * g.width;
  std::vector<A> e(g.logits * kPixels),
      sums(g.logits * kPixels);  // the classes of a pixel together
  const int64_t start = chunk.first_row * g.width;
  std::vector<uint8_t> is_read(last - start);
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    find_read(image, row, is_read.data() + row * g.width - start);
  }
  int64_t read[kPixels];
  for (int64_t p = start; p < last; p += kPixels) {
    const int64_t n = std::min(kPixels, last - p);
    int64_t count = 0;
    for (int64_t j = 0; j < n; ++j) {
      if (is_read[p + j - start]) read[count++] = j;
    }
    image.x.by_type([&](const auto* data) {
      for (int64_t c = 0; c < g.logits; ++c, data += image.x.class_step) {
        for (int64_t j = 0; j < count; ++j) {
          e[j * g.logits + c] = widen(data[(p + read[j]) * image.x.pixel_step]) - image.m[p + read[j]];
        }
      }
    });
    exponentials(e.data(), count * g.logits);
    std::fill_n(sums.data(), n * g.logits, A(0));
    for (int64_t j = 0; j < count; ++j) {
      const int64_t pixel = p + read[j];
      const A* e_j = e.data() + j * g.logits;
      A* sum = sums.data() + read[j] * g.logits;
      image.for_each_center(pixel / g.width, pixel % g.width, [&](int64_t i, W w) {
        const auto chosen_n = image.chosen(i, pixel, [&](int64_t c) { return e_j[c]; });
        const auto gives = image.pull(i, pixel, w, chosen_n, upstream[i]);
        if (image.choice.is_index()) {
          const int64_t k = image.choice.index(i);
          const A at_k = sum[k] - gives.pull;
          for (int64_t c = 0; c < g.logits; ++c) sum[c] += gives.push * e_j[c];
          sum[k] = at_k;
        } else {
          for (int64_t c = 0; c < g.logits; ++c) {
            sum[c] += image.choice.has(i, c) ? image.at_chosen(gives, pixel, c, e_j[c]) : gives.push * e_j[c];
          }
        }
      });
    }
    out.by_type([&](auto* data) {
      using T = std::decay_t<decltype(*data)>;
      for (int64_t c = 0; c < g.logits; ++c) {
        T* pixel = data + c * out.class_step + p * out.pixel_step;
        for (int64_t j = 0; j < n; ++j) pixel[j * out.pixel_step] = static_cast<T>(sums[j * g.logits + c]);
      }
    });
  }
}

}  // namespace

NeighborNllForward cpu::neighbor_nll(const Tensor& logits, const Tensor& index, const Tensor& weight,
                                     const std::optional<Tensor>& mask, std::vector<int64_t> radius) {
  return neighbor_nll_forward<true>(logits, index, weight, mask, radius, [](const auto& batch, auto* value) {
    const Chunks chunks(batch.g);
    for_each_chunk(chunks, [&](int64_t, const Chunk& chunk) { largest_chunk(batch.image(chunk.image), chunk); });
    for_each_chunk(chunks, [&](int64_t, const Chunk& chunk) { statistics_chunk(batch.image(chunk.image), chunk); });
    for_each_chunk(chunks, [&](int64_t, const Chunk& chunk) {
      values_chunk(batch.image(chunk.image), chunk, value + chunk.image * batch.g.pixels);
    });
  });
}

Tensor cpu::neighbor_nll_backward(const Tensor& grad_value, const Tensor& logits, const Tensor& index,
                                  const Tensor& weight, const Tensor& stats, const Tensor& largest, const Tensor& sides,
                                  std::vector<int64_t> radius) {
  const NeighborNllTensors tensors = {logits, index, weight, nullptr, stats, largest, sides};
  return edgeloss::neighbor_nll_backward<true>(
      grad_value, tensors, radius, [](const auto& batch, const auto* upstream, const Tensor& grad) {
        using A = typename std::decay_t<decltype(batch)>::Value;
        const Steps steps(grad);
        for_each_chunk(Chunks(batch.g), [&](int64_t, const Chunk& chunk) {
          backward_chunk(batch.image(chunk.image), chunk, upstream + chunk.image * batch.g.pixels,
                         stored_output<A>(grad, steps, chunk.image));
        });
      });
}

}  // namespace edgeloss

// neighbor_nll on the CPU. Each pixel is computed by itself, so the number of threads changes no bit.
#include "nll.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <vector>

#include "../cpu/parallel.h"
#include "../cpu/statistics.h"
#include "../cpu/vectorize.h"

namespace edgeloss {
namespace {

constexpr int64_t kPixels = 64;  // 19 classes of them stay in the first-level cache

// Calls body(image, number of the image, row, column, pixels) for some pixels of a row at a time.
template <typename Batch, typename F>
void for_each_tile(const Batch& batch, const F& body) {
  for_each_chunk(Chunks(batch.g), [&](int64_t, const Chunk& chunk) {
    const auto image = batch.image(chunk.image);
    for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
      for (int64_t column = 0; column < batch.g.width; column += kPixels) {
        body(image, chunk.image, row, column, std::min(kPixels, batch.g.width - column));
      }
    }
  });
}

struct OnCpu {
  explicit OnCpu(const Tensor&) {}

  template <typename Batch>
  void find_largest(const Batch& batch) const {
    for_each_tile(batch, [](const auto& image, int64_t, int64_t row, int64_t column, int64_t n) {
      for (int64_t j = 0; j < n; ++j) image.find_largest(row, column + j);
    });
  }

  // Tiles without a pixel that is read are left out.
  template <typename Batch>
  void find_statistics(const Batch& batch) const {
    for_each_tile(batch, [&](const auto& image, int64_t, int64_t row, int64_t column, int64_t n) {
      bool any = false;
      for (int64_t j = 0; j < n && !any; ++j) any = image.is_read(row, column + j);
      if (!any) return;
      const int64_t p = row * batch.g.width + column;
      const int32_t no_label[kPixels] = {};
      typename Batch::Value unused[kPixels];
      std::vector<typename Batch::Value> x(batch.g.logits * kPixels);
      for (int64_t c = 0; c < batch.g.logits; ++c) {
        for (int64_t j = 0; j < n; ++j) x[c * kPixels + j] = image.x.at(p + j, c);
      }
      tile_statistics({x.data(), kPixels, batch.g.logits, n}, no_label, image.m + p, image.r + p, unused);
    });
  }

  template <typename Batch>
  void find_values(const Batch& batch) const {
    for_each_tile(batch, [](const auto& image, int64_t, int64_t row, int64_t column, int64_t n) {
      for (int64_t j = 0; j < n; ++j) image.find_value(row, column + j);
    });
  }

  template <typename Batch>
  void find_gradient(const Batch& batch) const {
    using A = typename Batch::Value;
    const int64_t classes = batch.g.logits;
    for_each_tile(batch, [&](const auto& image, int64_t b, int64_t row, int64_t column, int64_t n) {
      const int64_t p = row * batch.g.width + column;
      std::vector<A> e(classes * n), sum(classes * n);  // the classes of a pixel together
      for (int64_t c = 0; c < classes; ++c) {
        for (int64_t j = 0; j < n; ++j) e[j * classes + c] = image.x.at(p + j, c) - image.m[p + j];
      }
      vectorized<A>([e = e.data(), count = classes * n]() EDGELOSS_LOOP {
        EDGELOSS_INDEPENDENT
        for (int64_t j = 0; j < count; ++j) e[j] = exp_negative(e[j]);
      });
      for (int64_t j = 0; j < n; ++j) {
        if (!image.is_read(row, column + j)) continue;
        const A* e_j = e.data() + j * classes;
        image.add_gradient(row, column + j, 0, static_cast<int>(classes), e_j, sum.data() + j * classes,
                           [e_j](int64_t c) { return e_j[c]; });
      }
      for (int64_t c = 0; c < classes; ++c) {
        for (int64_t j = 0; j < n; ++j) batch.write_gradient(b, p + j, c, sum[j * classes + c]);
      }
    });
  }
};

}  // namespace
}  // namespace edgeloss

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CPU, m) {
  m.impl("neighbor_nll", TORCH_BOX(&edgeloss::neighbor_nll<edgeloss::OnCpu>));
  m.impl("neighbor_nll_backward", TORCH_BOX(&edgeloss::neighbor_nll_backward<edgeloss::OnCpu>));
}

// neighbor_nll on the CPU. Each pixel is computed by itself, so the number of threads changes no bit.
#include "../neighbor_nll.h"

#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <vector>

#include "parallel.h"
#include "softmax.h"

namespace edgeloss {
namespace {

constexpr int64_t kPixels = 64;  // 19 classes of them stay in the first-level cache

// Each pixel by itself; statistics and gradients of some pixels of a row together.
class OnCpu {
 public:
  explicit OnCpu(const Tensor&) {}

  template <typename Pass, typename Image>
  void run(Pass pass, const Image& first) const {
    const Geometry& g = first.g;
    const int64_t rows = g.depth * g.height, pixels = std::clamp<int64_t>(g.batch * g.pixels / 16, 256, 4096);
    on_each_thread(g.batch * rows, pixels / std::max<int64_t>(1, g.width), [&](Tasks& tasks) {
      for (int64_t i, end; tasks.take(i, end);) {
        for (; i < end; ++i) {
          Image image = first;
          image.move(i / rows);
          for (int64_t column = 0; column < g.width; column += kPixels) {
            of_pixels(pass, image, i % rows, column, std::min(kPixels, g.width - column));
          }
        }
      }
    });
  }

 private:
  template <typename Pass, typename Image>
  static void of_pixels(Pass pass, const Image& image, int64_t row, int64_t column, int64_t n) {
    for (int64_t j = 0; j < n; ++j) image.run(pass, row, column + j);
  }

  // Pixels none of which is read are left out.
  template <typename A, typename W>
  static void of_pixels(FindStatistics, const NeighborNll<A, W>& image, int64_t row, int64_t column, int64_t n) {
    bool any = false;
    for (int64_t j = 0; j < n && !any; ++j) any = image.is_read(row, column + j);
    if (!any) return;
    const int64_t p = row * image.g.width + column, classes = image.g.logits;
    const int32_t no_label[kPixels] = {};
    A unused[kPixels];
    std::vector<A> x(classes * kPixels);
    for (int64_t c = 0; c < classes; ++c) {
      for (int64_t j = 0; j < n; ++j) x[c * kPixels + j] = image.x.at(p + j, c);
    }
    tile_statistics({x.data(), kPixels, classes, n}, no_label, image.m + p, image.r + p, unused);
  }

  template <typename A, typename W>
  static void of_pixels(FindGradient, const NeighborNll<A, W>& image, int64_t row, int64_t column, int64_t n) {
    const int64_t p = row * image.g.width + column, classes = image.g.logits;
    std::vector<A> e(classes * n), sum(classes * n);  // the classes of a pixel together
    for (int64_t c = 0; c < classes; ++c) {
      for (int64_t j = 0; j < n; ++j) e[j * classes + c] = image.x.at(p + j, c) - image.m[p + j];
    }
    exponentials(e.data(), classes * n);
    for (int64_t j = 0; j < n; ++j) {
      if (!image.is_read(row, column + j)) continue;
      const A* e_j = e.data() + j * classes;
      image.add_gradient(row, column + j, 0, static_cast<int>(classes), e_j, sum.data() + j * classes,
                         [e_j](int64_t c) { return e_j[c]; });
    }
    for (int64_t c = 0; c < classes; ++c) {
      for (int64_t j = 0; j < n; ++j) image.grad.at(p + j, c) = sum[j * classes + c];
    }
  }
};

}  // namespace
}  // namespace edgeloss

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CPU, m) {
  m.impl("neighbor_nll", TORCH_BOX(&edgeloss::neighbor_nll<edgeloss::OnCpu>));
  m.impl("neighbor_nll_backward", TORCH_BOX(&edgeloss::neighbor_nll_backward<edgeloss::OnCpu>));
}

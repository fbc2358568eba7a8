// The backward pass of logits of lower resolution than the labels.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "backward.h"
#include "parallel.h"

namespace edgeloss {
namespace {

// A box of low-resolution rows of an image: what the backward pass works on. The rows at the labels' resolution that
// are mixed from two boxes are visited for each of them.
struct LowBox {
  int64_t image, first_slice, last_slice, first_row, last_row;
};

struct LowBoxes {
  int64_t depth, height, slices, rows;  // of the image; of a box
  int64_t per_slice, per_image, count;

  LowBoxes(int64_t batch, int64_t depth, int64_t height) : depth(depth), height(height) {
    // Large, so that few rows are visited twice, and yet enough of them for all threads.
    const int64_t most = std::clamp<int64_t>(batch * depth * height / 32, 2, 16);
    slices = std::min<int64_t>(depth, 4);
    rows = std::min(height, most);
    per_slice = (height + rows - 1) / rows;
    per_image = (depth + slices - 1) / slices * per_slice;
    count = batch * per_image;
  }
  LowBox at(int64_t index) const {
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

// The sums of a box's low-resolution pixels: [slice, row, logit, cell and one more at each end].
template <typename A>
struct LowSums {
  const LowBox& box;
  const Upsample<A>& up;
  int64_t logits;
  std::vector<A>& sums;

  int64_t stride() const { return up.cells + 2; }
  int64_t rows() const { return box.last_row - box.first_row; }
  A* at(int64_t slice, int64_t row) const {
    return sums.data() + ((slice - box.first_slice) * rows() + row - box.first_row) * logits * stride();
  }
  // The sums of a low-resolution row that a row of the image is mixed from; null where they are not the box's.
  A* of(const RowTaps<A>& taps, int which) const {
    const int64_t slice = taps.row[which] / up.along_y.low, row = taps.row[which] % up.along_y.low;
    const bool inside = slice >= box.first_slice && slice < box.last_slice && row >= box.first_row &&
                        row < box.last_row && taps.weight_of(which) != A(0);
    return inside ? at(slice, row) : nullptr;
  }
  void write(const Stored<A, void*>& out) const {
    for (int64_t slice = box.first_slice; slice < box.last_slice; ++slice) {
      for (int64_t row = box.first_row; row < box.last_row; ++row) {
        A* sum = at(slice, row);
        for (int64_t c = 0; c < logits; ++c)
          sum[c * stride() + 1] += sum[c * stride()];  // the first has none before it
        write_tile(sum + 1, stride(), logits, up.cells, out, (slice * up.along_y.low + row) * up.cells, false);
      }
    }
  }
};

// What the rows at the labels' resolution give to a box.
template <typename A>
void backward_box(const Call<A>& call, const LowBox& box, const Stored<A, void*>& out, SlabGradient<A>& space,
                  std::vector<A>& memory) {
  const Geometry& g = call.g;
  const Upsample<A>& up = *call.up;
  const LowSums<A> sums = {box, up, g.logits, memory};
  memory.assign((box.last_slice - box.first_slice) * sums.rows() * g.logits * sums.stride(), A(0));
  int64_t first_slice, last_slice, first_row, last_row;
  find_support(up.slice, box.first_slice, box.last_slice, first_slice, last_slice);
  find_support(up.row, box.first_row, box.last_row, first_row, last_row);
  for (int64_t z = first_slice; z < last_slice; ++z) {
    for (int64_t y = first_row; y < last_row; y += call.slabs.rows) {
      const Slab slab = {box.image, z, z + 1, y, std::min(y + call.slabs.rows, last_row)};
      space.for_each_tile(slab, 0, [&](const A* gradient, const Pixels<A>&, const TilePlace& at) {
        const RowTaps<A> taps = up.row_taps(z, at.row);
        A* wanted[4];
        for (int which = 0; which < 4; ++which) wanted[which] = sums.of(taps, which);
        up.share_tile(taps, g.logits, at.block, gradient + (g.logits == 1 ? call.tile() : 0), call.tile(), wanted);
      });
    }
  }
  sums.write(out);
}

}  // namespace

template <typename A>
void upsampled_backward(const Call<A>& call, const Gradients& gradients, const Tensor& grad) {
  const LowBoxes boxes(call.g.batch, call.up->along_z.low, call.up->along_y.low);
  const Steps steps(grad);
  on_each_thread(boxes.count, 1, [&](Tasks& tasks) {
    SlabGradient<A> space(call, gradients);
    std::vector<A> sums;
    for (int64_t i, end; tasks.take(i, end);) {
      const LowBox box = boxes.at(i);
      backward_box(call, box, stored_output<A>(grad, steps, box.image), space, sums);
    }
  });
}

template void upsampled_backward(const Call<float>&, const Gradients&, const Tensor&);
template void upsampled_backward(const Call<double>&, const Gradients&, const Tensor&);

}  // namespace edgeloss

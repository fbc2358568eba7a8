// How logits of lower resolution are read: a low-resolution row is mixed along x first, and in volumes along z, once
// for all pixels of a column between two of these rows. The results equal those of Mixture to the last bit.
#pragma once

#include <cstdint>

#include "call.h"

namespace edgeloss {

// Where the logits lie that a column of pixels is mixed from in a low-resolution row: those of the first class.
template <typename A, bool kVolume>
struct LowColumn {
  static constexpr int kTaps = kVolume ? 4 : 2;  // two columns, of two slices

  const char* taps[kTaps];
  A x, z;  // the weights of the second ones
};

// The image that a pixel's logits are mixed from, from a class on. An address takes one instruction.
template <typename T, typename A, bool kVolume>
struct LowImage {
  using Column = LowColumn<A, kVolume>;

  const T* data;
  int64_t pixel_step, slice_step;
  uint32_t class_bytes, row_bytes;

  __device__ LowImage(const Call<T, A, true>& call, int image, int first_logit)
      : data(call.x + image * call.steps.image + first_logit * call.steps.channel),
        pixel_step(call.steps.pixel),
        slice_step(call.along_y.low * call.along_x.low * call.steps.pixel),
        class_bytes(bytes(call.steps.channel)),
        row_bytes(bytes(call.along_x.low * call.steps.pixel)) {}

  __device__ Column column(const Taps<A>& x, const Taps<A>& z) const {
    Column column = {{}, x.blending(), z.blending()};
#pragma unroll
    for (int tap = 0; tap < Column::kTaps; ++tap) {
      const int64_t slice = tap < 2 ? z.first : z.second;
      const int64_t place = slice * slice_step + (tap % 2 == 0 ? x.first : x.second) * pixel_step;
      column.taps[tap] = reinterpret_cast<const char*>(data + place);
    }
    return column;
  }
  // The same in row y, of a column in row 0.
  __device__ Column row(Column column, int y) const {
#pragma unroll
    for (const char*& tap : column.taps) tap += product(y, row_bytes);
    return column;
  }
  // The nth logit, mixed as Mixture::row does it.
  __device__ __forceinline__ A read(int nth, const Column& row) const {
    const auto at = [&](int tap) {
      return static_cast<A>(*reinterpret_cast<const T*>(row.taps[tap] + product(nth, class_bytes)));
    };
    const A mixed = blend(at(0), at(1), row.x);
    if constexpr (kVolume) return blend(mixed, blend(at(2), at(3), row.x), row.z);
    return mixed;
  }

  static void check(const Call<T, A, true>& call) {
    const int64_t step = std::max(call.steps.channel, call.along_x.low * call.steps.pixel);
    STD_TORCH_CHECK(step <= UINT32_MAX / int64_t(sizeof(T)), "logits: expected classes and rows less than 4 GiB apart ",
                    "where they are upsampled, but got a stride of ", step, " elements; make them contiguous");
  }

 private:
  __device__ static uint32_t bytes(int64_t step) {
    return static_cast<uint32_t>(step * static_cast<int64_t>(sizeof(T)));
  }
  __device__ static uint64_t product(int count, uint32_t step) {
    return static_cast<uint64_t>(static_cast<uint32_t>(count)) * step;
  }
};

}  // namespace edgeloss

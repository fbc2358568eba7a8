// The whole loss on CUDA.
//
// One thread takes a pixel, neighbouring threads neighbouring pixels, so that what they read of a class lies side by
// side in contiguous logits; those of channels_last pass through shared memory. Forward: (1) labels, the two numbers of
// math.h and the cross-entropy, from one look at each logit; (2) with decay, the edge mask and the distances near
// it; (3) the edge mask, of the prediction's false edges too where they count, and the edge terms; (4) the sums.
// Backward looks at each logit once more for the cross-entropy; then the pixels around edge pixels gather their shares
// and write their gradient anew. Logits of lower resolution are interpolated where they are read, and gather their
// gradient from the pixels around. No two threads of a kernel write to one place, and sums are added in a fixed order,
// so every run gives the same bits.
//
// The state between them takes 19 bytes a pixel in float: label (2), edge mask (1), m and r (8), and one number a side
// (8). Powers other than 1 take 8 more, and decay 12. Few classes could do without m and r, as forming them anew would
// cost no more than reading them.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "../geometry.h"
#include "../labels.h"
#include "../math.h"
#include "../tensors.h"
#include "../upsample.h"
#include "device.h"

namespace edgeloss {
namespace {

constexpr int kClasses = 8;  // logits of a pixel on their way at a time
constexpr int kShares = 4;   // classes of edge pixels around a pixel, collected at a time
constexpr int16_t kIgnored = -1;
constexpr uint8_t kEdge = 1, kFalseEdge = 2;  // what a pixel is, in the edge mask
constexpr int kSums = 9;                      // of the operator
// The 1 of __launch_bounds__(kThreads, 1) keeps the compiler from spilling registers to let more threads run at a time.

// -------------------------------------------------------------------------------------------------------------- labels

// The target as it is.
struct Labels {
  const void* data;
  int64_t bytes;  // of a label
  int64_t ignore_index, classes;

  __device__ int64_t at(int64_t i) const {
    switch (bytes) {
      case 8:
        return static_cast<const int64_t*>(data)[i];
      case 4:
        return static_cast<const int32_t*>(data)[i];
      case 2:
        return static_cast<const int16_t*>(data)[i];
      default:
        return static_cast<const uint8_t*>(data)[i];  // uint8 and bool
    }
  }
  __device__ bool is_class(int64_t label) const { return label != ignore_index && label >= 0 && label < classes; }
  __device__ bool is_wrong(int64_t label) const { return label != ignore_index && !is_class(label); }
};

// What a call with wrong labels leaves for the host, in memory that both can reach: reading it needs no CUDA call.
struct LabelRecord {
  int state;  // kNothing, kBeingWritten or kWritten
  int64_t call, ignore_index, pixels, first, label;
  Geometry geometry;
};
enum : int { kNothing, kBeingWritten, kWritten };

class LabelRecords {
 public:
  // That of a device, the current one, which knows it by the same address. It is allocated for the first call only,
  // which may not be part of a CUDA graph.
  LabelRecord* of(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    LabelRecord*& record = records_[device];
    if (!record) {
      void* memory;
      check(cudaHostAlloc(&memory, sizeof(LabelRecord), cudaHostAllocPortable | cudaHostAllocMapped));
      record = new (memory) LabelRecord();
    }
    return record;
  }

  // The message of a device's record, or of any device's, and "" if there is none; the record is then free again.
  // `call` is the one that asks.
  std::string take(std::optional<int> device, int64_t call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [of, record] : records_) {
      if ((device && of != *device) || __atomic_load_n(&record->state, __ATOMIC_ACQUIRE) != kWritten) continue;
      const Geometry& g = record->geometry;
      const std::string message = (record->call == call ? "target: " : "target of an earlier call: ") +
                                  unexpected_label(g, record->ignore_index, record->label) + " at " +
                                  position(g, record->first) + ", the first of " + count_of_pixels(record->pixels) +
                                  " with labels out of range, which counted as ignored";
      __atomic_store_n(&record->state, kNothing, __ATOMIC_RELEASE);
      return message;
    }
    return "";
  }

  void throw_if_any(int device, int64_t call) {
    const std::string message = take(device, call);
    if (!message.empty()) throw std::invalid_argument(message);
  }

 private:
  std::mutex mutex_;
  std::map<int, LabelRecord*> records_;  // never freed: a CUDA graph may write one at any time
};

LabelRecords label_records;
std::atomic<int64_t> calls{0};
const bool is_registered = [] {
  take_label_error = [] { return label_records.take(std::nullopt, 0); };
  return true;
}();

// ------------------------------------------------------------------------------------------------------ what they
// share

struct Place {
  int64_t image, row, column;
  int64_t base, pixel;  // of the image in the batch, of the pixel in the image
};

__device__ __forceinline__ Place place_of(const Geometry& g, int64_t i) {
  const int64_t image = quotient(i, g.pixels), pixel = i - image * g.pixels, row = quotient(pixel, g.width);
  return {image, row, pixel - row * g.width, image * g.pixels, pixel};
}

// What a pixel is mixed from: `first` of class 0, and the steps to the others; weights are those of the steps' ends.
template <typename T, typename A>
struct Mixture {
  const T* first;
  int64_t dz, dy, dx;
  A z, y, x;

  __device__ A at(int64_t offset) const { return mix(column(first + offset), column(first + offset + dx), x); }
  __device__ A column(const T* at) const {
    const A nearer = mix(static_cast<A>(at[0]), static_cast<A>(at[dy]), y);
    if (z == A(0)) return nearer;
    return mix(nearer, mix(static_cast<A>(at[dz]), static_cast<A>(at[dz + dy]), y), z);
  }
};

// Logits of one image at the labels' resolution, each interpolated where it is read.
template <typename T, typename A>
struct UpsampledLogits {
  Logits<T, A> low;
  Axis<A> along_z, along_y, along_x;
  bool binary;

  __device__ Mixture<T, A> mixture(const Taps<A>& z, const Taps<A>& y, const Taps<A>& x) const {
    const int64_t column = low.pixel_step, row = along_x.low * column, slice = along_y.low * row;
    return {low.data + z.first * slice + y.first * row + x.first * column,
            (z.second - z.first) * slice,
            (y.second - y.first) * row,
            (x.second - x.first) * column,
            z.weight,
            y.weight,
            x.weight};
  }
  __device__ Mixture<T, A> mixture(int64_t pixel) const {
    const int64_t row = quotient(pixel, along_x.high), z = quotient(row, along_y.high);
    return mixture(along_z.at(z), along_y.at(row - z * along_y.high), along_x.at(pixel - row * along_x.high));
  }
  __device__ A at(int64_t pixel, int64_t c) const {
    if (binary && c == 0) return A(0);
    return mixture(pixel).at(binary ? 0 : c * low.class_step);
  }
};

// Arguments, and the state that forward leaves to backward.
template <typename T, typename A, bool kUpsampled>
struct Call {
  Geometry g;
  const T* x;
  Steps steps;
  Axis<A> along_z, along_y, along_x;
  const A* weight;             // [C] or null
  const A* pixel_weight;       // [B, P] or null
  const A* edge_class_weight;  // [C] or null
  A label_smoothing, power, inverse_decay;
  bool has_decay;
  bool is_plain;       // one number a side is enough
  int16_t* label;      // [B, P]
  int16_t* predicted;  // [B, P], in forward, or null: nobody asks for false edges
  uint8_t* edge;       // [B, P]
  A *m, *r;            // [B, P] each; on valid pixels only
  A* sides;            // [1 or 2, 2, B, P], then nearest [2, B, P] with decay; on E only
  const A* field;      // [B, P]; read near E only

  __device__ int64_t count() const { return g.batch * g.pixels; }
  __device__ auto image(int64_t b) const {
    const Logits<T, A> logits = {x + b * steps.image, steps.channel, steps.pixel, g.logits == 1};
    if constexpr (kUpsampled) {
      return UpsampledLogits<T, A>{logits, along_z, along_y, along_x, logits.binary};
    } else {
      return logits;
    }
  }
  __device__ A weight_of(int64_t c) const { return weight ? weight[c] : A(1); }
  __device__ A pixel_weight_of(int64_t i) const { return pixel_weight ? pixel_weight[i] : A(1); }
  __device__ A edge_weight_of(int64_t i, int16_t y) const {
    return edge_class_weight ? pixel_weight_of(i) * edge_class_weight[y] : pixel_weight_of(i);
  }
  __device__ A smoothed_weight() const {  // Σ weight(c), where it is needed
    A sum = 0;
    for (int64_t c = 0; c < g.classes && label_smoothing != A(0); ++c) sum += weight_of(c);
    return sum;
  }
  // log w of pixel i, as an edge pixel sees it; those that a false one sees weigh alike.
  __device__ A log_weight(int64_t centre, A nearest, int64_t i) const {
    return has_decay && edge[centre] == kEdge ? (nearest - field[i]) * inverse_decay : A(0);
  }

  // The mean of one side of an edge pixel of class k by logarithms, with what backward needs of it.
  __device__ A mean_by_logarithms(const Place& at, int16_t k, int side, Side<A>& of) const {
    const auto logits = image(at.image);
    return negative_log_mean(
        [&](const auto& body) {
          for_each_neighbor(g, at.row, at.column, [&](int64_t n) {
            const int64_t i = at.base + n;
            if (label[i] < 0 || (label[i] != k) != side) return;
            body(term(logits, n, g.classes, k, side == 0, m[i], r[i]), log_weight(at.base + at.pixel, of.nearest, i));
          });
        },
        power, of);
  }

  __device__ A* plane(int64_t number, int side) const { return sides + (2 * number + side) * count(); }
  __device__ void store(int side, int64_t i, const Side<A>& of) const {
    if (is_plain) {
      plane(0, side)[i] = of.inverse;
    } else {
      plane(0, side)[i] = of.first;
      plane(1, side)[i] = of.log_sum;
    }
    if (has_decay) plane(is_plain ? 1 : 2, side)[i] = of.nearest;
  }
  __device__ Side<A> load(int side, int64_t i) const {
    Side<A> of;
    if (has_decay) of.nearest = plane(is_plain ? 1 : 2, side)[i];
    if (!is_plain) {
      of.first = plane(0, side)[i];
      of.log_sum = plane(1, side)[i];
      return of;
    }
    of.inverse = plane(0, side)[i];
    // What only logarithms could tell has no number of its own: rare enough to be formed anew.
    if (!(of.inverse > A(0))) mean_by_logarithms(place_of(g, i), label[i], side, of);
    return of;
  }
};

// Calls body(c, x(c), x(c + 1), ..., n) for blocks of n ≤ kClasses classes: their reads do not wait for each other.
template <typename T, typename A, typename F>
__device__ __forceinline__ void for_each_block(const Logits<T, A>& x, int64_t pixel, int64_t classes, const F& body) {
  A block[kClasses];
  int64_t c = 0;
  for (const T* at = x.data + pixel * x.pixel_step; c + kClasses <= classes; c += kClasses) {
#pragma unroll
    for (int j = 0; j < kClasses; ++j, at += x.class_step) block[j] = static_cast<A>(*at);
    body(c, block, kClasses);
  }
  if (c == classes) return;
  const int rest = static_cast<int>(classes - c);
#pragma unroll
  for (int j = 0; j < kClasses; ++j) {
    if (j < rest) block[j] = x.at(pixel, c + j);
  }
  body(c, block, rest);
}

template <typename T, typename A, typename F>
__device__ __forceinline__ void for_each_block(const UpsampledLogits<T, A>& x, int64_t pixel, int64_t classes,
                                               const F& body) {
  const Mixture<T, A> mixture = x.mixture(pixel);
  for (int64_t c = 0; c < classes; c += kClasses) {
    A block[kClasses];
#pragma unroll
    for (int j = 0; j < kClasses; ++j) {
      const bool exists = c + j < classes;
      block[j] = exists && !(x.binary && j == 0) ? mixture.at(x.binary ? 0 : (c + j) * x.low.class_step) : A(0);
    }
    body(c, block, static_cast<int>(classes - c < kClasses ? classes - c : kClasses));
  }
}

// The same where the classes of a pixel lie side by side: then neighbouring threads copy neighbouring classes, through
// shared memory. Each on its own would touch a line of memory for every number, and write a part of it at a time.
//
// The threads of a block call it together, with null for a pixel that is not read (0 comes) or not written. Where it
// writes, body leaves in the block what shall be written.
template <bool kWrites, typename T, typename A, typename F>
__device__ __forceinline__ void for_each_staged_block(const T* from, T* to, int64_t classes, const F& body) {
  __shared__ A values[kClasses][kThreads + 4];  // + 4: eight classes of four pixels lie in different banks
  __shared__ const T* read[kThreads];
  __shared__ T* written[kThreads];
  const int own = static_cast<int>(threadIdx.x), j = own % kClasses, first = own / kClasses;
  __syncthreads();  // the last call has ended everywhere
  read[own] = from;
  if constexpr (kWrites) written[own] = to;
  for (int64_t c = 0; c < classes; c += kClasses) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kClasses; ++k) {
      const int pixel = first + k * (kThreads / kClasses);
      values[j][pixel] = read[pixel] && c + j < classes ? static_cast<A>(read[pixel][c + j]) : A(0);
    }
    __syncthreads();
    A block[kClasses];
#pragma unroll
    for (int k = 0; k < kClasses; ++k) block[k] = values[k][own];
    body(c, block, static_cast<int>(classes - c < kClasses ? classes - c : kClasses));
    if constexpr (kWrites) {
#pragma unroll
      for (int k = 0; k < kClasses; ++k) values[k][own] = block[k];
      __syncthreads();
#pragma unroll
      for (int k = 0; k < kClasses; ++k) {
        const int pixel = first + k * (kThreads / kClasses);
        if (written[pixel] && c + j < classes) written[pixel][c + j] = static_cast<T>(values[j][pixel]);
      }
    }
  }
}

// ------------------------------------------------------------------------------------------------------------- forward

// Labels, statistics and cross-entropy. partial: [kSums, blocks], in the order of the operator's sums.
template <typename T, typename A, bool kUpsampled, bool kStaged>
__global__ void __launch_bounds__(kThreads, 1)
    cross_entropy_kernel(const Call<T, A, kUpsampled> call, const Labels target, A* ce_map, double* partial) {
  double sums[4] = {0, 0, 0, 0};  // of CE, weight, valid and wrong pixels
  for_each_item_together(call.count(), [&](int64_t i, bool exists) {
    const int64_t y = exists ? target.at(i) : target.ignore_index;
    const bool valid = target.is_class(y);
    const int64_t image = quotient(i, call.g.pixels), pixel = i - image * call.g.pixels;
    const auto x = call.image(image);
    const A smoothing = call.label_smoothing;
    RunningSoftmax<A> softmax;
    A below = 0, weights = 0;  // Σ weight(c) · (x(c) - m) and Σ weight(c), over the classes so far
    int64_t predicted = 0;
    const auto add = [&](int64_t c, const A(&block)[kClasses], int n) {
      const A before = softmax.m;
      softmax.add(block, n);
      if (call.predicted && softmax.m > before) {
#pragma unroll
        for (int j = kClasses - 1; j >= 0; --j) predicted = j < n && block[j] == softmax.m ? c + j : predicted;
      }
      if (smoothing == A(0)) return;
      if (weights > A(0) && softmax.m > before) below += weights * (before - softmax.m);
#pragma unroll
      for (int j = 0; j < kClasses; ++j) {
        if (j >= n) continue;
        const A w = call.weight_of(c + j);
        below += block[j] == softmax.m ? A(0) : w * (block[j] - softmax.m);
        weights += w;
      }
    };
    if constexpr (kStaged) {
      const T* from = valid ? x.data + pixel * x.pixel_step : nullptr;
      for_each_staged_block<false, T, A>(from, nullptr, call.g.classes, add);
    } else if (valid) {
      for_each_block(x, pixel, call.g.classes, add);
    }
    if (!exists) return;
    A ce = 0;
    if (valid) {
      call.m[i] = softmax.m;
      call.r[i] = softmax.r;
      const A w = call.weight_of(y), log_sum = log1p_positive(softmax.r);
      ce = w * (log_sum - (x.at(pixel, y) - softmax.m));
      if (smoothing != A(0)) {
        ce = (A(1) - smoothing) * ce + smoothing / static_cast<A>(call.g.classes) * (weights * log_sum - below);
      }
      const double v = call.pixel_weight_of(i);
      sums[0] += v * ce;
      sums[1] += v * w;
      sums[2] += 1;
    } else if (y != target.ignore_index) {
      sums[3] += 1;
    }
    call.label[i] = valid ? static_cast<int16_t>(y) : kIgnored;
    if (call.predicted) call.predicted[i] = valid ? static_cast<int16_t>(predicted) : kIgnored;
    if (ce_map) ce_map[i] = ce;
  });
  block_sum(sums);
  constexpr int kRows[4] = {0, 4, 6, 8};
  if (threadIdx.x == 0) {
    for (int k = 0; k < 4; ++k) partial[kRows[k] * gridDim.x + blockIdx.x] = sums[k];
  }
}

// Whether some neighbour of a pixel is of another class, by its label or by the prediction.
__device__ __forceinline__ bool is_edge(const Geometry& g, const int16_t* label, const Place& at) {
  const int16_t own = label[at.base + at.pixel];
  bool differs = false;
  if (own >= 0) {
    for_each_neighbor(g, at.row, at.column, [&](int64_t n) {
      const int16_t other = label[at.base + n];
      differs |= other >= 0 && other != own;
    });
  }
  return differs;
}

__device__ __forceinline__ uint8_t kind_of_edge(const Geometry& g, const int16_t* label, const int16_t* predicted,
                                                const Place& at) {
  if (is_edge(g, label, at)) return kEdge;
  return predicted && is_edge(g, predicted, at) ? kFalseEdge : 0;
}

__global__ void __launch_bounds__(kThreads, 1) edge_mask_kernel(const Geometry g, const int16_t* label, uint8_t* edge) {
  for_each_item(g.batch * g.pixels, [&](int64_t i) { edge[i] = is_edge(g, label, place_of(g, i)); });
}

// The search for d: how far it goes along each axis, and in units of `unit` the size of a pixel and the square of a
// length that d is less than.
struct Search {
  int64_t reach[3];
  double spacing[3];
  double unit, limit;
};

// Calls body(offset, square of its length) from near to far, for offsets whose square is less than `nearest` by then.
template <typename F>
__device__ __forceinline__ void for_each_offset(const Search& search, int axis, int64_t at, int64_t size, double square,
                                                const double& nearest, const F& body) {
  for (int64_t d = 0; d <= search.reach[axis]; ++d) {
    const double length = static_cast<double>(d) * search.spacing[axis], sum = square + length * length;
    if (sum >= nearest) return;
    if (at - d >= 0) body(at - d, sum);
    if (d > 0 && at + d < size) body(at + d, sum);
  }
}

// d of the valid pixels around edge pixels, or of all of them: a search in the labels, outwards.
template <typename A>
__global__ void __launch_bounds__(kThreads, 1)
    distance_kernel(const Geometry g, const int16_t* label, const uint8_t* edge, const Search search, bool everywhere,
                    A* field) {
  for_each_item(g.batch * g.pixels, [&](int64_t i) {
    const Place at = place_of(g, i);
    const int16_t own = label[i];
    bool wanted = everywhere;
    for_each_neighbor(g, at.row, at.column, [&](int64_t n) { wanted |= edge[at.base + n] != 0; });
    if (!wanted) return;
    double nearest = search.limit;
    bool found = false;
    if (own >= 0) {
      const int64_t z = quotient(at.row, g.height), y = at.row - z * g.height;
      for_each_offset(search, 0, z, g.depth, 0, nearest, [&](int64_t nz, double of_z) {
        for_each_offset(search, 1, y, g.height, of_z, nearest, [&](int64_t ny, double of_y) {
          const int64_t row = at.base + (nz * g.height + ny) * g.width;
          for_each_offset(search, 2, at.column, g.width, of_y, nearest, [&](int64_t nx, double square) {
            const int16_t other = label[row + nx];
            if (other < 0 || other == own) return;
            nearest = square;
            found = true;
          });
        });
      });
    }
    field[i] = found ? static_cast<A>(sqrt(nearest) * search.unit) : A(INFINITY);
  });
}

// The edge mask, and the edge terms on it.
template <typename T, typename A, bool kUpsampled>
__global__ void __launch_bounds__(kThreads, 1)
    edge_terms_kernel(const Call<T, A, kUpsampled> call, A* same_map, A* other_map, A* false_map, double* partial) {
  double sums[5] = {0, 0, 0, 0, 0};  // of S, O, S at false edges, edge weight and edges
  for_each_item(call.count(), [&](int64_t i) {
    const Place at = place_of(call.g, i);
    const uint8_t kind = kind_of_edge(call.g, call.label, call.predicted, at);
    call.edge[i] = kind;
    A same = 0, other = 0;
    if (kind != 0) {
      const auto x = call.image(at.image);
      const int16_t k = call.label[i];
      // Of the same and of the other side. They are told apart by selection: an index would put them into memory.
      A same_nearest = 0, other_nearest = 0;
      if (call.has_decay && kind == kEdge) {
        same_nearest = other_nearest = INFINITY;
        for_each_neighbor(call.g, at.row, at.column, [&](int64_t n) {
          const int16_t y = call.label[at.base + n];
          if (y < 0) return;
          const A d = call.field[at.base + n];
          if (y == k) {
            same_nearest = d < same_nearest ? d : same_nearest;
          } else {
            other_nearest = d < other_nearest ? d : other_nearest;
          }
        });
      }
      // Of power 1 Σ w p and Σ w (1 - p); of power 0 Σ w t and Σ w.
      A same_mean = 0, same_complement = 0, other_mean = 0, other_complement = 0;
      const bool logs = call.power == A(0);
      if (call.is_plain) {
        for_each_neighbor(call.g, at.row, at.column, [&](int64_t n) {
          const int64_t j = at.base + n;
          const int16_t y = call.label[j];
          if (y < 0) return;
          const A log_w = call.log_weight(i, y == k ? same_nearest : other_nearest, j);
          const A w = log_w == A(0) ? A(1) : exp_negative(log_w);
          A p, complement;
          if (logs) {
            p = complement = term(x, n, call.g.classes, k, y == k, call.m[j], call.r[j]);
          } else {
            probabilities(x.at(n, k), call.m[j], call.r[j], p, complement);
          }
          if (y == k) {
            same_mean += w * p;
            same_complement += logs ? w : w * complement;
          } else {
            other_mean += w * complement;
            other_complement += logs ? w : w * p;
          }
        });
      }
#pragma unroll 1
      for (int side = 0; side < 2; ++side) {
        const A mean = side ? other_mean : same_mean, complement = side ? other_complement : same_complement;
        Side<A> of;
        of.nearest = side ? other_nearest : same_nearest;
        A value;
        if (logs) {
          value = negative_mean(mean, complement);
          of.inverse = complement > A(0) ? A(1) / complement : A(0);
        } else if (is_exact(mean)) {
          value = negative_log(mean / (mean + complement), complement / (mean + complement));
          of.inverse = A(1) / mean;
        } else {
          value = call.mean_by_logarithms(at, k, side, of);
        }
        call.store(side, i, of);
        (side ? other : same) = value;
      }
      if (kind == kFalseEdge) {
        sums[2] += static_cast<double>(call.pixel_weight_of(i)) * same;
      } else {
        const double v = call.edge_weight_of(i, k);
        sums[0] += v * same;
        sums[1] += v * other;
        sums[3] += v;
        sums[4] += 1;
      }
    }
    if (same_map) {
      same_map[i] = kind == kEdge ? same : A(0);
      other_map[i] = other;
    }
    if (false_map) false_map[i] = kind == kFalseEdge ? same : A(0);
  });
  block_sum(sums);
  constexpr int kRows[5] = {1, 2, 3, 5, 7};
  if (threadIdx.x == 0) {
    for (int k = 0; k < 5; ++k) partial[kRows[k] * gridDim.x + blockIdx.x] = sums[k];
  }
}

// Sum k from what the blocks found, by block k; the last one, of wrong labels, leaves the record if there are some.
__global__ void __launch_bounds__(kThreads, 1)
    sums_kernel(const double* partial, int64_t blocks, bool edges, double* sums, const Labels target, const Geometry g,
                LabelRecord* record, int64_t call) {
  const bool of_edges = blockIdx.x == 1 || blockIdx.x == 2 || blockIdx.x == 3 || blockIdx.x == 5 || blockIdx.x == 7;
  double sum[1] = {0};
  if (edges || !of_edges) {
    for (int64_t b = threadIdx.x; b < blocks; b += kThreads) sum[0] += partial[blockIdx.x * blocks + b];
  }
  block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum[0];
  if (blockIdx.x != kSums - 1 || !record || sum[0] == 0) return;
  // Slow, and rare: one block looks through the whole target for the first of them.
  __shared__ int64_t firsts[kThreads];
  int64_t first = threadIdx.x;
  while (first < g.batch * g.pixels && !target.is_wrong(target.at(first))) first += kThreads;
  firsts[threadIdx.x] = first;
  __syncthreads();
  // An earlier record stays until it is read.
  if (threadIdx.x != 0 || atomicCAS(&record->state, kNothing, kBeingWritten) != kNothing) return;
  for (int t = 1; t < kThreads; ++t) first = firsts[t] < first ? firsts[t] : first;
  record->call = call;
  record->ignore_index = target.ignore_index;
  record->pixels = static_cast<int64_t>(sum[0]);
  record->first = first;
  record->label = target.at(first);
  record->geometry = g;
  __threadfence_system();
  *static_cast<volatile int*>(&record->state) = kWritten;
}

// ------------------------------------------------------------------------------------------------------------ backward

// What arrives at each pixel's terms in the backward pass.
template <typename A>
struct Upstream {
  const double* sums;  // of Σ v CE, Σ v u S, Σ v u O, and Σ v S of false edges
  const A* map[4];     // of the maps, [B, P] each, or null

  __device__ A at(int term, int64_t i, A v) const {
    const A* of = term == 0 ? map[0] : term == 1 ? map[1] : term == 2 ? map[2] : map[3];
    return static_cast<A>(sums[term]) * v + (of ? of[i] : A(0));
  }
};

// Sums for the kShares lowest classes of those that come.
template <typename A>
struct Shares {
  int k[kShares];  // ascending, INT_MAX where there is none
  A sum[kShares];
  bool more = false;  // there were others

  __device__ Shares() {
#pragma unroll
    for (int s = 0; s < kShares; ++s) k[s] = INT_MAX;
  }
  __device__ A of(int64_t c) const {
    A found = 0;
#pragma unroll
    for (int s = 0; s < kShares; ++s) found = k[s] == c ? sum[s] : found;
    return found;
  }
  __device__ int highest() const { return k[kShares - 1]; }
  __device__ void add(int of, A value) {
    bool known = false;
#pragma unroll
    for (int s = 0; s < kShares; ++s) {
      if (k[s] != of) continue;
      sum[s] += value;
      known = true;
    }
    if (known) return;
    // Insert it, and carry on what it displaces.
#pragma unroll
    for (int s = 0; s < kShares; ++s) {
      if (of > k[s]) continue;
      const int displaced = k[s];
      const A displaced_sum = sum[s];
      k[s] = of;
      sum[s] = value;
      of = displaced;
      value = displaced_sum;
    }
    more |= of != INT_MAX;
  }
};

// Where a pixel's gradient goes.
template <typename T>
struct Output {
  T* grad;
  Steps steps;

  template <typename A>
  __device__ void store(bool binary, int64_t image, int64_t pixel, int64_t c, A value) const {
    if (binary && c == 0) return;  // there is no such logit
    const int64_t channel = binary ? 0 : c;
    grad[image * steps.image + channel * steps.channel + pixel * steps.pixel] = static_cast<T>(value);
  }
};

// The gradient of a pixel, alpha · p(c) - at_y · [c = y] - uniform · weight(c) for the cross-entropy; near edge pixels
// they change alpha and at_y, and give something to single classes.
template <typename A>
struct PixelGradient {
  A alpha = 0, at_y = 0, uniform = 0;
  int likely = -1;   // the class k ≠ y with p(k) > 1/2 that edge pixels want less of
  A likely_sum = 0;  // Σ π · slope for it

  // total: the call's smoothed_weight().
  template <typename C>
  __device__ PixelGradient(const C& call, const Upstream<A>& upstream, int64_t i, int16_t y, A total) {
    if (y < 0) return;
    const A ce = upstream.at(0, i, call.pixel_weight_of(i));
    uniform = ce * (call.label_smoothing / static_cast<A>(call.g.classes));
    at_y = ce * (A(1) - call.label_smoothing) * call.weight_of(y);
    alpha = at_y + uniform * total;
  }

  // Adds what the edge pixels around give, of those whose class is wanted(k). Calls give(k, Σ π · slope) for a class k
  // that is neither y nor likely, any number of times.
  template <typename C, typename X, typename W, typename F>
  __device__ __forceinline__ void add_edges(const C& call, const Upstream<A>& upstream, const Place& at, int16_t y,
                                            const X& x, A m, A r, const W& wanted, const F& give) {
    const Geometry& g = call.g;
    for_each_neighbor(g, at.row, at.column, [&](int64_t n) {
      const int64_t centre = at.base + n, i = at.base + at.pixel;
      if (!call.edge[centre]) return;
      const int16_t k = call.label[centre];
      if (!wanted(k)) return;
      const int side = k != y;
      const A x_k = x.at(at.pixel, k);
      A p, complement;
      probabilities(x_k, m, r, p, complement);
      const Side<A> of = call.load(side, centre);
      const A pi = share(of, call.power, side ? complement : p, call.log_weight(centre, of.nearest, i),
                         [&] { return term(x, at.pixel, g.classes, k, side == 0, m, r); });
      const bool is_false = call.edge[centre] == kFalseEdge;
      const A v = is_false ? call.pixel_weight_of(centre) : call.edge_weight_of(centre, k);
      const A value = upstream.at(is_false ? 3 : 1 + side, centre, v) * pi;
      if (side == 0) {  // ∂S = π (p(c) - δ_cy)
        alpha += value;
        at_y += value;
      } else if (is_likely(x_k, m, r)) {
        likely = k;
        likely_sum += value * other_slope(p, complement, true);
      } else {
        give(k, value * other_slope(p, complement, false));
      }
    });
  }
};

// The same, ready to be read off class by class.
template <typename A>
struct ClassGradient {
  A scale, factor, top = 0, at_y, uniform, likely_sum;
  int likely;
  bool by_logarithm;

  template <typename X>
  __device__ ClassGradient(const PixelGradient<A>& of, const X& x, int64_t pixel, int64_t classes, A m, A r)
      : scale(of.alpha / (A(1) + r)), at_y(of.at_y), uniform(of.uniform), likely_sum(of.likely_sum), likely(of.likely) {
    // ∂O = -π p(k) e^(x(c) - m) / r for the other classes where k is likely; 1 / r may be too large, and r underflow.
    const bool by_product = likely >= 0 && r > A(1e-12);
    by_logarithm = likely >= 0 && !by_product;
    factor = by_product ? scale - likely_sum / r : scale;
    if (by_logarithm) top = log_rest(x, pixel, classes, m, r);
  }

  // below: x(c) - m; weight: that of class c, read with label smoothing only.
  template <typename W>
  __device__ A of(int64_t c, int16_t y, A below, const W& weight) const {
    A value = (c == likely ? scale : factor) * exp_negative(below) - (c == y ? at_y : A(0));
    if (c == likely) value += likely_sum;
    if (by_logarithm && c != likely) value -= likely_sum * exp_negative(below - top);
    if (uniform != A(0)) value -= uniform * weight(c);
    return value;
  }
};

// The gradient of the cross-entropy, exactly 0 on pixels that are not valid, whatever their logits are.
template <typename T, typename A, bool kStaged>
__global__ void __launch_bounds__(kThreads, 1)
    cross_entropy_backward_kernel(const Call<T, A, false> call, const Upstream<A> upstream, const Output<T> output) {
  const A total = call.smoothed_weight();
  for_each_item_together(call.count(), [&](int64_t i, bool exists) {
    const int64_t image = quotient(i, call.g.pixels), pixel = i - image * call.g.pixels;
    const Steps& steps = output.steps;
    T* out = output.grad + image * steps.image + pixel * steps.pixel;
    const int16_t y = exists ? call.label[i] : kIgnored;
    const bool valid = y >= 0;
    const auto x = call.image(image);
    const PixelGradient<A> ce(call, upstream, i, y, total);
    const A m = valid ? call.m[i] : A(0), scale = valid ? ce.alpha / (A(1) + call.r[i]) : A(0);
    const auto differentiate = [&](int64_t c, A(&block)[kClasses], int n) {
#pragma unroll
      for (int j = 0; j < kClasses; ++j) {
        if (j >= n) continue;
        A value = scale * exp_negative(block[j] - m) - (c + j == y ? ce.at_y : A(0));
        if (ce.uniform != A(0)) value -= ce.uniform * call.weight_of(c + j);
        block[j] = valid ? value : A(0);
      }
    };
    if constexpr (kStaged) {
      const T* from = valid ? x.data + pixel * x.pixel_step : nullptr;
      for_each_staged_block<true, T, A>(from, exists ? out : nullptr, call.g.classes, differentiate);
    } else if (valid) {
      for_each_block(x, pixel, call.g.classes, [&](int64_t c, A(&block)[kClasses], int n) {
        differentiate(c, block, n);
#pragma unroll
        for (int j = 0; j < kClasses; ++j) {
          if (j >= n || (x.binary && j == 0)) continue;
          *out = static_cast<T>(block[j]);
          out += steps.channel;
        }
      });
    } else if (exists) {
      for (int64_t c = 0; c < call.g.logits; ++c, out += steps.channel) *out = static_cast<T>(A(0));
    }
  });
}

// Whether a pixel has an edge pixel beside it, and counts.
template <typename C>
__device__ __forceinline__ bool is_near_edge(const C& call, const Place& at) {
  bool near = false;
  if (call.label[at.base + at.pixel] >= 0) {
    for_each_neighbor(call.g, at.row, at.column, [&](int64_t n) { near |= call.edge[at.base + n] != 0; });
  }
  return near;
}

// The whole gradient of the pixels around edge pixels, in place of what stands there: one kernel for all would hold so
// many registers that few threads could run at a time.
template <typename T, typename A>
__global__ void __launch_bounds__(kThreads, 1)
    edge_terms_backward_kernel(const Call<T, A, false> call, const Upstream<A> upstream, const Output<T> output) {
  const Geometry& g = call.g;
  const A total = call.smoothed_weight();
  for_each_item(call.count(), [&](int64_t i) {
    const Place at = place_of(call.g, i);
    if (!is_near_edge(call, at)) return;
    const int16_t y = call.label[i];
    const auto x = call.image(at.image);
    const A m = call.m[i], r = call.r[i];
    PixelGradient<A> all(call, upstream, i, y, total);
    // More other classes than fit at a time take several rounds, each for those above the last.
    int floor = -1;
    bool is_first = true, more = false;
    do {
      Shares<A> shares;  // Σ π · slope for the others
      all.add_edges(
          call, upstream, at, y, x, m, r, [&](int k) { return is_first || !(k == y || k == all.likely || k <= floor); },
          [&](int k, A value) {
            if (is_first) all.alpha -= value;
            shares.add(k, value);
          });

      const ClassGradient<A> gradient(all, x, at.pixel, g.classes, m, r);
      const auto write = [&](int64_t c, A share) {
        const A below = x.at(at.pixel, c) - m;
        const A value = gradient.of(c, y, below, [&](int64_t k) { return call.weight_of(k); }) + share;
        output.store(x.binary, at.image, at.pixel, c, value);
      };
      if (is_first) {
        for (int64_t c = 0; c < g.classes; ++c) write(c, shares.of(c));
      } else {
#pragma unroll
        for (int s = 0; s < kShares; ++s) {
          if (shares.k[s] != INT_MAX) write(shares.k[s], shares.sum[s]);
        }
      }
      floor = shares.highest();
      more = shares.more;
      is_first = false;
    } while (more);
  });
}

// Where edge pixels share their gradient out, for the kernel below, which comes by every pixel several times.
template <typename T, typename A>
__global__ void __launch_bounds__(kThreads, 1) near_edge_kernel(const Call<T, A, true> call, uint8_t* near) {
  for_each_item(call.count(), [&](int64_t i) { near[i] = is_near_edge(call, place_of(call.g, i)); });
}

// The gradient of logits that are upsampled: each thread takes kTaken classes of kCells low-resolution pixels, the
// cells, below each other, and gathers from the pixels that are mixed from them. Their logits are mixed in two steps,
// those of a row from the same three columns.
//
// First that of the cross-entropy; then, of the cells near edge pixels, the whole in place of what stands there, by
// threads that take less, since they need more registers. near: as near_edge_kernel leaves it.
template <typename T, typename A, bool kEdges>
struct UpsampledBackward {
  static constexpr int kTaken = sizeof(A) == 4 ? 4 : 1;  // classes
  static constexpr int kCells = kEdges ? 1 : 4;

  Call<T, A, true> call;
  Upstream<A> upstream;
  const uint8_t* near;
  Output<T> output;

  EDGELOSS_INLINE int64_t parts() const { return (call.g.logits + kTaken - 1) / kTaken; }
  EDGELOSS_INLINE int64_t strips() const { return (call.along_y.low + kCells - 1) / kCells; }
  EDGELOSS_INLINE int64_t items() const {
    return call.g.batch * parts() * call.along_z.low * strips() * call.along_x.low;
  }
};

// Without edges, two blocks at a time: 128 registers are enough.
template <typename T, typename A, bool kEdges>
__global__ void __launch_bounds__(kThreads, kEdges ? 1 : 2)
    upsampled_backward_kernel(const UpsampledBackward<T, A, kEdges> of) {
  constexpr int kTaken = of.kTaken, kCells = of.kCells;
  const Call<T, A, true>& call = of.call;
  const Geometry& g = call.g;
  const A total = call.smoothed_weight();
  const int64_t width = call.along_x.low, height = call.along_y.low, depth = call.along_z.low;
  const int64_t strips = of.strips(), parts = of.parts();
  for_each_item(of.items(), [&](int64_t item) {
    const int64_t line = quotient(item, width), cell_x = item - line * width;
    const int64_t slice = quotient(line, strips), first_cell = (line - slice * strips) * kCells;
    const int64_t last_cell = first_cell + kCells < height ? first_cell + kCells : height;
    const int64_t group = quotient(slice, depth), cell_z = slice - group * depth;
    const int64_t image = quotient(group, parts), first_logit = (group - image * parts) * kTaken;
    const int64_t first_class = first_logit + (g.logits == 1), base = image * g.pixels;
    int64_t last_z, last_y, last_x, unused;
    const int64_t first_z = call.along_z.support(cell_z, last_z), first_x = call.along_x.support(cell_x, last_x);
    const int64_t first_y = call.along_y.support(first_cell, unused);
    call.along_y.support(last_cell - 1, last_y);
    if constexpr (kEdges) {
      bool any = false;
      for (int64_t z = first_z; z < last_z; ++z) {
        for (int64_t y = first_y; y < last_y; ++y) {
          const uint8_t* row = of.near + base + (z * g.height + y) * g.width;
          for (int64_t at_x = first_x; at_x < last_x; ++at_x) any |= row[at_x] != 0;
        }
      }
      if (!any) return;
    }
    const auto x = call.image(image);
    const int64_t step = x.low.pixel_step;
    A sum[kCells][kTaken] = {};
    for (int64_t z = first_z; z < last_z; ++z) {
      const Taps<A> taps_z = call.along_z.at(z);
      const A slice_weight = taps_z.weight_of(cell_z);
      if (slice_weight == A(0)) continue;
      for (int64_t y = first_y; y < last_y; ++y) {
        const Taps<A> taps_y = call.along_y.at(y);
        if (taps_y.second < first_cell || taps_y.first >= last_cell) continue;
        A row_weight[kCells];
#pragma unroll
        for (int k = 0; k < kCells; ++k) row_weight[k] = slice_weight * taps_y.weight_of(first_cell + k);
        const Mixture<T, A> mixture = x.mixture(taps_z, taps_y, {cell_x, cell_x, A(0)});
        A column[3][kTaken];  // that before the cells, their own, the next
#pragma unroll
        for (int j = 0; j < kTaken; ++j) {
          const T* own = mixture.first + (first_logit + j) * x.low.class_step;
          const bool exists = first_logit + j < g.logits;
          column[0][j] = exists && cell_x > 0 ? mixture.column(own - step) : A(0);
          column[1][j] = exists ? mixture.column(own) : A(0);
          column[2][j] = exists && cell_x < width - 1 ? mixture.column(own + step) : A(0);
        }
        for (int64_t at_x = first_x; at_x < last_x; ++at_x) {
          const Taps<A> taps_x = call.along_x.at(at_x);
          const A column_weight = taps_x.weight_of(cell_x);
          const int64_t row = z * g.height + y, pixel = row * g.width + at_x, i = base + pixel;
          const int16_t label = call.label[i];
          if (column_weight == A(0) || label < 0) continue;
          const A m = call.m[i], r = call.r[i];
          PixelGradient<A> all(call, of.upstream, i, label, total);
          A shares[kTaken] = {};
          if (kEdges && of.near[i]) {
            const Place at = {image, row, at_x, base, pixel};
            all.add_edges(
                call, of.upstream, at, label, x, m, r, [](int) { return true; },
                [&](int k, A value) {
                  all.alpha -= value;
#pragma unroll
                  for (int j = 0; j < kTaken; ++j) shares[j] += first_class + j == k ? value : A(0);
                });
          }
          const ClassGradient<A> gradient(all, x, pixel, g.classes, m, r);
          const bool is_right = taps_x.first == cell_x;
#pragma unroll
          for (int j = 0; j < kTaken; ++j) {
            if (first_logit + j >= g.logits) continue;
            const A logit =
                mix(is_right ? column[1][j] : column[0][j], is_right ? column[2][j] : column[1][j], taps_x.weight);
            const A value =
                gradient.of(first_class + j, label, logit - m, [&](int64_t c) { return call.weight_of(c); });
            const A weighted = column_weight * (value + shares[j]);
#pragma unroll
            for (int k = 0; k < kCells; ++k) sum[k][j] += row_weight[k] * weighted;
          }
        }
      }
    }
#pragma unroll
    for (int k = 0; k < kCells; ++k) {
#pragma unroll
      for (int j = 0; j < kTaken; ++j) {
        if (first_cell + k >= last_cell || first_logit + j >= g.logits) continue;
        const int64_t cell = (cell_z * height + first_cell + k) * width + cell_x;
        of.output.store(x.binary, image, cell, first_class + j, sum[k][j]);
      }
    }
  });
}

// ----------------------------------------------------------------------------------------------------------- operators

template <typename T, typename A, bool kUpsampled>
Call<T, A, kUpsampled> make_call(const Geometry& g, const Tensor& logits, const std::optional<Tensor>& weight,
                                 const std::optional<Tensor>& pixel_weight,
                                 const std::optional<Tensor>& edge_class_weight, double label_smoothing, double power,
                                 double decay, bool edges, const Tensor& label, int16_t* predicted, const Tensor& flags,
                                 const Tensor& stats, const Tensor& sides, const Tensor& field) {
  A* m = static_cast<A*>(stats.mutable_data_ptr());
  const bool has_decay = edges && decay > 0;
  const Geometry low = geometry_of(logits, {0, 0, 0});
  return {g,
          static_cast<const T*>(logits.const_data_ptr()),
          Steps(logits),
          {low.depth, g.depth},
          {low.height, g.height},
          {low.width, g.width},
          data_or_null<A>(weight),
          data_or_null<A>(pixel_weight),
          data_or_null<A>(edge_class_weight),
          static_cast<A>(label_smoothing),
          static_cast<A>(power),
          has_decay ? static_cast<A>(1 / decay) : A(0),
          has_decay,
          is_plain_mean(power),
          static_cast<int16_t*>(label.mutable_data_ptr()),
          predicted,
          edges ? static_cast<uint8_t*>(flags.mutable_data_ptr()) : nullptr,
          m,
          m + g.batch * g.pixels,
          static_cast<A*>(sides.mutable_data_ptr()),
          static_cast<const A*>(field.const_data_ptr())};
}

// No neighbour of an edge pixel has a larger d than 2 ‖radius · spacing‖.
Search search_for(const Geometry& g, const std::vector<int64_t>& radius, const std::vector<double>& spacing) {
  const int64_t size[3] = {g.depth, g.height, g.width};
  const int64_t first = 3 - static_cast<int64_t>(radius.size());  // axis
  Search search = {};
  // Squares neither over- nor underflow in units of the longest side of a pixel, as a power of two: nothing is rounded.
  search.unit = std::exp2(std::ilogb(*std::max_element(spacing.begin(), spacing.end())));
  double limit = 0;
  for (int64_t axis = first; axis < 3; ++axis) {
    search.spacing[axis] = spacing[axis - first] / search.unit;
    const double length = static_cast<double>(radius[axis - first]) * search.spacing[axis];
    limit += 4 * (length * length);
  }
  for (int64_t axis = first; axis < 3; ++axis) {
    // Rounded up, since rounding could take the last pixel away: the length decides.
    const double reach = std::ceil(std::sqrt(limit) / search.spacing[axis]), last = static_cast<double>(size[axis] - 1);
    search.reach[axis] = static_cast<int64_t>(reach < last ? reach : last);
  }
  search.limit = std::nextafter(limit, INFINITY);
  return search;
}

// The geometry of a call whose radius ends with the image.
Geometry clipped_geometry(const Tensor& logits, const Tensor& image, const std::vector<int64_t>& radius) {
  Geometry g = geometry_of(logits, image, radius);
  g.radius[0] = std::min(g.radius[0], g.depth);
  g.radius[1] = std::min(g.radius[1], g.height);
  g.radius[2] = std::min(g.radius[2], g.width);
  return g;
}

// Whether the classes of a pixel lie side by side.
bool is_staged(const Geometry& g, const Steps& steps) { return g.logits > 1 && steps.channel == 1; }

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

template <typename T, typename A, bool kUpsampled>
Forward forward(const Geometry& g, const Tensor& logits, const Tensor& target, const Labels& labels,
                const std::optional<Tensor>& weight, const std::optional<Tensor>& pixel_weight,
                const std::optional<Tensor>& edge_class_weight, const std::optional<Tensor>& distance,
                double label_smoothing, const std::vector<int64_t>& radius, double power, double decay,
                const std::vector<double>& spacing, bool edges, bool false_edges, bool maps, LabelRecord* record,
                int64_t number, cudaStream_t stream) {
  const int64_t all = g.batch * g.pixels, blocks = blocks_for(all);
  const auto empty = [&](int64_t rows, int64_t columns, ScalarType type) {
    return torch::stable::new_empty(logits, {rows, columns}, type);
  };
  constexpr ScalarType type = kScalarType<A>;
  const bool searches = edges && decay > 0 && !distance;
  const int64_t numbers = !edges ? 0 : (is_plain_mean(power) ? 1 : 2) + (decay > 0 ? 1 : 0);  // a side
  Tensor label = torch::stable::new_empty(logits, sizes_of(target), ScalarType::Short);
  Tensor flags = empty(edges, all, ScalarType::Byte);
  Tensor stats = empty(2, all, type), sides = empty(2 * numbers, all, type);
  Tensor edge_list = torch::stable::new_empty(logits, {0}, ScalarType::Int);  // the CPU's
  Tensor field = empty(searches, all, type);
  Tensor ce = empty(maps, all, type), same = empty(maps && edges, all, type), other = empty(maps && edges, all, type),
         false_edge = empty(maps && false_edges, all, type);
  Tensor sums = torch::stable::new_empty(logits, {kSums}, ScalarType::Double);
  Tensor partial = empty(kSums, blocks, ScalarType::Double), predicted = empty(false_edges, all, ScalarType::Short);
  const auto map_of = [&](const Tensor& t) { return t.numel() ? static_cast<A*>(t.mutable_data_ptr()) : nullptr; };
  double* parts = static_cast<double*>(partial.mutable_data_ptr());
  const auto call = make_call<T, A, kUpsampled>(
      g, logits, weight, pixel_weight, edge_class_weight, label_smoothing, power, decay, edges, label,
      false_edges ? static_cast<int16_t*>(predicted.mutable_data_ptr()) : nullptr, flags, stats, sides,
      distance ? *distance : field);

  auto cross_entropy = cross_entropy_kernel<T, A, kUpsampled, false>;
  if constexpr (!kUpsampled) {
    if (is_staged(g, call.steps)) cross_entropy = cross_entropy_kernel<T, A, false, true>;
  }
  launch(stream, blocks, cross_entropy, call, labels, map_of(ce), parts);
  if (searches) {
    launch(stream, blocks, edge_mask_kernel, g, call.label, call.edge);
    launch(stream, blocks, distance_kernel<A>, g, call.label, call.edge, search_for(g, radius, spacing), maps,
           static_cast<A*>(field.mutable_data_ptr()));
  }
  if (edges) {
    launch(stream, blocks, edge_terms_kernel<T, A, kUpsampled>, call, map_of(same), map_of(other), map_of(false_edge),
           parts);
  }
  launch(stream, kSums, sums_kernel, parts, blocks, edges, static_cast<double*>(sums.mutable_data_ptr()), labels, g,
         record, number);
  return {sums, ce, same, other, false_edge, label, flags, stats, edge_list, sides, field};
}

int64_t bytes_of(ScalarType label) {
  switch (label) {
    case ScalarType::Long:
      return 8;
    case ScalarType::Int:
      return 4;
    case ScalarType::Short:
      return 2;
    default:
      return 1;  // uint8 and bool
  }
}

Forward edge_loss(const Tensor& logits, const Tensor& target, const std::optional<Tensor>& weight,
                  const std::optional<Tensor>& pixel_weight, const std::optional<Tensor>& edge_class_weight,
                  const std::optional<Tensor>& distance, int64_t ignore_index, double label_smoothing,
                  std::vector<int64_t> radius, double power, double decay, std::vector<double> spacing, bool edges,
                  bool false_edges, bool maps, int64_t validate) {
  const int device = logits.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const cudaStream_t stream = current_stream(device);
  const int64_t number = ++calls;
  LabelRecord* record = nullptr;
  if (validate) {
    record = label_records.of(device);
    label_records.throw_if_any(device, number);
  }
  const Labels labels = {target.const_data_ptr(), bytes_of(target.scalar_type()), ignore_index,
                         std::max<int64_t>(2, logits.size(1))};
  const Geometry g = clipped_geometry(logits, target, radius);
  const Forward result = by_type(logits, [&](auto t, auto a) {
    using T = decltype(t);
    using A = decltype(a);
    const auto run = is_upsampled(g, logits) ? forward<T, A, true> : forward<T, A, false>;
    return run(g, logits, target, labels, weight, pixel_weight, edge_class_weight, distance, label_smoothing, radius,
               power, decay, spacing, edges, false_edges, maps, record, number, stream);
  });
  if (validate == 2) {
    check(cudaStreamSynchronize(stream));
    label_records.throw_if_any(device, number);
  }
  return result;
}

Tensor edge_loss_backward(const Tensor& grad_sums, const std::optional<Tensor>& grad_ce,
                          const std::optional<Tensor>& grad_same, const std::optional<Tensor>& grad_other,
                          const std::optional<Tensor>& grad_false, const Tensor& logits,
                          const std::optional<Tensor>& weight, const std::optional<Tensor>& pixel_weight,
                          const std::optional<Tensor>& edge_class_weight, const Tensor& label, const Tensor& flags,
                          const Tensor& stats, const Tensor& /* edge_list */, const Tensor& sides, const Tensor& field,
                          double label_smoothing, std::vector<int64_t> radius, double power, double decay) {
  const int device = logits.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const Geometry g = clipped_geometry(logits, label, radius);
  const cudaStream_t stream = current_stream(device);
  const bool edges = flags.numel() > 0;
  Tensor grad = torch::stable::empty_like(logits);
  by_type(logits, [&](auto t, auto a) {
    using T = decltype(t);
    using A = decltype(a);
    const Upstream<A> upstream = {static_cast<const double*>(grad_sums.const_data_ptr()),
                                  {data_or_null<A>(grad_ce), data_or_null<A>(grad_same), data_or_null<A>(grad_other),
                                   data_or_null<A>(grad_false)}};
    const Output<T> output = {static_cast<T*>(grad.mutable_data_ptr()), Steps(grad)};
    const int64_t blocks = blocks_for(g.batch * g.pixels);
    const auto make = [&](auto upsampled) {
      return make_call<T, A, decltype(upsampled)::value>(g, logits, weight, pixel_weight, edge_class_weight,
                                                         label_smoothing, power, decay, edges, label, nullptr, flags,
                                                         stats, sides, field);
    };
    if (is_upsampled(g, logits)) {
      const auto call = make(std::true_type());
      const UpsampledBackward<T, A, false> of_cross_entropy = {call, upstream, nullptr, output};
      launch(stream, blocks_for(of_cross_entropy.items()), upsampled_backward_kernel<T, A, false>, of_cross_entropy);
      if (!edges) return;
      Tensor near = torch::stable::new_empty(logits, {g.batch * g.pixels}, ScalarType::Byte);
      uint8_t* is_near = static_cast<uint8_t*>(near.mutable_data_ptr());
      launch(stream, blocks, near_edge_kernel<T, A>, call, is_near);
      const UpsampledBackward<T, A, true> of_edges = {call, upstream, is_near, output};
      launch(stream, blocks_for(of_edges.items()), upsampled_backward_kernel<T, A, true>, of_edges);
      return;
    }
    const auto call = make(std::false_type());
    const auto cross_entropy = is_staged(g, call.steps) && is_staged(g, output.steps)
                                   ? cross_entropy_backward_kernel<T, A, true>
                                   : cross_entropy_backward_kernel<T, A, false>;
    launch(stream, blocks, cross_entropy, call, upstream, output);
    if (edges) launch(stream, blocks, edge_terms_backward_kernel<T, A>, call, upstream, output);
  });
  return grad;
}

}  // namespace
}  // namespace edgeloss

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CUDA, m) {
  m.impl("edge_loss", TORCH_BOX(&edgeloss::edge_loss));
  m.impl("edge_loss_backward", TORCH_BOX(&edgeloss::edge_loss_backward));
}

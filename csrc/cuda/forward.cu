// The whole loss on CUDA, forward.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <optional>

#include "../distance_search.h"
#include "call.h"
#include "label_records.h"

namespace edgeloss {
namespace {

LabelRecords label_records;
std::atomic<int64_t> calls{0};
const bool is_registered = [] {
  take_label_error = [] { return label_records.take(std::nullopt, 0); };
  return true;
}();

// ------------------------------------------------------------------------------------------------------------- kernels

// Labels, statistics and cross-entropy. partial: [Row::kCount, blocks].
template <typename T, typename A, bool kUpsampled, bool kStaged>
__global__ void __launch_bounds__(kThreads, 1)
    cross_entropy_kernel(const Call<T, A, kUpsampled> call, const Target target, A* ce_map, double* partial) {
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
  constexpr int kRows[4] = {Row::kCrossEntropy, Row::kWeight, Row::kValid, Row::kWrong};
  if (threadIdx.x == 0) {
    for (int k = 0; k < 4; ++k) partial[kRows[k] * gridDim.x + blockIdx.x] = sums[k];
  }
}

// Whether some neighbor of a pixel is of another class, by its label or by the prediction.
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
    bool is_found = false;
    if (own >= 0) {
      const int64_t z = quotient(at.row, g.height), y = at.row - z * g.height;
      search.along(0, z, g.depth, 0, nearest, [&](int64_t nz, double square_z) {
        search.along(1, y, g.height, square_z, nearest, [&](int64_t ny, double square_y) {
          const int64_t row = at.base + (nz * g.height + ny) * g.width;
          search.along(2, at.column, g.width, square_y, nearest, [&](int64_t nx, double square) {
            const int16_t other = label[row + nx];
            if (other < 0 || other == own) return;
            nearest = square;
            is_found = true;
          });
        });
      });
    }
    field[i] = is_found ? static_cast<A>(sqrt(nearest) * search.unit) : A(INFINITY);
  });
}

// The edge pixels of each class. A block counts in shared memory first, since atomics would queue at the few addresses
// of `total`; classes beyond its threads are counted there at once. Integers, so that the order does not matter.
struct ClassCounts {
  unsigned long long* total;  // [C], or null: not wanted
  int* of_block;              // [kThreads], shared

  __device__ void start() const {
    if (!total) return;
    of_block[threadIdx.x] = 0;
    __syncthreads();
  }
  __device__ void add(int16_t k) const {
    if (!total) return;
    if (k < kThreads) {
      atomicAdd(of_block + k, 1);
    } else {
      atomicAdd(total + k, 1ULL);
    }
  }
  __device__ void finish() const {
    if (!total) return;
    __syncthreads();
    const int count = of_block[threadIdx.x];
    if (count > 0) atomicAdd(total + threadIdx.x, static_cast<unsigned long long>(count));
  }
};

// The edge mask, and the edge terms on it.
template <typename T, typename A, bool kUpsampled>
__global__ void __launch_bounds__(kThreads, 1)
    edge_terms_kernel(const Call<T, A, kUpsampled> call, A* same_map, A* other_map, A* false_map, double* partial) {
  double sums[5] = {0, 0, 0, 0, 0};  // of S, O, S at false edges, edge weight and edges
  __shared__ int of_block[kThreads];
  const ClassCounts counts = {call.edge_counts, of_block};
  counts.start();
  for_each_item(call.count(), [&](int64_t i) {
    const Place at = place_of(call.g, i);
    const uint8_t kind = kind_of_edge(call.g, call.label, call.predicted, at);
    call.edge[i] = kind;
    A same = 0, other = 0;
    if (kind != 0) {
      const auto x = call.image(at.image);
      const int16_t k = call.label[i];
      // Of the same and of the other side. Selected, since an index would put them into memory.
      A same_nearest = 0, other_nearest = 0;
      if (call.packing.has_decay && kind == kEdge) {
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
      if (call.packing.is_plain) {
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
        Side<A> mean_of_side;
        mean_of_side.nearest = side ? other_nearest : same_nearest;
        A value;
        if (logs) {
          value = negative_mean(mean, complement);
          mean_of_side.inverse = complement > A(0) ? A(1) / complement : A(0);
        } else if (is_exact(mean)) {
          value = negative_log(mean / (mean + complement), complement / (mean + complement));
          mean_of_side.inverse = A(1) / mean;
        } else {
          value = call.mean_by_logarithms(at, k, side, mean_of_side);
        }
        call.store(side, i, mean_of_side);
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
        counts.add(k);
      }
    }
    if (same_map) {
      same_map[i] = kind == kEdge ? same : A(0);
      other_map[i] = other;
    }
    if (false_map) false_map[i] = kind == kFalseEdge ? same : A(0);
  });
  counts.finish();
  block_sum(sums);
  constexpr int kRows[5] = {Row::kSameSide, Row::kOtherSide, Row::kFalseEdge, Row::kEdgeWeight, Row::kEdges};
  if (threadIdx.x == 0) {
    for (int k = 0; k < 5; ++k) partial[kRows[k] * gridDim.x + blockIdx.x] = sums[k];
  }
}

// Sum k from what the blocks found, by block k; the last one, of wrong labels, leaves the record if there are some.
__global__ void __launch_bounds__(kThreads, 1)
    sums_kernel(const double* partial, int64_t blocks, bool edges, double* sums, const Target target, const Geometry g,
                LabelRecord* record, int64_t call) {
  const bool is_of_edges = blockIdx.x == Row::kSameSide || blockIdx.x == Row::kOtherSide ||
                           blockIdx.x == Row::kFalseEdge || blockIdx.x == Row::kEdgeWeight || blockIdx.x == Row::kEdges;
  double sum[1] = {0};
  if (edges || !is_of_edges) {
    for (int64_t b = threadIdx.x; b < blocks; b += kThreads) sum[0] += partial[blockIdx.x * blocks + b];
  }
  block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum[0];
  if (blockIdx.x != Row::kWrong || !record || sum[0] == 0) return;
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

// ------------------------------------------------------------------------------------------------------------ operator

// Where a call records wrong labels, and its number.
struct Recording {
  LabelRecord* record;  // null where they are not checked
  int64_t call;
};

template <typename T, typename A, bool kUpsampled>
Outputs run_forward(const Inputs& inputs, const Tensor& labels, const std::optional<Tensor>& distance,
                    const Options& options, const Recording& recording, cudaStream_t stream) {
  const Tensor& logits = inputs.logits;
  const Geometry g = clipped_geometry(logits, labels, options.radius);
  const int64_t all = g.batch * g.pixels, blocks = blocks_for(all);
  const Outputs outputs(Device::kCuda, logits, labels, options, distance.has_value());
  SavedState saved = outputs.saved;
  if (distance) saved.field = *distance;
  const auto data_of = [](const Tensor& t) { return t.numel() ? static_cast<A*>(t.mutable_data_ptr()) : nullptr; };
  Tensor partial = torch::stable::new_empty(logits, {Row::kCount * blocks}, ScalarType::Double);
  Tensor predicted = torch::stable::new_empty(logits, {options.false_edges ? all : 0}, ScalarType::Short);
  double* parts = static_cast<double*>(partial.mutable_data_ptr());
  const Target target = {labels_of(labels), options.ignore_index, g.classes};
  Call<T, A, kUpsampled> call(g, inputs, saved, options);
  if (options.false_edges) call.predicted = static_cast<int16_t*>(predicted.mutable_data_ptr());
  if (options.count_edges) call.edge_counts = static_cast<unsigned long long*>(outputs.edge_counts.mutable_data_ptr());

  auto cross_entropy = cross_entropy_kernel<T, A, kUpsampled, false>;
  if constexpr (!kUpsampled) {
    if (is_staged(g, call.steps)) cross_entropy = cross_entropy_kernel<T, A, false, true>;
  }
  launch(stream, blocks, cross_entropy, call, target, data_of(outputs.ce), parts);
  if (options.has_decay() && !distance) {
    launch(stream, blocks, edge_mask_kernel, g, call.label, call.edge);
    launch(stream, blocks, distance_kernel<A>, g, call.label, call.edge, Search(g, options), options.maps,
           data_of(saved.field));
  }
  if (options.edges) {
    launch(stream, blocks, edge_terms_kernel<T, A, kUpsampled>, call, data_of(outputs.same), data_of(outputs.other),
           data_of(outputs.false_edge), parts);
  }
  launch(stream, Row::kCount, sums_kernel, parts, blocks, options.edges,
         static_cast<double*>(outputs.sums.mutable_data_ptr()), target, g, recording.record, recording.call);
  return outputs;
}

}  // namespace

Outputs cuda::forward(const Inputs& inputs, const Tensor& target, const std::optional<Tensor>& distance,
                      const Options& options) {
  const Tensor& logits = inputs.logits;
  const int device = logits.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const cudaStream_t stream = current_stream(device);
  Recording recording = {nullptr, ++calls};
  if (options.validate) {
    recording.record = label_records.find(device);
    label_records.throw_if_any(device, recording.call);
  }
  const bool upsampled = is_upsampled(geometry_of(logits, target, options.radius), logits);
  const Outputs outputs = by_type(logits, [&](auto t, auto a) {
    using T = decltype(t);
    using A = decltype(a);
    const auto run = upsampled ? run_forward<T, A, true> : run_forward<T, A, false>;
    return run(inputs, target, distance, options, recording, stream);
  });
  if (options.validate == 2) {
    check(cudaStreamSynchronize(stream));
    label_records.throw_if_any(device, recording.call);
  }
  return outputs;
}

}  // namespace edgeloss

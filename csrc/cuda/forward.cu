// The whole loss on CUDA, forward.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "../distance_search.h"
#include "dense.h"
#include "label_records.h"
#include "labels.h"
#include "passes.h"
#include "strips.h"

namespace edgeloss {
namespace {

LabelRecords label_records;
std::atomic<int64_t> calls{0};
const bool is_registered = [] {
  take_label_error = [] { return label_records.take(std::nullopt, 0); };
  return true;
}();

// ------------------------------------------------------------------------------------------------------------- kernels

// What label smoothing and the prediction need of a pixel.
template <typename A>
struct Extras {
  A below = 0, weights = 0;  // Σ weight(c) · (x(c) - m) and Σ weight(c), over the classes so far
  int predicted = 0;         // the first class that reaches the max

  // before, m: the max without and with the block.
  template <int N, typename C>
  __device__ __forceinline__ void add(const C& call, int image, int c, const A (&x)[N], A before, A m) {
    if (m > before) {
#pragma unroll
      for (int j = N - 1; j >= 0; --j) predicted = x[j] == m ? c + j : predicted;
    }
    if (call.label_smoothing == A(0)) return;
    if (weights > A(0) && m > before) below += weights * (before - m);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (c + j >= call.g.classes) continue;
      const A w = call.weight_of(image, c + j);
      below += x[j] == m ? A(0) : w * (x[j] - m);
      weights += w;
    }
  }
};

template <typename A>
struct CrossEntropyOutputs {
  A* ce;  // [B, P] or null
  PixelTerms<A> of_pixels;
  double* partial;  // [Row::kCount, tiles]
};

// A pixel whose logits were read, and its cross-entropy. kExtras: with weights, label smoothing and false edges. kPair:
// of two classes, read at once.
template <typename A, bool kExtras, bool kPair>
struct Pixel {
  int y;      // or kIgnored
  A own = 0;  // its logit of class y
  RunningSoftmax<A> softmax;
  Extras<A> extras;

  template <typename C, int N>
  __device__ __forceinline__ void add(const C& call, int image, int c, const A (&x)[N]) {
    const A before = softmax.m;
    if constexpr (kPair) {
      softmax_of_pair(x[0], x[1], softmax.m, softmax.r);
      own = y == 0 ? x[0] : x[1];
    } else {
      softmax.add(x, N);
    }
    if constexpr (kExtras) extras.add(call, image, c, x, before, softmax.m);
  }

  // Returns CE of pixel i, 0 where it does not count, for any logits, and adds to the sums of CE and of weight, the
  // second of which is known where all pixels weigh the same. nll: of its class, without weights.
  template <typename C, int N>
  __device__ __forceinline__ A finish(const C& call, const CrossEntropyOutputs<A>& out, int image, int i, A& nll,
                                      double (&sums)[N]) const {
    const A log_sum = kPair ? log1p_of_unit(softmax.r) : log1p_positive(softmax.r);
    nll = log_sum - (own - softmax.m);
    A ce = nll, w = 1, v = 1;
    if constexpr (kExtras) {
      if (y >= 0) {
        v = call.pixel_weight_of(i);
        w = call.weight_of(image, y);
      }
      ce *= w;
      const A smoothing = call.label_smoothing, all = extras.weights * log_sum - extras.below;
      if (smoothing != A(0)) ce = (A(1) - smoothing) * ce + smoothing / static_cast<A>(call.g.classes) * all;
      if (out.of_pixels.predicted) {
        out.of_pixels.predicted[i] = y >= 0 ? static_cast<int16_t>(extras.predicted) : kIgnored;
      }
    }
    if (y < 0) return A(0);
    if constexpr (kExtras) {
      sums[0] += static_cast<double>(v) * ce;
      sums[1] += static_cast<double>(v) * w;
    }
    return ce;
  }
};

// Statistics and cross-entropy of a tile; calls without kExtras do not pay for them.
template <typename T, typename A, bool kUpsampled, Layout kLayout, bool kExtras>
__global__ void __launch_bounds__(kThreads, sizeof(A) == 4 && !kExtras && !kUpsampled ? 3 : 1)
    cross_entropy_kernel(const Call<T, A, kUpsampled> call, const CrossEntropyOutputs<A> out) {
  using Max = typename Call<T, A, kUpsampled>::Max;
  constexpr int V = pixels_of(kLayout);
  constexpr bool kPair = kLayout == Layout::kPairs;
  const Tile tile(call.g, call.tiles);
  const auto x = call.image(tile.image);
  const int classes = static_cast<int>(call.g.classes);
  double sums[kExtras ? 2 : 1] = {};  // of CE and weight
  for_each_run<V>(tile, [&](int p, bool exists) {
    const int place = exists ? tile.pixel(p) : 0, i = tile.base + place;
    int bits[V];
    Pixel<A, kExtras, kPair> pixel[V];
    bool is_read = false;
    if (exists) load_wide(call.label_bits() + i, bits);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      pixel[v].y = exists && bits[v] != kIgnoredBits ? bits[v] & kClassBits : kIgnored;
      if constexpr (kLayout == Layout::kVectors) {  // first: later, it may have left the cache
        const T* at = x.data + place + v + static_cast<int64_t>(pixel[v].y) * static_cast<int>(x.class_step);
        pixel[v].own = pixel[v].y >= 0 && !(x.binary && pixel[v].y == 0) ? static_cast<A>(*at) : A(0);
      } else if constexpr (!kPair) {
        pixel[v].own = pixel[v].y >= 0 ? x.at(place + v, pixel[v].y) : A(0);
      }
      is_read |= pixel[v].y >= 0;
    }
    const auto add = [&](int c, const auto& block, auto) {
#pragma unroll
      for (int v = 0; v < V; ++v) pixel[v].add(call, tile.image, c, block[v]);
    };
    if constexpr (kLayout == Layout::kStaged) {
      for_each_staged_block<false, T, A>(is_read ? x.data + place * x.pixel_step : nullptr, nullptr, classes, add);
    } else if constexpr (kUpsampled) {
      if (is_read) for_each_class_block<kLayout == Layout::kVolume, kBlock<A>>(x, place, classes, add);
    } else if (is_read) {
      for_each_class_block<V, kPair ? 2 : kBlock<A>>(x, place, classes, add);
    }
    if (!exists) return;
    Max m[V];
    A r[V], ce[V], log_p[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      m[v] = static_cast<Max>(pixel[v].softmax.m);
      r[v] = pixel[v].softmax.r;
      ce[v] = pixel[v].finish(call, out, tile.image, i + v, log_p[v], sums);
      log_p[v] = -log_p[v];
    }
    store<false>(call.m + i, m);
    store<false>(call.r + i, r);
    if (out.of_pixels.log_p) store<false>(out.of_pixels.log_p + i, log_p);
    if (out.ce) store<false>(out.ce + i, ce);
    if constexpr (!kExtras) {
      A sum = ce[0];
#pragma unroll
      for (int v = 1; v < V; ++v) sum += ce[v];
      sums[0] += sum;
    }
  });
  block_sum(sums);
  if (threadIdx.x != 0) return;
  out.partial[Row::kCrossEntropy * call.tiles.count + blockIdx.x] = sums[0];
  if constexpr (kExtras) out.partial[Row::kWeight * call.tiles.count + blockIdx.x] = sums[1];
}

// d of the valid pixels around edge pixels, or of all of them: a search in the labels, outwards.
template <typename A>
__global__ void __launch_bounds__(kThreads, 1)
    distance_kernel(const Geometry g, const Tiles tiles, const int16_t* label, const Bits edges, const Search search,
                    bool everywhere, A* field) {
  __shared__ uint16_t places[kTilePixels];
  const Tile tile(g, tiles);
  const int count =
      list_places(places, [&](int w) { return everywhere ? ~0u : near_edges<false>(g, tile, tiles, edges, w); });
  for (int n = threadIdx.x; n < count; n += kThreads) {
    if (!tile.exists(places[n])) continue;
    const int row = tile.row(places[n]), column = tile.column(places[n]), i = tile.base + tile.pixel(places[n]);
    const int16_t own = class_of(label[i]);
    double nearest = search.limit;
    bool is_found = false;
    if (own >= 0) {
      const int64_t z = quotient(row, g.height), y = row - z * g.height;
      search.along(0, z, g.depth, 0, nearest, [&](int64_t nz, double square_z) {
        search.along(1, y, g.height, square_z, nearest, [&](int64_t ny, double square_y) {
          const int64_t first = tile.base + (nz * g.height + ny) * g.width;
          search.along(2, column, g.width, square_y, nearest, [&](int64_t nx, double square) {
            const int16_t other = class_of(label[first + nx]);
            if (other < 0 || other == own) return;
            nearest = square;
            is_found = true;
          });
        });
      });
    }
    field[i] = is_found ? static_cast<A>(sqrt(nearest) * search.unit) : A(INFINITY);
  }
}

// The record of wrong labels: slow, and rare. One block looks through the whole target for the first of them.
__device__ void record_labels(const Target& target, const Geometry& g, const Recording& recording, int64_t pixels) {
  __shared__ int64_t firsts[kThreads];
  int64_t first = threadIdx.x;
  while (first < g.batch * g.pixels && !target.is_wrong(target.at(first))) first += kThreads;
  firsts[threadIdx.x] = first;
  __syncthreads();
  LabelRecord* record = recording.record;
  if (threadIdx.x != 0 || !record->claim()) return;
  for (int t = 1; t < kThreads; ++t) first = firsts[t] < first ? firsts[t] : first;
  record->call = recording.call;
  record->ignore_index = target.ignore_index;
  record->pixels = pixels;
  record->first = first;
  record->label = target.at(first);
  record->geometry = g;
  record->publish();
}

// Sum k from those of the tiles, by block k; of the terms of edges where `rows` has their bits. The block of wrong
// labels leaves the record if there are some.
__global__ void __launch_bounds__(kThreads, 1)
    sums_kernel(const double* partial, int64_t tiles, unsigned rows, double* sums, const Target target,
                const Geometry g, const Recording recording) {
  double sum[1] = {0};
  if (rows >> blockIdx.x & 1) {
    for (int64_t b = threadIdx.x; b < tiles; b += kThreads) sum[0] += partial[blockIdx.x * tiles + b];
  }
  block_sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum[0];
  if (blockIdx.x == Row::kWrong && recording.record && sum[0] != 0) {
    record_labels(target, g, recording, static_cast<int64_t>(sum[0]));
  }
}

// ------------------------------------------------------------------------------------------------------------ operator

template <typename A>
A* data_of(const Tensor& tensor) {
  return tensor.numel() ? static_cast<A*>(tensor.mutable_data_ptr()) : nullptr;
}

template <typename T, typename A, bool kUpsampled>
void launch_cross_entropy(const Call<T, A, kUpsampled>& call, const Tensor& logits, const CrossEntropyOutputs<A>& out,
                          cudaStream_t stream) {
  const auto run = [&](auto layout) {
    constexpr Layout kLayout = decltype(layout)::value;
    const bool extras = call.weight || call.pixel_weight || call.label_smoothing != A(0) || out.of_pixels.predicted;
    const auto kernel = extras ? cross_entropy_kernel<T, A, kUpsampled, kLayout, true>
                               : cross_entropy_kernel<T, A, kUpsampled, kLayout, false>;
    launch(stream, call.tiles.count, kernel, call, out);
  };
  if constexpr (kUpsampled) {
    LowResolution<T, A>::check(call);  // here already, so that no forward pass is without its backward pass
    if (call.g.is_volume) run(std::integral_constant<Layout, Layout::kVolume>());
    if (!call.g.is_volume) run(std::integral_constant<Layout, Layout::kSingles>());
  } else {
    with_layout(layout_of(call.g, call.steps, logits), run);
  }
}

template <typename T, typename A, bool kUpsampled>
Outputs run_forward(const Inputs& inputs, const Tensor& labels, const std::optional<Tensor>& distance,
                    const Options& options, const Recording& recording, cudaStream_t stream) {
  const Tensor& logits = inputs.logits;
  const Geometry g = clipped_geometry(logits, labels, options);
  const int64_t all = g.batch * g.pixels;
  const Outputs outputs(Device::kCuda, logits, labels, options, distance.has_value());
  SavedState saved = outputs.saved;
  if (distance) saved.field = *distance;
  const Call<T, A, kUpsampled> call(g, inputs, saved, options);
  Tensor partial = torch::stable::new_empty(logits, {Row::kCount * call.tiles.count}, ScalarType::Double);
  double* parts = static_cast<double*>(partial.mutable_data_ptr());
  const Target target = {labels_of(labels), options.ignore_index, g.classes};
  find_labels(g, call.tiles, target,
              {call.label, call.edges, data_of<uint8_t>(saved.flags), data_of<unsigned long long>(outputs.edge_counts)},
              parts, stream);
  Tensor predicted = torch::stable::new_empty(logits, {options.false_edges ? all : 0}, ScalarType::Short);
  const bool wants_log_p = options.false_edges || (options.edges && options.power == 0);
  Tensor log_p = torch::stable::new_empty(logits, {wants_log_p ? all : 0}, kScalarType<A>);
  const PixelTerms<A> pixels = {data_of<int16_t>(predicted), data_of<A>(log_p)};
  launch_cross_entropy(call, logits, {data_of<A>(outputs.ce), pixels, parts}, stream);
  if (options.has_decay() && !distance) {
    launch(stream, call.tiles.count, distance_kernel<A>, g, call.tiles, call.label, call.edges, Search(g, options),
           options.maps, data_of<A>(saved.field));
  }
  const EdgeOutputs<A> edge_outputs = {data_of<A>(outputs.same), data_of<A>(outputs.other),
                                       data_of<A>(outputs.false_edge), parts};
  if (options.edges) find_edge_terms(call, pixels, edge_outputs, stream);
  if (call.false_edges.words) find_false_edges(call, pixels, edge_outputs, stream);
  unsigned rows = 1u << Row::kCrossEntropy | 1u << Row::kWeight | 1u << Row::kValid | 1u << Row::kWrong;
  if (options.edges) rows |= 1u << Row::kSameSide | 1u << Row::kOtherSide | 1u << Row::kEdgeWeight | 1u << Row::kEdges;
  if (call.false_edges.words) rows |= 1u << Row::kFalseEdge;
  launch(stream, Row::kCount, sums_kernel, parts, call.tiles.count, rows,
         static_cast<double*>(outputs.sums.mutable_data_ptr()), target, g, recording);
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

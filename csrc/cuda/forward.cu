// The whole loss on CUDA, forward.
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <optional>
#include <type_traits>

#include "../distance_search.h"
#include "cross_entropy.h"
#include "dense.h"
#include "label_records.h"
#include "labels.h"
#include "passes.h"

namespace edgeloss {
namespace {

LabelRecords label_records;
std::atomic<int64_t> calls{0};
const bool is_registered = [] {
  take_label_error = [] { return label_records.take(std::nullopt, 0); };
  return true;
}();

// ------------------------------------------------------------------------------------------------------------- kernels

// Statistics and cross-entropy of a tile.
template <typename T, typename A, Layout kLayout, Terms kTerms>
__global__ void __launch_bounds__(kThreads, sizeof(A) == 4 && kTerms != Terms::kAll ? 3 : 1)
    cross_entropy_kernel(const Call<T, A, false> call, const CrossEntropyOutputs<A> out) {
  constexpr int V = pixels_of(kLayout);
  constexpr bool kPair = kLayout == Layout::kPairs;
  const Tile tile(call.g, call.tiles);
  const auto x = call.image(tile.image);
  const int classes = static_cast<int>(call.g.classes);
  CrossEntropySums<A, kTerms> sums;
  for_each_run<V>(tile, [&](int p, bool exists) {
    const int place = exists ? tile.pixel(p) : 0, i = tile.base + place;
    int bits[V];
    Pixel<A, kTerms, kPair> pixel[V];
    bool is_read = false;
    if (exists) load_wide(call.label_bits() + i, bits);
#pragma unroll
    for (int v = 0; v < V; ++v) {
      pixel[v].y = exists && bits[v] != kIgnoredBits ? bits[v] & kClassBits : kIgnored;
      if constexpr (kLayout == Layout::kVectors) {  // first: later, it may have left the cache
        const auto class_bytes = static_cast<int>(x.class_step * static_cast<int64_t>(sizeof(T)));
        const char* at = reinterpret_cast<const char*>(x.data + place) + static_cast<int64_t>(pixel[v].y) * class_bytes;
        const bool is_zero = x.binary && pixel[v].y == 0;
        pixel[v].own = pixel[v].y >= 0 && !is_zero ? static_cast<A>(reinterpret_cast<const T*>(at)[v]) : A(0);
      } else if constexpr (!kPair) {
        pixel[v].own = pixel[v].y >= 0 ? x.at(place + v, pixel[v].y) : A(0);
      }
      is_read |= pixel[v].y >= 0;
    }
    const auto add = [&](int c, const auto& block) {
#pragma unroll
      for (int v = 0; v < V; ++v) pixel[v].add(call, tile.image, c, block[v]);
    };
    if constexpr (kLayout == Layout::kStaged) {
      const T* from = is_read ? x.data + place * x.pixel_step : nullptr;
      for_each_staged_block<false, T, A>(from, nullptr, classes, [&](int c, auto& block, auto) { add(c, block); });
    } else if (is_read) {
      T top[V];
#pragma unroll
      for (int v = 0; v < V; ++v) top[v] = static_cast<T>(-INFINITY);
      for_each_class_block<V, kPair ? 2 : kBlock<A>>(x, place, classes, [&](int c, auto& logits, auto) {
        constexpr int N = sizeof(logits) / sizeof(logits[0]);
        A block[V][N];
        if constexpr (kLayout == Layout::kVectors && kTerms != Terms::kAll) {  // compared in their own type
#pragma unroll
          for (int j = 0; j < N; ++j) compare(top, logits[j]);
          A tops[V];
          convert(top, tops);
          convert_block(logits, block);
#pragma unroll
          for (int v = 0; v < V; ++v) pixel[v].softmax.add_below(block[v], tops[v]);
        } else {
          convert_block(logits, block);
          add(c, block);
        }
      });
    }
    if (!exists) return;
    T m[V];
    A r[V], ce[V], log_p[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      m[v] = static_cast<T>(pixel[v].softmax.m);
      r[v] = pixel[v].softmax.r;
      if constexpr (kTerms == Terms::kSum) {
        sums.add(pixel[v]);
      } else {
        ce[v] = sums.add(pixel[v], call, out, tile.image, i + v, log_p[v]);
      }
    }
    store<false>(call.m + i, m);
    store<false>(call.r + i, r);
    if constexpr (kTerms != Terms::kSum) {
      if (out.of_pixels.log_p) store<false>(out.of_pixels.log_p + i, log_p);
      if (out.ce) store<false>(out.ce + i, ce);
    }
  });
  sums.write(out, call.tiles);
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

// The edge pixels of each class, with weights that their sum of weights comes from; or null.
struct WeightedCounts {
  const unsigned long long* counts;
  const float* weights;
  int64_t classes;
};

// Sum k from those of the tiles, by block k; of the terms of edges where `rows` has their bits. The block of wrong
// labels leaves the record if there are some.
__global__ void __launch_bounds__(kThreads, 1)
    sums_kernel(const double* partial, int64_t tiles, unsigned rows, double* sums, const Target target,
                const Geometry g, const Recording recording, const WeightedCounts edges) {
  double sum[1] = {0};
  if (blockIdx.x == Row::kEdgeWeight && edges.weights) {
    for (int64_t c = threadIdx.x; c < edges.classes; c += kThreads) {
      sum[0] += static_cast<double>(edges.counts[c]) * edges.weights[c];
    }
  } else if (rows >> blockIdx.x & 1) {
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

template <typename T, typename A>
void launch_cross_entropy(const Call<T, A, false>& call, const Tensor& logits, const CrossEntropyOutputs<A>& out,
                          cudaStream_t stream) {
  with_layout(layout_of(call.g, call.steps, logits), [&](auto layout) {
    with_terms(terms_of(call, out), [&](auto terms) {
      const auto kernel = cross_entropy_kernel<T, A, decltype(layout)::value, decltype(terms)::value>;
      launch(stream, call.tiles.count, kernel, call, out);
    });
  });
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
  const CrossEntropyOutputs<A> ce_outputs = {data_of<A>(outputs.ce), pixels, parts};
  if constexpr (kUpsampled) {
    upsampled_cross_entropy(call, ce_outputs, stream);
  } else {
    launch_cross_entropy(call, logits, ce_outputs, stream);
  }
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
         static_cast<double*>(outputs.sums.mutable_data_ptr()), target, g, recording, WeightedCounts());
  return outputs;
}

LabelState run_count_labels(const Inputs& inputs, const Tensor& labels, Options options, const Recording& recording,
                            cudaStream_t stream) {
  const Tensor& logits = inputs.logits;
  const Geometry g = clipped_geometry(logits, labels, options);
  const Tiles tiles(g);
  const bool weighted = options.edges && inputs.edge_class_weight;
  options.count_edges |= weighted;
  const auto sizes = output_sizes(Device::kCuda, options, false, logits.size(1));
  const auto allocate = [&](int output) { return new_output(sizes[output], logits, labels); };
  LabelState state = {allocate(Output::kSums), allocate(Output::kEdgeCounts),
                      new_tensor(logits, sizes_of(labels), ScalarType::Short), allocate(Output::kEdgeList)};
  if (options.count_edges) torch::stable::zero_(state.edge_counts);  // the kernels add to it
  Tensor partial = torch::stable::new_empty(logits, {Row::kCount * tiles.count}, ScalarType::Double);
  double* parts = static_cast<double*>(partial.mutable_data_ptr());
  const Target target = {labels_of(labels), options.ignore_index, g.classes};
  const Bits edges = {options.edges ? data_of<uint32_t>(state.edge_list) : nullptr};
  auto* counts = data_of<unsigned long long>(state.edge_counts);
  find_labels(g, tiles, target, {data_of<int16_t>(state.label), edges, nullptr, counts}, parts, stream);
  unsigned rows = 1u << Row::kWeight | 1u << Row::kValid | 1u << Row::kWrong;
  if (options.edges) rows |= 1u << Row::kEdgeWeight | 1u << Row::kEdges;
  const float* weights = weighted ? data_or_null<float>(inputs.edge_class_weight) : nullptr;
  launch(stream, Row::kCount, sums_kernel, parts, tiles.count, rows,
         static_cast<double*>(state.sums.mutable_data_ptr()), target, g, recording,
         WeightedCounts{counts, weights, g.tables * g.classes});
  return state;
}

// Calls body(recording, stream) for a call whose labels out of range are recorded as its options say.
template <typename F>
auto with_recording(const Tensor& logits, const Options& options, const F& body) {
  const int device = logits.get_device_index();
  const torch::stable::accelerator::DeviceGuard guard(device);
  const cudaStream_t stream = current_stream(device);
  Recording recording = {nullptr, ++calls};
  if (options.validate) {
    recording.record = label_records.find(device);
    label_records.throw_if_any(device, recording.call);
  }
  const auto result = body(recording, stream);
  if (options.validate == 2) {
    check(cudaStreamSynchronize(stream));
    label_records.throw_if_any(device, recording.call);
  }
  return result;
}

}  // namespace

void add_up_terms(const double* partial, int64_t tiles, double* sums, cudaStream_t stream) {
  launch(stream, Row::kFalseEdge, sums_kernel, partial, tiles, (1u << Row::kFalseEdge) - 1, sums, Target(), Geometry(),
         Recording(), WeightedCounts());
}

Outputs cuda::forward(const Inputs& inputs, const Tensor& target, const std::optional<Tensor>& distance,
                      const Options& options) {
  const Tensor& logits = inputs.logits;
  return with_recording(logits, options, [&](const Recording& recording, cudaStream_t stream) {
    const bool upsampled = is_upsampled(geometry_of(logits, target, options.radius), logits);
    return by_type(logits, [&](auto t, auto a) {
      using T = decltype(t);
      using A = decltype(a);
      const auto run = upsampled ? run_forward<T, A, true> : run_forward<T, A, false>;
      return run(inputs, target, distance, options, recording, stream);
    });
  });
}

LabelState cuda::count_labels(const Inputs& inputs, const Tensor& target, const Options& options) {
  return with_recording(inputs.logits, options, [&](const Recording& recording, cudaStream_t stream) {
    return run_count_labels(inputs, target, options, recording, stream);
  });
}

}  // namespace edgeloss

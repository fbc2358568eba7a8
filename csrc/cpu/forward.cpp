// The whole loss on the CPU, forward.
#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "pairs.h"
#include "parallel.h"
#include "slab_tiles.h"

namespace edgeloss {

void want_large_pages(void* memory, int64_t bytes) {
#ifdef __linux__
  constexpr uintptr_t kPage = uintptr_t(1) << 21;
  const auto data = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = (data + kPage - 1) & ~(kPage - 1), last = (data + bytes) & ~(kPage - 1);
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // a wish: it may fail
#else
  (void)memory, (void)bytes;
#endif
}

namespace {

// Gives whole pages back to the system, which takes no memory for zeros until something else is written there.
void write_zeros(void* memory, int64_t bytes) {
#ifdef __linux__
  constexpr uintptr_t kPage = uintptr_t(1) << 12, kLeast = 16 * kPage;  // fewer pages are written faster
  const auto data = reinterpret_cast<uintptr_t>(memory), end = data + bytes;
  const uintptr_t first = (data + kPage - 1) & ~(kPage - 1), last = end & ~(kPage - 1);
  if (last >= first + kLeast && madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED) == 0) {
    std::memset(memory, 0, first - data);
    std::memset(reinterpret_cast<void*>(last), 0, end - last);
    return;
  }
#endif
  std::memset(memory, 0, bytes);
}

// Memory that is 0, and taken up page by page as it is used.
template <typename A>
struct Zeros {
  std::unique_ptr<A, decltype(&std::free)> data;

  explicit Zeros(int64_t count) : data(count ? static_cast<A*>(std::calloc(count, sizeof(A))) : nullptr, &std::free) {
    STD_TORCH_CHECK(data || count == 0, "the loss: not enough memory for ", count, " numbers");
  }
  A* get() const { return data.get(); }
};

// Maps of averages of all images and classes, [B, C, *A], and what their classes are.
template <typename A>
struct Averages {
  RegionSize size;
  int64_t count, per_image;  // of a map, of the maps of an image
  Zeros<uint8_t> z;          // sums of the labels' indicators
  Zeros<A> own_r;
  A* r;                                       // and of what the shares leave of them; where slopes are kept, as they
  std::vector<int64_t> pixels;                // [B, C]
  std::vector<std::vector<int32_t>> classes;  // of each image, those that may have a term

  explicit Averages(const Call<A>& call)
      : size(region_size(call.g)),
        count(averages_in(size)),
        per_image(call.g.classes * count),
        z(has_regions(call.g, call.options) ? call.g.batch * per_image : 0),
        own_r(z.get() && !call.state.slopes ? call.g.batch * per_image : 0),
        r(call.state.slopes ? call.state.slopes : own_r.get()),
        pixels(call.g.batch * call.g.classes),
        classes(r ? call.g.batch : 0) {}

  bool exist() const { return !classes.empty(); }
  int64_t map(int64_t image, int64_t c) const { return image * per_image + c * count; }
  // Where a row of averages begins in a map.
  int64_t row(int64_t slice, int64_t y) const { return (slice * size.height + y) * size.width; }
};

// Whether four labels are c.
inline bool is_run(const int16_t* label, int16_t c) {
  uint64_t four;
  std::memcpy(&four, label, sizeof(four));
  return four == 0x0001000100010001u * static_cast<uint16_t>(c);
}

// Sums over edge pixels of a class.
struct EdgeSum {
  int32_t c;
  double value[EdgeRow::kCount];
};

// The same of all classes, [EdgeRow::kCount, C].
struct EdgeTable {
  int64_t classes;
  std::vector<double> values;

  explicit EdgeTable(int64_t classes) : classes(classes), values(EdgeRow::kCount * classes) {}
  double* row(int which) { return values.data() + which * classes; }

  // Appends what is not 0 to a list, and clears it.
  void move_to(std::vector<EdgeSum>& list) {
    for (int64_t c = 0; c < classes; ++c) {
      const EdgeSum sum = {static_cast<int32_t>(c), {values[c], values[classes + c], values[2 * classes + c]}};
      if (sum.value[0] == 0 && sum.value[1] == 0 && sum.value[2] == 0) continue;
      list.push_back(sum);
    }
    std::fill(values.begin(), values.end(), 0);
  }
};

// The passes over the slabs.
template <typename A>
struct Passes {
  const Call<A>& call;
  const Target& target;
  Averages<A>& averages;
  A* maps;                                  // [Row::kTerms, B, P], or null
  std::vector<Sums> sums;                   // of each slab
  std::vector<std::vector<EdgeSum>> edges;  // of each slab, of the classes that have any

  template <typename F>
  void for_each_slab(const F& make) {
    on_each_thread(call.slabs.count, 1, [&](Tasks& tasks) {
      auto body = make();
      for (int64_t i, end; tasks.take(i, end);) body(i, call.slabs.at(i));
    });
  }

  // Pass 1: which labels count, how many there are of each class, and their averages.
  void read_slab(int64_t i, const Slab& slab, std::vector<int64_t>& counts) {
    const Geometry& g = call.g;
    const int64_t base = slab.image * g.pixels;
    const int64_t slice = average_of(slab.first_slice);
    uint8_t* z =
        averages.exist() && slice < averages.size.depth ? averages.z.get() + averages.map(slab.image, 0) : nullptr;
    for_each_row(slab, [&](int64_t depth, int64_t y) {
      const int64_t first = base + (depth * g.height + y) * g.width;
      int16_t* label = call.label + first;
      for (int64_t x = 0; x < g.width; x += kTile) {
        const int64_t n = std::min(kTile, g.width - x);
        sums[i][Row::kWrong] += static_cast<double>(read_labels(target, first + x, n, label + x));
      }
      const int64_t band = average_of(y);
      uint8_t* row = z && band < averages.size.height ? z + averages.row(slice, band) : nullptr;
      count_row(label, row, counts);
    });
    const A* weight = call.weight ? call.weight + g.table(slab.image) : nullptr;
    for (int64_t c = 0; c < g.classes; ++c) {
      if (counts[c] == 0) continue;
      sums[i][Row::kValid] += static_cast<double>(counts[c]);
      sums[i][Row::kWeight] += static_cast<double>(counts[c]) * (weight ? static_cast<double>(weight[c]) : 1.0);
      // Integers: their sum does not depend on the order of the slabs.
      __atomic_fetch_add(&averages.pixels[slab.image * g.classes + c], counts[c], __ATOMIC_RELAXED);
      counts[c] = 0;
    }
    if (call.pixel_weight) sums[i][Row::kWeight] = weight_of(slab, weight);
  }

  // Adds the pixels of a row to the counts, and to a row of the averages of each class, run by run.
  void count_row(const int16_t* label, uint8_t* z, std::vector<int64_t>& counts) {
    const int64_t width = call.g.width, averages_of_row = z ? averages.size.width : 0;
    for (int64_t x = 0, end; x < width; x = end) {
      const int16_t c = label[x];
      for (end = x + 1; end + 4 <= width && is_run(label + end, c);) end += 4;
      while (end < width && label[end] == c) ++end;
      if (c < 0) continue;
      counts[c] += end - x;
      const int64_t first = average_of(x), last = average_of(end - 1);
      uint8_t* of_class = z + c * averages.count;
      for (int64_t k = first; k < std::min(last + 1, averages_of_row); ++k) of_class[k] += kPool;
      if (first < averages_of_row) of_class[first] -= x - (kPool * first - 1);
      if (last < averages_of_row) of_class[last] -= kPool * last + kPool - 1 - end;
    }
  }

  double weight_of(const Slab& slab, const A* weight) {
    const Geometry& g = call.g;
    double sum = 0;
    for_each_row(slab, [&](int64_t z, int64_t y) {
      const int64_t first = slab.image * g.pixels + (z * g.height + y) * g.width;
      for (int64_t i = first; i < first + g.width; ++i) {
        if (call.label[i] < 0) continue;
        const double v = call.pixel_weight[i];
        sum += weight ? v * static_cast<double>(weight[call.label[i]]) : v;
      }
    });
    return sum;
  }

  // The classes of which an image has pixels, and of another one too; of two classes the second alone.
  void find_classes() {
    const Geometry& g = call.g;
    for (int64_t b = 0; averages.exist() && b < g.batch; ++b) {
      const int64_t* pixels = averages.pixels.data() + b * g.classes;
      int64_t valid = 0;
      for (int64_t c = 0; c < g.classes; ++c) valid += pixels[c];
      for (int64_t c = g.classes == 2; c < g.classes; ++c) {
        if (pixels[c] > 0 && pixels[c] < valid) averages.classes[b].push_back(static_cast<int32_t>(c));
      }
    }
  }

  void find_distances() {
    const Moves moves(call.g, call.options);
    for_each_slab([&] {
      auto windows = std::make_shared<EdgeWindows<A>>(call.g);
      return [&, windows](int64_t, const Slab& slab) {
        const int64_t first = slab.image * call.g.pixels;
        windows->find_distances(call.label + first, slab, moves, call.state.field + first);
      };
    });
  }

  // What pass 2 of a thread works in.
  struct Space {
    EdgeWindows<A> windows;
    SlabWeights<A> weights;
    SlabTiles<A> tiles;
    RegionRows<A> regions;
    EdgeTotals totals;
    EdgeTable edges;

    explicit Space(const Call<A>& call) : windows(call.g), tiles(call), edges(call.g.classes) {}
  };

  // Pass 2: the terms of a slab, and the averages of its shares.
  void find_terms(int64_t i, const Slab& slab, Space& space) {
    const Geometry& g = call.g;
    Sums& of = sums[i];
    SlabWeights<A>* weights = call.options.edges && !call.options.by_pairs ? &space.weights : nullptr;
    if (call.options.edges) {
      space.windows.form(call.label_map(slab.image), slab, weights, &space.totals);
      double* weight = space.edges.row(EdgeRow::kWeight);
      for (int64_t c = 0; c < g.classes; ++c) {
        const double count = static_cast<double>(space.totals.counts[c]);
        of[Row::kEdges] += count;
        weight[c] = call.edge_pixel_weight ? space.totals.weights[c] : count;
      }
    }
    const EdgeSums edge_sums = {space.edges.row(EdgeRow::kSameSide), space.edges.row(EdgeRow::kOtherSide)};
    const int64_t slice = average_of(slab.first_slice);
    const bool has_regions = averages.exist() && slice < averages.size.depth;
    space.regions.classes = has_regions ? averages.classes[slab.image] : std::vector<int32_t>();
    space.regions.start(slab, g);
    const int64_t reread = static_cast<int64_t>(space.regions.classes.size());
    const Smoothing<A> smoothing = call.smoothing(slab.image);
    space.tiles.for_each(slab, weights, 4 * reread > g.classes, [&](Pixels<A>& pixels, const TilePlace& at) {
      A own_m[kTile], own_r[kTile];
      A* m = call.state.m ? call.state.m + at.start : own_m;
      A* r = call.state.m ? call.state.r + at.start : own_r;
      of[Row::kCrossEntropy] += tile_terms(pixels, smoothing, edge_sums, m, r, maps ? maps + at.start : nullptr);
      if (reread == 0) return;
      space.regions.for_each_part(pixels.tile.n, at, [&](int64_t j, int64_t n, A* row) {
        add_residuals(pixels, m, r, space.regions.classes, j, n, row, space.regions.class_step());
      });
    });
    if (call.options.edges) space.edges.move_to(edges[i]);
    space.regions.for_each_row(averages.size, [&](int32_t c, int64_t start, const A* from) {
      A* out = averages.r + averages.map(slab.image, c) + start;
      for (int64_t i = 0; i < averages.size.width; ++i) {
        const int64_t x = kPool * i;
        out[i] = (i > 0 ? from[x - 1] : A(0)) + from[x] + (x + 1 < g.width ? from[x + 1] : A(0));
      }
    });
  }

  // Pass 3: the edge terms of pairs of pixels.
  void add_pairs() {
    for_each_slab([&] {
      return [&, table = EdgeTable(call.g.classes)](int64_t i, const Slab& slab) mutable {
        A* sides = maps ? maps + call.g.batch * call.g.pixels : nullptr;
        add_pair_terms(call, slab, table.row(EdgeRow::kSameSide), sides);
        table.move_to(edges[i]);
      };
    });
  }
};

// Pass 4: the region term of each image, and its slopes.
template <typename A>
void find_region_terms(const Call<A>& call, const Averages<A>& averages, double* region) {
  const Geometry& g = call.g;
  const int64_t maps = g.batch * g.classes;
  std::vector<double> value(maps);
  std::vector<uint8_t> has_term(maps);
  std::vector<std::pair<int64_t, int32_t>> jobs;
  for (int64_t b = 0; b < static_cast<int64_t>(averages.classes.size()); ++b) {
    for (const int32_t c : averages.classes[b]) jobs.emplace_back(b, c);
  }
  on_each_thread(static_cast<int64_t>(jobs.size()), 1, [&](Tasks& tasks) {
    std::vector<double> memory;
    for (int64_t job, end; tasks.take(job, end);) {
      const int64_t map = averages.map(jobs[job].first, jobs[job].second);
      const int64_t of = jobs[job].first * g.classes + jobs[job].second;
      has_term[of] = region_term(averages.size, averages.z.get() + map, averages.r + map, memory, &value[of],
                                 call.state.slopes ? call.state.slopes + map : nullptr);
    }
  });
  const int64_t per_image = g.tables * g.classes;
  for (int64_t b = 0; b < g.batch / g.tables; ++b) {
    double sum = 0, terms = 0;
    for (int64_t c = b * per_image; c < (b + 1) * per_image; ++c) {
      if (has_term[c]) sum += value[c];
      terms += has_term[c];
    }
    region[b] = terms > 0 ? sum / terms : 0;
  }
  if (!call.state.has_term) return;
  std::copy(has_term.begin(), has_term.end(), call.state.has_term);
  on_each_thread(maps, 1, [&](Tasks& tasks) {  // what is returned is written
    for (int64_t of, end; tasks.take(of, end);) {
      if (!has_term[of]) write_zeros(call.state.slopes + of * averages.count, averages.count * sizeof(A));
    }
  });
}

// ------------------------------------------------------------------------------------------------------------ operator

template <typename A>
Outputs run_forward(const Inputs& inputs, const Tensor& labels, const std::optional<Tensor>& distance,
                    const Options& options) {
  const Geometry g = clipped_geometry(inputs.logits, labels, options);
  const Outputs outputs = new_outputs(inputs.logits, labels, distance, g, options);
  for (const Tensor* each :
       {&outputs.sums, &outputs.edge_sums, &outputs.region, &outputs.image_weight, &outputs.maps}) {
    if (each->numel() > 0) std::memset(each->mutable_data_ptr(), 0, each->numel() * each->element_size());
  }
  if (g.batch * g.pixels == 0) return outputs;

  double *sums = data_of<double>(outputs.sums), *image_weight = data_of<double>(outputs.image_weight);
  const Call<A> call(inputs, labels, outputs.saved, options);
  want_large_pages(call.label, g.batch * g.pixels * sizeof(*call.label));
  call.state.clear(g);
  want_large_pages(data_of<std::byte>(outputs.saved.memory), outputs.saved.memory.numel());
  const Target target = {labels_of(labels), options.ignore_index, g.classes};
  Averages<A> averages(call);
  Passes<A> passes = {call,
                      target,
                      averages,
                      data_of<A>(outputs.maps),
                      std::vector<Sums>(call.slabs.count, Sums{}),
                      std::vector<std::vector<EdgeSum>>(call.slabs.count)};
  passes.for_each_slab([&] {
    return [&, counts = std::vector<int64_t>(g.classes)](int64_t i, const Slab& slab) mutable {
      passes.read_slab(i, slab, counts);
    };
  });
  double wrong = 0;
  for (int64_t i = 0; i < call.slabs.count; ++i) {
    wrong += passes.sums[i][Row::kWrong];
    if (image_weight) image_weight[call.slabs.at(i).image / g.tables] += passes.sums[i][Row::kWeight];
  }
  if (options.validate && wrong > 0) {  // here, as a parallel loop loses the message
    throw std::invalid_argument("target: expected labels 0 to " + std::to_string(g.classes - 1) +
                                ", or ignored ones, but got others");
  }
  passes.find_classes();
  if (options.has_decay() && !distance) passes.find_distances();
  passes.for_each_slab([&] {
    auto space = std::make_shared<typename Passes<A>::Space>(call);
    return [&, space](int64_t i, const Slab& slab) { passes.find_terms(i, slab, *space); };
  });
  if (options.by_pairs) passes.add_pairs();
  double* edge_sums = data_of<double>(outputs.edge_sums);
  for (int64_t i = 0; i < call.slabs.count; ++i) {
    for (int row = 0; row < Row::kCount; ++row) sums[row] += passes.sums[i][row];
    double* of_image = edge_sums + call.slabs.at(i).image * g.classes;
    for (const EdgeSum& each : passes.edges[i]) {
      for (int row = 0; row < EdgeRow::kCount; ++row) of_image[row * g.batch * g.classes + each.c] += each.value[row];
    }
  }
  if (averages.exist()) find_region_terms(call, averages, data_of<double>(outputs.region));
  return outputs;
}

}  // namespace

Outputs forward(const Inputs& inputs, const Tensor& target, const std::optional<Tensor>& distance,
                const Options& options) {
  return by_arithmetic(inputs.logits,
                       [&](auto a) { return run_forward<decltype(a)>(inputs, target, distance, options); });
}

}  // namespace edgeloss

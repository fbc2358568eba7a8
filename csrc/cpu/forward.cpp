// The whole loss on the CPU, forward.
#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "../neighbors/gather.h"
#include "distances.h"
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
  int64_t count, per_image;                   // of a map, of the maps of an image
  Zeros<A> z, r;                              // sums of the labels' indicators, and of what the shares leave of them
  std::vector<int64_t> pixels;                // [B, C]
  std::vector<std::vector<int32_t>> classes;  // of each image, those that may have a term

  Averages(const Geometry& g, bool exist)
      : size(region_size(g)),
        count(averages_in(size)),
        per_image(g.classes * count),
        z(exist ? g.batch * per_image : 0),
        r(exist ? g.batch * per_image : 0),
        pixels(g.batch * g.classes),
        classes(exist ? g.batch : 0) {}

  bool exist() const { return !classes.empty(); }
  int64_t map(int64_t image, int64_t c) const { return image * per_image + c * count; }
  // Where a row of averages begins in a map.
  int64_t row(int64_t slice, int64_t y) const { return (slice * size.height + y) * size.width; }
};

// Keeps the weights of a slab for backward.
template <typename A>
void keep_weights(const EdgeWeights<A>& weights, const typename Call<A>::Near& near) {
  int64_t count = 0;
  const auto keep = [&](int64_t place, int64_t k, A weight) {
    if (count < near.most) {
      near.place[count] = static_cast<int32_t>(place);
      near.k[count] = static_cast<int16_t>(k);
      near.weight[count] = weight;
    }
    ++count;
  };
  const auto keep_plane = [&](const std::vector<A>& plane, int16_t k) {
    const int64_t all = static_cast<int64_t>(plane.size());
    uint8_t found[kTile];
    for (int64_t first = 0; first < all; first += kTile) {
      const A* part = plane.data() + first;
      const int64_t n = std::min(kTile, all - first);
      vectorized<A>([=, found = &found[0]]() EDGELOSS_LOOP {
        EDGELOSS_INDEPENDENT
        for (int64_t i = 0; i < n; ++i) found[i] = part[i] > A(0);
      });
      for_each_found(found, n, [&](int64_t i) { keep(first + i, k, part[i]); });
    }
  };
  if (weights.any) {
    keep_plane(weights.same, Call<A>::Near::kSame);
    keep_plane(weights.other, Call<A>::Near::kOther);
    for (const auto& each : weights.others) keep(each.place, each.k, each.weight);
  }
  *near.count = count > near.most ? -1 : static_cast<int32_t>(count);
}

// What the labels of a slab add up to.
struct LabelSums {
  double weight = 0, valid = 0, wrong = 0;
};

// The passes over the slabs.
template <typename A>
struct Passes {
  const Call<A>& call;
  const Target& target;
  Averages<A>& averages;
  std::vector<LabelSums> labels;     // of each slab
  std::vector<Sums> sums;            // of each slab
  std::vector<int64_t> edge_counts;  // [tables, C]

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
    A* z = averages.exist() && slice < averages.size.depth ? averages.z.get() + averages.map(slab.image, 0) : nullptr;
    int32_t y_tile[kTile];
    for_each_row(slab, [&](int64_t depth, int64_t y) {
      const int64_t first = base + (depth * g.height + y) * g.width;
      int16_t* label = call.label + first;
      for (int64_t x = 0; x < g.width; x += kTile) {
        const int64_t n = std::min(kTile, g.width - x);
        labels[i].wrong += static_cast<double>(read_labels(target, first + x, n, label + x, y_tile));
      }
      const int64_t band = average_of(y);
      A* row = z && band < averages.size.height ? z + averages.row(slice, band) : nullptr;
      count_row(label, row, counts);
    });
    const A* weight = call.weight ? call.weight + g.table(slab.image) : nullptr;
    for (int64_t c = 0; c < g.classes; ++c) {
      if (counts[c] == 0) continue;
      labels[i].valid += static_cast<double>(counts[c]);
      labels[i].weight += static_cast<double>(counts[c]) * (weight ? static_cast<double>(weight[c]) : 1.0);
      // Integers: their sum does not depend on the order of the slabs.
      __atomic_fetch_add(&averages.pixels[slab.image * g.classes + c], counts[c], __ATOMIC_RELAXED);
      counts[c] = 0;
    }
    if (call.pixel_weight) labels[i].weight = weight_of(slab, weight);
  }

  // Adds the pixels of a row to the counts, and to a row of the averages of each class.
  void count_row(const int16_t* label, A* z, std::vector<int64_t>& counts) {
    constexpr int64_t kAverages = 16;  // at a time: mostly they have one class alone
    const int64_t width = call.g.width, averages_of_row = z ? averages.size.width : 0, step = averages.count;
    for (int64_t i = 0, x = 0; x < width; i += kAverages) {
      const int64_t last = std::min(kPool * (i + kAverages) - 1, width), n = last - x;
      if (is_constant(label + x, n)) {
        const int16_t c = label[x];
        if (c >= 0) counts[c] += n;
        for (int64_t k = i; c >= 0 && k < std::min(i + kAverages, averages_of_row); ++k) {
          const int64_t before = std::max(kPool * k - 1, x), behind = std::min(kPool * k + kPool - 1, last);
          z[c * step + k] += static_cast<A>(behind - before);
        }
        x = last;
        continue;
      }
      for (; x < last; ++x) {
        if (label[x] < 0) continue;
        ++counts[label[x]];
        if (average_of(x) < averages_of_row) z[label[x] * step + average_of(x)] += A(1);
      }
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
    Distances search(call.g, call.options);
    const auto label = [&](const Slab& slab) { return call.label + slab.image * call.g.pixels; };
    for_each_slab([&] { return [&](int64_t, const Slab& slab) { search.prepare(slab, label(slab)); }; });
    for_each_slab([&] {
      return [&](int64_t, const Slab& slab) {
        search.find(slab, label(slab), call.state.field + slab.image * call.g.pixels);
      };
    });
  }

  // What pass 2 of a thread works in.
  struct Space {
    EdgeWindows<A> windows;
    EdgeWeights<A> weights;
    SlabTiles<A> tiles;
    TileRegions<A> regions;
    RegionRows<A> rows;

    explicit Space(const Call<A>& call) : windows(call.g), tiles(call) {}
  };

  // Pass 2: the terms of a slab, and the averages of its shares.
  void find_terms(int64_t i, const Slab& slab, Space& space) {
    const Geometry& g = call.g;
    Sums& of = sums[i];
    EdgeWeights<A>* weights = call.options.edges && !call.options.gathers ? &space.weights : nullptr;
    if (call.options.edges) {
      EdgeTotals totals;
      space.windows.form(call.label_map(slab.image), slab, weights, &totals);
      of[Row::kEdgeWeight] = totals.weight;
      for (size_t c = 0; c < totals.counts.size(); ++c) {
        if (totals.counts[c] == 0) continue;
        of[Row::kEdges] += static_cast<double>(totals.counts[c]);
        __atomic_fetch_add(&edge_counts[g.table(slab.image) + c], totals.counts[c], __ATOMIC_RELAXED);
      }
    }
    const typename Call<A>::Near near = call.near(i, slab);
    if (near.count) keep_weights(space.weights, near);
    const int64_t slice = average_of(slab.first_slice);
    const bool has_regions = averages.exist() && slice < averages.size.depth;
    space.regions.classes = has_regions ? averages.classes[slab.image] : std::vector<int32_t>();
    space.regions.start(g.classes);
    space.rows.start(slab, g, space.regions.classes.size());
    const bool rereads = !space.regions.classes.empty();
    const Smoothing<A> smoothing = call.smoothing(slab.image);
    space.tiles.for_each(slab, weights, rereads, [&](const Pixels<A>& pixels, const TilePlace& at) {
      A own_m[kTile], own_r[kTile];
      A *kept_m = call.state.m, *kept_r = call.state.r;
      const bool in_place = kept_m && !at.place;
      A *m = in_place ? kept_m + at.start : own_m, *r = in_place ? kept_r + at.start : own_r;
      const TermSums terms = tile_terms(pixels, smoothing, m, r);
      of[Row::kCrossEntropy] += terms.cross_entropy;
      of[Row::kSameSide] += terms.same;
      of[Row::kOtherSide] += terms.other;
      for (int64_t j = 0; kept_m && at.place && j < pixels.tile.n; ++j) {
        if (at.place[j] < 0) continue;
        kept_m[at.start + at.place[j]] = m[j];
        kept_r[at.start + at.place[j]] = r[j];
      }
      if (!rereads) return;
      tile_residuals(pixels, m, r, space.regions);
      space.rows.add(space.regions, pixels.tile.n, at);
    });
    if (rereads) write_averages(slab, slice, space);
  }

  void write_averages(const Slab& slab, int64_t slice, Space& space) {
    const int64_t width = call.g.width;
    for (size_t of = 0; of < space.regions.classes.size(); ++of) {
      A* map = averages.r.get() + averages.map(slab.image, space.regions.classes[of]);
      for (int64_t y = 0; y < space.rows.count && space.rows.first + y < averages.size.height; ++y) {
        const A* from = space.rows.at(of, y);
        A* out = map + averages.row(slice, space.rows.first + y);
        for (int64_t i = 0; i < averages.size.width; ++i) {
          const int64_t x = kPool * i;
          out[i] = (i > 0 ? from[x - 1] : A(0)) + from[x] + (x + 1 < width ? from[x + 1] : A(0));
        }
      }
    }
  }

  // Pass 3: the edge terms of pairs of pixels.
  void gather() {
    for_each_slab([&] {
      return [&](int64_t i, const Slab& slab) {
        for (int64_t z = slab.first_slice; z < slab.last_slice; ++z) {
          const Chunk chunk = {slab.image, z * call.g.height + slab.first_row, z * call.g.height + slab.last_row};
          gather_terms(call, chunk, &sums[i][Row::kSameSide], &sums[i][Row::kOtherSide]);
        }
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
    for (int64_t job, end; tasks.take(job, end);) {
      const int64_t map = averages.map(jobs[job].first, jobs[job].second);
      const int64_t of = jobs[job].first * g.classes + jobs[job].second;
      has_term[of] = region_term(averages.size, averages.z.get() + map, averages.r.get() + map, &value[of],
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
  if (call.state.has_term) std::copy(has_term.begin(), has_term.end(), call.state.has_term);
}

// ------------------------------------------------------------------------------------------------------------ operator

// Throws if a label is neither a class nor ignored.
void throw_if_wrong(const Geometry& g, const Target& target, double wrong) {
  if (wrong == 0) return;
  const int64_t count = g.batch * g.pixels;
  int64_t first = 0, same = 0;
  while (!target.is_wrong(target.at(first))) ++first;
  for (int64_t i = first; i < count; ++i) same += target.at(i) == target.at(first);
  const int64_t others = static_cast<int64_t>(wrong) - same;
  throw std::invalid_argument(
      "target: " + unexpected_label(g, target.ignore_index, target.at(first)) + " at " + count_of_pixels(same) +
      ", first at " + position(g, first) +
      (others ? ", and other labels out of range at " + count_of_pixels(others) + " more" : ""));
}

template <typename A>
Outputs run_forward(const Inputs& inputs, const Tensor& labels, const std::optional<Tensor>& distance,
                    const Options& options) {
  const Geometry g = clipped_geometry(inputs.logits, labels, options);
  const Outputs outputs = new_outputs(inputs.logits, labels, distance, g, options);
  double *sums = data_of<double>(outputs.sums), *region = data_of<double>(outputs.region);
  std::fill_n(sums, Row::kCount, 0.0);
  std::fill_n(region, outputs.region.numel(), 0.0);
  double* region_weight = data_of<double>(outputs.region_weight);
  std::fill_n(region_weight, outputs.region_weight.numel(), 0.0);
  int64_t* edge_counts = data_of<int64_t>(outputs.edge_counts);
  std::fill_n(edge_counts, outputs.edge_counts.numel(), 0);
  if (g.batch * g.pixels == 0) return outputs;

  const Call<A> call(inputs, labels, outputs.saved, options);
  want_large_pages(call.label, g.batch * g.pixels * sizeof(*call.label));
  if (call.state.m) want_large_pages(call.state.m, 2 * g.batch * g.pixels * sizeof(A));
  const Target target = {labels_of(labels), options.ignore_index, g.classes};
  Averages<A> averages(g, has_regions(g, options));
  Passes<A> passes = {call,
                      target,
                      averages,
                      std::vector<LabelSums>(call.slabs.count),
                      std::vector<Sums>(call.slabs.count, Sums{}),
                      std::vector<int64_t>(g.tables * g.classes)};
  passes.for_each_slab([&] {
    return [&, counts = std::vector<int64_t>(g.classes)](int64_t i, const Slab& slab) mutable {
      passes.read_slab(i, slab, counts);
    };
  });
  for (int64_t i = 0; i < call.slabs.count; ++i) {
    sums[Row::kWeight] += passes.labels[i].weight;
    sums[Row::kValid] += passes.labels[i].valid;
    sums[Row::kWrong] += passes.labels[i].wrong;
    if (region_weight) region_weight[call.slabs.at(i).image / g.tables] += passes.labels[i].weight;
  }
  if (options.validate) throw_if_wrong(g, target, sums[Row::kWrong]);  // here, as a parallel loop loses the message
  passes.find_classes();
  if (options.has_decay() && !distance) passes.find_distances();
  passes.for_each_slab([&] {
    auto space = std::make_shared<typename Passes<A>::Space>(call);
    return [&, space](int64_t i, const Slab& slab) { passes.find_terms(i, slab, *space); };
  });
  if (options.gathers) passes.gather();
  for (const Sums& part : passes.sums) {
    for (int row = 0; row < Row::kCount; ++row) sums[row] += part[row];
  }
  if (edge_counts) std::copy(passes.edge_counts.begin(), passes.edge_counts.end(), edge_counts);
  if (averages.exist()) find_region_terms(call, averages, region);
  return outputs;
}

}  // namespace

Outputs cpu::forward(const Inputs& inputs, const Tensor& target, const std::optional<Tensor>& distance,
                     const Options& options) {
  return by_arithmetic(inputs.logits,
                       [&](auto a) { return run_forward<decltype(a)>(inputs, target, distance, options); });
}

}  // namespace edgeloss

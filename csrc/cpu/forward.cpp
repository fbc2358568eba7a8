// The whole loss on the CPU, forward.
#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "edge_mask.h"
#include "pairs.h"
#include "row_search.h"
#include "wide.h"

namespace edgeloss {

void want_large_pages(const Tensor& tensor) {
#ifdef __linux__
  constexpr uintptr_t kPage = uintptr_t(1) << 21;
  const auto data = reinterpret_cast<uintptr_t>(tensor.mutable_data_ptr());
  const uintptr_t first = (data + kPage - 1) & ~(kPage - 1);
  const uintptr_t last = (data + tensor.numel() * tensor.element_size()) & ~(kPage - 1);
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first,
                            MADV_HUGEPAGE);  // a wish: no failure matters
#else
  (void)tensor;
#endif
}

namespace {

// -------------------------------------------------------------------------------------------------------------- passes

// Pass 1: labels, statistics and cross-entropy of a chunk.
template <typename A>
void cross_entropy_chunk(const Call<A>& call, const Target& target, const Chunk& chunk, A* ce_map, Sums& sums) {
  if (are_plain_pairs(call)) return pair_cross_entropy_chunk(call, target, chunk, ce_map, sums);
  const Geometry& g = call.g;
  const Stored<A> x = call.image(chunk.image);
  const int64_t base = chunk.image * g.pixels, last = chunk.last_row * g.width, step = call.tile();
  const bool in_place = is_in_place(x);
  std::vector<A> buffer(in_place ? 0 : g.classes * step);
  A own_nll[kTile], kept[kTile], own_m[kTile], own_r[kTile];
  int32_t y[kTile];
  for (int64_t p = chunk.first_row * g.width; p < last; p += step) {
    const int64_t n = std::min(step, last - p), i = base + p;
    if (!in_place) read_tile(x, g.classes, p, n, buffer.data(), step);
    const Tile<A> tile = {in_place ? static_cast<const A*>(x.data) + p : buffer.data(), in_place ? x.class_step : step,
                          g.classes, n};
    sums[Row::kWrong] += static_cast<double>(read_labels(target, i, n, call.label + i, y));
    A *m = call.m ? call.m + i : own_m, *r = call.m ? call.r + i : own_r, *nll = call.nll ? call.nll + i : own_nll;
    tile_statistics(tile, y, m, r, nll);
    if (call.predicted) {
      tile_prediction(tile, y, m, call.predicted + i);
      tile_terms(nll, y, n, call.false_edges, call.false_edges.term + i);
    }
    cross_entropy_tile(call, {tile, {i, nullptr}, y, m, r, nll}, ce_map ? ce_map + i : kept, sums);
  }
}

// The term of false edges, in a row at a time.
template <typename A>
struct FalseEdgeRows {
  const Call<A>& call;
  EdgeMasks& masks;
  RowWindows<A> windows;
  std::vector<A> value;
  std::vector<uint8_t> drawn;

  FalseEdgeRows(const Call<A>& call, EdgeMasks& masks)
      : call(call), masks(masks), windows(call.g), value(call.g.width), drawn(call.g.width) {}

  // edge: the row's edge mask.
  void find(int64_t image, int64_t row, const uint8_t* edge, A* false_map, Sums& sums) {
    const Geometry& g = call.g;
    const int64_t base = image * g.pixels, start = base + row * g.width;
    masks.mark(call.predicted + base, row, drawn.data());
    const int64_t count = keep_false(edge, g.width, drawn.data());
    call.false_edges.count[image * g.depth * g.height + row] = static_cast<int32_t>(count);
    A* term = false_map ? false_map + start : value.data();
    std::fill_n(term, g.width, A(0));
    if (count == 0) return;
    windows.find_terms(call.false_edges, base, call.label + base, drawn.data(), row, term);
    if (call.pixel_weight) {
      for (int64_t x = 0; x < g.width; ++x) {
        sums[Row::kFalseEdge] += static_cast<double>(call.pixel_weight[start + x]) * term[x];
      }
    } else {
      sums[Row::kFalseEdge] += row_sum(term, g.width);
    }
  }
};

// Pass 2: the edge pixels, and the term of the false ones.
template <typename A>
void edge_pixels_chunk(const Call<A>& call, const Chunk& chunk, A* false_map, Sums& sums) {
  const Geometry& g = call.g;
  const int64_t base = chunk.image * g.pixels, rows = chunk.image * g.depth * g.height;
  EdgeMasks masks(g);
  std::vector<uint8_t> mask(g.width);
  std::vector<int64_t> counts(call.edge_counts ? g.classes : 0);
  PairEdges pairs(g);
  std::optional<FalseEdgeRows<A>> false_rows;
  if (call.predicted) false_rows.emplace(call, masks);
  int64_t end = chunk.first_row * g.width;
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    uint8_t* edge = call.edge ? call.edge + base + row * g.width : mask.data();
    int32_t* list = call.list.pixel + base + end;
    if (!call.class_bits) masks.mark(call.label + base, row, edge);
    const int64_t count = call.class_bits ? pairs.list(call.class_bits + rows * pairs.words(), row, list)
                                          : list_places(edge, g.width, row * g.width, list);
    call.list.row_first[rows + row] = static_cast<int32_t>(end);
    if (call.other_class) std::fill_n(call.other_class + base + row * g.width, g.width, kIgnored);
    for (int64_t e = end; call.other_class && e < end + count; ++e) {
      const int64_t p = call.list.pixel[base + e];
      const int16_t low = static_cast<int16_t>(masks.low()[p - row * g.width]), high = masks.high()[p - row * g.width];
      call.other_class[base + p] = low == call.label[base + p] ? high : low;
    }
    if (call.pixel_weight || call.edge_class_weight) {
      for (int64_t e = end; e < end + count; ++e) {
        sums[Row::kEdgeWeight] += call.edge_weight_of(base + call.list.pixel[base + e]);
      }
    }
    if (call.edge_counts) {
      for (int64_t e = end; e < end + count; ++e) ++counts[call.label[base + call.list.pixel[base + e]]];
    }
    end += count;
    call.list.row_end[rows + row] = static_cast<int32_t>(end);
    if (false_rows) false_rows->find(chunk.image, row, edge, false_map, sums);
  }
  const int64_t begin = chunk.first_row * g.width;
  if (call.log_other) find_others(call, chunk.image, call.list.pixel + base + begin, end - begin);
  sums[Row::kEdges] = static_cast<double>(end - begin);
  if (!call.pixel_weight && !call.edge_class_weight) sums[Row::kEdgeWeight] = sums[Row::kEdges];
  for (size_t c = 0; c < counts.size(); ++c) {  // integers: their sum does not depend on the order of the chunks
    if (counts[c] == 0) continue;
    __atomic_fetch_add(call.edge_counts + g.table(chunk.image) + c, counts[c], __ATOMIC_RELAXED);
  }
}

// Pass 3: the distances of the valid pixels that edge pixels see: find(row, mask of pixels, their distances).
template <typename A, typename F>
void distance_chunk(const Call<A>& call, const Chunk& chunk, bool whole_field, const F& find) {
  const Geometry& g = call.g;
  const uint8_t* edge = call.edge + chunk.image * g.pixels;
  const int64_t reach = std::min(g.radius[2], g.width);
  std::vector<uint8_t> seen(g.width + 2 * reach, whole_field);
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    if (!whole_field) {
      std::fill(seen.begin(), seen.end(), 0);
      for_each_row(g, row, g.radius, [&](int64_t first) { merge_row(edge + first, g.width, seen.data() + reach); });
      spread_row(seen.data(), g.width, reach);
    }
    find(row, seen.data(), call.field + chunk.image * g.pixels + row * g.width);
  }
}

// The least d on each side of a group's edge pixels, and in the lanes.
template <typename A>
void find_nearest(const Group<A>& group, Lanes<A>& lanes, A (*nearest)[kEdges]) {
  const int64_t width = lanes.width, all = group.count * width;
  A* const lanes_of[2] = {lanes.same.nearest, lanes.other.nearest};
  for (A* lane : lanes_of) std::fill_n(lane, all, A(INFINITY));
  group.for_each_row_seen(0, group.call.g.pixels, Wanted::kNothing, lanes, [&] { least_distance(lanes, all); });
  for (int side = 0; side < 2; ++side) {
    for (int64_t e = 0; e < group.count; ++e) {
      const A* d = lanes_of[side] + e * width;
      nearest[side][e] = *std::min_element(d, d + width);
    }
    repeat_each(nearest[side], group.count, width, lanes_of[side]);
  }
}

// The edge terms of a group at power 0 or 1: the plain mean of logarithms or of probabilities.
template <typename A>
void terms_of_means(const Group<A>& group, Lanes<A>& lanes, A (*value)[kEdges], Side<A>* sides) {
  const Call<A>& call = group.call;
  const int64_t width = lanes.width, all = group.count * width, n = group.count;
  A nearest[2][kEdges] = {};
  if (call.has_decay()) find_nearest(group, lanes, nearest);
  const bool logs = call.power() == A(0);
  A* const lanes_of[2][2] = {{lanes.same.sum, lanes.same.rest}, {lanes.other.sum, lanes.other.rest}};
  for (const auto& side : lanes_of) {
    for (A* lane : side) std::fill_n(lane, all, A(0));
  }
  group.for_each_row_seen(0, call.g.pixels, logs ? Wanted::kLogs : Wanted::kProbabilities, lanes, [&] {
    if (logs) {
      sum_logs(lanes, all, call.lane_options);
    } else {
      sum_probabilities(lanes, all, call.lane_options);
    }
  });
  A total[2][2][kEdges], inverse[2][kEdges];  // [side][sum or rest]
  for (int side = 0; side < 2; ++side) {
    for (int rest = 0; rest < 2; ++rest) {
      add_lanes(lanes_of[side][rest], n, width, total[side][rest]);
    }
    const auto finish = logs ? finish_logs<A> : finish_means<A>;
    finish(total[side][0], total[side][1], n, value[side], inverse[side]);
  }
  for (int64_t e = 0; e < n; ++e) {
    const bool has_same = total[0][0][e] + total[0][1][e] != A(0);  // nan too
    if (logs || (inverse[1][e] > A(0) && (inverse[0][e] > A(0) || !has_same))) {
      for (int side = 0; side < 2; ++side) sides[2 * e + side] = {A(0), A(0), nearest[side][e], inverse[side][e]};
      continue;
    }
    A alone[2][kEdges];
    Group<A>(call, group.image, group.pixel + e, 1, lanes).terms_of_logs(lanes, alone, sides + 2 * e);
    for (int side = 0; side < 2; ++side) value[side][e] = alone[side][0];
  }
}

template <typename A>
void terms_of(const Group<A>& group, Lanes<A>& lanes, A (*value)[kEdges], Side<A>* sides) {
  if (group.call.packing.is_plain) {
    terms_of_means(group, lanes, value, sides);
  } else {
    group.terms_of_logs(lanes, value, sides);
  }
}

// Adds the neighbors whose log_other is that of another class than edge pixel i has.
template <typename A>
void add_unknown(const Call<A>& call, int64_t image, int64_t pixel, A& sum) {
  const Geometry& g = call.g;
  const int64_t base = image * g.pixels, row = quotient(pixel, g.width);
  const int16_t own = call.label[base + pixel];
  int32_t place[kTile];
  int16_t k[kTile];
  A t[kTile];
  std::fill_n(k, kTile, own);
  int64_t n = 0;
  const auto add = [&] {
    logs_of_others(call, image, place, k, n, t);
    for (int64_t i = 0; i < n; ++i) sum += t[i];
    n = 0;
  };
  for_each_neighbor(g, row, pixel - row * g.width, [&](int64_t neighbor) {
    const int16_t y = call.label[base + neighbor];
    if (y < 0 || y == own || call.other_class[base + neighbor] == own) return;
    place[n++] = static_cast<int32_t>(neighbor);
    if (n == kTile) add();
  });
  add();
}

// The edge terms of a chunk's edge pixels: calls body(the first of them in the list, their number, values, sides).
template <typename A, typename F>
void terms_in_blocks(const Call<A>& call, const Chunk& chunk, int64_t begin, int64_t end, WindowSums<A>& windows,
                     const F& body) {
  sum_windows(call, chunk, windows);
  const int32_t* pixel = call.list.pixel + chunk.image * call.g.pixels;
  for (int64_t e = 0; e < end - begin; ++e) {
    if (windows.is_unknown[e]) add_unknown(call, chunk.image, pixel[begin + e], windows.sum[1][e]);
  }
  for (int64_t at = begin; at < end; at += kEdges) {
    const int64_t n = std::min(kEdges, end - at), e = at - begin;
    A value[2][kEdges], inverse[2][kEdges];
    Side<A> sides[2 * kEdges];
    for (int side = 0; side < 2; ++side) {
      finish_logs(windows.sum[side].data() + e, windows.count[side].data() + e, n, value[side], inverse[side]);
      for (int64_t i = 0; i < n; ++i) sides[2 * i + side].inverse = inverse[side][i];
    }
    body(at, n, value, sides);
  }
}

// The same in lanes.
template <typename A, typename F>
void terms_in_lanes(const Call<A>& call, const Chunk& chunk, int64_t begin, int64_t end, Lanes<A>& lanes,
                    const F& body) {
  const int32_t* pixel = call.list.pixel + chunk.image * call.g.pixels;
  for (int64_t at = begin; at < end; at += lanes.edges) {
    const Group<A> group(call, chunk.image, pixel + at, std::min(lanes.edges, end - at), lanes);
    A value[2][kEdges];
    Side<A> sides[2 * kEdges];
    terms_of(group, lanes, value, sides);
    body(at, group.count, value, sides);
  }
}

// The same from sums over rows.
template <typename A, typename F>
void terms_over_rows(const Call<A>& call, const Chunk& chunk, int64_t begin, const WideSides<A>& wide, Lanes<A>& lanes,
                     const F& body) {
  const int32_t* pixel = call.list.pixel + chunk.image * call.g.pixels;
  for (const auto& both : wide) {
    A value[2][kEdges];
    Side<A> sides[2];
    for (int side = 0; side < 2; ++side) {
      value[side][0] = both[side].value;
      sides[side] = both[side].side;
    }
    if (!(both[0].is_held && both[1].is_held)) {
      terms_of(Group<A>(call, chunk.image, pixel + begin, 1, lanes), lanes, value, sides);
    }
    body(begin++, 1, value, sides);
  }
}

// What pass 4 of a thread works in.
template <typename A>
struct TermSpace {
  Lanes<A> lanes;
  WindowSums<A> windows;
};

// Pass 4: both edge terms at the edge pixels of a chunk. The maps may be null.
template <typename A>
void edge_terms_chunk(const Call<A>& call, const Chunk& chunk, A* const (&maps)[2], TermSpace<A>& space, Sums& sums) {
  const Geometry& g = call.g;
  const int64_t base = chunk.image * g.pixels, rows = chunk.image * g.depth * g.height;
  for (A* map : maps) {
    if (map) std::fill_n(map + base + chunk.first_row * g.width, (chunk.last_row - chunk.first_row) * g.width, A(0));
  }
  const auto take = [&](int64_t at, int64_t count, const A(*value)[kEdges], const Side<A>* sides) {
    call.keep(base + at, count, sides);
    for (int64_t e = 0; e < count; ++e) {
      const int64_t i = base + call.list.pixel[base + at + e];
      const double v = call.edge_weight_of(i);
      sums[Row::kSameSide] += v * value[0][e];
      sums[Row::kOtherSide] += v * value[1][e];
      for (int side = 0; side < 2; ++side) {
        if (maps[side]) maps[side][i] = value[side][e];
      }
    }
  };
  const int64_t begin = call.list.row_first[rows + chunk.first_row], end = call.list.row_end[rows + chunk.last_row - 1];
  WideSides<A> wide;
  if (sum_wide_windows(call, chunk, wide)) {
    terms_over_rows(call, chunk, begin, wide, space.lanes, take);
  } else if (call.in_blocks() && call.nll) {
    terms_in_blocks(call, chunk, begin, end, space.windows, take);
  } else {
    terms_in_lanes(call, chunk, begin, end, space.lanes, take);
  }
}

// ------------------------------------------------------------------------------------------------------------ operator

// Throws if a label is neither a class nor ignored.
void throw_if_wrong(const Geometry& g, const Target& target, const Sums& sums) {
  if (sums[Row::kWrong] == 0) return;
  const int64_t count = g.batch * g.pixels;
  int64_t first = 0, same = 0;
  while (!target.is_wrong(target.at(first))) ++first;
  for (int64_t i = first; i < count; ++i) same += target.at(i) == target.at(first);
  const int64_t others = static_cast<int64_t>(sums[Row::kWrong]) - same;
  throw std::invalid_argument(
      "target: " + unexpected_label(g, target.ignore_index, target.at(first)) + " at " + count_of_pixels(same) +
      ", first at " + position(g, first) +
      (others ? ", and other labels out of range at " + count_of_pixels(others) + " more" : ""));
}

// The passes, chunk by chunk.
template <typename A>
struct Passes {
  const Call<A>& call;
  const Target& target;
  const Chunks& chunks;
  A *ce_map, *false_map, *edge_maps[2];
  std::vector<Sums> parts;                 // of each chunk
  std::vector<uint8_t> is_edged, is_done;  // its edge pixels are known; its edge terms are, too

  TermSpace<A> term_space() const { return {Lanes<A>(Pass::kForward, call.g.radius[2], call.g.width), {}}; }

  void find_edges(int64_t i) {
    edge_pixels_chunk(call, chunks.at(i), false_map, parts[i]);
    is_edged[i] = 1;
  }
  void find_terms(int64_t i, TermSpace<A>& space) {
    edge_terms_chunk(call, chunks.at(i), edge_maps, space, parts[i]);
    is_done[i] = 1;
  }

  // Pass 1 of all chunks, and the passes of the edges where pass 1 of all that their windows see is at hand.
  void run_first(bool edges, bool with_terms) {
    const auto cross_entropy = call.up ? upsampled_cross_entropy_chunk<A> : cross_entropy_chunk<A>;
    // Edges see the labels around; terms also what the edge pixels around have.
    const int64_t edges_lag = chunks.reach, terms_lag = edges_lag + (call.log_other ? chunks.reach : 0);
    on_each_thread(chunks.count, std::max(chunks.count / 16, 8 * chunks.reach), [&](Tasks& tasks) {
      TermSpace<A> space = term_space();
      for (int64_t begin, end; tasks.take(begin, end);) {
        for (int64_t i = begin; i < end; ++i) {
          cross_entropy(call, target, chunks.at(i), ce_map, parts[i]);
          // While it is still in cache.
          if (edges && i - 2 * edges_lag >= begin) find_edges(i - edges_lag);
          if (edges && with_terms && i - 2 * terms_lag >= begin) find_terms(i - terms_lag, space);
        }
      }
    });
  }
  // The edges of the chunks at the ends of the ranges, which are left.
  void run_rest_of_edges() {
    on_each_thread(chunks.count, 1, [&](Tasks& tasks) {
      for (int64_t i, end; tasks.take(i, end);) {
        if (!is_edged[i]) find_edges(i);
      }
    });
  }
  void run_distances(const Options& options, bool is_far) {
    const Geometry& g = call.g;
    const auto label = [&](const Chunk& chunk) { return call.label + chunk.image * g.pixels; };
    std::optional<RowSearch> search;
    if (is_far) search.emplace(g, options);
    if (search) for_each_chunk(chunks, [&](int64_t, const Chunk& chunk) { search->prepare(chunk, label(chunk)); });
    const std::vector<Offset> offsets = is_far ? std::vector<Offset>() : search_offsets(g, options);
    for_each_chunk(chunks, [&](int64_t, const Chunk& chunk) {
      distance_chunk(call, chunk, options.maps, [&](int64_t row, const uint8_t* seen, A* distance) {
        if (search) return search->find(chunk.image, row, label(chunk), seen, distance);
        find_distances(g, label(chunk), row, offsets, seen, distance);
      });
    });
  }
  void run_rest_of_terms() {
    on_each_thread(chunks.count, 1, [&](Tasks& tasks) {
      TermSpace<A> space = term_space();
      for (int64_t i, end; tasks.take(i, end);) {
        if (!is_done[i]) find_terms(i, space);
      }
    });
  }
};

template <typename A>
Outputs run_forward(const Inputs& inputs, const Tensor& labels, const std::optional<Tensor>& distance,
                    const Options& options) {
  const Tensor& logits = inputs.logits;
  const Geometry g = clipped_geometry(logits, labels, options);
  const std::optional<Upsample<A>> up = upsample_for<A>(g, logits);
  const Outputs outputs(logits, labels, options, distance.has_value());
  SavedState saved = outputs.saved;
  if (distance) saved.field = *distance;
  Call<A> call(g, up, inputs, saved, options);
  // Backward does without the prediction, and with power 0 without the terms.
  const bool false_edges = options.edges && options.false_edges;
  const auto scratch = [&](int64_t each, ScalarType type) {
    const int64_t margin = each ? 2 * block_margin(g) : 0;
    const Tensor numbers = new_tensor(logits, {each * g.batch * g.pixels + margin}, type);
    want_large_pages(numbers);
    return numbers;
  };
  for (const Tensor* filled : {&saved.label, &saved.stats, &saved.flags}) want_large_pages(*filled);
  if (!distance) want_large_pages(saved.field);
  const Tensor prediction = scratch(false_edges, ScalarType::Short);
  const Tensor term = scratch(false_edges && !call.false_edges.term, kScalarType<A>);
  // Terms of logarithms are formed once per pixel, not for each window that it is in, where it is in many. Of two
  // classes that costs nothing: 1 - p(k) is the probability of the other one.
  const int64_t window = (2 * g.radius[0] + 1) * (2 * g.radius[1] + 1) * (2 * g.radius[2] + 1);
  const bool others = options.edges && options.power != 1 && g.classes > 2 && (window > 9 || !call.m);
  const bool logs = options.edges && options.power != 1 && (g.classes == 2 || others);
  const Tensor terms = scratch(logs + others, kScalarType<A>), other_class = scratch(others, ScalarType::Short);
  call.nll = terms.numel() > 0 ? data_of<A>(terms) + block_margin(g) : nullptr;
  call.log_other = others && call.nll ? call.nll + g.batch * g.pixels : nullptr;
  call.other_class = others ? data_of<int16_t>(other_class) + block_margin(g) : nullptr;
  call.predicted = data_of<int16_t>(prediction);
  call.edge_counts = data_of<int64_t>(outputs.edge_counts);
  if (term.numel() > 0) call.false_edges.term = data_of<A>(term);
  const bool packs = options.edges && !call.edge && are_plain_pairs(call);
  const int64_t words = packs ? g.batch * g.depth * g.height * PairEdges(g).words() : 0;
  const Tensor class_bits = new_tensor(logits, {words}, ScalarType::Long);
  call.class_bits = data_of<uint64_t>(class_bits);

  const Chunks chunks(g);
  const Target target = {labels_of(labels), options.ignore_index, g.classes};
  Passes<A> passes = {call,
                      target,
                      chunks,
                      data_of<A>(outputs.ce),
                      data_of<A>(outputs.false_edge),
                      {data_of<A>(outputs.same), data_of<A>(outputs.other)},
                      std::vector<Sums>(chunks.count, Sums{}),
                      std::vector<uint8_t>(chunks.count),
                      std::vector<uint8_t>(chunks.count)};
  const bool searches = options.has_decay() && !distance;
  passes.run_first(options.edges, !searches);
  Sums wrong = {};
  for (const Sums& part : passes.parts) wrong[Row::kWrong] += part[Row::kWrong];
  if (options.validate) throw_if_wrong(g, target, wrong);  // here, since a parallel loop loses the message
  if (options.edges) passes.run_rest_of_edges();
  if (searches) passes.run_distances(options, window > kFar);
  if (options.edges) passes.run_rest_of_terms();

  double* sums = static_cast<double*>(outputs.sums.mutable_data_ptr());
  std::fill_n(sums, Row::kCount, 0.0);
  for (const Sums& part : passes.parts) {
    for (int row = 0; row < Row::kCount; ++row) sums[row] += part[row];
  }
  return outputs;
}

}  // namespace

template <typename A>
void cross_entropy_tile(const Call<A>& call, const Statistics<A>& statistics, A* ce, Sums& sums) {
  const Tile<A>& tile = statistics.tile;
  const int64_t n = tile.n;
  const CrossEntropy plain = tile_cross_entropy(statistics.nll, statistics.y, n);
  sums[Row::kValid] += plain.valid;
  std::memcpy(ce, statistics.nll, n * sizeof(A));
  if (!call.smoothing.weight && !call.pixel_weight && call.smoothing.smoothing == A(0)) {
    sums[Row::kCrossEntropy] += plain.sum;
    sums[Row::kWeight] += plain.valid;
    return;
  }
  A w[kTile];
  smooth_cross_entropy(tile, statistics.y, statistics.m, statistics.r, call.smoothing_of(statistics.pixels.start), ce,
                       w);
  if (!call.pixel_weight) {
    sums[Row::kCrossEntropy] += row_sum(ce, n);
    sums[Row::kWeight] += row_sum(w, n);
    return;
  }
  A v[kTile];
  for (int64_t j = 0; j < n; ++j) v[j] = statistics.y[j] < 0 ? A(0) : call.pixel_weight[statistics.pixels.at(j)];
  sums[Row::kCrossEntropy] += weighted_sum(ce, v, n);
  sums[Row::kWeight] += weighted_sum(w, v, n);
}

template void cross_entropy_tile(const Call<float>&, const Statistics<float>&, float*, Sums&);
template void cross_entropy_tile(const Call<double>&, const Statistics<double>&, double*, Sums&);

Outputs cpu::forward(const Inputs& inputs, const Tensor& target, const std::optional<Tensor>& distance,
                     const Options& options) {
  return by_arithmetic(inputs.logits,
                       [&](auto a) { return run_forward<decltype(a)>(inputs, target, distance, options); });
}

}  // namespace edgeloss

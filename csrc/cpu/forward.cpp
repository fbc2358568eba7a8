// The whole loss on the CPU, forward.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "../labels.h"
#include "call.h"
#include "parallel.h"

namespace edgeloss {
namespace {

// -------------------------------------------------------------------------------------------------------------- passes

// The labels of a batch, of whichever type: it is looked up once a tile, so that nothing else is compiled for each.
struct Target {
  const void* data;
  ScalarType type;

  template <typename F>
  int64_t by_type(const F& body) const {
    switch (type) {
      case ScalarType::Long:
        return body(static_cast<const int64_t*>(data));
      case ScalarType::Int:
        return body(static_cast<const int32_t*>(data));
      case ScalarType::Short:
        return body(static_cast<const int16_t*>(data));
      default:
        return body(static_cast<const uint8_t*>(data));  // uint8 and bool
    }
  }
  int64_t at(int64_t i) const {
    return by_type([&](const auto* y) { return static_cast<int64_t>(y[i]); });
  }
  // As read_labels, of n pixels from the first on.
  double read(int64_t first, int64_t n, int64_t classes, int64_t ignore_index, int16_t* label, int32_t* y) const {
    const auto from = [&](const auto* all) { return read_labels(all + first, n, classes, ignore_index, label, y); };
    return static_cast<double>(by_type(from));
  }
};

struct Sums {
  double cross_entropy = 0, same = 0, other = 0, false_edge = 0, weight = 0, edges_weight = 0, valid = 0, edges = 0,
         wrong = 0;
};

// The cross-entropy of a tile of n pixels from what tile_statistics found; pixel(j) is the number of the j-th one.
template <typename T, typename A, typename F>
void cross_entropy_tile(const Call<T, A>& call, const A* tile, int64_t ld, int64_t n, const int32_t* y, const A* m,
                        const A* r, const A* nll, const F& pixel, A* ce, Sums& sums) {
  const A smoothing = call.label_smoothing;
  const double valid = static_cast<double>(n - std::count(y, y + n, kIgnored));
  sums.valid += valid;
  const double plain_sum = tile_cross_entropy(nll, y, n, ce);
  if (!call.weight && !call.pixel_weight && smoothing == A(0)) {
    sums.cross_entropy += plain_sum;
    sums.weight += valid;
    return;
  }
  const A total_weight = call.total_weight();
  for (int64_t j = 0; j < n; ++j) {
    if (y[j] < 0) continue;
    const A w = call.weight_of(y[j]), v = call.pixel_weight_of(pixel(j));
    ce[j] *= w;
    if (smoothing != A(0)) {
      A every = total_weight * log1p_positive(r[j]);
      for (int64_t c = 0; c < call.g.classes; ++c) every -= call.weight_of(c) * (tile[c * ld + j] - m[j]);
      ce[j] = (A(1) - smoothing) * ce[j] + smoothing / static_cast<A>(call.g.classes) * every;
    }
    sums.cross_entropy += static_cast<double>(v) * ce[j];
    sums.weight += static_cast<double>(v) * w;
  }
}

// Pass 1: labels, statistics and cross-entropy of a chunk.
template <typename T, typename A>
void cross_entropy_chunk(const Call<T, A>& call, const Target& target, int64_t ignore_index, const Chunk& chunk,
                         A* ce_map, Sums& sums) {
  const Geometry& g = call.g;
  const Logits<T, A> x = call.image(chunk.image);
  const int64_t base = chunk.image * g.pixels, last = chunk.last_row * g.width, step = call.tile();
  const bool in_place = fits_in_place(x, g.classes, step);
  const int64_t ld = in_place ? x.class_step : step;
  std::vector<A> buffer(in_place ? 0 : g.classes * step);
  A nll[kTile], kept[kTile];
  int32_t y[kTile];
  for (int64_t p = chunk.first_row * g.width; p < last; p += step) {
    const int64_t n = std::min(step, last - p);
    if (!in_place) read_tile(x, g.classes, p, n, buffer.data(), step);
    const A* tile = in_place ? reinterpret_cast<const A*>(x.data) + p : buffer.data();
    sums.wrong += target.read(base + p, n, g.classes, ignore_index, call.label + base + p, y);
    A own_m[kTile], own_r[kTile], *m = call.m ? call.m + base + p : own_m, *r = call.m ? call.r + base + p : own_r;
    tile_statistics(tile, ld, g.classes, n, y, m, r, nll);
    if (call.predicted) {
      const FalseEdges<A>& f = call.false_edges;
      tile_prediction(tile, ld, g.classes, n, y, m, call.predicted + base + p);
      tile_terms(nll, y, n, f.sign(), f.ignored(), f.term + base + p);
    }
    cross_entropy_tile(
        call, tile, ld, n, y, m, r, nll, [&](int64_t j) { return base + p + j; }, ce_map ? ce_map + base + p : kept,
        sums);
  }
}

// The same of logits to be upsampled.
template <typename T, typename A>
void upsampled_cross_entropy_chunk(const Call<T, A>& call, const Target& target, int64_t ignore_index,
                                   const Chunk& chunk, A* ce_map, Sums& sums) {
  const Geometry& g = call.g;
  const Logits<T, A> x = call.image(chunk.image);
  const Upsample<A>& up = *call.up;
  const FalseEdges<A>& f = call.false_edges;
  const int64_t step = call.tile();
  std::vector<A> tile(g.classes * step);
  A m[kTile], r[kTile], nll[kTile], ce[kTile], term[kTile];
  int32_t y[kTile];
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const int64_t start = chunk.image * g.pixels + row * g.width;
    for (int64_t p = 0; p < g.width; p += kTile) {
      const int64_t n = std::min(kTile, g.width - p);
      sums.wrong += target.read(start + p, n, g.classes, ignore_index, call.label + start + p, y);
    }
    const RowTaps<A> taps = up.row_taps(row);
    for_each_block(up, step, [&](const Block& block) {
      const int64_t n = block.pixels();
      int32_t place[kTile];
      int16_t predicted[kTile];
      up.list_pixels(block, place);
      for (int64_t j = 0; j < n; ++j) y[j] = place[j] < 0 ? kIgnored : call.label[start + place[j]];
      interpolate_tile(up, taps, x, g.logits, block, tile.data(), step);
      tile_statistics(tile.data(), step, g.classes, n, y, m, r, nll);
      if (call.predicted) {
        tile_prediction(tile.data(), step, g.classes, n, y, m, predicted);
        tile_terms(nll, y, n, f.sign(), f.ignored(), term);
      }
      cross_entropy_tile(
          call, tile.data(), step, n, y, m, r, nll, [&](int64_t j) { return start + place[j]; }, ce, sums);
      for (int64_t j = 0; j < n; ++j) {
        if (place[j] < 0) continue;
        call.m[start + place[j]] = m[j];
        call.r[start + place[j]] = r[j];
        if (call.predicted) {
          call.predicted[start + place[j]] = predicted[j];
          f.term[start + place[j]] = term[j];
        }
        if (ce_map) ce_map[start + place[j]] = ce[j];
      }
    });
  }
}

// Pass 2: the edge pixels, and the term of the false ones.
template <typename T, typename A>
void edge_pixels_chunk(const Call<T, A>& call, const Chunk& chunk, A* false_map, Sums& sums) {
  const Geometry& g = call.g;
  const int64_t base = chunk.image * g.pixels, rows = chunk.image * g.depth * g.height;
  const int16_t* label = call.label + base;
  // A margin of neutral values at both ends, so that the window along the row needs no bounds.
  const int64_t reach = std::min(g.radius[2], g.width);
  std::vector<int16_t> low(g.width + 2 * reach), high(g.width + 2 * reach);
  std::vector<uint8_t> mask(g.width), drawn(call.predicted ? g.width : 0);
  const auto mark = [&](const int16_t* of, int64_t row, uint8_t* edge) {
    std::fill(low.begin(), low.end(), INT16_MAX);
    std::fill(high.begin(), high.end(), kIgnored);
    for_each_row(g, row, g.radius,
                 [&](int64_t first) { widen_range(of + first, g.width, low.data() + reach, high.data() + reach); });
    mark_edges(of + row * g.width, g.width, reach, low.data(), high.data(), edge);
  };
  const FalseEdges<A>& f = call.false_edges;
  std::optional<RowWindows<A>> windows;
  std::vector<A> value;
  if (call.predicted) {
    windows.emplace(g);
    value.resize(g.width);
  }
  int64_t end = chunk.first_row * g.width;
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    const int64_t start = base + row * g.width;
    uint8_t* edge = call.edge ? call.edge + start : mask.data();
    mark(label, row, edge);
    const int64_t count = list_places(edge, g.width, row * g.width, call.edge_pixel + base + end);
    call.row_first[rows + row] = static_cast<int32_t>(end);
    if (call.pixel_weight || call.edge_class_weight) {
      for (int64_t e = end; e < end + count; ++e) {
        sums.edges_weight += call.edge_weight_of(base + call.edge_pixel[base + e]);
      }
    }
    end += count;
    call.row_end[rows + row] = static_cast<int32_t>(end);
    if (!call.predicted) continue;
    mark(call.predicted + base, row, drawn.data());
    const int64_t false_edges = keep_false(edge, g.width, drawn.data());
    f.count[rows + row] = static_cast<int32_t>(false_edges);
    A* of = false_map ? false_map + start : value.data();
    std::fill_n(of, g.width, A(0));
    if (false_edges == 0) continue;
    windows->find_terms(f, base, label, drawn.data(), row, of);
    if (call.pixel_weight) {
      for (int64_t x = 0; x < g.width; ++x)
        sums.false_edge += static_cast<double>(call.pixel_weight[start + x]) * of[x];
    } else {
      sums.false_edge += row_sum(of, g.width);
    }
  }
  sums.edges = static_cast<double>(end - chunk.first_row * g.width);
  if (!call.pixel_weight && !call.edge_class_weight) sums.edges_weight = sums.edges;
}

// Pass 3: the distances of the valid pixels that edge pixels see, by a search through the offsets, sorted by length.
struct Offset {
  std::array<int64_t, 3> d;
  double length;
};

template <typename T, typename A>
void distance_chunk(const Call<T, A>& call, const Chunk& chunk, const std::vector<Offset>& offsets, bool whole_field) {
  const Geometry& g = call.g;
  const int16_t* label = call.label + chunk.image * g.pixels;
  const uint8_t* edge = call.edge + chunk.image * g.pixels;
  A* field = call.field + chunk.image * g.pixels;
  const int64_t reach = std::min(g.radius[2], g.width);
  std::vector<uint8_t> any(g.width + 2 * reach);
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    std::fill(any.begin(), any.end(), 0);
    for_each_row(g, row, g.radius, [&](int64_t first) { merge_row(edge + first, g.width, any.data() + reach); });
    const int64_t z = row / g.height, y = row % g.height;
    for (int64_t x = 0; x < g.width; ++x) {
      const int64_t p = row * g.width + x;
      if (!whole_field && !std::memchr(any.data() + x, 1, 2 * reach + 1)) continue;
      field[p] = INFINITY;
      if (label[p] < 0) continue;
      for (const Offset& o : offsets) {
        const int64_t nz = z + o.d[0], ny = y + o.d[1], nx = x + o.d[2];
        if (nz < 0 || nz >= g.depth || ny < 0 || ny >= g.height || nx < 0 || nx >= g.width) continue;
        const int16_t other = label[(nz * g.height + ny) * g.width + nx];
        if (other >= 0 && other != label[p]) {
          field[p] = static_cast<A>(o.length);
          break;
        }
      }
    }
  }
}

// The edge terms of a group at power 0 or 1: the plain mean of logarithms or of probabilities.
template <typename T, typename A>
void terms_of_means(const Group<T, A>& group, Lanes<A>& lanes, A (*value)[kEdges], Side<A>* sides) {
  const Call<T, A>& call = group.call;
  const int64_t width = lanes.width, all = group.count * width, n = group.count;
  A nearest[2][kEdges] = {};
  if (call.has_decay) {
    for (int side = 0; side < 2; ++side) std::fill_n(lanes.out[side].begin(), all, A(INFINITY));
    group.for_each_row_seen(0, call.g.pixels, false, lanes, [&] { find_least_distance(lanes, all); });
    for (int side = 0; side < 2; ++side) {
      for (int64_t e = 0; e < n; ++e) {
        const A* d = lanes.out[side].data() + e * width;
        nearest[side][e] = *std::min_element(d, d + width);
      }
      repeat_each(nearest[side], n, width, lanes.own[side][3].data());
    }
  }
  const bool logs = call.power == A(0);
  for (int v = 0; v < 4; ++v) std::fill_n(lanes.out[v].begin(), all, A(0));
  group.for_each_row_seen(0, call.g.pixels, true, lanes, [&] {
    if (logs) {
      group.find_terms(lanes);
      find_sum_logs(lanes, all, call.has_decay, call.inverse_decay);
    } else {
      find_sum_probabilities(lanes, all, call.has_decay, call.inverse_decay);
    }
  });
  A sums[4][kEdges];
  for (int v = 0; v < 4; ++v) {
    for (int64_t e = 0; e < n; ++e) {
      const A* of = lanes.out[v].data() + e * width;
      A sum = 0;
      for (int64_t j = 0; j < width; ++j) sum += of[j];
      sums[v][e] = sum;
    }
  }
  A inverse[2][kEdges];
  if (logs) {
    find_means_of_logs(sums[0], sums[1], n, value[0], inverse[0]);
    find_means_of_logs(sums[2], sums[3], n, value[1], inverse[1]);
  } else {
    find_means(sums[0], sums[1], n, value[0], inverse[0]);
    find_means(sums[3], sums[2], n, value[1], inverse[1]);
  }
  for (int64_t e = 0; e < n; ++e) {
    const bool has_same = sums[0][e] + sums[1][e] != A(0);  // nan too
    if (logs || (inverse[1][e] > A(0) && (inverse[0][e] > A(0) || !has_same))) {
      sides[2 * e] = {A(0), A(0), nearest[0][e], inverse[0][e]};
      sides[2 * e + 1] = {A(0), A(0), nearest[1][e], inverse[1][e]};
      continue;
    }
    A alone[2][kEdges];
    terms_of_logs(Group<T, A>(call, group.image, group.pixel + e, 1, lanes), lanes, alone, sides + 2 * e);
    for (int side = 0; side < 2; ++side) value[side][e] = alone[side][0];
  }
}

// Pass 4: both edge terms at the edge pixels of a chunk.
template <typename T, typename A>
void edge_terms_chunk(const Call<T, A>& call, const Chunk& chunk, A* same_map, A* other_map, Lanes<A>& lanes,
                      Sums& sums) {
  const Geometry& g = call.g;
  const int64_t base = chunk.image * g.pixels, rows = chunk.image * g.depth * g.height;
  A* const maps[2] = {same_map, other_map};
  for (A* map : maps) {
    if (map) std::fill_n(map + base + chunk.first_row * g.width, (chunk.last_row - chunk.first_row) * g.width, A(0));
  }
  const int32_t end = call.row_end[rows + chunk.last_row - 1];
  for (int64_t at = call.row_first[rows + chunk.first_row]; at < end; at += lanes.edges) {
    const Group<T, A> group(call, chunk.image, call.edge_pixel + base + at, std::min(lanes.edges, end - at), lanes);
    A value[2][kEdges];
    Side<A> sides[2 * kEdges];
    if (is_plain_mean(call.power)) {
      terms_of_means(group, lanes, value, sides);
    } else {
      terms_of_logs(group, lanes, value, sides);
    }
    call.keep(base + at, group.count, sides);
    for (int64_t e = 0; e < group.count; ++e) {
      const int64_t i = base + group.pixel[e];
      const double v = call.edge_weight_of(i);
      sums.same += v * value[0][e];
      sums.other += v * value[1][e];
      for (int side = 0; side < 2; ++side) {
        if (maps[side]) maps[side][i] = value[side][e];
      }
    }
  }
}

// ------------------------------------------------------------------------------------------------------------ operator

// The offsets of the search for d, from near to far: no neighbour of an edge pixel has a larger d than 2 ‖radius ·
// spacing‖.
std::vector<Offset> search_offsets(const Geometry& g, const std::vector<double>& spacing, int64_t dims) {
  const std::array<double, 3> s = {dims == 3 ? spacing[0] : 1.0, spacing[dims - 2], spacing[dims - 1]};
  const auto length = [&](double z, double y, double x) { return std::hypot(z * s[0], y * s[1], x * s[2]); };
  const double limit = 2 * length(g.radius[0], g.radius[1], g.radius[2]);
  std::array<int64_t, 3> reach;  // rounded up, since rounding could take the last pixel away: the length decides
  for (int a = 0; a < 3; ++a) reach[a] = static_cast<int64_t>(std::ceil(limit / s[a]));
  const std::array<int64_t, 3> last = {g.depth - 1, g.height - 1, g.width - 1};
  for (int a = 0; a < 3; ++a) reach[a] = std::min(reach[a], last[a]);
  std::vector<Offset> offsets;
  for (int64_t z = -reach[0]; z <= reach[0]; ++z) {
    for (int64_t y = -reach[1]; y <= reach[1]; ++y) {
      for (int64_t x = -reach[2]; x <= reach[2]; ++x) {
        const double d = length(z, y, x);
        if (d > 0 && d <= limit) offsets.push_back({{z, y, x}, d});
      }
    }
  }
  std::sort(offsets.begin(), offsets.end(), [](const Offset& a, const Offset& b) { return a.length < b.length; });
  return offsets;
}

// Throws if a label is neither a class nor ignored.
void throw_if_wrong(const Geometry& g, const Target& target, int64_t ignore_index, const std::vector<Sums>& parts) {
  double all = 0;
  for (const Sums& part : parts) all += part.wrong;
  if (all == 0) return;
  const int64_t count = g.batch * g.pixels;
  int64_t first = 0, same = 0;
  while (target.at(first) == ignore_index || (target.at(first) >= 0 && target.at(first) < g.classes)) ++first;
  for (int64_t i = first; i < count; ++i) same += target.at(i) == target.at(first);
  const int64_t others = static_cast<int64_t>(all) - same;
  throw std::invalid_argument(
      "target: " + unexpected_label(g, ignore_index, target.at(first)) + " at " + count_of_pixels(same) +
      ", first at " + position(g, first) +
      (others ? ", and other labels out of range at " + count_of_pixels(others) + " more" : ""));
}

using Forward = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

template <typename T, typename A>
Forward forward(const Tensor& logits, const Tensor& target, const std::optional<Tensor>& weight,
                const std::optional<Tensor>& pixel_weight, const std::optional<Tensor>& edge_class_weight,
                const std::optional<Tensor>& distance, int64_t ignore_index, double label_smoothing,
                const std::vector<int64_t>& radius, double power, double decay, const std::vector<double>& spacing,
                bool edges, bool false_edges, bool maps, bool check) {
  const Geometry g = geometry_of(logits, target, radius);
  const Chunks chunks(g);
  const std::optional<Upsample<A>> up = upsample_for<A>(g, logits);
  const int64_t all = g.batch * g.pixels;
  const auto empty = [&](int64_t count, ScalarType type) {
    return torch::stable::new_empty(logits, {count, all}, type);
  };
  constexpr ScalarType type = kScalarType<A>;
  Tensor label = torch::stable::new_empty(logits, sizes_of(target), ScalarType::Short),
         stats = empty(g.classes > 2 || is_upsampled(g, logits) ? 2 : 0, type),
         sides = empty(
             edges ? 2 * Call<T, A>::numbers(power, decay) + (false_edges ? FalseEdges<A>::numbers(power) : 0) : 0,
             type);
  Tensor edge_list = torch::stable::new_empty(
      logits, {edges ? all + (false_edges ? 3 : 2) * g.batch * g.depth * g.height : 0}, ScalarType::Int);
  const bool searches = edges && decay > 0 && !distance;
  Tensor field = empty(searches, type), flags = empty(edges && (maps || searches), ScalarType::Byte);
  Tensor ce = empty(maps, type), same = empty(maps && edges, type), other = empty(maps && edges, type),
         false_edge = empty(maps && false_edges, type);
  const auto map_of = [&](const Tensor& t) { return t.numel() ? static_cast<A*>(t.mutable_data_ptr()) : nullptr; };
  Call<T, A> call = make_call<T, A>(g, up, logits, weight, pixel_weight, edge_class_weight, label_smoothing, power,
                                    decay, label, flags, stats, edge_list, sides, distance ? *distance : field);
  // Backward does without the prediction, and with power 0 without the terms.
  Tensor predicted = empty(false_edges, ScalarType::Short), term = empty(false_edges && power == 0, type);
  if (edges && false_edges) call.predicted = static_cast<int16_t*>(predicted.mutable_data_ptr());
  if (term.numel() > 0) call.false_edges.term = static_cast<A*>(term.mutable_data_ptr());

  std::vector<Sums> parts(chunks.count);
  const auto find_terms = [&](int64_t i, Lanes<A>& lanes) {
    edge_terms_chunk(call, chunks.at(i), map_of(same), map_of(other), lanes, parts[i]);
  };
  std::vector<uint8_t> is_done(chunks.count);
  const auto find_edges = [&](int64_t i, Lanes<A>& lanes) {
    edge_pixels_chunk(call, chunks.at(i), map_of(false_edge), parts[i]);
    if (!searches) find_terms(i, lanes);
    is_done[i] = 1;
  };
  const Target y = {target.const_data_ptr(), target.scalar_type()};
  on_each_thread(chunks.count, std::max(chunks.count / 16, 8 * chunks.reach), [&](Tasks& tasks) {
    Lanes<A> lanes(g.radius[2], g.width);
    for (int64_t begin, end; tasks.take(begin, end);) {
      for (int64_t i = begin; i < end; ++i) {
        const auto cross_entropy = up ? upsampled_cross_entropy_chunk<T, A> : cross_entropy_chunk<T, A>;
        cross_entropy(call, y, ignore_index, chunks.at(i), map_of(ce), parts[i]);
        // The edges of a chunk follow, as soon as all that its windows see is there, and still in cache.
        if (edges && i - 2 * chunks.reach >= begin) find_edges(i - chunks.reach, lanes);
      }
    }
  });
  if (check) throw_if_wrong(g, y, ignore_index, parts);  // not from within: a parallel loop loses the message
  if (edges) {                                           // those at the ends of the ranges are left
    on_each_thread(chunks.count, 1, [&](Tasks& tasks) {
      Lanes<A> lanes(g.radius[2], g.width);
      for (int64_t i, end; tasks.take(i, end);) {
        if (!is_done[i]) find_edges(i, lanes);
      }
    });
  }
  if (searches) {
    const std::vector<Offset> offsets = search_offsets(g, spacing, logits.dim() - 2);
    for_each_chunk(chunks, [&](int64_t, const Chunk& chunk) { distance_chunk(call, chunk, offsets, maps); });
    on_each_thread(chunks.count, 1, [&](Tasks& tasks) {
      Lanes<A> lanes(g.radius[2], g.width);
      for (int64_t i, end; tasks.take(i, end);) find_terms(i, lanes);
    });
  }

  constexpr int kSums = 9;
  Tensor sums = torch::stable::new_empty(logits, {kSums}, ScalarType::Double);
  double* out = static_cast<double*>(sums.mutable_data_ptr());
  std::fill_n(out, kSums, 0.0);
  for (const Sums& part : parts) {
    const double values[kSums] = {part.cross_entropy, part.same,  part.other, part.false_edge, part.weight,
                                  part.edges_weight,  part.valid, part.edges, part.wrong};
    for (int k = 0; k < kSums; ++k) out[k] += values[k];
  }
  return {sums, ce, same, other, false_edge, label, flags, stats, edge_list, sides, field};
}

Forward edge_loss(const Tensor& logits, const Tensor& target, const std::optional<Tensor>& weight,
                  const std::optional<Tensor>& pixel_weight, const std::optional<Tensor>& edge_class_weight,
                  const std::optional<Tensor>& distance, int64_t ignore_index, double label_smoothing,
                  std::vector<int64_t> radius, double power, double decay, std::vector<double> spacing, bool edges,
                  bool false_edges, bool maps, int64_t validate) {
  return by_type(logits, [&](auto t, auto a) {
    return forward<decltype(t), decltype(a)>(logits, target, weight, pixel_weight, edge_class_weight, distance,
                                             ignore_index, label_smoothing, radius, power, decay, spacing, edges,
                                             false_edges, maps, validate != 0);
  });
}

}  // namespace
}  // namespace edgeloss

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CPU, m) { m.impl("edge_loss", TORCH_BOX(&edgeloss::edge_loss)); }

// The whole loss on the CPU, backward.
#include <torch/csrc/stable/library.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "call.h"
#include "parallel.h"

namespace edgeloss {
namespace {

// --------------------------------------------------------------------------------------------------------- edge pixels

// What edge pixels give a tile, as `Gathered` has it of a chunk; null where there are none near.
template <typename A>
struct TileShares {
  const A *same = nullptr, *other = nullptr;
  const int32_t* k = nullptr;
};

// What the edge pixels around give the pixels of a chunk: Σ upstream · π on the pixel's own side, and on the other side
// Σ upstream · π · slope for each class k that edge pixels look at.
template <typename A>
struct Gathered {
  struct Entry {
    int64_t pixel;  // counted from the chunk's first
    int32_t k;
    A sum;
  };
  std::vector<A> same, other;    // Σ on the own side; on the other side, for class k
  std::vector<int32_t> k;        // the first class that is seen, or -1
  std::vector<Entry> more;       // of further classes, by pixel
  std::vector<uint8_t> is_near;  // the rows that edge pixels see; the others' sums are not set
  int64_t width;                 // of a row

  void start(const Geometry& g, int64_t rows, int64_t margin) {
    width = g.width;
    for (auto* sums : {&same, &other}) sums->resize(rows * width + margin);
    k.resize(rows * width + margin);
    more.clear();
    is_near.assign(rows, 0);
  }

  // Makes the rows of the pixels [first, last] ready.
  void approach(int64_t first, int64_t last) {
    for (int64_t row = first / width; row <= last / width; ++row) {
      if (is_near[row]) continue;
      is_near[row] = 1;
      std::fill_n(same.begin() + row * width, width, A(0));
      std::fill_n(other.begin() + row * width, width, A(0));
      std::fill_n(k.begin() + row * width, width, -1);
    }
  }

  // Whether any of the pixels [first, last] may be near the edge; if so, all of them are ready.
  bool reaches(int64_t first, int64_t last) {
    const auto rows = is_near.begin();
    if (std::find(rows + first / width, rows + last / width + 1, 1) == rows + last / width + 1) return false;
    approach(first, last);
    return true;
  }

  TileShares<A> from(int64_t pixel) const { return {same.data() + pixel, other.data() + pixel, k.data() + pixel}; }

  // Adds the shares in the lanes to the sums of the pixels, which are counted from `start`.
  template <typename T>
  void add(const Group<T, A>& group, int64_t start, const Lanes<A>& lanes) {
    int64_t e = 0, last = group.count - 1;  // in order, but for those that see nothing
    while (lanes.first[e] < 0) ++e;
    while (lanes.first[last] < 0) --last;
    approach(lanes.first[e] - start, lanes.first[last] - start);
    const auto keep = [&](int64_t at, int32_t of, A sum) { more.push_back({at, of, sum}); };
    if (lanes.width == 4) {
      add_shares<4>(lanes, group.k, group.count, start, same.data(), other.data(), k.data(), keep);
    } else if (lanes.width == 8) {
      add_shares<8>(lanes, group.k, group.count, start, same.data(), other.data(), k.data(), keep);
    } else {
      add_shares<0>(lanes, group.k, group.count, start, same.data(), other.data(), k.data(), keep);
    }
  }

  // Calls body(k, sum) for a pixel's further classes.
  template <typename F>
  void for_each_more(int64_t pixel, const F& body) const {
    auto entry =
        std::lower_bound(more.begin(), more.end(), pixel, [](const Entry& e, int64_t p) { return e.pixel < p; });
    for (; entry != more.end() && entry->pixel == pixel; ++entry) body(entry->k, entry->sum);
  }
};

// What arrives at each pixel's terms in the backward pass.
template <typename A>
struct Upstream {
  A sums[4];        // of Σ v CE, Σ v u S, Σ v u O, and Σ v S of false edges
  const A* map[4];  // of the maps, [B, P] each, or null

  A at(int term, int64_t i, A v) const { return sums[term] * v + (map[term] ? map[term][i] : A(0)); }
};

// Adds to a chunk's pixels the shares of the edge pixels in rows [first, last), which lie in one chunk themselves.
template <typename T, typename A>
void gather_rows(const Call<T, A>& call, const Upstream<A>& upstream, const Chunk& chunk, int64_t first, int64_t last,
                 Lanes<A>& lanes, Gathered<A>& to) {
  const Geometry& g = call.g;
  const int64_t base = chunk.image * g.pixels, rows = chunk.image * g.depth * g.height;
  const int64_t start = chunk.first_row * g.width, stop = chunk.last_row * g.width;
  const int32_t end = call.row_end[rows + last - 1];
  for (int32_t done = call.row_first[rows + first]; done < end;) {
    // The ones whose terms were formed of probabilities and the ones of logarithms take turns.
    const bool means = call.is_of_means(base + done);
    int32_t n = 1;
    while (n < lanes.edges && done + n < end && call.is_of_means(base + done + n) == means) ++n;
    const Group<T, A> group(call, chunk.image, call.edge_pixel + base + done, n, lanes);
    Side<A> sides[2 * kEdges];
    call.recall(base + done, n, sides);
    if (!means && call.power == A(1)) {
      A value[2][kEdges];
      terms_of_logs(group, lanes, value, sides);
    }
    for (int side = 0; side < 2; ++side) {
      const auto fill = [&](int which, const auto& of) {
        A own[kEdges];
        for (int32_t e = 0; e < n; ++e) own[e] = of(e, sides[2 * e + side]);
        repeat_each(own, n, lanes.width, lanes.own[side][which].data());
      };
      const auto up = [&](int32_t e) {
        const int64_t i = base + group.pixel[e];
        return upstream.at(1 + side, i, call.edge_weight_of(i));
      };
      if (means) {
        fill(0, [&](int32_t e, const Side<A>& of) { return up(e) * of.inverse; });
      } else {
        fill(0, [&](int32_t e, const Side<A>&) { return up(e); });
        fill(1, [&](int32_t, const Side<A>& of) { return of.first; });
        fill(2, [&](int32_t, const Side<A>& of) { return of.log_sum; });
      }
      if (call.has_decay) fill(3, [&](int32_t, const Side<A>& of) { return of.nearest; });
    }
    group.for_each_row_seen(start, stop, true, lanes, [&] {
      if (means) {
        find_mean_shares(lanes, n * lanes.width, call.power == A(0), call.has_decay, call.inverse_decay);
      } else {
        group.find_terms(lanes);
        find_log_shares(lanes, n * lanes.width, call.power, call.inverse_decay);
      }
      to.add(group, start, lanes);
    });
    done += n;
  }
}

// Adds to a chunk's pixels the shares of the false edges around.
template <typename T, typename A>
void gather_false_edges(const Call<T, A>& call, const Upstream<A>& upstream, const Chunk& chunk, RowWindows<A>& windows,
                        Gathered<A>& to) {
  const Geometry& g = call.g;
  const int32_t* count = call.false_edges.count + chunk.image * g.depth * g.height;
  for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
    int64_t around = 0;
    for_each_row(g, row, g.radius, [&](int64_t first) { around += count[quotient(first, g.width)]; });
    if (around == 0) continue;
    const int64_t first = (row - chunk.first_row) * g.width;
    to.approach(first, first + g.width - 1);
    windows.add_shares(
        call.false_edges, chunk.image, row, [&](int64_t i) { return upstream.at(3, i, call.pixel_weight_of(i)); },
        to.same.data() + first);
  }
}

// Gathers the shares of a chunk's pixels.
template <typename T, typename A>
void gather_chunk(const Call<T, A>& call, const Upstream<A>& upstream, const Chunks& chunks, const Chunk& chunk,
                  Lanes<A>& lanes, RowWindows<A>& windows, Gathered<A>& to) {
  const Geometry& g = call.g;
  to.start(g, chunk.last_row - chunk.first_row, lanes.width);
  const int64_t reach_z = std::min(g.radius[0], g.depth - 1), reach_y = std::min(g.radius[1], g.height - 1);
  int64_t row = 0;
  for (int64_t dz = -reach_z; dz <= reach_z; ++dz) {  // the rows that see the chunk's, slice by slice
    row = std::max(row, chunk.first_row + dz * g.height - reach_y);
    const int64_t last = std::min(chunk.last_row + dz * g.height + reach_y, chunks.rows);
    while (row < last) {
      const int64_t next = std::min((row / chunks.rows_per_chunk + 1) * chunks.rows_per_chunk, last);
      gather_rows(call, upstream, chunk, row, next, lanes, to);
      row = next;
    }
  }
  if (call.false_edges.exist()) gather_false_edges(call, upstream, chunk, windows, to);
  std::stable_sort(to.more.begin(), to.more.end(), [](const auto& a, const auto& b) { return a.pixel < b.pixel; });
}

// -------------------------------------------------------------------------------------------------------------- chunks

// What the backward pass of a thread works in.
template <typename T, typename A>
struct Workspace {
  // An addition to one class of one pixel of a tile, after the rest; `likely` ones concern all other classes too.
  struct Correction {
    int64_t j, k;
    A value;
    bool likely;
  };
  std::vector<A> buffer;
  std::vector<A> sums;  // of a box
  std::vector<Correction> corrections;
  Gathered<A> gathered;
  Lanes<A> lanes;
  RowWindows<A> windows;

  explicit Workspace(const Geometry& g) : lanes(g.radius[2], g.width), windows(g) {}
};

// The gradient of a tile of n pixels, to[c · to_ld + j]; pixel(j) is the number of the j-th one. for_each_more(body)
// calls body(j, k, share) for what edge pixels of further classes give.
template <typename T, typename A, typename F, typename M>
void gradient_tile(const Call<T, A>& call, const Upstream<A>& upstream, const A* tile, int64_t ld, int64_t n,
                   const int16_t* label, const A* m, const A* r, const F& pixel, const TileShares<A>& shares,
                   const M& for_each_more, A* to, int64_t to_ld, Workspace<T, A>& space) {
  const Geometry& g = call.g;
  const A smoothing = call.label_smoothing, uniform = smoothing / static_cast<A>(g.classes);
  const A total_weight = call.total_weight();
  A alpha[kTile], at_y[kTile];  // the gradient is alpha · p(c) - at_y · [c = y], but for the corrections
  int32_t labels[kTile];
  tile_factors(label, n, (A(1) - smoothing + uniform * total_weight) * upstream.sums[0],
               (A(1) - smoothing) * upstream.sums[0], labels, alpha, at_y);
  if (call.weight || call.pixel_weight || upstream.map[0]) {
    for (int64_t j = 0; j < n; ++j) {
      if (labels[j] < 0) continue;
      const A ce = upstream.at(0, pixel(j), call.pixel_weight_of(pixel(j)));
      at_y[j] = ce * (A(1) - smoothing) * call.weight_of(labels[j]);
      alpha[j] = at_y[j] + ce * uniform * total_weight;
    }
  }
  auto& corrections = space.corrections;
  corrections.clear();
  if (shares.same) {
    for (int64_t j = 0; j < n; ++j) {  // ∂S = π (p(c) - δ_cy)
      alpha[j] += shares.same[j];
      at_y[j] += shares.same[j];
    }
    const auto correct = [&](int64_t j, int64_t k, A value) {
      const bool likely = is_likely(tile[k * ld + j], m[j], r[j]);
      if (!likely) alpha[j] -= value;
      corrections.push_back({j, k, value, likely});
    };
    const int32_t* k = shares.k;
    for (int64_t j = 0; j < n; ++j) {
      if (j + 4 <= n && (k[j] & k[j + 1] & k[j + 2] & k[j + 3]) < 0) {
        j += 3;  // all four are -1
      } else if (k[j] >= 0) {
        correct(j, k[j], shares.other[j]);
      }
    }
    for_each_more(correct);
  }

  tile_softmax(tile, ld, g.classes, n, labels, m, r, alpha, at_y, to, to_ld);
  for (const auto& c : corrections) {
    to[c.k * to_ld + c.j] += c.value;
    if (!c.likely) continue;
    // The others' shares, from logits that may lie so far below the top that r is 0.
    const bool exact = is_exact(r[c.j]);
    const Logits<A, A> x = {tile, ld, 1, false};
    const A top = exact ? A(0) : log_rest(x, c.j, g.classes, m[c.j], r[c.j]);
    const A value = exact ? c.value / r[c.j] : c.value;
    for (int64_t other = 0; other < g.classes; ++other) {
      if (other != c.k) to[other * to_ld + c.j] -= value * exp_negative((tile[other * ld + c.j] - m[c.j]) - top);
    }
  }
  if (smoothing != A(0)) {
    for (int64_t j = 0; j < n; ++j) {
      if (label[j] < 0) continue;
      const A ce = upstream.at(0, pixel(j), call.pixel_weight_of(pixel(j)));
      for (int64_t c = 0; c < g.classes; ++c) to[c * to_ld + j] -= ce * uniform * call.weight_of(c);
    }
  }
}

// The backward pass of a chunk.
template <typename T, typename A>
void backward_chunk(const Call<T, A>& call, const Upstream<A>& upstream, const Chunks& chunks, const Chunk& chunk,
                    T* grad, const Steps& grad_steps, Workspace<T, A>& space) {
  const Geometry& g = call.g;
  const Logits<T, A> x = call.image(chunk.image);
  const int64_t start = chunk.first_row * g.width, last = chunk.last_row * g.width, step = call.tile();
  const int64_t base = chunk.image * g.pixels;
  T* out = grad + chunk.image * grad_steps.image;
  const bool in_place = fits_in_place(x, g.classes, step) && grad_steps.pixel == 1;
  const int64_t ld = in_place ? x.class_step : step, to_ld = in_place ? grad_steps.channel : step;
  space.buffer.resize(in_place ? 0 : 2 * g.classes * step);
  Gathered<A>& gathered = space.gathered;
  if (call.row_first) gather_chunk(call, upstream, chunks, chunk, space.lanes, space.windows, gathered);
  auto more = gathered.more.begin();

  for (int64_t p = start; p < last; p += step) {
    const int64_t n = std::min(step, last - p);
    if (!in_place) read_tile(x, g.classes, p, n, space.buffer.data(), step);
    const A* tile = in_place ? reinterpret_cast<const A*>(x.data) + p : space.buffer.data();
    A* to = in_place ? reinterpret_cast<A*>(out) + p : space.buffer.data() + g.classes * step;
    A own_m[kTile], own_r[kTile];
    const A *m = call.m ? call.m + base + p : own_m, *r = call.m ? call.r + base + p : own_r;
    if (!call.m) tile_statistics_of_two(tile, tile + ld, n, own_m, own_r);
    TileShares<A> shares;
    if (call.row_first && gathered.reaches(p - start, p - start + n - 1)) shares = gathered.from(p - start);
    gradient_tile(
        call, upstream, tile, ld, n, call.label + base + p, m, r, [&](int64_t j) { return base + p + j; }, shares,
        [&](const auto& correct) {
          for (; more != gathered.more.end() && more->pixel < p - start + n; ++more) {
            correct(more->pixel - (p - start), more->k, more->sum);
          }
        },
        to, to_ld, space);
    if (in_place) continue;
    // Of a binary pixel, the second class has the logit.
    write_tile(to + (g.logits == 1 ? step : 0), step, g.logits, n, out + p * grad_steps.pixel, grad_steps.channel,
               grad_steps.pixel);
  }
}

// --------------------------------------------------------------------------------------------------------------- boxes

// A box of low-resolution rows of an image: what the backward pass of logits to be upsampled works on. The rows at the
// labels' resolution that two boxes are mixed into are gone through for each of them.
struct Box {
  int64_t image, first_slice, last_slice, first_row, last_row;
};

struct Boxes {
  int64_t depth, height, slices, rows;  // of the image; of a box
  int64_t per_slice, per_image, count;

  Boxes(int64_t batch, int64_t depth, int64_t height) : depth(depth), height(height) {
    // Large, so that few rows are gone through twice, and yet enough of them for all threads.
    const int64_t most = std::clamp<int64_t>(batch * depth * height / 32, 2, 16);
    slices = std::min<int64_t>(depth, 4);
    rows = std::min(height, most);
    per_slice = (height + rows - 1) / rows;
    per_image = (depth + slices - 1) / slices * per_slice;
    count = batch * per_image;
  }
  Box at(int64_t index) const {
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

// The backward pass of a box.
template <typename T, typename A>
void backward_box(const Call<T, A>& call, const Upstream<A>& upstream, const Chunks& chunks, const Box& box, T* grad,
                  const Steps& grad_steps, Workspace<T, A>& space) {
  const Geometry& g = call.g;
  const Upsample<A>& up = *call.up;
  const Logits<T, A> x = call.image(box.image);
  const int64_t base = box.image * g.pixels, step = call.tile(), rows = box.last_row - box.first_row;
  const int64_t stride = up.cells + 2;  // of a class, in a row of sums
  std::vector<A>& sums = space.sums;
  sums.assign((box.last_slice - box.first_slice) * rows * g.logits * stride, A(0));
  const auto sums_of = [&](int64_t slice, int64_t row) {
    return sums.data() + ((slice - box.first_slice) * rows + row - box.first_row) * g.logits * stride;
  };
  space.buffer.resize(2 * g.classes * step);
  A *tile = space.buffer.data(), *to = tile + g.classes * step;
  Gathered<A>& gathered = space.gathered;

  int64_t first_slice, last_slice, first_row, last_row;
  find_support(up.slice, box.first_slice, box.last_slice, first_slice, last_slice);
  find_support(up.row, box.first_row, box.last_row, first_row, last_row);
  for (int64_t slice = first_slice; slice < last_slice; ++slice) {
    for (int64_t part = first_row; part < last_row; part += chunks.rows_per_chunk) {
      const Chunk chunk = {box.image, slice * g.height + part,
                           slice * g.height + std::min(part + chunks.rows_per_chunk, last_row)};
      if (call.row_first) gather_chunk(call, upstream, chunks, chunk, space.lanes, space.windows, gathered);
      for (int64_t row = chunk.first_row; row < chunk.last_row; ++row) {
        const RowTaps<A> taps = up.row_taps(row);
        A* wanted[4];
        for (int k = 0; k < 4; ++k) {
          const int64_t of_slice = taps.row[k] / up.along_y.low, of_row = taps.row[k] % up.along_y.low;
          const bool inside = of_slice >= box.first_slice && of_slice < box.last_slice && of_row >= box.first_row &&
                              of_row < box.last_row && taps.weight_of(k) != A(0);
          wanted[k] = inside ? sums_of(of_slice, of_row) : nullptr;
        }
        const int64_t start = base + row * g.width, in_chunk = (row - chunk.first_row) * g.width;
        const bool near = call.row_first && gathered.reaches(in_chunk, in_chunk + g.width - 1);
        for_each_block(up, step, [&](const Block& block) {
          const int64_t n = block.pixels();
          int32_t place[kTile], k[kTile];
          int16_t label[kTile];
          A m[kTile], r[kTile], same[kTile], other[kTile];
          up.list_pixels(block, place);
          for (int64_t j = 0; j < n; ++j) {
            const int64_t at = std::max(place[j], 0);
            label[j] = place[j] < 0 ? kIgnored : call.label[start + at];
            m[j] = call.m[start + at];
            r[j] = call.r[start + at];
          }
          TileShares<A> shares;
          if (near) {
            const TileShares<A> of = gathered.from(in_chunk);
            for (int64_t j = 0; j < n; ++j) {
              same[j] = place[j] < 0 ? A(0) : of.same[place[j]];
              other[j] = place[j] < 0 ? A(0) : of.other[place[j]];
              k[j] = place[j] < 0 ? -1 : of.k[place[j]];
            }
            shares = {same, other, k};
          }
          interpolate_tile(up, taps, x, g.logits, block, tile, step);
          gradient_tile(
              call, upstream, tile, step, n, label, m, r, [&](int64_t j) { return start + place[j]; }, shares,
              [&](const auto& correct) {
                if (gathered.more.empty()) return;
                for (int64_t j = 0; j < n; ++j) {
                  if (place[j] >= 0) {
                    gathered.for_each_more(in_chunk + place[j], [&](int32_t of, A sum) { correct(j, of, sum); });
                  }
                }
              },
              to, step, space);
          share_tile(up, taps, g.logits, block, to + (g.logits == 1 ? step : 0), step, wanted);
        });
      }
    }
  }

  T* out = grad + box.image * grad_steps.image;
  for (int64_t slice = box.first_slice; slice < box.last_slice; ++slice) {
    for (int64_t row = box.first_row; row < box.last_row; ++row) {
      A* of = sums_of(slice, row);
      for (int64_t c = 0; c < g.logits; ++c) of[c * stride + 1] += of[c * stride];  // the first cell has none before it
      write_tile(of + 1, stride, g.logits, up.cells, out + (slice * up.along_y.low + row) * up.cells * grad_steps.pixel,
                 grad_steps.channel, grad_steps.pixel);
    }
  }
}

// ------------------------------------------------------------------------------------------------------------ operator

// A new tensor's first touch costs a page fault every 4 KB, more than the arithmetic that fills it: ask for 2 MB pages.
void want_large_pages(void* data, int64_t bytes) {
#ifdef __linux__
  constexpr uintptr_t kPage = uintptr_t(1) << 21;
  const uintptr_t first = (reinterpret_cast<uintptr_t>(data) + kPage - 1) & ~(kPage - 1);
  const uintptr_t last = (reinterpret_cast<uintptr_t>(data) + bytes) & ~(kPage - 1);
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // a wish: no failure matters
#else
  (void)data;
  (void)bytes;
#endif
}

template <typename T, typename A>
Tensor backward(const Tensor& grad_sums, const std::optional<Tensor>& grad_ce, const std::optional<Tensor>& grad_same,
                const std::optional<Tensor>& grad_other, const std::optional<Tensor>& grad_false, const Tensor& logits,
                const std::optional<Tensor>& weight, const std::optional<Tensor>& pixel_weight,
                const std::optional<Tensor>& edge_class_weight, const Tensor& label, const Tensor& flags,
                const Tensor& stats, const Tensor& edge_list, const Tensor& sides, const Tensor& field,
                double label_smoothing, const std::vector<int64_t>& radius, double power, double decay) {
  const Geometry g = geometry_of(logits, label, radius);
  const Chunks chunks(g);
  const std::optional<Upsample<A>> up = upsample_for<A>(g, logits);
  Tensor grad = torch::stable::empty_like(logits);
  want_large_pages(grad.mutable_data_ptr(), grad.numel() * static_cast<int64_t>(sizeof(T)));
  const Call<T, A> call = make_call<T, A>(g, up, logits, weight, pixel_weight, edge_class_weight, label_smoothing,
                                          power, decay, label, flags, stats, edge_list, sides, field);
  const double* sums = static_cast<const double*>(grad_sums.const_data_ptr());
  Upstream<A> upstream;
  const std::optional<Tensor>* const of_maps[4] = {&grad_ce, &grad_same, &grad_other, &grad_false};
  for (int k = 0; k < 4; ++k) {
    upstream.sums[k] = static_cast<A>(sums[k]);
    upstream.map[k] = data_or_null<A>(*of_maps[k]);
  }
  const Steps steps(grad);
  T* out = static_cast<T*>(grad.mutable_data_ptr());
  if (up) {
    const Boxes boxes(g.batch, up->along_z.low, up->along_y.low);
    on_each_thread(boxes.count, 1, [&](Tasks& tasks) {
      Workspace<T, A> space(g);
      for (int64_t i, end; tasks.take(i, end);) backward_box(call, upstream, chunks, boxes.at(i), out, steps, space);
    });
    return grad;
  }
  on_each_thread(chunks.count, 1, [&](Tasks& tasks) {
    Workspace<T, A> space(g);
    for (int64_t i, end; tasks.take(i, end);) backward_chunk(call, upstream, chunks, chunks.at(i), out, steps, space);
  });
  return grad;
}

Tensor edge_loss_backward(const Tensor& grad_sums, const std::optional<Tensor>& grad_ce,
                          const std::optional<Tensor>& grad_same, const std::optional<Tensor>& grad_other,
                          const std::optional<Tensor>& grad_false, const Tensor& logits,
                          const std::optional<Tensor>& weight, const std::optional<Tensor>& pixel_weight,
                          const std::optional<Tensor>& edge_class_weight, const Tensor& label, const Tensor& flags,
                          const Tensor& stats, const Tensor& edge_list, const Tensor& sides, const Tensor& field,
                          double label_smoothing, std::vector<int64_t> radius, double power, double decay) {
  return by_type(logits, [&](auto t, auto a) {
    return backward<decltype(t), decltype(a)>(grad_sums, grad_ce, grad_same, grad_other, grad_false, logits, weight,
                                              pixel_weight, edge_class_weight, label, flags, stats, edge_list, sides,
                                              field, label_smoothing, radius, power, decay);
  });
}

}  // namespace
}  // namespace edgeloss

STABLE_TORCH_LIBRARY_IMPL(edgeloss, CPU, m) { m.impl("edge_loss_backward", TORCH_BOX(&edgeloss::edge_loss_backward)); }

// The whole loss on the CPU, backward.
#include "backward.h"

#include "../neighbors/gather.h"
#include "parallel.h"

namespace edgeloss {

template <typename A>
SlabGradient<A>::SlabGradient(const Call<A>& call, const Gradients& gradients)
    : call_(call),
      of_region_(gradients.region ? static_cast<const double*>(gradients.region->const_data_ptr()) : nullptr),
      windows_(call.g),
      tiles_(call),
      gradient_(call.g.classes * call.tile()) {
  const double* terms = static_cast<const double*>(gradients.terms.const_data_ptr());
  factors_ = {static_cast<A>(terms[Row::kCrossEntropy]), static_cast<A>(terms[Row::kSameSide]),
              static_cast<A>(terms[Row::kOtherSide])};
}

// The weights that forward kept; false where it did not.
template <typename A>
bool SlabGradient<A>::recall_weights(const typename Call<A>::Near& near, const Slab& slab) {
  if (!near.count || *near.count < 0) return false;
  weights_.clear();
  if (*near.count == 0) return true;
  weights_.start(slab.pixels(call_.g.width), call_.g.classes);
  for (int32_t i = 0; i < *near.count; ++i) {
    if (near.k[i] == Call<A>::Near::kSame) {
      weights_.same[near.place[i]] = near.weight[i];
    } else if (near.k[i] == Call<A>::Near::kOther) {
      weights_.other[near.place[i]] = near.weight[i];
    } else {
      weights_.others.push_back({near.place[i], near.k[i], near.weight[i]});
    }
  }
  return true;
}

template <typename A>
void SlabGradient<A>::prepare(const Slab& slab, int64_t number) {
  const Geometry& g = call_.g;
  if (call_.options.gathers) {
    collect_shares(slab);
  } else if (call_.options.edges && !recall_weights(call_.near(number, slab), slab)) {
    windows_.form(call_.label_map(slab.image), slab, &weights_, nullptr);
  }
  regions_.classes.clear();
  const int64_t slice = average_of(slab.first_slice);
  const RegionSize size = region_size(g);
  if (!call_.state.slopes || !of_region_ || slice >= size.depth) return;
  for (int32_t c = 0; c < g.classes; ++c) {
    if (call_.state.has_term[slab.image * g.classes + c]) regions_.classes.push_back(c);
  }
  const int64_t image = slab.image / g.tables, maps = g.tables * g.classes;
  const uint8_t* of_image = call_.state.has_term + image * maps;
  const double terms = static_cast<double>(std::count(of_image, of_image + maps, 1));
  const A factor = terms > 0 ? static_cast<A>(of_region_[image] / terms) : A(0);
  regions_.start(g.classes);
  rows_.start(slab, g, regions_.classes.size());
  for (size_t of = 0; of < regions_.classes.size(); ++of) {
    const A* map = call_.state.slopes + (slab.image * g.classes + regions_.classes[of]) * averages_in(size);
    for (int64_t y = 0; y < rows_.count && rows_.first + y < size.height; ++y) {
      const A* slope = map + (slice * size.height + rows_.first + y) * size.width;
      A* row = rows_.at(of, y);
      for (int64_t i = 0; i < size.width; ++i) {
        const A value = factor * slope[i];
        const int64_t x = kPool * i;
        if (i > 0) row[x - 1] = value;
        row[x] = value;
        if (x + 1 < g.width) row[x + 1] = value;
      }
    }
  }
}

// The weights where neighbors are gathered: their shares.
template <typename A>
void SlabGradient<A>::collect_shares(const Slab& slab) {
  const Geometry& g = call_.g;
  weights_.clear();
  weights_.start(slab.pixels(g.width), g.classes);
  for (int64_t z = slab.first_slice; z < slab.last_slice; ++z) {
    const Chunk chunk = {slab.image, z * g.height + slab.first_row, z * g.height + slab.last_row};
    own_.assign(slab.rows() * g.width, A(0));
    others_.clear();
    gather_shares(call_, chunk, own_.data(), others_);
    const int32_t first = slab.place(g.width, z, slab.first_row, 0);
    std::copy(own_.begin(), own_.end(), weights_.same.begin() + first);
    for (const OtherWeight<A>& each : others_) {
      const int32_t place = first + each.place;
      if (g.classes == 2) {
        weights_.other[place] += each.weight;
      } else {
        weights_.others.push_back({place, each.k, each.weight});
      }
    }
  }
}

template <typename A>
void SlabGradient<A>::read_statistics(const Pixels<A>& pixels, const TilePlace& at, A* m, A* r) const {
  if (!call_.state.m) {
    A nll[kTile];
    return tile_statistics(pixels.tile, pixels.y, m, r, nll);
  }
  for (int64_t j = 0; j < pixels.tile.n; ++j) {
    const int64_t i = at.start + std::max(at.place[j], 0);
    m[j] = call_.state.m[i];
    r[j] = call_.state.r[i];
  }
}

template class SlabGradient<float>;
template class SlabGradient<double>;

namespace {

constexpr int64_t kStreamed = 1 << 23;  // bytes of a gradient that is not in cache when the next operator reads it

template <typename A>
Tensor run_backward(const Gradients& gradients, const Inputs& inputs, const SavedState& saved, const Options& options) {
  Tensor grad = torch::stable::empty_like(inputs.logits);
  const int64_t bytes = grad.numel() * static_cast<int64_t>(grad.element_size());
  want_large_pages(grad.mutable_data_ptr(), bytes);
  const Call<A> call(inputs, saved.label, saved, options);
  const Geometry& g = call.g;
  if (g.batch * g.pixels == 0) {
    torch::stable::zero_(grad);
    return grad;
  }
  if (call.up) {
    upsampled_backward(call, gradients, grad);
    return grad;
  }
  const Steps steps(grad);
  on_each_thread(call.slabs.count, 1, [&](Tasks& tasks) {
    SlabGradient<A> space(call, gradients);
    for (int64_t i, end; tasks.take(i, end);) {
      const Slab slab = call.slabs.at(i);
      const Stored<A, void*> out = stored_output<A>(grad, steps, slab.image);
      space.for_each_tile(slab, i, [&](const A* gradient, const Pixels<A>& pixels, const TilePlace& at) {
        // Of one logit, the second class has it.
        write_tile(gradient + (g.logits == 1 ? call.tile() : 0), call.tile(), g.logits, pixels.tile.n, out,
                   at.start - slab.image * g.pixels, bytes >= kStreamed);
      });
    }
    end_streams();
  });
  return grad;
}

}  // namespace

Tensor cpu::backward(const Gradients& gradients, const Inputs& inputs, const SavedState& saved,
                     const Options& options) {
  return by_arithmetic(inputs.logits,
                       [&](auto a) { return run_backward<decltype(a)>(gradients, inputs, saved, options); });
}

}  // namespace edgeloss

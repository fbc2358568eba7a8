// A few edge pixels of an image, and what their windows show of it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "call.h"
#include "lanes.h"

namespace edgeloss {

// What lanes are filled with besides labels and distances: nothing, what probabilities are formed of, or t.
enum class Wanted { kNothing, kProbabilities, kLogs };

template <typename A>
struct Group {
  const Call<A>& call;
  int64_t image, count;
  const int32_t* pixel;
  int64_t first[kEdges];                         // the pixel in the first lane, in the edge pixel's own row
  int32_t column[kEdges], y[kEdges], z[kEdges];  // where that is
  int32_t offset[kEdges];                        // where it stands among its lanes
  int16_t k[kEdges];                             // its class

  Group(const Call<A>& call, int64_t image, const int32_t* pixel, int64_t count, Lanes<A>& lanes);

  // Calls body() for each row of the windows that lies in [begin, end), the lanes filled with it.
  template <typename F>
  void for_each_row_seen(int64_t begin, int64_t end, Wanted wanted, Lanes<A>& lanes, const F& body) const {
    const Geometry& g = call.g;
    const int64_t reach_z = std::min(g.radius[0], g.depth - 1), reach_y = std::min(g.radius[1], g.height - 1);
    for (int64_t dz = -reach_z; dz <= reach_z; ++dz) {
      for (int64_t dy = -reach_y; dy <= reach_y; ++dy) {
        if (!aim(dz, dy, begin, end, lanes)) continue;
        fill(dz, dy, wanted, lanes);
        body();
      }
    }
  }

  // Both edge terms by logarithms: for powers other than 0 and 1, and where a probability underflows in A.
  void terms_of_logs(Lanes<A>& lanes, A (*value)[kEdges], Side<A>* sides) const;

 private:
  // Aims the lanes at the row of their windows at (dz, dy), as far as it lies in [begin, end); false if none does.
  bool aim(int64_t dz, int64_t dy, int64_t begin, int64_t end, Lanes<A>& lanes) const;
  void fill(int64_t dz, int64_t dy, Wanted wanted, Lanes<A>& lanes) const;
  // t of the lanes from -log p(y) and log_other in them, and where that is of another class from the logits.
  void find_unknown_terms(Lanes<A>& lanes) const;
  void fill_logits(int64_t dz, int64_t dy, Lanes<A>& lanes) const;
  // t of the lanes from the logits in them, exact where r underflowed.
  void find_terms(Lanes<A>& lanes) const;
};

// log(1 - p(k)) of n ≤ kTile pixels.
template <typename A>
void logs_of_others(const Call<A>& call, int64_t image, const int32_t* pixel, const int16_t* k, int64_t n, A* t);

// Sets log_other of edge pixels.
template <typename A>
void find_others(const Call<A>& call, int64_t image, const int32_t* pixel, int64_t count);

}  // namespace edgeloss

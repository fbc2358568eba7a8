// Work shared out to threads in chunks that do not depend on their number.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "../geometry.h"

namespace edgeloss {

// Rows of one image, (z, y) in order.
struct Chunk {
  int64_t image, first_row, last_row;
};

struct Chunks {
  int64_t rows_per_chunk, per_image, count, rows;
  int64_t reach;  // a window reaches so many chunks before and behind its own

  // Large enough to hide a chunk's overhead, small enough that what it works on stays in cache, and enough of them for
  // all threads even of a small batch.
  explicit Chunks(const Geometry& g) : rows(g.depth * g.height) {
    const int64_t pixels = std::clamp<int64_t>(g.batch * g.pixels / 16, 256, 4096);
    rows_per_chunk = std::max<int64_t>(1, pixels / std::max<int64_t>(1, g.width));
    per_image = (rows + rows_per_chunk - 1) / rows_per_chunk;
    count = g.batch * per_image;
    reach = (std::min(g.radius[0], g.depth) * g.height + std::min(g.radius[1], g.height) + rows_per_chunk - 1) /
            rows_per_chunk;
  }

  Chunk at(int64_t index) const {
    const int64_t first = index % per_image * rows_per_chunk;
    return {index / per_image, first, std::min(first + rows_per_chunk, rows)};
  }
};

// Chunks still to be done, handed out to the threads a few neighbors at a time: which of them a thread gets changes
// from run to run, what comes of a chunk does not. A thread that the system holds up leaves its share to the others.
class Tasks {
 public:
  Tasks(int64_t count, int64_t step) : count_(count), step_(std::max<int64_t>(1, step)) {}

  // The next ones, [begin, end); false if none is left.
  bool take(int64_t& begin, int64_t& end) {
    begin = next_.fetch_add(step_);
    end = std::min(begin + step_, count_);
    return begin < end;
  }

 private:
  std::atomic<int64_t> next_{0};
  int64_t count_, step_;
};

// Calls body(tasks) once on each thread, to share out `count` tasks.
template <typename F>
void on_each_thread(int64_t count, int64_t step, const F& body) {
  Tasks tasks(count, step);
  torch::stable::parallel_for(0, count, 1, [&](int64_t, int64_t) { body(tasks); });
}

// Calls body(number of the chunk, chunk) for each of them.
template <typename F>
void for_each_chunk(const Chunks& chunks, const F& body) {
  on_each_thread(chunks.count, 1, [&](Tasks& tasks) {
    for (int64_t i, end; tasks.take(i, end);) body(i, chunks.at(i));
  });
}

}  // namespace edgeloss

// Work shared out to threads in parts that do not depend on their number.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace edgeloss {

// Tasks still to be done, handed out to the threads a few neighbors at a time: which of them a thread gets changes
// from run to run, what comes of a task does not. A thread that the system holds up leaves its share to the others.
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

}  // namespace edgeloss

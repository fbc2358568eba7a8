// Labels out of range that CUDA kernels found, for the host to report later.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "../labels.h"
#include "device.h"

namespace edgeloss {

// What a call with wrong labels leaves for the host, in memory that both can reach: reading it needs no CUDA call.
struct LabelRecord {
  int state;  // kNothing, kBeingWritten or kWritten
  int64_t call, ignore_index, pixels, first, label;
  Geometry geometry;
};
enum : int { kNothing, kBeingWritten, kWritten };

class LabelRecords {
 public:
  // That of a device, the current one, which knows it by the same address. It is allocated for the first call only,
  // which may not be part of a CUDA graph.
  LabelRecord* find(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    LabelRecord*& record = records_[device];
    if (!record) {
      void* memory;
      check(cudaHostAlloc(&memory, sizeof(LabelRecord), cudaHostAllocPortable | cudaHostAllocMapped));
      record = new (memory) LabelRecord();
    }
    return record;
  }

  // The message of a device's record, or of any device's, and "" if there is none; the record is then free again.
  // `call` is the one that asks.
  std::string take(std::optional<int> device, int64_t call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [index, record] : records_) {
      if ((device && index != *device) || __atomic_load_n(&record->state, __ATOMIC_ACQUIRE) != kWritten) continue;
      const Geometry& g = record->geometry;
      const std::string message = (record->call == call ? "target: " : "target of an earlier call: ") +
                                  unexpected_label(g, record->ignore_index, record->label) + " at " +
                                  position(g, record->first) + ", the first of " + count_of_pixels(record->pixels) +
                                  " with labels out of range, which counted as ignored";
      __atomic_store_n(&record->state, kNothing, __ATOMIC_RELEASE);
      return message;
    }
    return "";
  }

  void throw_if_any(int device, int64_t call) {
    const std::string message = take(device, call);
    if (!message.empty()) throw std::invalid_argument(message);
  }

 private:
  std::mutex mutex_;
  std::map<int, LabelRecord*> records_;  // never freed: a CUDA graph may write one at any time
};

}  // namespace edgeloss

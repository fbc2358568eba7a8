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

// How many records were begun: in the memory of each device, since atomics of a device are none against the host.
static __device__ int records_begun = 0;

// What a call with wrong labels leaves for the host, in memory that both can reach: reading it needs no CUDA call. The
// device alone writes it, but for `taken`; it is free where all records that were written were taken.
struct LabelRecord {
  int written, taken;  // how many, so far
  int64_t call, ignore_index, pixels, first, label;
  Geometry geometry;

  // An earlier record stays until it is read.
  __device__ bool claim() const {
    const int free = *static_cast<const volatile int*>(&taken);
    return atomicCAS(&records_begun, free, free + 1) == free;
  }
  __device__ void publish() {
    __threadfence_system();
    *static_cast<volatile int*>(&written) = records_begun;
  }
};

// Where a call records wrong labels, and its number.
struct Recording {
  LabelRecord* record;  // null where they are not checked
  int64_t call;
};

class LabelRecords {
 public:
  // That of a device, the current one, which knows it by the same address. It is allocated by the first call, also
  // where that is part of a CUDA graph: no work on the device belongs to it.
  LabelRecord* find(int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    LabelRecord*& record = records_[device];
    if (!record) {
      void* memory;
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
      check(cudaThreadExchangeStreamCaptureMode(&mode));
      const cudaError_t error =
          cudaHostAlloc(&memory, sizeof(LabelRecord), cudaHostAllocPortable | cudaHostAllocMapped);
      check(cudaThreadExchangeStreamCaptureMode(&mode));
      check(error);
      record = new (memory) LabelRecord();
    }
    return record;
  }

  // The message of a device's record, or of any device's, and "" if there is none; the record is then free again.
  // `call` is the one that asks.
  std::string take(std::optional<int> device, int64_t call) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [index, record] : records_) {
      if (!record || (device && index != *device)) continue;
      const int written = __atomic_load_n(&record->written, __ATOMIC_ACQUIRE);
      if (written == record->taken) continue;
      const Geometry& g = record->geometry;
      const std::string message = (record->call == call ? "target: " : "target of an earlier call: ") +
                                  unexpected_label(g, record->ignore_index, record->label) + " at " +
                                  position(g, record->first) + ", the first of " + count_of_pixels(record->pixels) +
                                  " with labels out of range, which counted as ignored";
      __atomic_store_n(&record->taken, written, __ATOMIC_RELEASE);
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

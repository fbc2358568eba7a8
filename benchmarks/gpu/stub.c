// A CUDA driver that launches nothing, and counts what it was asked to launch: to measure what a host does alone.

#include <stdint.h>
#include <string.h>

enum { kMaxSharedMemory = 8, kMaxSharedMemoryOptIn = 97 };  // of CUdevice_attribute

static const int kSharedMemory = 232448;  // bytes, of an H100
static const int kOther = 132;
static long launches = 0;

long stub_launches(void) { return launches; }

int cuLaunchKernelEx(const void* config, void* function, void** parameters, void** extra) {
  launches++;
  return 0;
}

int cuGetErrorString(int error, const char** string) { return *string = "no driver", 0; }
int cuDeviceGet(int* device, int ordinal) { return *device = 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  *value = attribute == kMaxSharedMemory || attribute == kMaxSharedMemoryOptIn ? kSharedMemory : kOther;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int device) { return *context = (void*)1, 0; }
int cuCtxGetCurrent(void** context) { return *context = (void*)1, 0; }
int cuCtxSetCurrent(void* context) { return 0; }
int cuCtxGetLimit(size_t* value, int limit) { return *value = 0, 0; }
int cuCtxSetLimit(int limit, size_t value) { return 0; }
int cuModuleLoadData(void** module, const void* data) { return *module = (void*)1, 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) { return *function = (void*)1, 0; }
int cuFuncGetAttribute(int* value, int attribute, void* function) { return *value = attribute == 0 ? 1024 : 0, 0; }
int cuFuncSetAttribute(void* function, int attribute, int value) { return 0; }
int cuFuncSetCacheConfig(void* function, int value) { return 0; }
int cuOccupancyMaxActiveClusters(int* number, void* function, void* config) { return *number = 1, 0; }
int cuTensorMapEncodeTiled(void) { return 0; }
int cuPointerGetAttribute(void* value, int attribute, uint64_t pointer) {
  memcpy(value, &pointer, sizeof pointer);
  return 0;
}

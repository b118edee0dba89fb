// A CUDA runtime without a GPU: device memory is the host's, streams and events are in order and over at once, events
// have the host's clock, and a kernel computes nothing. Also the handles that torch asks of cuBLAS and cuDNN.
//
// STAND_IN_GIB: capacity of the device, 16 by default. STAND_IN_CAPABILITY: its compute capability, 9.0 by default.
// STAND_IN_LOG: print the name of each kernel that is launched, none of which computes: what torch should not have come
// to.

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SUCCEEDS(signature) cudaError_t signature { return cudaSuccess; }
#define NOT_SUPPORTED(signature) cudaError_t signature { return cudaErrorNotSupported; }

static const size_t MIB = 1 << 20;
static const size_t OF_A_CONTEXT = (size_t)500 << 20;

// ---------------------------------------------------------------------------------------------------------- memory

typedef struct {
  uintptr_t begin;
  size_t size;
} Block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Block blocks[1 << 16];
static int num_blocks = 0;
static size_t used = 0;
static int has_context = 0;
static __thread cudaError_t last = cudaSuccess;

static size_t capacity(void) {
  const char *gib = getenv("STAND_IN_GIB");
  return (size_t)((gib ? atof(gib) : 16.0) * (1ull << 30));
}

static cudaError_t fail(cudaError_t error) { return last = error; }

// In steps of 2 MiB, as the driver gives memory; pages are the host's only once they are written to.
static cudaError_t take(void **place, size_t size) {
  const size_t step = 2 * MIB, whole = (size + step - 1) / step * step;
  cudaError_t result = cudaSuccess;
  *place = NULL;
  if (size == 0) return cudaSuccess;
  pthread_mutex_lock(&lock);
  void *found = used + whole > capacity() ? MAP_FAILED
                                          : mmap(NULL, whole + step, PROT_READ | PROT_WRITE,
                                                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED || num_blocks == (int)(sizeof blocks / sizeof *blocks)) {
    result = fail(cudaErrorMemoryAllocation);
  } else {
    const uintptr_t begin = ((uintptr_t)found + step - 1) / step * step;
    blocks[num_blocks++] = (Block){begin, whole};
    used += whole;
    has_context = 1;
    *place = (void *)begin;
  }
  pthread_mutex_unlock(&lock);
  return result;
}

static cudaError_t give_back(void *place) {
  pthread_mutex_lock(&lock);
  for (int i = 0; i < num_blocks; i++) {
    if (blocks[i].begin != (uintptr_t)place) continue;
    munmap(place, blocks[i].size);
    used -= blocks[i].size;
    blocks[i] = blocks[--num_blocks];
    break;
  }
  pthread_mutex_unlock(&lock);
  return cudaSuccess;
}

static int is_on_device(const void *place) {
  int found = 0;
  pthread_mutex_lock(&lock);
  for (int i = 0; i < num_blocks; i++) found |= (uintptr_t)place - blocks[i].begin < blocks[i].size;
  pthread_mutex_unlock(&lock);
  return found;
}

cudaError_t cudaMalloc(void **place, size_t size) { return take(place, size); }
cudaError_t cudaMallocAsync(void **place, size_t size, cudaStream_t stream) { return take(place, size); }
cudaError_t cudaFree(void *place) { return give_back(place); }
cudaError_t cudaFreeAsync(void *place, cudaStream_t stream) { return give_back(place); }

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) {
  const size_t taken = used + (has_context ? OF_A_CONTEXT : 0);
  *total = capacity();
  *free = *total > taken ? *total - taken : 0;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **place, size_t size, unsigned flags) {
  return posix_memalign(place, 4096, size ? size : 1) ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
}

cudaError_t cudaFreeHost(void *place) {
  free(place);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
  memmove(to, from, size);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
  return cudaMemcpy(to, from, size, kind);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size,
                                cudaStream_t stream) {
  return cudaMemcpy(to, from, size, cudaMemcpyDefault);
}

cudaError_t cudaMemset(void *place, int value, size_t size) {
  memset(place, value, size);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *place, int value, size_t size, cudaStream_t stream) {
  return cudaMemset(place, value, size);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *place) {
  memset(attributes, 0, sizeof *attributes);
  attributes->type = is_on_device(place) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  attributes->devicePointer = attributes->hostPointer = (void *)place;
  return cudaSuccess;
}

cudaError_t cudaGetSymbolAddress(void **place, const void *symbol) {
  *place = NULL;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
  *pool = (cudaMemPool_t)1;
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
  *(uint64_t *)value = 0;
  return cudaSuccess;
}

SUCCEEDS(cudaHostRegister(void *place, size_t size, unsigned flags))
SUCCEEDS(cudaHostUnregister(void *place))
SUCCEEDS(cudaMemcpyToSymbol(const void *to, const void *from, size_t size, size_t offset, enum cudaMemcpyKind kind))
SUCCEEDS(cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value))
SUCCEEDS(cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *description, size_t size))
SUCCEEDS(cudaMemPoolTrimTo(cudaMemPool_t pool, size_t size))
NOT_SUPPORTED(cudaIpcCloseMemHandle(void *place))
NOT_SUPPORTED(cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event))
NOT_SUPPORTED(cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *place))
NOT_SUPPORTED(cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle))
NOT_SUPPORTED(cudaIpcOpenMemHandle(void **place, cudaIpcMemHandle_t handle, unsigned flags))

// ---------------------------------------------------------------------------------------------------------- device

cudaError_t cudaGetDeviceCount(int *count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (device != 0) return fail(cudaErrorInvalidDevice);
  has_context = 1;
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) { return cudaDriverGetVersion(version); }

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *of, int device) {
  const char *capability = getenv("STAND_IN_CAPABILITY");
  int major = 9, minor = 0;
  if (capability) sscanf(capability, "%d.%d", &major, &minor);
  *of = (struct cudaDeviceProp){
      .name = "NVIDIA H200",
      .uuid = {"\x12\x34\x56\x78\x9a\xbc\xde\xf0\x12\x34\x56\x78\x9a\xbc\xde"},
      .totalGlobalMem = capacity(),
      .sharedMemPerBlock = 49152,
      .regsPerBlock = 65536,
      .warpSize = 32,
      .maxThreadsPerBlock = 1024,
      .maxThreadsDim = {1024, 1024, 64},
      .maxGridSize = {2147483647, 65535, 65535},
      .totalConstMem = 65536,
      .major = major,
      .minor = minor,
      .textureAlignment = 512,
      .multiProcessorCount = 132,
      .canMapHostMemory = 1,
      .concurrentKernels = 1,
      .ECCEnabled = 1,
      .pciBusID = 10,
      .asyncEngineCount = 3,
      .unifiedAddressing = 1,
      .memoryBusWidth = 6144,
      .l2CacheSize = 62914560,
      .maxThreadsPerMultiProcessor = 2048,
      .streamPrioritiesSupported = 1,
      .sharedMemPerMultiprocessor = 233472,
      .regsPerMultiprocessor = 65536,
      .managedMemory = 1,
      .sharedMemPerBlockOptin = 232448,
      .maxBlocksPerMultiProcessor = 32,
      .memoryPoolsSupported = 1,
  };
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  struct cudaDeviceProp of;
  cudaGetDeviceProperties(&of, device);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = of.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = of.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = of.multiProcessorCount; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = of.maxThreadsPerBlock; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = of.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)of.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)of.sharedMemPerBlockOptin; break;
    case cudaDevAttrWarpSize: *value = of.warpSize; break;
    default: *value = 1;
  }
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device) {
  snprintf(id, size, "0000:0A:00.0");
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer) {
  *can = 0;
  return cudaSuccess;
}

SUCCEEDS(cudaDeviceEnablePeerAccess(int peer, unsigned flags))
SUCCEEDS(cudaDeviceSynchronize(void))
SUCCEEDS(cudaProfilerStart(void))
SUCCEEDS(cudaProfilerStop(void))

const char *cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorOfTheStandIn";
}

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotSupported: return "operation not supported";
    default: return "error of the stand-in";
  }
}

cudaError_t cudaPeekAtLastError(void) { return last; }

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = last;
  last = cudaSuccess;
  return error;
}

// ---------------------------------------------------------------------------------------------- streams and events

typedef struct {
  struct timespec at;
  int is_recorded;
} Event;

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
  *event = (cudaEvent_t)calloc(1, sizeof(Event));
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event) { return cudaEventCreateWithFlags(event, 0); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  free(event);
  return cudaSuccess;
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  clock_gettime(CLOCK_MONOTONIC, &((Event *)event)->at);
  ((Event *)event)->is_recorded = 1;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecordWithFlags(event, stream, 0);
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
  const Event *from = (Event *)begin, *to = (Event *)end;
  if (!from->is_recorded || !to->is_recorded) return fail(cudaErrorInvalidResourceHandle);
  *ms = 1e3 * (to->at.tv_sec - from->at.tv_sec) + 1e-6 * (to->at.tv_nsec - from->at.tv_nsec);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
  static uintptr_t handle = 0x1000;
  *stream = (cudaStream_t)(handle += 16);
  return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) {
  *priority = 0;
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
  *status = cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *num_nodes) {
  if (id) *id = 0;
  if (num_nodes) *num_nodes = 0;
  return cudaStreamIsCapturing(stream, status);
}

cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned flags) {
  callback(stream, cudaSuccess, data);
  return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
  function(data);
  return cudaSuccess;
}

SUCCEEDS(cudaEventQuery(cudaEvent_t event))
SUCCEEDS(cudaEventSynchronize(cudaEvent_t event))
SUCCEEDS(cudaStreamDestroy(cudaStream_t stream))
SUCCEEDS(cudaStreamQuery(cudaStream_t stream))
SUCCEEDS(cudaStreamSynchronize(cudaStream_t stream))
SUCCEEDS(cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags))
SUCCEEDS(cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode))
SUCCEEDS(cudaGraphDestroy(cudaGraph_t graph))
SUCCEEDS(cudaGraphExecDestroy(cudaGraphExec_t graph))
NOT_SUPPORTED(cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode))
NOT_SUPPORTED(cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph))
NOT_SUPPORTED(cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned flags))
NOT_SUPPORTED(cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags))
NOT_SUPPORTED(cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream))

// --------------------------------------------------------------------------------------------------------- kernels

typedef struct {
  const void *host;
  const char *name;
} Kernel;

static Kernel *kernels = NULL;
static size_t num_kernels = 0;

void **__cudaRegisterFatBinary(void *binary) {
  static void *handle[4];
  return handle;
}

void __cudaRegisterFunction(void **handle, const char *host, char *device, const char *name, int threads, void *a,
                            void *b, void *c, void *d, int *e) {
  if (num_kernels % 4096 == 0) kernels = realloc(kernels, (num_kernels + 4096) * sizeof *kernels);
  kernels[num_kernels++] = (Kernel){host, name};
}

void __cudaRegisterFatBinaryEnd(void **handle) {}
void __cudaUnregisterFatBinary(void **handle) {}
void __cudaRegisterVar(void **handle, char *host, char *address, const char *name, int a, size_t b, int c, int d) {}

static cudaError_t launched(const void *host) {
  if (getenv("STAND_IN_LOG")) {
    const char *name = "unknown";
    for (size_t i = 0; i < num_kernels; i++)
      if (kernels[i].host == host) name = kernels[i].name;
    fprintf(stderr, "stand-in: nothing computes %.200s\n", name);
  }
  return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) {
  *kernel = (cudaKernel_t)host;
  return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream) {
  return launched((const void *)kernel);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **arguments) {
  return launched(kernel);
}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st *stream) { return 0; }
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) { return cudaSuccess; }

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel) {
  *attributes = (struct cudaFuncAttributes){
      .binaryVersion = 90, .ptxVersion = 90, .maxThreadsPerBlock = 1024, .numRegs = 32};
  return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, const void *kernel, int block,
                                                                   size_t shared, unsigned flags) {
  *count = 2;
  return cudaSuccess;
}

SUCCEEDS(cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value))

// ------------------------------------------------------------------------------- the driver, as torch asks for it

static int succeed(void) { return 0; }
static int refuse(void) { return 801; }  // CUDA_ERROR_NOT_SUPPORTED

static int has_primary_context(int device, unsigned *flags, int *is_active) {
  if (flags) *flags = 0;
  *is_active = has_context;
  return 0;
}

static int current_context(void **context) {
  *context = (void *)16;
  return 0;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *status) {
  *function = (void *)succeed;
  if (!strcmp(symbol, "cuDevicePrimaryCtxGetState")) *function = (void *)has_primary_context;
  if (!strcmp(symbol, "cuCtxGetCurrent")) *function = (void *)current_context;
  if (!strcmp(symbol, "cuDeviceGetAttribute")) *function = (void *)cudaDeviceGetAttribute;
  if (!strncmp(symbol, "cuMulticast", 11) || !strncmp(symbol, "cuMemCreate", 11)) *function = (void *)refuse;
  if (status) *status = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

// --------------------------------------------------------------------------------------------- cuBLAS and cuDNN

static int new_handle(void **handle) {
  *handle = malloc(64);
  return 0;
}

static int zero(int *value) {
  *value = 0;
  return 0;
}

int cublasCreate_v2(void **handle) { return new_handle(handle); }
int cublasLtCreate(void **handle) { return new_handle(handle); }
int cudnnCreate(void **handle) { return new_handle(handle); }
int cublasGetMathMode(void *handle, int *mode) { return zero(mode); }
int cublasGetPointerMode_v2(void *handle, int *mode) { return zero(mode); }
int cublasDestroy_v2(void *handle) { return 0; }
int cublasSetMathMode(void *handle, int mode) { return 0; }
int cublasSetPointerMode_v2(void *handle, int mode) { return 0; }
int cublasSetStream_v2(void *handle, void *stream) { return 0; }
int cublasSetWorkspace_v2(void *handle, void *workspace, size_t size) { return 0; }
int cudnnDestroy(void *handle) { return 0; }
int cudnnSetStream(void *handle, void *stream) { return 0; }

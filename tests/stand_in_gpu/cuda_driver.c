// libcuda.so.1 as torch links it: there is a context, and no code can be loaded.

static int NOT_SUPPORTED = 801;

int cuInit(unsigned flags) { return 0; }

int cuDeviceGetCount(int *count) {
  *count = 1;
  return 0;
}

int cuCtxGetCurrent(void **context) {
  *context = (void *)16;
  return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active) {
  if (flags) *flags = 0;
  *is_active = 1;
  return 0;
}

int cuGetErrorString(int error, const char **text) {
  *text = "error of the stand-in";
  return 0;
}

int cuCtxSetCurrent() { return 0; }
int cuDeviceGet() { return NOT_SUPPORTED; }
int cuDeviceGetAttribute() { return NOT_SUPPORTED; }
int cuDevicePrimaryCtxRetain() { return NOT_SUPPORTED; }
int cuFuncGetAttribute() { return NOT_SUPPORTED; }
int cuFuncSetAttribute() { return NOT_SUPPORTED; }
int cuFuncSetCacheConfig() { return NOT_SUPPORTED; }
int cuLaunchCooperativeKernel() { return NOT_SUPPORTED; }
int cuLaunchKernel() { return NOT_SUPPORTED; }
int cuLinkAddData_v2() { return NOT_SUPPORTED; }
int cuLinkComplete() { return NOT_SUPPORTED; }
int cuLinkCreate_v2() { return NOT_SUPPORTED; }
int cuModuleGetFunction() { return NOT_SUPPORTED; }
int cuModuleLoad() { return NOT_SUPPORTED; }
int cuModuleLoadData() { return NOT_SUPPORTED; }
int cuModuleLoadDataEx() { return NOT_SUPPORTED; }
int cuModuleUnload() { return NOT_SUPPORTED; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor() { return NOT_SUPPORTED; }
int cuPointerGetAttribute() { return NOT_SUPPORTED; }
int cuTensorMapEncodeTiled() { return NOT_SUPPORTED; }

// libnvidia-ml.so.1: a device that nobody else uses, busy from three seconds on, with made-up readings.

#include <stdio.h>
#include <time.h>

enum { OK = 0, NOT_SUPPORTED = 3 };

typedef unsigned long long Bytes;

static const Bytes TOTAL = 16ull << 30, RESERVED = 500ull << 20, USED = 600ull << 20;
static const double POWER_W = 400;
static double began_s = 0;

static double now_s(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec + 1e-9 * at.tv_nsec;
}

static int write_text(char *to, unsigned size, const char *text) {
  snprintf(to, size, "%s", text);
  return OK;
}

static int the_device(void **device) {
  static char it;
  *device = &it;
  return OK;
}

static int none(unsigned *count) {
  *count = 0;
  return OK;
}

int nvmlInit_v2(void) {
  if (began_s == 0) began_s = now_s();
  return OK;
}

int nvmlInitWithFlags(unsigned flags) { return nvmlInit_v2(); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int error) { return error == NOT_SUPPORTED ? "Not Supported" : "Unknown Error"; }

int nvmlSystemGetDriverVersion(char *to, unsigned size) { return write_text(to, size, "580.0 (stand-in)"); }
int nvmlSystemGetProcessName(unsigned id, char *to, unsigned size) { return write_text(to, size, "python"); }

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  *version = 13000;
  return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
  *count = 1;
  return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { return the_device(device); }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { return the_device(device); }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { return the_device(device); }
int nvmlDeviceGetName(void *device, char *to, unsigned size) { return write_text(to, size, "NVIDIA H200"); }

int nvmlDeviceGetUUID(void *device, char *to, unsigned size) {
  return write_text(to, size, "GPU-12345678-9abc-def0-1234-56789abcde00");
}

int nvmlDeviceGetClockInfo(void *device, int clock, unsigned *mhz) {
  *mhz = 1980;
  return OK;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *mw) {
  *mw = 1000 * POWER_W;
  return OK;
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *mw) {
  *mw = 700000;
  return OK;
}

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *mj) {
  *mj = 1000 * POWER_W * now_s();
  return OK;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius) {
  *celsius = 45;
  return OK;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned *percent) {
  percent[0] = now_s() - began_s < 3 ? 0 : 97;
  percent[1] = percent[0] * 40 / 97;
  return OK;
}

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
  *current = *pending = 0;
  return OK;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons) {
  *reasons = 0;
  return OK;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *reasons) {
  *reasons = 0;
  return OK;
}

int nvmlDeviceGetMemoryInfo(void *device, Bytes *memory) {
  memory[0] = TOTAL;
  memory[1] = TOTAL - USED;
  memory[2] = USED;
  return OK;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, Bytes *memory) {
  memory[1] = TOTAL;
  memory[2] = RESERVED;
  memory[3] = TOTAL - RESERVED - USED;
  memory[4] = USED;
  return OK;
}

int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *count, void *of) { return none(count); }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *of) { return none(count); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(void *device, unsigned *count, void *of) { return none(count); }
int nvmlDeviceGetFieldValues(void *device, int count, void *values) { return NOT_SUPPORTED; }
int nvmlDeviceGetGpuFabricInfoV(void *device, void *of) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, void *type) { return NOT_SUPPORTED; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, void *info) { return NOT_SUPPORTED; }

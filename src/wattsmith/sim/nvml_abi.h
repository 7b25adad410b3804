/* What the files of the simulated driver share: the ABI as NVML's public headers number and lay it out, and the way
 * into every call. */
#ifndef WATTSMITH_NVML_ABI_H
#define WATTSMITH_NVML_ABI_H

#include "nvml_state.h"

#include <string.h>

typedef enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    OPERATING_SYSTEM = 17,
    LIB_RM_VERSION_MISMATCH = 18,
    NO_MEMORY = 20,
    INSUFFICIENT_RESOURCES = 23,
} Code;

enum { CLOCK_GRAPHICS, CLOCK_SM, CLOCK_MEM };
enum { CLOCK_CURRENT, CLOCK_APPLICATION_TARGET, CLOCK_APPLICATION_DEFAULT, CLOCK_CUSTOMER_MAX };
enum { TYPE_UINT = 1, TYPE_ULONGLONG = 3 };
enum { SAMPLES_POWER = 0, SAMPLES_UTILIZATION = 1, SAMPLES_SM_CLOCK = 5, SAMPLES_MEMORY_CLOCK = 6 };
enum { REASON_IDLE = 1, REASON_APPLICATION_CLOCKS = 2, REASON_POWER_CAP = 4 };
enum { SHUTDOWN_C = 95, SLOWDOWN_C = 92, MEMORY_MAX_C = 95, GPU_MAX_C = 87 };
#define PSTATE_UNKNOWN 32u
#define NOT_AVAILABLE 0xFFFFFFFFu

typedef struct handle *Device;

union value {
    double dVal;
    unsigned uiVal;
    unsigned long long ullVal;
};
struct field {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned valueType, nvmlReturn;
    union value value;
};
struct buffered_sample {
    unsigned long long timeStamp;
    union value sampleValue;
};
struct pci_info {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
};
struct pci_info_ext {
    unsigned version, domain, bus, device, pciDeviceId, pciSubSystemId, baseClass, subClass;
    char busId[32];
};
struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process_info {
    unsigned pid;
    unsigned long long usedGpuMemory;
    unsigned gpuInstanceId, computeInstanceId;
};
struct process_utilization {
    unsigned pid;
    unsigned long long timeStamp;
    unsigned smUtil, memUtil, encUtil, decUtil;
};
struct attributes {
    unsigned multiprocessors, copyEngines, decoders, encoders, jpegs, ofas, gpuSlices, computeSlices;
    unsigned long long memoryMiB;
};
struct utilization {
    unsigned gpu, memory;
};
struct temperature {
    unsigned version, sensor;
    int temperature;
};
struct power_value {
    unsigned version, scope, milliwatts;
};
struct gpm_sample {
    int64_t time_ns;
    const struct gpu *gpu;
};
struct gpm_metric {
    unsigned metricId, nvmlReturn;
    double value;
    const char *shortName, *longName, *unit;
};
struct gpm_metrics_get {
    unsigned version, numMetrics;
    struct gpm_sample *sample1, *sample2;
    struct gpm_metric metrics[]; /* as long as the caller's header makes it; numMetrics of them are filled in */
};
struct gpm_support {
    unsigned version, supported;
};

#define API __attribute__((visibility("default"))) Code
#define SAME(newer, older) API newer() __attribute__((alias(#older)))

enum call_id {
#define X(name) CALL_##name,
    NVML_CALLS(X)
#undef X
    CALL_COUNT
};
_Static_assert(CALL_COUNT <= (int)MAX_CALLS, "more functions than places to count them");

/* ---- Handles and the state: nvml_enter.c ---- */

struct handle { /* handles outlive nvmlShutdown, as callers keep them */
    int gpu;
    int mig; /* -1: the whole GPU */
};

extern struct handle whole[MAX_GPUS];
extern struct handle parts[MAX_GPUS][MAX_MIGS];
extern struct state *state; /* NULL: not initialised */

int lock_state(void); /* below 0: failed */
void unlock_state(int lock);
void spin_ns(int64_t duration_ns);

/* ---- The way into every call ---- */

struct caller {
    struct gpu *gpu;
    struct mig *mig; /* NULL: the whole GPU */
    int64_t now_ns;
};

Code enter(enum call_id call, int gpu); /* for calls that name no GPU: -1 */
Code enter_any(enum call_id call, Device device, struct caller *caller);
Code enter_whole(enum call_id call, Device device, struct caller *caller);

#define ENTER(how, name, device, pointer) \
    struct caller caller; \
    do { \
        Code refused = how(CALL_##name, device, &caller); \
        if (refused != OK) \
            return refused; \
        if (!(pointer)) \
            return INVALID_ARGUMENT; \
    } while (0)
#define ENTER_ANY(name, device, pointer) ENTER(enter_any, name, device, pointer)
#define ENTER_WHOLE(name, device, pointer) ENTER(enter_whole, name, device, pointer)

static inline Code give_text(char *to, unsigned size, const char *text)
{
    if (!to)
        return INVALID_ARGUMENT;
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return OK;
}

static inline Code give(unsigned *to, unsigned value)
{
    *to = value;
    return OK;
}

static inline unsigned as_milliwatts(double power_w)
{
    return (unsigned)(power_w * 1000 + 0.5);
}

static inline unsigned long long as_microseconds(int64_t time_ns)
{
    return (unsigned long long)((time_ns + state->realtime_offset_ns) / 1000);
}

#endif

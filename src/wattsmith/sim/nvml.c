/* A simulated NVML driver: libnvidia-ml.so.1 without a GPU.
 *
 * Speaks the ABI that nvidia-ml-py and other callers of NVML expect, and answers from the state file named by
 * WATTSMITH_SIM_NVML. What the card draws and what its sensor sees is in nvml_power.c; this file has the functions
 * that callers load by name. It names itself: devices and driver version say "simulated".
 */
#define _GNU_SOURCE
#include "nvml_state.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- The ABI: constants and structs as the public headers number and lay them out ---- */

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
static const unsigned PSTATE_UNKNOWN = 32;
static const unsigned NOT_AVAILABLE = 0xFFFFFFFFu;

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

/* ---- Handles: they outlive nvmlShutdown, as callers keep them ---- */

struct handle {
    int gpu;
    int mig; /* -1: the whole GPU */
};

static struct handle whole[MAX_GPUS];
static struct handle parts[MAX_GPUS][MAX_MIGS];

__attribute__((constructor)) static void number_the_handles(void)
{
    for (int i = 0; i < MAX_GPUS; i++) {
        whole[i] = (struct handle){i, -1};
        for (int j = 0; j < MAX_MIGS; j++)
            parts[i][j] = (struct handle){i, j};
    }
}

static int is_handle(Device device)
{
    return (device >= whole && device < whole + MAX_GPUS) ||
           (device >= parts[0] && device < parts[0] + MAX_GPUS * MAX_MIGS);
}

/* ---- The state file ---- */

static struct state *state; /* NULL: not initialised */
static dev_t state_device;
static ino_t state_inode;
static char state_path[4096];
static int users; /* nvmlInit less nvmlShutdown */
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;

static Code check_state(const struct state *found, off_t size)
{
    if (memcmp(found->magic, STATE_MAGIC, sizeof found->magic) != 0 || found->version != STATE_VERSION)
        return LIB_RM_VERSION_MISMATCH;
    if (found->size != sizeof *found || found->size != (uint64_t)size || found->gpu_count > MAX_GPUS)
        return LIB_RM_VERSION_MISMATCH;
    return OK;
}

static Code map_open_file(int file)
{
    struct stat about;
    if (fstat(file, &about) != 0)
        return OPERATING_SYSTEM;
    if (state && about.st_dev == state_device && about.st_ino == state_inode)
        return OK;
    if (about.st_size != (off_t)sizeof(struct state))
        return LIB_RM_VERSION_MISMATCH;
    struct state *found = mmap(NULL, sizeof *found, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found == MAP_FAILED)
        return OPERATING_SYSTEM;
    Code code = check_state(found, about.st_size);
    if (code != OK) {
        munmap(found, sizeof *found);
        return code;
    }
    /* An older mapping stays: another thread may be in the middle of reading it. */
    state = found;
    state_device = about.st_dev;
    state_inode = about.st_ino;
    return OK;
}

static Code map_state(void)
{
    const char *path = getenv("WATTSMITH_SIM_NVML");
    if (!path || strlen(path) >= sizeof state_path)
        return DRIVER_NOT_LOADED;
    int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0)
        return DRIVER_NOT_LOADED;
    Code code = map_open_file(file);
    close(file);
    if (code == OK)
        strcpy(state_path, path);
    return code;
}

/* A file of its own per lock, so that threads and forked children exclude each other too. */
static int lock_state(void)
{
    int file = open(state_path, O_RDWR | O_CLOEXEC);
    while (file >= 0 && flock(file, LOCK_EX) != 0)
        if (errno != EINTR)
            break;
    return file;
}

static void unlock_state(int file)
{
    if (file < 0)
        return;
    flock(file, LOCK_UN); /* not just close: a child forked meanwhile holds the same open file */
    close(file);
}

/* ---- What every call goes through ---- */

struct caller {
    struct gpu *gpu;
    struct mig *mig; /* NULL: the whole GPU */
    int64_t now_ns;
};

static void wait_ns(int64_t duration_ns)
{
    struct timespec rest = {duration_ns / 1000000000, duration_ns % 1000000000};
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR)
        ;
}

/* The real driver spins on the card's mailbox: the wait costs the caller CPU time. */
static void spin_ns(int64_t duration_ns)
{
    int64_t until = monotonic_ns() + duration_ns;
    while (monotonic_ns() < until)
        ;
}

/* Whether this fault is still to be had; takes one of its remaining calls. */
static int take(struct fault *fault)
{
    int64_t left = __atomic_load_n(&fault->remaining, __ATOMIC_RELAXED);
    while (left > 0)
        if (__atomic_compare_exchange_n(&fault->remaining, &left, left - 1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            return 1;
    return left < 0;
}

static Code injected(int call, int gpu)
{
    for (struct fault *fault = state->faults; fault < state->faults + MAX_FAULTS; fault++) {
        if (!__atomic_load_n(&fault->active, __ATOMIC_ACQUIRE))
            continue;
        if ((fault->gpu >= 0 && fault->gpu != gpu) || (fault->call >= 0 && fault->call != call))
            continue;
        if (fault->from_ns > monotonic_ns() || !take(fault))
            continue;
        wait_ns(fault->delay_ns);
        if (fault->code != OK)
            return fault->code;
    }
    return OK;
}

/* For calls that name no GPU. */
static Code enter(enum call_id call, int gpu)
{
    if (!state || users == 0)
        return UNINITIALIZED;
    __atomic_fetch_add(&state->calls[call], 1, __ATOMIC_RELAXED);
    return injected(call, gpu);
}

static Code enter_any(enum call_id call, Device device, struct caller *caller)
{
    if (!state || users == 0)
        return UNINITIALIZED;
    if (!is_handle(device) || (unsigned)device->gpu >= state->gpu_count)
        return INVALID_ARGUMENT;
    Code code = enter(call, device->gpu);
    if (code != OK)
        return code;
    caller->gpu = &state->gpus[device->gpu];
    if (device->mig >= (int)caller->gpu->mig_count)
        return INVALID_ARGUMENT;
    caller->mig = device->mig < 0 ? NULL : &caller->gpu->migs[device->mig];
    caller->now_ns = monotonic_ns();
    return OK;
}

/* For calls that the real driver answers for whole GPUs alone. */
static Code enter_whole(enum call_id call, Device device, struct caller *caller)
{
    Code code = enter_any(call, device, caller);
    return code == OK && caller->mig ? NOT_SUPPORTED : code;
}

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

static Code give_text(char *to, unsigned size, const char *text)
{
    if (!to)
        return INVALID_ARGUMENT;
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return OK;
}

static Code give(unsigned *to, unsigned value)
{
    *to = value;
    return OK;
}

static unsigned as_milliwatts(double power_w)
{
    return (unsigned)(power_w * 1000 + 0.5);
}

static unsigned long long as_microseconds(int64_t time_ns)
{
    return (unsigned long long)((time_ns + state->realtime_offset_ns) / 1000);
}

/* ---- Library and system ---- */

API nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    pthread_mutex_lock(&init_lock);
    Code code = map_state();
    if (code == OK) {
        users++;
        code = enter(CALL_nvmlInit, -1);
        if (code != OK)
            users--;
    }
    pthread_mutex_unlock(&init_lock);
    return code;
}

API nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}
SAME(nvmlInit_v2, nvmlInit);

API nvmlShutdown(void)
{
    pthread_mutex_lock(&init_lock);
    Code code = enter(CALL_nvmlShutdown, -1);
    if (code == OK)
        users--;
    pthread_mutex_unlock(&init_lock);
    return code;
}

/* Tells this library from a real driver of the same name. */
__attribute__((visibility("default"))) const char *wattsmith_simulated_nvml(void)
{
    return "simulated";
}

__attribute__((visibility("default"))) const char *nvmlErrorString(unsigned code)
{
    static const char *const texts[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power", "Driver Not Loaded",
        "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found", "Function Not Found",
        "Corrupted infoROM", "GPU is lost", "GPU requires reset", "The operating system has blocked the request",
        "RM has detected an NVML/RM version mismatch", "In use by another client", "Insufficient Memory", "No data",
        "ECC not supported on this vGPU", "Insufficient Resources", "Frequency not supported",
        "Argument version mismatch", "Deprecated", "Not ready", "GPU not found", "Invalid state",
    };
    return code < sizeof texts / sizeof *texts ? texts[code] : "Unknown Error";
}

API nvmlSystemGetDriverVersion(char *text, unsigned size)
{
    Code code = enter(CALL_nvmlSystemGetDriverVersion, -1);
    return code != OK ? code : give_text(text, size, state->driver_version);
}

API nvmlSystemGetNVMLVersion(char *text, unsigned size)
{
    Code code = enter(CALL_nvmlSystemGetNVMLVersion, -1);
    return code != OK ? code : give_text(text, size, state->nvml_version);
}

API nvmlSystemGetCudaDriverVersion(int *version)
{
    Code code = enter(CALL_nvmlSystemGetCudaDriverVersion, -1);
    if (code == OK && !version)
        return INVALID_ARGUMENT;
    if (code == OK)
        *version = state->cuda_version;
    return code;
}
SAME(nvmlSystemGetCudaDriverVersion_v2, nvmlSystemGetCudaDriverVersion);

API nvmlSystemGetProcessName(unsigned pid, char *text, unsigned size)
{
    Code code = enter(CALL_nvmlSystemGetProcessName, -1);
    if (code != OK)
        return code;
    char path[64], name[256] = "";
    snprintf(path, sizeof path, "/proc/%u/comm", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NOT_FOUND;
    if (fgets(name, sizeof name, file))
        name[strcspn(name, "\n")] = '\0';
    fclose(file);
    return give_text(text, size, name);
}

/* ---- Finding devices ---- */

API nvmlDeviceGetCount(unsigned *count)
{
    Code code = enter(CALL_nvmlDeviceGetCount, -1);
    if (code != OK)
        return code;
    return count ? give(count, state->gpu_count) : INVALID_ARGUMENT;
}
SAME(nvmlDeviceGetCount_v2, nvmlDeviceGetCount);

static Code find_device(enum call_id call, int gpu, int mig, Code if_missing, Device *device)
{
    int known = state && gpu >= 0 && gpu < (int)state->gpu_count;
    Code code = enter(call, known ? gpu : -1);
    if (code != OK)
        return code;
    if (!device)
        return INVALID_ARGUMENT;
    if (!known)
        return if_missing;
    *device = mig < 0 ? &whole[gpu] : &parts[gpu][mig];
    return OK;
}

API nvmlDeviceGetHandleByIndex(unsigned index, Device *device)
{
    return find_device(CALL_nvmlDeviceGetHandleByIndex, index < MAX_GPUS ? (int)index : -1, -1, INVALID_ARGUMENT,
                       device);
}
SAME(nvmlDeviceGetHandleByIndex_v2, nvmlDeviceGetHandleByIndex);

API nvmlDeviceGetHandleByUUID(const char *uuid, Device *device)
{
    for (unsigned i = 0; state && uuid && i < state->gpu_count; i++) {
        struct gpu *gpu = &state->gpus[i];
        if (strcmp(uuid, gpu->uuid) == 0)
            return find_device(CALL_nvmlDeviceGetHandleByUUID, i, -1, NOT_FOUND, device);
        for (unsigned j = 0; j < gpu->mig_count; j++)
            if (strcmp(uuid, gpu->migs[j].uuid) == 0)
                return find_device(CALL_nvmlDeviceGetHandleByUUID, i, j, NOT_FOUND, device);
    }
    return find_device(CALL_nvmlDeviceGetHandleByUUID, -1, -1, NOT_FOUND, device);
}

API nvmlDeviceGetHandleBySerial(const char *serial, Device *device)
{
    int found = -1;
    for (unsigned i = 0; state && serial && i < state->gpu_count; i++)
        if (strcmp(serial, state->gpus[i].serial) == 0)
            found = (int)i;
    return find_device(CALL_nvmlDeviceGetHandleBySerial, found, -1, NOT_FOUND, device);
}

static void bus_id(const struct gpu *gpu, const char *domain, char *to, size_t size)
{
    snprintf(to, size, "%s:%02X:00.0", domain, gpu->pci_bus);
}

API nvmlDeviceGetHandleByPciBusId(const char *id, Device *device)
{
    int found = -1;
    for (unsigned i = 0; state && id && i < state->gpu_count; i++) {
        char full[32], legacy[16], bare[16];
        bus_id(&state->gpus[i], "00000000", full, sizeof full);
        bus_id(&state->gpus[i], "0000", legacy, sizeof legacy);
        snprintf(bare, sizeof bare, "%s", legacy + 5);
        if (!strcasecmp(id, full) || !strcasecmp(id, legacy) || !strcasecmp(id, bare))
            found = (int)i;
    }
    return find_device(CALL_nvmlDeviceGetHandleByPciBusId, found, -1, NOT_FOUND, device);
}
SAME(nvmlDeviceGetHandleByPciBusId_v2, nvmlDeviceGetHandleByPciBusId);

/* ---- Identity ---- */

API nvmlDeviceGetName(Device device, char *text, unsigned size)
{
    ENTER_ANY(nvmlDeviceGetName, device, text);
    return give_text(text, size, caller.mig ? caller.mig->name : caller.gpu->name);
}

API nvmlDeviceGetUUID(Device device, char *text, unsigned size)
{
    ENTER_ANY(nvmlDeviceGetUUID, device, text);
    return give_text(text, size, caller.mig ? caller.mig->uuid : caller.gpu->uuid);
}

API nvmlDeviceGetSerial(Device device, char *text, unsigned size)
{
    ENTER_ANY(nvmlDeviceGetSerial, device, text);
    return give_text(text, size, caller.gpu->serial);
}

API nvmlDeviceGetVbiosVersion(Device device, char *text, unsigned size)
{
    ENTER_WHOLE(nvmlDeviceGetVbiosVersion, device, text);
    return give_text(text, size, caller.gpu->vbios);
}

API nvmlDeviceGetBoardPartNumber(Device device, char *text, unsigned size)
{
    ENTER_WHOLE(nvmlDeviceGetBoardPartNumber, device, text);
    return give_text(text, size, caller.gpu->part_number);
}

API nvmlDeviceGetIndex(Device device, unsigned *index)
{
    ENTER_ANY(nvmlDeviceGetIndex, device, index);
    return give(index, caller.mig ? (unsigned)device->mig : (unsigned)device->gpu);
}

API nvmlDeviceGetMinorNumber(Device device, unsigned *minor)
{
    ENTER_ANY(nvmlDeviceGetMinorNumber, device, minor);
    return give(minor, (unsigned)device->gpu);
}

API nvmlDeviceGetBrand(Device device, unsigned *brand)
{
    ENTER_ANY(nvmlDeviceGetBrand, device, brand);
    return give(brand, caller.gpu->brand);
}

API nvmlDeviceGetArchitecture(Device device, unsigned *architecture)
{
    ENTER_ANY(nvmlDeviceGetArchitecture, device, architecture);
    return give(architecture, caller.gpu->architecture);
}

API nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor)
{
    ENTER_ANY(nvmlDeviceGetCudaComputeCapability, device, major && minor);
    *major = (int)caller.gpu->cuda_major;
    *minor = (int)caller.gpu->cuda_minor;
    return OK;
}

API nvmlDeviceGetNumGpuCores(Device device, unsigned *cores)
{
    ENTER_WHOLE(nvmlDeviceGetNumGpuCores, device, cores);
    return give(cores, caller.gpu->cores);
}

API nvmlDeviceGetMemoryBusWidth(Device device, unsigned *bits)
{
    ENTER_WHOLE(nvmlDeviceGetMemoryBusWidth, device, bits);
    return give(bits, caller.gpu->memory_bus_bits);
}

API nvmlDeviceGetPciInfo(Device device, struct pci_info *info)
{
    ENTER_ANY(nvmlDeviceGetPciInfo, device, info);
    memset(info, 0, sizeof *info);
    info->bus = caller.gpu->pci_bus;
    info->pciDeviceId = caller.gpu->pci_device_id;
    info->pciSubSystemId = caller.gpu->pci_subsystem_id;
    bus_id(caller.gpu, "0000", info->busIdLegacy, sizeof info->busIdLegacy);
    bus_id(caller.gpu, "00000000", info->busId, sizeof info->busId);
    return OK;
}
SAME(nvmlDeviceGetPciInfo_v2, nvmlDeviceGetPciInfo);
SAME(nvmlDeviceGetPciInfo_v3, nvmlDeviceGetPciInfo);

API nvmlDeviceGetPciInfoExt(Device device, struct pci_info_ext *info)
{
    ENTER_ANY(nvmlDeviceGetPciInfoExt, device, info);
    *info = (struct pci_info_ext){.version = info->version, .bus = caller.gpu->pci_bus,
                                  .pciDeviceId = caller.gpu->pci_device_id,
                                  .pciSubSystemId = caller.gpu->pci_subsystem_id, .baseClass = 3, .subClass = 2};
    bus_id(caller.gpu, "00000000", info->busId, sizeof info->busId);
    return OK;
}

API nvmlDeviceGetC2cModeInfoV(Device device, unsigned *enabled)
{
    ENTER_WHOLE(nvmlDeviceGetC2cModeInfoV, device, enabled);
    return NOT_SUPPORTED; /* no Grace beside this one */
}

API nvmlDeviceGetAttributes(Device device, struct attributes *attributes)
{
    ENTER_ANY(nvmlDeviceGetAttributes, device, attributes);
    if (!caller.mig)
        return NOT_SUPPORTED;
    *attributes = (struct attributes){.multiprocessors = caller.mig->multiprocessors,
                                      .copyEngines = caller.mig->slices,
                                      .gpuSlices = caller.mig->slices,
                                      .computeSlices = caller.mig->slices,
                                      .memoryMiB = caller.mig->memory_bytes >> 20};
    return OK;
}
SAME(nvmlDeviceGetAttributes_v2, nvmlDeviceGetAttributes);

/* ---- Energy and power ---- */

static Code read_counter(struct caller *caller, unsigned long long *millijoules)
{
    if (!caller->gpu->has_counter)
        return NOT_SUPPORTED;
    spin_ns(caller->gpu->counter_read_ns);
    *millijoules = counter_mj(state, caller->gpu, monotonic_ns());
    return OK;
}

API nvmlDeviceGetTotalEnergyConsumption(Device device, unsigned long long *millijoules)
{
    ENTER_WHOLE(nvmlDeviceGetTotalEnergyConsumption, device, millijoules);
    return read_counter(&caller, millijoules);
}

API nvmlDeviceGetPowerUsage(Device device, unsigned *milliwatts)
{
    ENTER_WHOLE(nvmlDeviceGetPowerUsage, device, milliwatts);
    return give(milliwatts, as_milliwatts(average_power_w(state, caller.gpu, caller.now_ns)));
}

static Code give_field(struct field *field, unsigned value)
{
    field->valueType = TYPE_UINT;
    field->value.ullVal = 0;
    field->value.uiVal = value;
    return OK;
}

static Code read_field(struct caller *caller, struct field *field)
{
    enum { MEMORY_TEMPERATURE = 82, ENERGY = 83, AVERAGE = 185, INSTANT, MIN, MAX, DEFAULT, CURRENT, REQUESTED = 192 };
    const struct gpu *gpu = caller->gpu;
    int of_gpu = field->scopeId == 0; /* module and memory power are for boards that have such sensors */
    int64_t now_ns = caller->now_ns;
    switch (field->fieldId) {
    case ENERGY:
        field->valueType = TYPE_ULONGLONG;
        return read_counter(caller, &field->value.ullVal);
    case AVERAGE:
        return gpu->has_average_field && of_gpu ? give_field(field, as_milliwatts(average_power_w(state, gpu, now_ns)))
                                                : NOT_SUPPORTED;
    case INSTANT:
        return gpu->has_instant_field && of_gpu ? give_field(field, as_milliwatts(instant_power_w(state, gpu, now_ns)))
                                                : NOT_SUPPORTED;
    case MIN:
        return give_field(field, gpu->limit_min_mw);
    case MAX:
        return give_field(field, gpu->limit_max_mw);
    case DEFAULT:
        return give_field(field, gpu->limit_default_mw);
    case CURRENT:
    case REQUESTED:
        return give_field(field, setting_at(gpu, now_ns)->limit_mw);
    case MEMORY_TEMPERATURE:
        return give_field(field, (unsigned)temperature_c(state, gpu, now_ns));
    default:
        return NOT_SUPPORTED;
    }
}

API nvmlDeviceGetFieldValues(Device device, int count, struct field *fields)
{
    ENTER_WHOLE(nvmlDeviceGetFieldValues, device, fields && count > 0);
    for (int i = 0; i < count; i++) {
        int64_t begin_ns = monotonic_ns();
        caller.now_ns = begin_ns;
        fields[i].value.ullVal = 0;
        fields[i].nvmlReturn = read_field(&caller, &fields[i]);
        int64_t end_ns = monotonic_ns();
        fields[i].timestamp = (long long)as_microseconds(end_ns);
        fields[i].latencyUsec = (end_ns - begin_ns) / 1000;
    }
    return OK;
}

static unsigned percent(double ratio)
{
    return (unsigned)(ratio * 100 + 0.5);
}

/* What one sample of the buffer says; clocks and utilisation go on the same grid as power. */
static Code sample_value(const struct gpu *gpu, unsigned type, int64_t index, struct buffered_sample *to)
{
    struct sample sample = sensor_sample(state, gpu, index);
    const struct setting *setting = setting_at(gpu, sample.time_ns);
    double load = load_at(gpu, sample.time_ns);
    to->timeStamp = as_microseconds(sample.time_ns);
    to->sampleValue.ullVal = 0;
    switch (type) {
    case SAMPLES_POWER:
        return give(&to->sampleValue.uiVal, as_milliwatts(sensor_reading_w(state, gpu, index)));
    case SAMPLES_UTILIZATION:
        return give(&to->sampleValue.uiVal,
                    percent(mean_load(gpu, sample.time_ns - gpu->sensor_period_ns, sample.time_ns)));
    case SAMPLES_SM_CLOCK:
        return give(&to->sampleValue.uiVal, sm_clock_reached_mhz(gpu, setting, load));
    case SAMPLES_MEMORY_CLOCK:
        return give(&to->sampleValue.uiVal, memory_clock_wanted_mhz(gpu, setting));
    default:
        return INVALID_ARGUMENT;
    }
}

/* Samples newer than `seen_us`, oldest first. Without room for them, says how many the buffer can hold. */
API nvmlDeviceGetSamples(Device device, unsigned type, unsigned long long seen_us, unsigned *value_type,
                         unsigned *count, struct buffered_sample *samples)
{
    ENTER_WHOLE(nvmlDeviceGetSamples, device, value_type && count);
    struct buffered_sample probe;
    if (!caller.gpu->has_samples)
        return NOT_SUPPORTED;
    if (sample_value(caller.gpu, type, 0, &probe) != OK)
        return INVALID_ARGUMENT;
    *value_type = TYPE_UINT;
    if (!samples)
        return give(count, caller.gpu->sample_capacity);
    spin_ns(caller.gpu->samples_read_ns);
    int64_t last = last_sample_index(state, caller.gpu, monotonic_ns());
    unsigned room = *count < caller.gpu->sample_capacity ? *count : caller.gpu->sample_capacity;
    unsigned filled = 0;
    for (int64_t index = last - room + 1; index <= last; index++) {
        sample_value(caller.gpu, type, index, &samples[filled]);
        filled += samples[filled].timeStamp > seen_us;
    }
    *count = filled;
    return filled ? OK : NOT_FOUND;
}

/* ---- Utilisation, temperature, memory, processes ---- */

static double recent_load(const struct caller *caller)
{
    return mean_load(caller->gpu, caller->now_ns - 1000000000, caller->now_ns);
}

API nvmlDeviceGetUtilizationRates(Device device, struct utilization *utilization)
{
    ENTER_WHOLE(nvmlDeviceGetUtilizationRates, device, utilization);
    if (caller.gpu->mig_enabled)
        return NOT_SUPPORTED;
    double load = recent_load(&caller);
    *utilization = (struct utilization){percent(load), percent(load * caller.gpu->dram_ratio)};
    return OK;
}

API nvmlDeviceGetProcessUtilization(Device device, struct process_utilization *samples, unsigned *count,
                                    unsigned long long seen_us)
{
    ENTER_WHOLE(nvmlDeviceGetProcessUtilization, device, count);
    (void)seen_us;
    unsigned running = caller.gpu->process_count, room = *count;
    if (running == 0)
        return NOT_FOUND;
    *count = running;
    if (!samples || room < running)
        return INSUFFICIENT_SIZE;
    double load = recent_load(&caller) / running;
    for (unsigned i = 0; i < running; i++)
        samples[i] = (struct process_utilization){.pid = caller.gpu->processes[i].pid,
                                                  .timeStamp = as_microseconds(caller.now_ns),
                                                  .smUtil = percent(load),
                                                  .memUtil = percent(load * caller.gpu->dram_ratio)};
    return OK;
}

API nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned *celsius)
{
    ENTER_WHOLE(nvmlDeviceGetTemperature, device, celsius && sensor == 0);
    return give(celsius, (unsigned)(temperature_c(state, caller.gpu, caller.now_ns) + 0.5));
}

API nvmlDeviceGetTemperatureV(Device device, struct temperature *temperature)
{
    ENTER_WHOLE(nvmlDeviceGetTemperatureV, device, temperature && temperature->sensor == 0);
    temperature->temperature = (int)(temperature_c(state, caller.gpu, caller.now_ns) + 0.5);
    return OK;
}

API nvmlDeviceGetTemperatureThreshold(Device device, unsigned which, unsigned *celsius)
{
    ENTER_WHOLE(nvmlDeviceGetTemperatureThreshold, device, celsius);
    static const unsigned thresholds[] = {SHUTDOWN_C, SLOWDOWN_C, MEMORY_MAX_C, GPU_MAX_C};
    return which < 4 ? give(celsius, thresholds[which]) : NOT_SUPPORTED;
}

API nvmlDeviceGetMemoryInfo(Device device, struct memory *memory)
{
    ENTER_ANY(nvmlDeviceGetMemoryInfo, device, memory);
    unsigned long long total = caller.mig ? caller.mig->memory_bytes : caller.gpu->memory_total_bytes;
    unsigned long long used = caller.mig ? 0 : caller.gpu->memory_used_bytes;
    *memory = (struct memory){total, total - used, used};
    return OK;
}

API nvmlDeviceGetMemoryInfo_v2(Device device, struct memory_v2 *memory)
{
    struct memory plain;
    if (!memory)
        return INVALID_ARGUMENT;
    Code code = nvmlDeviceGetMemoryInfo(device, &plain);
    if (code == OK)
        *memory = (struct memory_v2){memory->version, plain.total, 0, plain.free, plain.used};
    return code;
}

API nvmlDeviceGetBAR1MemoryInfo(Device device, struct memory *memory)
{
    ENTER_WHOLE(nvmlDeviceGetBAR1MemoryInfo, device, memory);
    *memory = (struct memory){caller.gpu->memory_total_bytes, caller.gpu->memory_total_bytes, 0};
    return OK;
}

static Code list_processes(const struct gpu *gpu, unsigned graphics, unsigned *count, struct process_info *to)
{
    unsigned room = *count, found = 0;
    for (unsigned i = 0; i < gpu->process_count && i < MAX_PROCESSES; i++) {
        const struct process *process = &gpu->processes[i];
        if (process->graphics != graphics)
            continue;
        if (to && found < room)
            to[found] = (struct process_info){process->pid, process->memory_bytes, NOT_AVAILABLE, NOT_AVAILABLE};
        found++;
    }
    *count = found;
    return found > (to ? room : 0) ? INSUFFICIENT_SIZE : OK;
}

API nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, struct process_info *processes)
{
    ENTER_ANY(nvmlDeviceGetComputeRunningProcesses, device, count);
    return list_processes(caller.gpu, 0, count, processes);
}
SAME(nvmlDeviceGetComputeRunningProcesses_v2, nvmlDeviceGetComputeRunningProcesses_v3);

API nvmlDeviceGetGraphicsRunningProcesses_v3(Device device, unsigned *count, struct process_info *processes)
{
    ENTER_ANY(nvmlDeviceGetGraphicsRunningProcesses, device, count);
    return list_processes(caller.gpu, 1, count, processes);
}
SAME(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlDeviceGetGraphicsRunningProcesses_v3);

API nvmlDeviceGetMPSComputeRunningProcesses_v3(Device device, unsigned *count, struct process_info *processes)
{
    ENTER_ANY(nvmlDeviceGetMPSComputeRunningProcesses, device, count);
    (void)processes;
    return give(count, 0);
}
SAME(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlDeviceGetMPSComputeRunningProcesses_v3);

/* ---- Settings: reading ---- */

API nvmlDeviceGetPowerManagementMode(Device device, unsigned *mode)
{
    ENTER_WHOLE(nvmlDeviceGetPowerManagementMode, device, mode);
    return give(mode, 1);
}

API nvmlDeviceGetPowerManagementLimit(Device device, unsigned *milliwatts)
{
    ENTER_WHOLE(nvmlDeviceGetPowerManagementLimit, device, milliwatts);
    return give(milliwatts, setting_at(caller.gpu, caller.now_ns)->limit_mw);
}

API nvmlDeviceGetEnforcedPowerLimit(Device device, unsigned *milliwatts)
{
    ENTER_WHOLE(nvmlDeviceGetEnforcedPowerLimit, device, milliwatts);
    return give(milliwatts, setting_at(caller.gpu, caller.now_ns)->limit_mw);
}

API nvmlDeviceGetPowerManagementDefaultLimit(Device device, unsigned *milliwatts)
{
    ENTER_WHOLE(nvmlDeviceGetPowerManagementDefaultLimit, device, milliwatts);
    return give(milliwatts, caller.gpu->limit_default_mw);
}

API nvmlDeviceGetPowerManagementLimitConstraints(Device device, unsigned *least, unsigned *most)
{
    ENTER_WHOLE(nvmlDeviceGetPowerManagementLimitConstraints, device, least && most);
    *least = caller.gpu->limit_min_mw;
    *most = caller.gpu->limit_max_mw;
    return OK;
}

API nvmlDeviceGetPowerSource(Device device, unsigned *source)
{
    ENTER_WHOLE(nvmlDeviceGetPowerSource, device, source);
    return give(source, 0); /* mains */
}

API nvmlDeviceGetPerformanceState(Device device, unsigned *pstate)
{
    ENTER_WHOLE(nvmlDeviceGetPerformanceState, device, pstate);
    return give(pstate, 0); /* data-centre cards stay in P0 */
}
SAME(nvmlDeviceGetPowerState, nvmlDeviceGetPerformanceState);

API nvmlDeviceGetSupportedPerformanceStates(Device device, unsigned *pstates, unsigned bytes)
{
    ENTER_WHOLE(nvmlDeviceGetSupportedPerformanceStates, device, pstates && bytes >= sizeof *pstates);
    for (unsigned i = 0; i < bytes / sizeof *pstates; i++)
        pstates[i] = i == 0 ? 0 : PSTATE_UNKNOWN;
    return OK;
}

/* The clock a card without work falls to. */
static unsigned idle_clock_mhz(const struct gpu *gpu, const struct setting *setting)
{
    return setting->sm_lock_min_mhz ? setting->sm_lock_min_mhz : gpu->sm_clock_min_mhz;
}

static Code current_clock(const struct caller *caller, unsigned type, unsigned *mhz)
{
    const struct setting *setting = setting_at(caller->gpu, caller->now_ns);
    double load = load_at(caller->gpu, caller->now_ns);
    if (type == CLOCK_MEM)
        return give(mhz, memory_clock_wanted_mhz(caller->gpu, setting));
    if (type > CLOCK_SM)
        return NOT_SUPPORTED;
    return give(mhz, load > 0 ? sm_clock_reached_mhz(caller->gpu, setting, load)
                              : idle_clock_mhz(caller->gpu, setting));
}

static Code highest_clock(const struct caller *caller, unsigned type, unsigned *mhz)
{
    if (type > CLOCK_MEM)
        return NOT_SUPPORTED;
    return give(mhz, type == CLOCK_MEM ? caller->gpu->memory_clocks_mhz[0] : caller->gpu->sm_clock_max_mhz);
}

static Code application_clock(const struct caller *caller, unsigned type, unsigned *mhz)
{
    const struct setting *setting = setting_at(caller->gpu, caller->now_ns);
    unsigned chosen = type == CLOCK_MEM ? setting->memory_application_mhz : setting->sm_application_mhz;
    return chosen ? give(mhz, chosen) : highest_clock(caller, type, mhz);
}

API nvmlDeviceGetClockInfo(Device device, unsigned type, unsigned *mhz)
{
    ENTER_WHOLE(nvmlDeviceGetClockInfo, device, mhz);
    return current_clock(&caller, type, mhz);
}

API nvmlDeviceGetMaxClockInfo(Device device, unsigned type, unsigned *mhz)
{
    ENTER_WHOLE(nvmlDeviceGetMaxClockInfo, device, mhz);
    return highest_clock(&caller, type, mhz);
}

API nvmlDeviceGetMaxCustomerBoostClock(Device device, unsigned type, unsigned *mhz)
{
    ENTER_WHOLE(nvmlDeviceGetMaxCustomerBoostClock, device, mhz);
    return highest_clock(&caller, type, mhz);
}

API nvmlDeviceGetApplicationsClock(Device device, unsigned type, unsigned *mhz)
{
    ENTER_WHOLE(nvmlDeviceGetApplicationsClock, device, mhz);
    return application_clock(&caller, type, mhz);
}

API nvmlDeviceGetDefaultApplicationsClock(Device device, unsigned type, unsigned *mhz)
{
    ENTER_WHOLE(nvmlDeviceGetDefaultApplicationsClock, device, mhz);
    return highest_clock(&caller, type, mhz);
}

API nvmlDeviceGetClock(Device device, unsigned type, unsigned which, unsigned *mhz)
{
    ENTER_WHOLE(nvmlDeviceGetClock, device, mhz);
    switch (which) {
    case CLOCK_CURRENT:
        return current_clock(&caller, type, mhz);
    case CLOCK_APPLICATION_TARGET:
        return application_clock(&caller, type, mhz);
    case CLOCK_APPLICATION_DEFAULT:
    case CLOCK_CUSTOMER_MAX:
        return highest_clock(&caller, type, mhz);
    default:
        return INVALID_ARGUMENT;
    }
}

API nvmlDeviceGetMinMaxClockOfPState(Device device, unsigned type, unsigned pstate, unsigned *least, unsigned *most)
{
    ENTER_WHOLE(nvmlDeviceGetMinMaxClockOfPState, device, least && most);
    const struct gpu *gpu = caller.gpu;
    if (pstate != 0 || type > CLOCK_MEM)
        return NOT_SUPPORTED;
    *least = type == CLOCK_MEM ? gpu->memory_clocks_mhz[gpu->memory_clock_count - 1] : gpu->sm_clock_min_mhz;
    return highest_clock(&caller, type, most);
}

static unsigned sm_clock_count(const struct gpu *gpu)
{
    return (gpu->sm_clock_max_mhz - gpu->sm_clock_min_mhz) / gpu->sm_clock_step_mhz + 1;
}

API nvmlDeviceGetSupportedMemoryClocks(Device device, unsigned *count, unsigned *clocks)
{
    ENTER_WHOLE(nvmlDeviceGetSupportedMemoryClocks, device, count);
    unsigned room = *count, held = caller.gpu->memory_clock_count;
    *count = held;
    if (!clocks || room < held)
        return INSUFFICIENT_SIZE;
    memcpy(clocks, caller.gpu->memory_clocks_mhz, held * sizeof *clocks);
    return OK;
}

static int is_memory_clock(const struct gpu *gpu, unsigned mhz)
{
    for (unsigned i = 0; i < gpu->memory_clock_count; i++)
        if (gpu->memory_clocks_mhz[i] == mhz)
            return 1;
    return 0;
}

API nvmlDeviceGetSupportedGraphicsClocks(Device device, unsigned memory_mhz, unsigned *count, unsigned *clocks)
{
    ENTER_WHOLE(nvmlDeviceGetSupportedGraphicsClocks, device, count);
    if (!is_memory_clock(caller.gpu, memory_mhz))
        return NOT_FOUND;
    unsigned room = *count, held = sm_clock_count(caller.gpu);
    *count = held;
    if (!clocks || room < held)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < held; i++)
        clocks[i] = caller.gpu->sm_clock_max_mhz - i * caller.gpu->sm_clock_step_mhz;
    return OK;
}

API nvmlDeviceGetCurrentClocksEventReasons(Device device, unsigned long long *reasons)
{
    ENTER_WHOLE(nvmlDeviceGetCurrentClocksEventReasons, device, reasons);
    const struct setting *setting = setting_at(caller.gpu, caller.now_ns);
    double load = load_at(caller.gpu, caller.now_ns);
    unsigned wanted = sm_clock_wanted_mhz(caller.gpu, setting);
    *reasons = 0;
    if (load <= 0)
        *reasons |= REASON_IDLE;
    if (sm_clock_reached_mhz(caller.gpu, setting, load) < wanted)
        *reasons |= REASON_POWER_CAP;
    if (setting->sm_application_mhz && setting->sm_application_mhz < caller.gpu->sm_clock_max_mhz)
        *reasons |= REASON_APPLICATION_CLOCKS;
    return OK;
}
SAME(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetCurrentClocksEventReasons);

API nvmlDeviceGetSupportedClocksEventReasons(Device device, unsigned long long *reasons)
{
    ENTER_WHOLE(nvmlDeviceGetSupportedClocksEventReasons, device, reasons);
    *reasons = REASON_IDLE | REASON_APPLICATION_CLOCKS | REASON_POWER_CAP;
    return OK;
}
SAME(nvmlDeviceGetSupportedClocksThrottleReasons, nvmlDeviceGetSupportedClocksEventReasons);

API nvmlDeviceGetPersistenceMode(Device device, unsigned *mode)
{
    ENTER_WHOLE(nvmlDeviceGetPersistenceMode, device, mode);
    return give(mode, caller.gpu->persistence);
}

API nvmlDeviceGetComputeMode(Device device, unsigned *mode)
{
    ENTER_ANY(nvmlDeviceGetComputeMode, device, mode);
    return give(mode, caller.gpu->compute_mode);
}

API nvmlDeviceGetDisplayMode(Device device, unsigned *mode)
{
    ENTER_WHOLE(nvmlDeviceGetDisplayMode, device, mode);
    return give(mode, 0);
}

API nvmlDeviceGetDisplayActive(Device device, unsigned *mode)
{
    ENTER_WHOLE(nvmlDeviceGetDisplayActive, device, mode);
    return give(mode, 0);
}

API nvmlDeviceGetEccMode(Device device, unsigned *current, unsigned *pending)
{
    ENTER_WHOLE(nvmlDeviceGetEccMode, device, current && pending);
    *current = *pending = 1;
    return OK;
}

/* ---- Settings: changing ---- */

/* A setter at work: permission checked, state locked, `next` a copy of the setting in force. */
struct setter {
    struct caller caller;
    enum call_id call;
    int gpu;
    int lock;
    struct setting next;
    unsigned argument[2];
};

static Code begin_change(struct setter *setter, enum call_id call, Device device, unsigned first, unsigned second)
{
    Code code = enter_whole(call, device, &setter->caller);
    if (code != OK)
        return code;
    setter->call = call;
    setter->gpu = device->gpu;
    setter->argument[0] = first;
    setter->argument[1] = second;
    setter->lock = lock_state();
    if (setter->lock < 0)
        return OPERATING_SYSTEM;
    struct gpu *gpu = setter->caller.gpu;
    setter->next = gpu->settings[gpu->setting_count - 1];
    return OK;
}

static Code append_setting(struct setter *setter)
{
    struct gpu *gpu = setter->caller.gpu;
    if (gpu->setting_count == MAX_SETTINGS)
        return INSUFFICIENT_RESOURCES;
    setter->next.time_ns = monotonic_ns();
    gpu->settings[gpu->setting_count] = setter->next;
    __atomic_store_n(&gpu->setting_count, gpu->setting_count + 1, __ATOMIC_RELEASE);
    return OK;
}

static void write_down(const struct setter *setter, Code code)
{
    struct change *change = &state->changes[state->change_count % MAX_CHANGES];
    *change = (struct change){monotonic_ns(), (uint32_t)getpid(), (uint32_t)setter->gpu, setter->call, code,
                              {setter->argument[0], setter->argument[1]}};
    __atomic_store_n(&state->change_count, state->change_count + 1, __ATOMIC_RELEASE);
}

/* Lets the change through if `code` says so, and writes it down either way. */
static Code end_change(struct setter *setter, Code code)
{
    if (state->refuses_setters)
        code = NO_PERMISSION;
    if (code == OK)
        code = append_setting(setter);
    write_down(setter, code);
    unlock_state(setter->lock);
    return code;
}

#define BEGIN_CHANGE(name, device, first, second) \
    struct setter setter; \
    do { \
        Code refused = begin_change(&setter, CALL_##name, device, first, second); \
        if (refused != OK) \
            return refused; \
    } while (0)

API nvmlDeviceSetPowerManagementLimit(Device device, unsigned milliwatts)
{
    BEGIN_CHANGE(nvmlDeviceSetPowerManagementLimit, device, milliwatts, 0);
    const struct gpu *gpu = setter.caller.gpu;
    int fits = milliwatts >= gpu->limit_min_mw && milliwatts <= gpu->limit_max_mw;
    setter.next.limit_mw = milliwatts;
    return end_change(&setter, fits ? OK : INVALID_ARGUMENT);
}

API nvmlDeviceSetPowerManagementLimit_v2(Device device, struct power_value *value)
{
    if (!value)
        return INVALID_ARGUMENT;
    return value->scope == 0 ? nvmlDeviceSetPowerManagementLimit(device, value->milliwatts) : NOT_SUPPORTED;
}

/* The highest clock of the table that is not above the wish; the lowest of all if every one is. */
static unsigned nearest_sm_clock(const struct gpu *gpu, unsigned mhz)
{
    if (mhz >= gpu->sm_clock_max_mhz)
        return gpu->sm_clock_max_mhz;
    if (mhz <= gpu->sm_clock_min_mhz)
        return gpu->sm_clock_min_mhz;
    return mhz - (mhz - gpu->sm_clock_min_mhz) % gpu->sm_clock_step_mhz;
}

static unsigned nearest_memory_clock(const struct gpu *gpu, unsigned mhz)
{
    for (unsigned i = 0; i < gpu->memory_clock_count; i++)
        if (gpu->memory_clocks_mhz[i] <= mhz)
            return gpu->memory_clocks_mhz[i];
    return gpu->memory_clocks_mhz[gpu->memory_clock_count - 1];
}

API nvmlDeviceSetGpuLockedClocks(Device device, unsigned least, unsigned most)
{
    BEGIN_CHANGE(nvmlDeviceSetGpuLockedClocks, device, least, most);
    setter.next.sm_lock_min_mhz = nearest_sm_clock(setter.caller.gpu, least);
    setter.next.sm_lock_max_mhz = nearest_sm_clock(setter.caller.gpu, most);
    return end_change(&setter, least <= most ? OK : INVALID_ARGUMENT);
}

API nvmlDeviceResetGpuLockedClocks(Device device)
{
    BEGIN_CHANGE(nvmlDeviceResetGpuLockedClocks, device, 0, 0);
    setter.next.sm_lock_min_mhz = setter.next.sm_lock_max_mhz = 0;
    return end_change(&setter, OK);
}

API nvmlDeviceSetMemoryLockedClocks(Device device, unsigned least, unsigned most)
{
    BEGIN_CHANGE(nvmlDeviceSetMemoryLockedClocks, device, least, most);
    setter.next.memory_lock_min_mhz = nearest_memory_clock(setter.caller.gpu, least);
    setter.next.memory_lock_max_mhz = nearest_memory_clock(setter.caller.gpu, most);
    return end_change(&setter, least <= most ? OK : INVALID_ARGUMENT);
}

API nvmlDeviceResetMemoryLockedClocks(Device device)
{
    BEGIN_CHANGE(nvmlDeviceResetMemoryLockedClocks, device, 0, 0);
    setter.next.memory_lock_min_mhz = setter.next.memory_lock_max_mhz = 0;
    return end_change(&setter, OK);
}

API nvmlDeviceSetApplicationsClocks(Device device, unsigned memory_mhz, unsigned sm_mhz)
{
    BEGIN_CHANGE(nvmlDeviceSetApplicationsClocks, device, memory_mhz, sm_mhz);
    const struct gpu *gpu = setter.caller.gpu;
    int known = is_memory_clock(gpu, memory_mhz) && nearest_sm_clock(gpu, sm_mhz) == sm_mhz;
    setter.next.memory_application_mhz = memory_mhz;
    setter.next.sm_application_mhz = sm_mhz;
    return end_change(&setter, known ? OK : INVALID_ARGUMENT);
}

API nvmlDeviceResetApplicationsClocks(Device device)
{
    BEGIN_CHANGE(nvmlDeviceResetApplicationsClocks, device, 0, 0);
    setter.next.memory_application_mhz = setter.next.sm_application_mhz = 0;
    return end_change(&setter, OK);
}

/* For modes that do not touch power: no entry in the history, only in the list of changes. */
static Code end_mode_change(struct setter *setter, uint32_t *mode, unsigned value, unsigned most)
{
    Code code = state->refuses_setters ? NO_PERMISSION : value > most ? INVALID_ARGUMENT : OK;
    if (code == OK)
        *mode = value;
    write_down(setter, code);
    unlock_state(setter->lock);
    return code;
}

API nvmlDeviceSetPersistenceMode(Device device, unsigned mode)
{
    BEGIN_CHANGE(nvmlDeviceSetPersistenceMode, device, mode, 0);
    return end_mode_change(&setter, &setter.caller.gpu->persistence, mode, 1);
}

API nvmlDeviceSetComputeMode(Device device, unsigned mode)
{
    BEGIN_CHANGE(nvmlDeviceSetComputeMode, device, mode, 0);
    return end_mode_change(&setter, &setter.caller.gpu->compute_mode, mode, 3);
}

/* ---- MIG ---- */

static int can_be_split(const struct gpu *gpu)
{
    enum { AMPERE = 7 };
    return gpu->architecture >= AMPERE;
}

API nvmlDeviceGetMigMode(Device device, unsigned *current, unsigned *pending)
{
    ENTER_WHOLE(nvmlDeviceGetMigMode, device, current && pending);
    *current = *pending = caller.gpu->mig_enabled;
    return can_be_split(caller.gpu) ? OK : NOT_SUPPORTED;
}

API nvmlDeviceSetMigMode(Device device, unsigned mode, unsigned *status)
{
    BEGIN_CHANGE(nvmlDeviceSetMigMode, device, mode, 0);
    if (status)
        *status = OK;
    return end_mode_change(&setter, &setter.caller.gpu->mig_enabled, mode, can_be_split(setter.caller.gpu));
}

API nvmlDeviceGetMaxMigDeviceCount(Device device, unsigned *count)
{
    ENTER_WHOLE(nvmlDeviceGetMaxMigDeviceCount, device, count);
    return give(count, can_be_split(caller.gpu) ? MAX_MIGS : 0);
}

API nvmlDeviceGetMigDeviceHandleByIndex(Device device, unsigned index, Device *mig)
{
    ENTER_WHOLE(nvmlDeviceGetMigDeviceHandleByIndex, device, mig);
    if (!caller.gpu->mig_enabled || index >= caller.gpu->mig_count)
        return NOT_FOUND;
    *mig = &parts[device->gpu][index];
    return OK;
}

API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(Device mig, Device *device)
{
    ENTER_ANY(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, mig, device);
    if (!caller.mig)
        return INVALID_ARGUMENT;
    *device = &whole[mig->gpu];
    return OK;
}

API nvmlDeviceIsMigDeviceHandle(Device device, unsigned *is_mig)
{
    ENTER_ANY(nvmlDeviceIsMigDeviceHandle, device, is_mig);
    return give(is_mig, caller.mig != NULL);
}

API nvmlDeviceGetGpuInstanceId(Device device, unsigned *id)
{
    ENTER_ANY(nvmlDeviceGetGpuInstanceId, device, id);
    return caller.mig ? give(id, caller.mig->gpu_instance) : NOT_SUPPORTED;
}

API nvmlDeviceGetComputeInstanceId(Device device, unsigned *id)
{
    ENTER_ANY(nvmlDeviceGetComputeInstanceId, device, id);
    return caller.mig ? give(id, caller.mig->compute_instance) : NOT_SUPPORTED;
}

/* ---- GPM: activity between two samples ---- */

API nvmlGpmQueryDeviceSupport(Device device, struct gpm_support *support)
{
    ENTER_WHOLE(nvmlGpmQueryDeviceSupport, device, support);
    return give(&support->supported, caller.gpu->has_gpm);
}

API nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
    Code code = enter(CALL_nvmlGpmSampleAlloc, -1);
    if (code != OK)
        return code;
    if (!sample)
        return INVALID_ARGUMENT;
    *sample = calloc(1, sizeof **sample);
    return *sample ? OK : NO_MEMORY;
}

API nvmlGpmSampleFree(struct gpm_sample *sample)
{
    Code code = enter(CALL_nvmlGpmSampleFree, -1);
    if (code == OK)
        free(sample);
    return code;
}

API nvmlGpmSampleGet(Device device, struct gpm_sample *sample)
{
    ENTER_WHOLE(nvmlGpmSampleGet, device, sample);
    if (!caller.gpu->has_gpm)
        return NOT_SUPPORTED;
    *sample = (struct gpm_sample){caller.now_ns, caller.gpu};
    return OK;
}

static void fill_metric(const struct gpu *gpu, double load, struct gpm_metric *metric)
{
    const struct {
        unsigned id;
        const char *name;
        double ratio;
    } known[] = {
        {1, "Graphics util", 1.0},
        {2, "SM util", gpu->sm_ratio},
        {3, "SM occupancy", gpu->occupancy_ratio},
        {5, "Any tensor util", gpu->tensor_ratio},
        {7, "HMMA tensor util", gpu->tensor_ratio},
        {10, "DRAM bandwidth util", gpu->dram_ratio},
    };
    metric->nvmlReturn = NOT_SUPPORTED;
    metric->value = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].id != metric->metricId)
            continue;
        metric->nvmlReturn = OK;
        metric->value = 100 * load * known[i].ratio;
        metric->shortName = metric->longName = known[i].name;
        metric->unit = "%";
    }
}

API nvmlGpmMetricsGet(struct gpm_metrics_get *get)
{
    Code code = enter(CALL_nvmlGpmMetricsGet, -1);
    if (code != OK)
        return code;
    if (!get || !get->sample1 || !get->sample2 || !get->sample1->gpu || get->sample1->gpu != get->sample2->gpu)
        return INVALID_ARGUMENT;
    int64_t begin_ns = get->sample1->time_ns, end_ns = get->sample2->time_ns;
    if (end_ns <= begin_ns)
        return INVALID_ARGUMENT;
    double load = mean_load(get->sample1->gpu, begin_ns, end_ns);
    for (unsigned i = 0; i < get->numMetrics; i++)
        fill_metric(get->sample1->gpu, load, &get->metrics[i]);
    return OK;
}

/* ---- Known to callers, but nothing this card could tell ---- */

#define UNSUPPORTED(name) \
    API name(void) \
    { \
        Code code = enter(CALL_unsupported, -1); \
        return code != OK ? code : NOT_SUPPORTED; \
    }
UNSUPPORTED(nvmlDeviceGetFanSpeed)
UNSUPPORTED(nvmlDeviceGetFanSpeed_v2)
UNSUPPORTED(nvmlDeviceGetNumFans)
UNSUPPORTED(nvmlDeviceGetEncoderUtilization)
UNSUPPORTED(nvmlDeviceGetDecoderUtilization)
UNSUPPORTED(nvmlDeviceGetPcieThroughput)
UNSUPPORTED(nvmlDeviceGetCurrPcieLinkGeneration)
UNSUPPORTED(nvmlDeviceGetCurrPcieLinkWidth)
UNSUPPORTED(nvmlDeviceGetMaxPcieLinkGeneration)
UNSUPPORTED(nvmlDeviceGetMaxPcieLinkWidth)
UNSUPPORTED(nvmlDeviceGetPcieReplayCounter)
UNSUPPORTED(nvmlDeviceGetTotalEccErrors)
UNSUPPORTED(nvmlDeviceGetMemoryErrorCounter)
UNSUPPORTED(nvmlDeviceGetNvLinkState)
UNSUPPORTED(nvmlDeviceGetNvLinkCapability)
UNSUPPORTED(nvmlDeviceGetViolationStatus)
UNSUPPORTED(nvmlDeviceGetGpuOperationMode)
UNSUPPORTED(nvmlDeviceGetDriverModel)
UNSUPPORTED(nvmlDeviceGetInforomImageVersion)
UNSUPPORTED(nvmlDeviceGetRemappedRows)
UNSUPPORTED(nvmlDeviceGetRetiredPages)
UNSUPPORTED(nvmlDeviceGetAutoBoostedClocksEnabled)
UNSUPPORTED(nvmlDeviceGetAccountingMode)
UNSUPPORTED(nvmlDeviceGetTopologyCommonAncestor)
UNSUPPORTED(nvmlDeviceGetMarginTemperature)
UNSUPPORTED(nvmlEventSetCreate)
UNSUPPORTED(nvmlUnitGetCount)

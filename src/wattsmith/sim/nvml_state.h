/* The state file of a simulated NVML driver, as nvml.py writes it and the driver maps it.
 *
 * Nobody needs a lock to read. Curves and settings only ever grow: a writer fills the entry after the last one and
 * then publishes it with one store to the count, so a writer that is killed half-way leaves nothing behind.
 * Writers exclude each other with flock on the file, which the kernel releases when its holder dies.
 *
 * Times are nanoseconds of CLOCK_MONOTONIC. nvml.py mirrors every struct here; `size` tells when they part ways.
 */
#ifndef WATTSMITH_NVML_STATE_H
#define WATTSMITH_NVML_STATE_H

#include <stdint.h>

#define STATE_MAGIC "WSNVML\0"
#define STATE_VERSION 1

enum {
    MAX_GPUS = 16,
    MAX_MIGS = 7,
    MAX_SEGMENTS = 4096,
    MAX_SETTINGS = 2048,
    MAX_PROCESSES = 32,
    MAX_MEMORY_CLOCKS = 8,
    MAX_FAULTS = 64,
    MAX_CALLS = 192,
    MAX_CHANGES = 4096,
    NAME_BYTES = 96,
};

/* Every function that is counted and can be made to fail. Versions of one function (_v2, _v3) share its entry.
 * nvml.py reads the names from here: the place in the list is the place in `calls`. */
#define NVML_CALLS(X) \
    X(nvmlInit) X(nvmlShutdown) \
    X(nvmlSystemGetDriverVersion) X(nvmlSystemGetNVMLVersion) X(nvmlSystemGetCudaDriverVersion) \
    X(nvmlSystemGetProcessName) \
    X(nvmlDeviceGetCount) X(nvmlDeviceGetHandleByIndex) X(nvmlDeviceGetHandleByUUID) \
    X(nvmlDeviceGetHandleBySerial) X(nvmlDeviceGetHandleByPciBusId) \
    X(nvmlDeviceGetName) X(nvmlDeviceGetUUID) X(nvmlDeviceGetSerial) X(nvmlDeviceGetIndex) \
    X(nvmlDeviceGetMinorNumber) X(nvmlDeviceGetBrand) X(nvmlDeviceGetArchitecture) \
    X(nvmlDeviceGetCudaComputeCapability) X(nvmlDeviceGetPciInfo) X(nvmlDeviceGetPciInfoExt) \
    X(nvmlDeviceGetVbiosVersion) X(nvmlDeviceGetBoardPartNumber) X(nvmlDeviceGetNumGpuCores) \
    X(nvmlDeviceGetMemoryBusWidth) X(nvmlDeviceGetAttributes) X(nvmlDeviceGetC2cModeInfoV) \
    X(nvmlDeviceGetTotalEnergyConsumption) X(nvmlDeviceGetPowerUsage) X(nvmlDeviceGetFieldValues) \
    X(nvmlDeviceGetSamples) X(nvmlDeviceGetUtilizationRates) X(nvmlDeviceGetProcessUtilization) \
    X(nvmlDeviceGetTemperature) X(nvmlDeviceGetTemperatureV) X(nvmlDeviceGetTemperatureThreshold) \
    X(nvmlDeviceGetMemoryInfo) X(nvmlDeviceGetBAR1MemoryInfo) \
    X(nvmlDeviceGetComputeRunningProcesses) X(nvmlDeviceGetGraphicsRunningProcesses) \
    X(nvmlDeviceGetMPSComputeRunningProcesses) \
    X(nvmlDeviceGetPowerManagementMode) X(nvmlDeviceGetPowerManagementLimit) \
    X(nvmlDeviceGetPowerManagementLimitConstraints) X(nvmlDeviceGetPowerManagementDefaultLimit) \
    X(nvmlDeviceGetEnforcedPowerLimit) X(nvmlDeviceSetPowerManagementLimit) \
    X(nvmlDeviceGetPerformanceState) X(nvmlDeviceGetPowerSource) \
    X(nvmlDeviceGetClockInfo) X(nvmlDeviceGetMaxClockInfo) X(nvmlDeviceGetClock) \
    X(nvmlDeviceGetMaxCustomerBoostClock) X(nvmlDeviceGetMinMaxClockOfPState) X(nvmlDeviceGetSupportedPerformanceStates) \
    X(nvmlDeviceGetSupportedMemoryClocks) X(nvmlDeviceGetSupportedGraphicsClocks) \
    X(nvmlDeviceGetApplicationsClock) X(nvmlDeviceGetDefaultApplicationsClock) \
    X(nvmlDeviceSetApplicationsClocks) X(nvmlDeviceResetApplicationsClocks) \
    X(nvmlDeviceSetGpuLockedClocks) X(nvmlDeviceResetGpuLockedClocks) \
    X(nvmlDeviceSetMemoryLockedClocks) X(nvmlDeviceResetMemoryLockedClocks) \
    X(nvmlDeviceGetCurrentClocksEventReasons) X(nvmlDeviceGetSupportedClocksEventReasons) \
    X(nvmlDeviceGetPersistenceMode) X(nvmlDeviceSetPersistenceMode) \
    X(nvmlDeviceGetComputeMode) X(nvmlDeviceSetComputeMode) \
    X(nvmlDeviceGetDisplayMode) X(nvmlDeviceGetDisplayActive) X(nvmlDeviceGetEccMode) \
    X(nvmlDeviceGetMigMode) X(nvmlDeviceSetMigMode) X(nvmlDeviceGetMaxMigDeviceCount) \
    X(nvmlDeviceGetMigDeviceHandleByIndex) X(nvmlDeviceGetDeviceHandleFromMigDeviceHandle) \
    X(nvmlDeviceIsMigDeviceHandle) X(nvmlDeviceGetGpuInstanceId) X(nvmlDeviceGetComputeInstanceId) \
    X(nvmlGpmQueryDeviceSupport) X(nvmlGpmSampleAlloc) X(nvmlGpmSampleFree) X(nvmlGpmSampleGet) \
    X(nvmlGpmMetricsGet) X(unsupported)

enum segment_kind { RAMP = 0, SQUARE = 1, SAWTOOTH = 2 };

/* In force from start_ns until the next segment's start. RAMP goes from load_begin to load_end within duration_ns
 * and then holds load_end. SQUARE is at load_end for the first duty_ratio of each period, then at load_begin;
 * SAWTOOTH rises from load_begin to load_end in each period. Waves go on for duration_ns, for ever if it is 0,
 * and then hold load_begin. */
struct segment {
    int64_t start_ns;
    int64_t duration_ns;
    int64_t period_ns;
    double load_begin;
    double load_end;
    double duty_ratio;
    uint32_t kind;
    uint32_t unused;
};

/* What the setters have chosen, from time_ns on. A clock of 0 is not set. */
struct setting {
    int64_t time_ns;
    uint32_t limit_mw;
    uint32_t sm_lock_min_mhz, sm_lock_max_mhz;
    uint32_t memory_lock_min_mhz, memory_lock_max_mhz;
    uint32_t sm_application_mhz, memory_application_mhz;
    uint32_t unused;
};

struct mig {
    char name[NAME_BYTES];
    char uuid[NAME_BYTES];
    uint64_t memory_bytes;
    uint32_t gpu_instance;
    uint32_t compute_instance;
    uint32_t slices;
    uint32_t multiprocessors;
};

struct process {
    uint64_t memory_bytes;
    uint32_t pid;
    uint32_t graphics; /* 0: compute */
};

struct gpu {
    char name[NAME_BYTES];
    char uuid[NAME_BYTES];
    char serial[32];
    char vbios[32];
    char part_number[80];
    uint32_t pci_bus, pci_device_id, pci_subsystem_id;
    uint32_t brand, architecture, cuda_major, cuda_minor, cores, multiprocessors, memory_bus_bits;
    uint32_t persistence, compute_mode;

    uint32_t sm_clock_min_mhz, sm_clock_max_mhz, sm_clock_step_mhz;
    uint32_t memory_clock_count;
    uint32_t memory_clocks_mhz[MAX_MEMORY_CLOCKS]; /* highest first */
    uint32_t limit_min_mw, limit_max_mw, limit_default_mw;

    uint32_t has_counter, has_samples, has_instant_field, has_average_field, has_gpm;
    uint32_t sample_capacity;
    uint32_t mig_enabled, mig_count, process_count;
    uint32_t segment_count, setting_count;
    uint32_t unused;

    double idle_w, sm_w, memory_w, voltage_floor_ratio;
    double ambient_c, kelvin_per_w, thermal_s;
    double sensor_gain, sensor_noise_w;
    double sm_ratio, occupancy_ratio, tensor_ratio, dram_ratio;

    int64_t phase_ns;
    int64_t sensor_period_ns, sensor_window_ns, sensor_jitter_ns;
    int64_t instant_period_ns, average_window_ns, counter_period_ns;
    int64_t counter_read_ns, samples_read_ns;

    uint64_t memory_total_bytes, memory_used_bytes;
    uint64_t counter_floor_mj; /* the most the counter has ever said; it never says less again */

    struct mig migs[MAX_MIGS];
    struct process processes[MAX_PROCESSES];
    struct segment segments[MAX_SEGMENTS];
    struct setting settings[MAX_SETTINGS];
};

/* While remaining is not 0 and the time has come, calls that match return `code` after delay_ns. */
struct fault {
    int64_t from_ns;
    int64_t delay_ns;
    int64_t remaining; /* -1: for ever */
    int32_t gpu;       /* -1: any, and calls that name none */
    int32_t call;      /* -1: any */
    uint32_t code;
    uint32_t active; /* written last */
};

/* One call of a setter, refused or not. */
struct change {
    int64_t time_ns;
    uint32_t pid, gpu, call, code;
    uint32_t argument[2];
};

struct state {
    char magic[8];
    uint32_t version;
    uint32_t gpu_count;
    uint64_t size;
    int64_t boot_ns;
    int64_t realtime_offset_ns; /* fixed, so that one sample keeps one time stamp */
    uint32_t refuses_setters;   /* as the driver does to everyone but root */
    int32_t cuda_version;
    char driver_version[80];
    char nvml_version[80];
    uint64_t calls[MAX_CALLS];
    struct fault faults[MAX_FAULTS];
    uint64_t change_count; /* the latest MAX_CHANGES of them are kept */
    struct change changes[MAX_CHANGES];
    struct gpu gpus[MAX_GPUS];
};

/* nvml_power.c: what a GPU draws and what its sensor makes of it. Times in ns of CLOCK_MONOTONIC. */

int64_t monotonic_ns(void);
const struct setting *setting_at(const struct gpu *gpu, int64_t time_ns);
uint32_t memory_clock_wanted_mhz(const struct gpu *gpu, const struct setting *setting);
uint32_t sm_clock_wanted_mhz(const struct gpu *gpu, const struct setting *setting);
uint32_t sm_clock_reached_mhz(const struct gpu *gpu, const struct setting *setting, double load);
double load_at(const struct gpu *gpu, int64_t time_ns);
double mean_load(const struct gpu *gpu, int64_t begin_ns, int64_t end_ns);

struct sample {
    int64_t time_ns;
    double power_w;
};
int64_t last_sample_index(const struct state *state, const struct gpu *gpu, int64_t time_ns);
struct sample sensor_sample(const struct state *state, const struct gpu *gpu, int64_t index);
double sensor_reading_w(const struct state *state, const struct gpu *gpu, int64_t index);
double instant_power_w(const struct state *state, const struct gpu *gpu, int64_t time_ns);
double average_power_w(const struct state *state, const struct gpu *gpu, int64_t time_ns);
uint64_t counter_mj(const struct state *state, struct gpu *gpu, int64_t time_ns);
double temperature_c(const struct state *state, const struct gpu *gpu, int64_t time_ns);

#endif

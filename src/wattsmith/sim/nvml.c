/* A simulated NVML driver: libnvidia-ml.so.1 without a GPU.
 *
 * Speaks the ABI that nvidia-ml-py and other callers of NVML expect, and answers from the state file named by
 * WATTSMITH_SIM_NVML. This file describes the devices and reads their meters; nvml_settings.c has clocks, limits and
 * MIG, nvml_enter.c the way into every call, nvml_power.c what the card draws. It names itself: devices and driver version say "simulated".
 */
#define _GNU_SOURCE
#include "nvml_abi.h"

#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

/* ---- Library and system ---- */

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

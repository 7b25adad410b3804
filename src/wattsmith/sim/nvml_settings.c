/* The simulated driver's settings: power limit, clocks, modes, MIG; reading them and changing them. */
#include "nvml_abi.h"

#include <stdlib.h>
#include <unistd.h>

/* ---- Reading ---- */

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

/* ---- Changing ---- */

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
    if (memcmp(&setter->next, &gpu->settings[gpu->setting_count - 1], sizeof setter->next) == 0)
        return OK; /* what was set already takes no room */
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

/* The whole machine may refuse everyone, or one process may act as an ordinary user's beside those of root. */
static int refuses_setters(void)
{
    const char *ordinary = getenv("WATTSMITH_SIM_NVML_ORDINARY_USER");
    return state->refuses_setters || (ordinary && *ordinary && strcmp(ordinary, "0") != 0);
}

/* Lets the change through if `code` says so, and writes it down either way. */
static Code end_change(struct setter *setter, Code code)
{
    if (refuses_setters())
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
    Code code = refuses_setters() ? NO_PERMISSION : value > most ? INVALID_ARGUMENT : OK;
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

/* The simulated driver's way in: the state file, the handles, the faults, nvmlInit and nvmlShutdown. */
#define _GNU_SOURCE
#include "nvml_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- Handles ---- */

struct handle whole[MAX_GPUS];
struct handle parts[MAX_GPUS][MAX_MIGS];

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

struct state *state;
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
int lock_state(void)
{
    int file = open(state_path, O_RDWR | O_CLOEXEC);
    while (file >= 0 && flock(file, LOCK_EX) != 0) {
        if (errno == EINTR)
            continue;
        close(file);
        return -1;
    }
    return file;
}

void unlock_state(int file)
{
    flock(file, LOCK_UN); /* not just close: a child forked meanwhile holds the same open file */
    close(file);
}

/* ---- What every call goes through ---- */

static void wait_ns(int64_t duration_ns)
{
    struct timespec rest = {duration_ns / 1000000000, duration_ns % 1000000000};
    while (nanosleep(&rest, &rest) != 0 && errno == EINTR)
        ;
}

/* Not a sleep: on a real H200 the call costs the caller as much CPU time as wall time. */
void spin_ns(int64_t duration_ns)
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
Code enter(enum call_id call, int gpu)
{
    if (!state || users == 0)
        return UNINITIALIZED;
    __atomic_fetch_add(&state->calls[call], 1, __ATOMIC_RELAXED);
    return injected(call, gpu);
}

Code enter_any(enum call_id call, Device device, struct caller *caller)
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
Code enter_whole(enum call_id call, Device device, struct caller *caller)
{
    Code code = enter_any(call, device, caller);
    return code == OK && caller->mig ? NOT_SUPPORTED : code;
}

/* ---- Init and shutdown ---- */

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

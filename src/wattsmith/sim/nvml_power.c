/* What a simulated GPU draws, and what its sensor makes of it.
 *
 *   power_w = min(idle_w + load * (sm_w * x * v^2 + memory_w * y), limit_w)
 *
 * with x the SM clock over its maximum, y the memory clock over its maximum and v = floor + (1 - floor) * x the
 * voltage over its maximum. When the limit binds, the SM clock falls until the power fits, so the power is the limit.
 * Everything is a function of time alone, so any number of processes see the same card.
 */
#include "nvml_state.h"

#include <math.h>
#include <time.h>

static const double NS = 1e-9;
static const int64_t THERMAL_STEP_NS = 250000000;

int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static uint32_t published(const uint32_t *count)
{
    return __atomic_load_n(count, __ATOMIC_ACQUIRE);
}

/* ---- Settings and clocks ---- */

static uint32_t setting_index(const struct gpu *gpu, int64_t time_ns)
{
    uint32_t low = 0, high = published(&gpu->setting_count); /* the first one holds since ever */
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (gpu->settings[middle].time_ns <= time_ns)
            low = middle;
        else
            high = middle;
    }
    return low;
}

const struct setting *setting_at(const struct gpu *gpu, int64_t time_ns)
{
    return &gpu->settings[setting_index(gpu, time_ns)];
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

uint32_t sm_clock_wanted_mhz(const struct gpu *gpu, const struct setting *setting)
{
    uint32_t clock = gpu->sm_clock_max_mhz;
    if (setting->sm_application_mhz)
        clock = smaller(clock, setting->sm_application_mhz);
    if (setting->sm_lock_max_mhz)
        clock = smaller(clock, setting->sm_lock_max_mhz);
    return clock < setting->sm_lock_min_mhz ? setting->sm_lock_min_mhz : clock;
}

uint32_t memory_clock_wanted_mhz(const struct gpu *gpu, const struct setting *setting)
{
    uint32_t clock = gpu->memory_clocks_mhz[0];
    if (setting->memory_application_mhz)
        clock = smaller(clock, setting->memory_application_mhz);
    if (setting->memory_lock_max_mhz)
        clock = smaller(clock, setting->memory_lock_max_mhz);
    return clock < setting->memory_lock_min_mhz ? setting->memory_lock_min_mhz : clock;
}

/* Watts that full load adds to idle. */
static double full_load_w(const struct gpu *gpu, double sm_mhz, double memory_mhz)
{
    double x = sm_mhz / gpu->sm_clock_max_mhz;
    double voltage = gpu->voltage_floor_ratio + (1 - gpu->voltage_floor_ratio) * x;
    return gpu->sm_w * x * voltage * voltage + gpu->memory_w * memory_mhz / gpu->memory_clocks_mhz[0];
}

/* The highest clock of the table at which the load fits the limit. */
uint32_t sm_clock_reached_mhz(const struct gpu *gpu, const struct setting *setting, double load)
{
    double room_w = setting->limit_mw / 1000.0 - gpu->idle_w + 1e-9;
    uint32_t memory = memory_clock_wanted_mhz(gpu, setting);
    uint32_t clock = sm_clock_wanted_mhz(gpu, setting);
    while (clock > gpu->sm_clock_min_mhz && load * full_load_w(gpu, clock, memory) > room_w)
        clock -= gpu->sm_clock_step_mhz;
    return clock;
}

/* ---- Something that follows the load along a straight line up to a ceiling: power, or the load itself ---- */

struct response {
    double base, slope, ceiling;
};

static const struct response LOAD_ITSELF = {0, 1, INFINITY};

static struct response power_response(const struct gpu *gpu, const struct setting *setting)
{
    uint32_t sm = sm_clock_wanted_mhz(gpu, setting), memory = memory_clock_wanted_mhz(gpu, setting);
    return (struct response){gpu->idle_w, full_load_w(gpu, sm, memory), setting->limit_mw / 1000.0};
}

static double respond(const struct response *r, double load)
{
    return fmin(r->base + r->slope * load, r->ceiling);
}

/* Integral of the response while the load goes straight from one value to another. */
static double ramp_integral(const struct response *r, double load_begin, double load_end, double duration_s)
{
    double a = r->base + r->slope * load_begin, b = r->base + r->slope * load_end;
    double low = fmin(a, b), high = fmax(a, b);
    if (high <= r->ceiling)
        return (a + b) / 2 * duration_s;
    if (low >= r->ceiling)
        return r->ceiling * duration_s;
    double below = (r->ceiling - low) / (high - low); /* share of the time under the ceiling */
    return duration_s * (below * (low + r->ceiling) / 2 + (1 - below) * r->ceiling);
}

/* Integral from the start of a wave's period to `elapsed_ns` into it. */
static double within_period(const struct response *r, const struct segment *wave, double elapsed_ns)
{
    if (wave->kind == SAWTOOTH) {
        double reached = wave->load_begin + (wave->load_end - wave->load_begin) * elapsed_ns / wave->period_ns;
        return ramp_integral(r, wave->load_begin, reached, elapsed_ns * NS);
    }
    double high_ns = fmin(elapsed_ns, wave->duty_ratio * wave->period_ns);
    return (respond(r, wave->load_end) * high_ns + respond(r, wave->load_begin) * (elapsed_ns - high_ns)) * NS;
}

static double since_wave_start(const struct response *r, const struct segment *wave, int64_t elapsed_ns)
{
    int64_t periods = elapsed_ns / wave->period_ns;
    return periods * within_period(r, wave, wave->period_ns) +
           within_period(r, wave, elapsed_ns - periods * wave->period_ns);
}

static double since_ramp_start(const struct response *r, const struct segment *ramp, int64_t elapsed_ns)
{
    if (ramp->duration_ns == 0)
        return 0;
    double reached = ramp->load_begin + (ramp->load_end - ramp->load_begin) * elapsed_ns / ramp->duration_ns;
    return ramp_integral(r, ramp->load_begin, reached, elapsed_ns * NS);
}

/* Integral over part of one segment; begin and end count from its start. */
static double segment_integral(const struct response *r, const struct segment *segment, int64_t begin, int64_t end)
{
    int wave = segment->kind != RAMP;
    int64_t moves_until = wave && segment->duration_ns == 0 ? INT64_MAX : segment->duration_ns;
    double total = 0;
    if (begin < moves_until) {
        int64_t until = end < moves_until ? end : moves_until;
        total += wave ? since_wave_start(r, segment, until) - since_wave_start(r, segment, begin)
                      : since_ramp_start(r, segment, until) - since_ramp_start(r, segment, begin);
        begin = until;
    }
    return total + respond(r, wave ? segment->load_begin : segment->load_end) * (end - begin) * NS;
}

static double segment_load(const struct segment *segment, int64_t elapsed)
{
    double change = segment->load_end - segment->load_begin;
    if (segment->kind == RAMP)
        return elapsed >= segment->duration_ns ? segment->load_end
                                               : segment->load_begin + change * elapsed / segment->duration_ns;
    if (segment->duration_ns && elapsed >= segment->duration_ns)
        return segment->load_begin;
    double into = (double)(elapsed % segment->period_ns) / segment->period_ns;
    if (segment->kind == SAWTOOTH)
        return segment->load_begin + change * into;
    return into < segment->duty_ratio ? segment->load_end : segment->load_begin;
}

/* ---- The whole curve ---- */

/* How many segments have begun by then: the last of them is in force. */
static uint32_t segments_begun(const struct gpu *gpu, uint32_t count, int64_t time_ns)
{
    uint32_t low = 0, high = count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (gpu->segments[middle].start_ns <= time_ns)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

double load_at(const struct gpu *gpu, int64_t time_ns)
{
    uint32_t begun = segments_begun(gpu, published(&gpu->segment_count), time_ns);
    if (begun == 0)
        return 0;
    const struct segment *segment = &gpu->segments[begun - 1];
    return segment_load(segment, time_ns - segment->start_ns);
}

/* Integral of one response over the curve. */
static double curve_integral(const struct gpu *gpu, const struct response *r, int64_t begin_ns, int64_t end_ns)
{
    uint32_t count = published(&gpu->segment_count);
    uint32_t begun = segments_begun(gpu, count, begin_ns);
    double total = 0;
    while (begin_ns < end_ns) {
        int64_t until = end_ns;
        if (begun < count && gpu->segments[begun].start_ns < until)
            until = gpu->segments[begun].start_ns;
        if (until > begin_ns) {
            const struct segment *segment = begun ? &gpu->segments[begun - 1] : NULL;
            total += segment ? segment_integral(r, segment, begin_ns - segment->start_ns, until - segment->start_ns)
                             : respond(r, 0) * (until - begin_ns) * NS;
            begin_ns = until;
        }
        begun++;
    }
    return total;
}

static double energy_j(const struct gpu *gpu, int64_t begin_ns, int64_t end_ns)
{
    uint32_t count = published(&gpu->setting_count);
    double total = 0;
    for (uint32_t i = setting_index(gpu, begin_ns); begin_ns < end_ns; i++) {
        int64_t until = end_ns;
        if (i + 1 < count && gpu->settings[i + 1].time_ns < until)
            until = gpu->settings[i + 1].time_ns;
        struct response power = power_response(gpu, &gpu->settings[i]);
        total += curve_integral(gpu, &power, begin_ns, until);
        begin_ns = until > begin_ns ? until : begin_ns;
    }
    return total;
}

double mean_load(const struct gpu *gpu, int64_t begin_ns, int64_t end_ns)
{
    if (end_ns <= begin_ns)
        return load_at(gpu, end_ns);
    return curve_integral(gpu, &LOAD_ITSELF, begin_ns, end_ns) / ((end_ns - begin_ns) * NS);
}

/* ---- The sensor ---- */

/* A number in 0 … 1 that looks random but is the same for everyone. */
static double scatter(int64_t index)
{
    uint64_t x = (uint64_t)index * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9u;
    return (double)((x ^ (x >> 29)) >> 11) / 9007199254740992.0;
}

static int64_t sample_time(const struct state *state, const struct gpu *gpu, int64_t index)
{
    int64_t late_ns = gpu->sensor_jitter_ns ? (int64_t)(scatter(index) * gpu->sensor_jitter_ns) : 0;
    return state->boot_ns + gpu->phase_ns + index * gpu->sensor_period_ns + late_ns;
}

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

int64_t last_sample_index(const struct state *state, const struct gpu *gpu, int64_t time_ns)
{
    int64_t index = floor_div(time_ns - state->boot_ns - gpu->phase_ns, gpu->sensor_period_ns);
    return sample_time(state, gpu, index) > time_ns ? index - 1 : index;
}

static int sees_everything(const struct gpu *gpu)
{
    return gpu->sensor_window_ns >= gpu->sensor_period_ns;
}

struct sample sensor_sample(const struct state *state, const struct gpu *gpu, int64_t index)
{
    int64_t end_ns = sample_time(state, gpu, index);
    int64_t begin_ns = end_ns - gpu->sensor_window_ns;
    if (gpu->sensor_window_ns == gpu->sensor_period_ns)
        begin_ns = sample_time(state, gpu, index - 1); /* with jitter, the gap since the last sample varies */
    return (struct sample){end_ns, energy_j(gpu, begin_ns, end_ns) / ((end_ns - begin_ns) * NS)};
}

/* What the card says of a sample: the truth with the sensor's gain and noise on it. */
double sensor_reading_w(const struct state *state, const struct gpu *gpu, int64_t index)
{
    double noise_w = gpu->sensor_noise_w * (2 * scatter(~index + gpu->phase_ns) - 1);
    return fmax(0, gpu->sensor_gain * sensor_sample(state, gpu, index).power_w + noise_w);
}

/* The latest moment of a refresh grid. */
static int64_t last_tick(const struct state *state, const struct gpu *gpu, int64_t time_ns, int64_t period_ns)
{
    int64_t origin_ns = state->boot_ns + gpu->phase_ns;
    return origin_ns + floor_div(time_ns - origin_ns, period_ns) * period_ns;
}

double instant_power_w(const struct state *state, const struct gpu *gpu, int64_t time_ns)
{
    int64_t tick_ns = last_tick(state, gpu, time_ns, gpu->instant_period_ns);
    return sensor_reading_w(state, gpu, last_sample_index(state, gpu, tick_ns));
}

double average_power_w(const struct state *state, const struct gpu *gpu, int64_t time_ns)
{
    int64_t tick_ns = last_tick(state, gpu, time_ns, gpu->instant_period_ns);
    int64_t last = last_sample_index(state, gpu, tick_ns);
    int64_t count = gpu->average_window_ns / gpu->sensor_period_ns;
    if (count < 1)
        count = 1;
    double total_w = 0;
    for (int64_t i = 0; i < count; i++)
        total_w += sensor_reading_w(state, gpu, last - i);
    return total_w / count;
}

/* ---- Sums over all time, carried forward from one reading to the next ---- */

/* How far a sum has come. Good as long as nothing was added to the curve or the settings before until_ns. */
struct progress {
    const struct state *state;
    const struct gpu *gpu;
    uint32_t segments, settings;
    int64_t until_ns;
    int64_t step;
    double value;
};

/* One set per thread: no locks, and nothing that a fork could leave locked. */
static _Thread_local struct progress energy_progress[MAX_GPUS];
static _Thread_local struct progress heat_progress[MAX_GPUS];

static int still_good(const struct progress *p, const struct state *state, const struct gpu *gpu)
{
    if (p->state != state || p->gpu != gpu)
        return 0;
    for (uint32_t i = p->segments; i < published(&gpu->segment_count); i++)
        if (gpu->segments[i].start_ns < p->until_ns)
            return 0;
    for (uint32_t i = p->settings; i < published(&gpu->setting_count); i++)
        if (gpu->settings[i].time_ns < p->until_ns)
            return 0;
    return 1;
}

static struct progress *resume(struct progress *p, const struct state *state, const struct gpu *gpu, int64_t time_ns)
{
    if (!still_good(p, state, gpu) || p->until_ns > time_ns)
        *p = (struct progress){.state = state, .gpu = gpu, .until_ns = state->boot_ns, .step = -1};
    p->segments = published(&gpu->segment_count);
    p->settings = published(&gpu->setting_count);
    return p;
}

static double sensed_energy_j(const struct state *state, const struct gpu *gpu, int64_t time_ns)
{
    int64_t last = last_sample_index(state, gpu, time_ns);
    int64_t end_ns = sample_time(state, gpu, last);
    struct progress *p = resume(&energy_progress[gpu - state->gpus], state, gpu, end_ns);
    if (sees_everything(gpu))
        p->value += energy_j(gpu, p->until_ns, end_ns);
    else
        for (int64_t i = p->step + 1; i <= last; i++)
            p->value += sensor_sample(state, gpu, i).power_w * gpu->sensor_period_ns * NS;
    p->until_ns = end_ns > p->until_ns ? end_ns : p->until_ns;
    p->step = last;
    return p->value;
}

uint64_t counter_mj(const struct state *state, struct gpu *gpu, int64_t time_ns)
{
    int64_t tick_ns = last_tick(state, gpu, time_ns, gpu->counter_period_ns);
    uint64_t now = (uint64_t)(sensed_energy_j(state, gpu, tick_ns) * 1000);
    uint64_t most = __atomic_load_n(&gpu->counter_floor_mj, __ATOMIC_RELAXED);
    while (most < now && !__atomic_compare_exchange_n(&gpu->counter_floor_mj, &most, now, 0, __ATOMIC_RELAXED,
                                                      __ATOMIC_RELAXED))
        ;
    return now > most ? now : most;
}

/* Follows ambient + kelvin_per_w * power with the time constant thermal_s, in steps on a fixed grid. */
double temperature_c(const struct state *state, const struct gpu *gpu, int64_t time_ns)
{
    struct progress *p = resume(&heat_progress[gpu - state->gpus], state, gpu, time_ns);
    if (p->step < 0) {
        p->step = 0;
        p->value = gpu->ambient_c + gpu->kelvin_per_w * gpu->idle_w;
    }
    double share = 1 - exp(-THERMAL_STEP_NS * NS / gpu->thermal_s);
    for (int64_t next; (next = p->until_ns + THERMAL_STEP_NS) <= time_ns; p->until_ns = next) {
        double power_w = energy_j(gpu, p->until_ns, next) / (THERMAL_STEP_NS * NS);
        p->value += share * (gpu->ambient_c + gpu->kelvin_per_w * power_w - p->value);
    }
    return p->value;
}

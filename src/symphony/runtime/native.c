/* Decisions of the learned policy and of the heuristic on one core, as `plain_network.py` and `plain_turn.py` have them.

   A small operation of NumPy costs a microsecond, and a decision has 250 of them. Here it is one call, whose cost is
   that of its arithmetic. The rules, and why they are so, are written down there; tests compare the two. Nothing of
   Python is used: the caller fills in the fields below, by the names and types that `native_layout` has, and calls.

   Dimensions: D devices, H hops, R rows, L lanes, Y kinds, Q resource kinds, J jobs, G gangs (J * tasks), T tasks of a
   graph, K tasks of the largest graph, N kernels, E edges. */

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef int64_t i8;
typedef int32_t i4;
typedef int8_t i1;
typedef float f4;
typedef double f8;

enum { WIDTH = 32, MEMORY = 64, WIDE = 2 * WIDTH, CONTEXT = 2 * MEMORY };
enum { MAX_CANDIDATES = 16, MAX_CHOICES = 8, MAX_PREEMPTS = 4, MAX_EVALUATED = 64, MAX_KINDS = 32 };
enum { SPANS = 7, LOCAL = 0, PEER = 6, PLACES = 5, COPIES = 4 };
enum { ABSENT, WAITING, READY, PLACING, QUEUED, RUNNING, SAVING, FINISHED, SAVED, DONE };
enum { PLACE, PREEMPT, RECONFIGURE, WAIT };
enum { QUEUE, RUNS, FETCH_ENGINE, READY_WORK, FREE_SLOTS, QUEUED_WORKERS, SLOTS, FREE_MEMORY, IDLE, UP, RECONFIGURATION,
       SLOWER_KIND, DEVICE_COLUMNS };
enum { REMAINING, CRITICAL, ISOLATED, NEXT_KIND, TAIL, JOB_WORK, AGE, SLOWDOWN, SHORTER_JOBS, READY_GANGS, UNFINISHED,
       INPUTS, WORKERS, PLACED, RESUMED, PREEMPTIBLE, WAITING_FOR, CHILDREN, GANG_COLUMNS };
enum { P_REGRET, P_DELAY, P_FINISH, P_QUEUE, P_FETCH, P_SETUP, P_ISOLATED, P_SLOWER_DEVICE, P_SLOWDOWN, P_UNCERTAINTY,
       P_HARM, P_EXCHANGE, P_IDLE, PAIR_COLUMNS };
enum { S_JOBS, S_READY, S_BUSY, S_WORK, S_PATH, S_IDLE, S_BACKGROUND, S_BACKGROUND_STD, SCENE_COLUMNS };
enum { ROW_COLUMNS = 3, OTHER_COLUMNS = 4 };

/* I: a number; F: a real number; A: an array, which the caller keeps. */
#define FIELDS(I, F, A)                                                                                                \
    /* sizes */                                                                                                        \
    I(devices) I(hops) I(rows) I(lanes) I(kinds) I(resources) I(jobs) I(tasks) I(known_tasks) I(edges) I(fan)          \
    I(one_memory) I(existing)                                                                                          \
    /* topology */                                                                                                     \
    A(i4, device_kind) A(i4, slots) A(i4, place) A(i4, peers) A(i4, route_row) A(i4, route_kind) A(i4, route_spans)    \
    A(i1, route_used) A(i4, lane_start) A(i1, exists) A(f8, capacity) A(f8, latency) A(f4, kind_memory)                \
    A(f8, is_compute) F(total_slots)                                                                                   \
    /* workload, which changes in place */                                                                             \
    A(f4, time_fixed) A(f4, time_work) A(f4, demand) A(i4, kernel) A(f4, work) A(f4, units) A(i4, in_start)            \
    A(i4, in_source) A(f4, in_bytes) A(f4, isolated) A(i1, preemptible) A(f4, checkpoint) A(f4, restore)               \
    /* core */                                                                                                         \
    A(i4, job) A(i4, graph) A(i4, home) A(i4, priority) A(f8, arrived) A(i4, unfinished)                               \
    A(i1, status) A(i4, workers) A(i4, runs_on) A(i4, inputs_left) A(i4, first_device) A(i1, resumed)                  \
    A(f8, held) A(i4, copies)                                                                                          \
    A(i1, up) A(i4, lanes_free) A(i4, queued) A(f8, queued_s) A(i4, memory_free)                                       \
    A(i4, lane_holds) A(f8, lane_since) A(f8, lane_estimate) A(f4, background) A(f4, deviation)                        \
    F(now_s) I(placing) I(placed) I(busy) A(i4, taken)                                                                 \
    /* tables of the graphs */                                                                                         \
    F(scale) I(any_preemptible) A(f4, gang_table) A(f4, best) A(f4, tail) A(f4, inputs) A(f4, fastest_s) A(f4, nodes)  \
    A(f4, slower_kind)                                                                                                 \
    /* network */                                                                                                      \
    I(late) I(some_devices) A(i4, row_from) A(i4, row_device) A(i4, device_from) A(i4, device_row)                     \
    A(f4, row_static) A(f4, w_row) A(f4, w_device) A(f4, b_device) A(f4, w_up) A(f4, b_up) A(f4, w_down)               \
    A(f4, b_down) A(f4, w_again) A(f4, b_again) A(f4, w_gang) A(f4, b_gang) A(f4, w_scene) A(f4, b_scene)              \
    A(f4, w_ih) A(f4, w_hh) A(f4, b_lstm) A(f4, w_pair) A(f4, b_pair) A(f4, w_pair_gang) A(f4, b_pair_gang)            \
    A(f4, w_pair_device) A(f4, b_pair_device) A(f4, w_pair_scene) A(f4, b_pair_scene) A(f4, w_score0) A(f4, b_score0)  \
    A(f4, w_score1) A(f4, b_score1) A(f4, w_other0) A(f4, b_other0) A(f4, w_other1) A(f4, b_other1)                    \
    A(f4, w_waiting0) A(f4, b_waiting0) A(f4, w_waiting1) A(f4, b_waiting1)                                            \
    F(regret) F(remaining) F(critical) F(queue) F(apart) F(idle_bias) A(f4, hidden) A(f4, cell)                        \
    /* constants of the rules */                                                                                       \
    F(max_log) F(max_backlog_s) F(max_regret) F(max_delay) F(overrun) F(min_share) F(min_wait_s) F(masked)             \
    /* room to work in */                                                                                              \
    I(stamp) A(f8, own) A(f8, load) A(f8, busiest) A(f8, running_s) A(f4, queue_s) A(i1, idle) A(i1, wants)            \
    A(f8, queue_mean) A(f8, queue_least) A(i8, queue_stamp) A(f8, contention) A(i8, pair_stamp)                        \
    A(f8, bandwidth) A(i8, bandwidth_stamp) A(f4, row_seen) A(f4, row_features) A(f4, row_first) A(f4, row_second)     \
    A(f4, device_first) A(f4, device_down) A(f4, device_last) A(f4, device_pair) A(i8, device_stamp)                   \
    A(i4, ready) A(i1, allowed_gang) A(i1, overdue_gang) A(f4, key) A(f4, left_s) A(f4, path_s) A(f4, job_columns)     \
    A(i1, job_overdue) A(i4, job_ready)                                                                                \
    /* answers */                                                                                                      \
    I(action) I(action_gang) I(action_device) F(wait_s) I(may_wait) I(candidates) I(choices) I(others)                 \
    A(i4, candidate) A(f4, gang_features) A(i4, pair_device) A(i1, pair_allowed) A(f4, pair_features)                  \
    A(f4, row_shown) A(f4, device_features) A(f4, scene) A(i4, victim) A(i4, victim_device)                            \
    A(f4, victim_features) A(f4, other_features)

#define INT_FIELD(name) i8 name;
#define REAL_FIELD(name) f8 name;
#define ARRAY_FIELD(type, name) type *name;
typedef struct {
    FIELDS(INT_FIELD, REAL_FIELD, ARRAY_FIELD)
} Tables;

#define INT_NAME(name) "i8 " #name ";"
#define REAL_NAME(name) "f8 " #name ";"
#define ARRAY_NAME(type, name) #type "* " #name ";"
const char native_layout[] = FIELDS(INT_NAME, REAL_NAME, ARRAY_NAME);
_Static_assert(sizeof(void *) == 8, "the caller takes every field to have 8 bytes");

#ifndef NATIVE_SOURCE
#define NATIVE_SOURCE ""
#endif
const char native_source[] = NATIVE_SOURCE;
const i4 native_sizes[] = {WIDTH, MEMORY, MAX_CANDIDATES, MAX_CHOICES, MAX_PREEMPTS};

#if defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#if __GNUC__ >= 12
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx2", "default")))
#endif
#else
#define FOR_EACH_PROCESSOR
#endif

/* As Python has them: a where b is NaN. */
static inline f8 max8(f8 a, f8 b) { return b > a ? b : a; }
static inline f8 min8(f8 a, f8 b) { return b < a ? b : a; }
static inline f4 max4(f4 a, f4 b) { return b > a ? b : a; }
static inline f4 log_part(const Tables *x, f8 value) { /* log of a share, clipped */
    return (f4)max8(min8(log(max8(value, 1e-12)), x->max_log), -x->max_log);
}
static inline f4 log1p_part(const Tables *x, f8 value) {
    return value > 0 ? (f4)min8(log1p(value), x->max_log) : 0;
}

/* y[after] += x[before] · w[before, after] */
static inline __attribute__((always_inline)) void
add(const f4 *restrict w, int before, int after, const f4 *restrict x, f4 *restrict y) {
    f4 sum[WIDE];
    memcpy(sum, y, sizeof(f4) * after);
    for (int i = 0; i < before; i++)
        for (int j = 0; j < after; j++) sum[j] += x[i] * w[i * after + j];
    memcpy(y, sum, sizeof(f4) * after);
}

static inline __attribute__((always_inline)) void
dense(const f4 *restrict w, const f4 *restrict b, int before, int after, const f4 *restrict x, f4 *restrict y) {
    memcpy(y, b, sizeof(f4) * after);
    add(w, before, after, x, y);
}

static inline __attribute__((always_inline)) void relu(f4 *x, int count) {
    for (int j = 0; j < count; j++) x[j] = max4(x[j], 0);
}

/* --- estimates */

static inline i8 row_of(const Tables *x, i8 gang) { return x->graph[gang / x->tasks] * x->tasks + gang % x->tasks; }

static inline f8 need_of(const Tables *x, i8 kernel, i8 device, i8 hop) {
    i8 at = device * x->hops + hop;
    i8 demand = (kernel * x->kinds + x->device_kind[device]) * x->resources + x->route_kind[at];
    return x->demand[demand] / x->capacity[x->route_row[at]];
}

/* Loads of rows by running workers, and with others. */
static void look_at_rows(Tables *x) {
    memset(x->own, 0, sizeof(f8) * x->rows);
    for (i8 device = 0; device < x->devices; device++)
        for (i8 lane = x->lane_start[device]; lane < x->lane_start[device + 1]; lane++) {
            if (x->lane_holds[lane] < 0) continue;
            i8 kernel = x->kernel[row_of(x, x->lane_holds[lane])];
            const i4 *rows = x->route_row + device * x->hops;
            for (i8 hop = 0; hop < x->hops; hop++) x->own[rows[hop]] += need_of(x, kernel, device, hop);
        }
    for (i8 row = 0; row < x->rows; row++) x->load[row] = x->own[row] + x->background[row];
}

/* Mean of max(1, L) for a load L that is normally distributed. */
static inline f8 row_slowdown(f8 load, f8 std) {
    f8 above = load - 1;
    if (std <= 0 || above > 6 * std) return max8(load, 1);
    if (above < -6 * std) return 1;
    f8 z = above / std, chance = 0.5 * erfc(-z * 0.70710678118654752), density = exp(-0.5 * z * z) * 0.3989422804014327;
    return 1 + above * chance + std * density;
}

/* Of work ahead of a new gang on a device: mean seconds, and those if overruns count. */
static void queue_moments(Tables *x, i8 device) {
    if (x->queue_stamp[device] == x->stamp) return;
    x->queue_stamp[device] = x->stamp;
    x->queue_mean[device] = x->queue_least[device] = 0;
    if (x->lanes_free[device] > 0 && x->queued[device] == 0) return;
    f8 left = 0, excess = 0, least = INFINITY;
    i8 runs = 0;
    for (i8 lane = x->lane_start[device]; lane < x->lane_start[device + 1]; lane++) {
        if (x->lane_holds[lane] < 0) {
            if (x->lane_holds[lane] == -1) least = 0;
            continue;
        }
        i8 kernel = x->kernel[row_of(x, x->lane_holds[lane])];
        f8 slow = 1, ran = x->now_s - x->lane_since[lane];
        for (i8 hop = 0; hop < x->hops; hop++)
            if (need_of(x, kernel, device, hop) > 0) {
                i8 row = x->route_row[device * x->hops + hop];
                slow = max8(slow, row_slowdown(x->load[row], x->deviation[row]));
            }
        left += max8(x->lane_estimate[lane] * slow - ran, 0);
        excess += slow - 1, runs++;
        least = min8(least, ran);
    }
    f8 slots = x->slots[device] > 1 ? x->slots[device] : 1, each = x->queued_s[device] / (runs > 1 ? runs : 1);
    f8 mean = (x->queued_s[device] + each * excess + left) / slots;
    x->queue_mean[device] = mean;
    x->queue_least[device] = max8(mean, isfinite(least) ? x->overrun * least : 0);
}

/* Of a kernel on a device: slow-down as it was trained with, with one more deviation, expected, by others alone; harm. */
enum { TRAINED, HIGH, SLOW, OTHERS, HARM, CONTENTION_PARTS };
static const f8 *contention(Tables *x, i8 known, i8 kernel, i8 device) {
    f8 *found = x->contention + (known * x->devices + device) * CONTENTION_PARTS;
    i8 *stamp = x->pair_stamp + known * x->devices + device;
    if (*stamp == x->stamp) return found;
    *stamp = x->stamp;
    f8 trained = 1, high = 1, slow = 1, others = 1, harm = 0;
    for (i8 hop = 0; hop < x->hops; hop++) {
        f8 need = need_of(x, kernel, device, hop);
        if (!(need > 0)) continue;
        i8 row = x->route_row[device * x->hops + hop];
        f8 load = x->load[row], total = load + need, std = x->deviation[row];
        trained = max8(trained, total), high = max8(high, total + std);
        slow = max8(slow, row_slowdown(total, std)), others = max8(others, row_slowdown(total - x->own[row], std));
        harm += x->own[row] * (max8(total, 1) / max8(load, 1) - 1);
    }
    found[TRAINED] = trained, found[HIGH] = high, found[SLOW] = slow, found[OTHERS] = others, found[HARM] = harm;
    return found;
}

static inline i8 span(const Tables *x, i8 a, i8 b) {
    const i4 *from = x->place + a * PLACES, *to = x->place + b * PLACES;
    if (from[0] == to[0]) return LOCAL;
    if (x->peers[a] >= 0 && x->peers[a] == x->peers[b]) return PEER;
    i8 level = 0;
    for (i8 place = 0; place < PLACES; place++)
        if (from[place] != to[place]) level = place + 1;
    return level;
}

static f8 bandwidth(Tables *x, i8 device, i8 reach) {
    f8 *found = x->bandwidth + device * SPANS;
    if (x->bandwidth_stamp[device] != x->stamp) {
        x->bandwidth_stamp[device] = x->stamp;
        for (i8 s = 0; s < SPANS; s++) found[s] = INFINITY;
        for (i8 hop = 0; hop < x->hops; hop++) {
            i8 at = device * x->hops + hop, row = x->route_row[at];
            f8 share = x->capacity[row] / (1 + x->load[row]);
            for (i8 s = 0; s < SPANS; s++)
                if (x->route_spans[at] >> s & 1) found[s] = min8(found[s], share);
        }
    }
    return found[reach];
}

/* The edges of the next few inputs that a gang has yet to fetch; returns how many there are. */
static i8 inputs_of(const Tables *x, i8 gang, i8 *first) {
    if (!x->inputs_left[gang]) return 0;
    i8 starts = x->graph[gang / x->tasks] * (x->tasks + 1) + gang % x->tasks + 1;
    *first = x->in_start[starts] - x->inputs_left[gang];
    return x->inputs_left[gang] < x->fan ? x->inputs_left[gang] : x->fan;
}

static i8 copies_of(const Tables *x, i8 gang, i8 edge, i4 copies[COPIES]) {
    i8 slot = gang / x->tasks, source = x->in_source[x->graph[slot] * x->edges + edge];
    if (source < 0) {
        copies[0] = x->home[slot];
        return 1;
    }
    memcpy(copies, x->copies + (slot * x->tasks + source) * COPIES, sizeof(i4) * COPIES);
    return COPIES;
}

static f8 fetch_s(Tables *x, i8 gang, i8 device) {
    if (x->one_memory) return 0;
    i8 first = 0, count = inputs_of(x, gang, &first);
    f8 found = 0;
    for (i8 edge = first; edge < first + count; edge++) {
        f8 size = x->in_bytes[x->graph[gang / x->tasks] * x->edges + edge], least = INFINITY;
        if (!(size > 0)) continue;
        i4 copies[COPIES];
        i8 many = copies_of(x, gang, edge, copies);
        for (i8 c = 0; c < many; c++) {
            if (copies[c] < 0) continue;
            i8 reach = span(x, copies[c], device);
            f8 speed = min8(bandwidth(x, copies[c], reach), bandwidth(x, device, reach));
            least = min8(least, reach == LOCAL ? 0 : size / speed + x->latency[reach]);
        }
        found += least;
    }
    return found;
}

static inline f8 kind_seconds(const Tables *x, i8 gang, i8 kind) {
    i8 at = row_of(x, gang), kernel = x->kernel[at] * x->kinds + kind;
    return ((f8)x->time_fixed[kernel] + (f8)x->time_work[kernel] * x->work[at]) * x->units[at];
}

static inline int may_take(const Tables *x, i8 gang, i8 device) {
    if (!x->up[device] || !(x->runs_on[gang] >> x->device_kind[device] & 1)) return 0;
    for (i8 i = 0; gang == x->placing && i < x->placed; i++)
        if (x->taken[i] == device) return 0;
    return 1;
}

/* The device with the least cost for `action_gang`, in `action_device`; ties go to the lowest number. */
void native_best_device(Tables *x) {
    i8 gang = x->action_gang, kernel = x->kernel[row_of(x, gang)];
    f8 least = INFINITY, seconds[MAX_KINDS];
    x->stamp++, x->action_device = -1;
    look_at_rows(x);
    for (i8 kind = 0; kind < x->kinds; kind++) seconds[kind] = kind_seconds(x, gang, kind);
    for (i8 device = 0; device < x->devices; device++) {
        if (!may_take(x, gang, device)) continue;
        if (x->action_device < 0) x->action_device = device;
        f8 run = seconds[x->device_kind[device]];
        if (!isfinite(run) || run >= least) continue;
        queue_moments(x, device);
        if (x->queue_mean[device] + run >= least) continue;
        const f8 *parts = contention(x, 0, kernel, device);
        run *= parts[SLOW];
        f8 cost = max8(x->queue_mean[device], fetch_s(x, gang, device)) + run + run * parts[HARM];
        if (cost < least) least = cost, x->action_device = device;
    }
}

/* --- features */

typedef struct {
    f8 up_of[MAX_KINDS], idle_of[MAX_KINDS];
    i8 idle, ready, jobs, allowed, overdue; /* counts; whether a gang is overdue */
    f8 work, path;
} Scene;

static void look_at_devices(Tables *x, Scene *s) {
    memset(s, 0, sizeof *s);
    for (i8 device = 0; device < x->devices; device++) {
        f8 left = 0;
        for (i8 lane = x->lane_start[device]; lane < x->lane_start[device + 1]; lane++)
            if (x->lane_holds[lane] >= 0)
                left += max8(x->lane_estimate[lane] - (x->now_s - x->lane_since[lane]), 0);
        int up = x->up[device], open = x->lanes_free[device] > 0 && x->queued[device] == 0;
        f8 slots = x->slots[device] > 1 ? x->slots[device] : 1;
        x->running_s[device] = left;
        x->queue_s[device] = open ? 0 : (f4)((x->queued_s[device] + left) / slots);
        x->idle[device] = up && open;
        x->wants[device] = up && (open || x->queue_s[device] < x->max_backlog_s);
        s->up_of[x->device_kind[device]] += up;
        s->idle_of[x->device_kind[device]] += up && open;
        s->idle += up && open;
    }
}

/* Gangs that may be placed: READY ones, or the rest of the one that is partly placed. */
static void look_at_gangs(Tables *x, Scene *s) {
    i8 count = 0;
    for (i8 gang = 0; gang < x->jobs * x->tasks; gang++)
        if (x->status[gang] == READY) x->ready[count++] = gang;
    s->ready = count;
    if (x->placing >= 0) x->ready[count++] = x->placing;
    for (i8 i = 0; i < count; i++) {
        i8 gang = x->ready[i];
        f8 able = 0;
        for (i8 kind = 0; kind < x->kinds; kind++)
            if (x->runs_on[gang] >> kind & 1) able += s->up_of[kind];
        x->allowed_gang[i] = able >= x->workers[gang] && (x->placing < 0 || gang == x->placing);
        x->overdue_gang[i] = 0;
        s->allowed += x->allowed_gang[i];
    }
    x->wait_s = INFINITY;
    if (!s->idle || x->placing >= 0) return;

    /* How long gangs that could start now may be held back: `scheduling/holding.py`. */
    f8 least[MAX_KINDS], soonest[MAX_KINDS];
    i8 here[MAX_KINDS];
    for (i8 kind = 0; kind < x->kinds; kind++) least[kind] = soonest[kind] = INFINITY, here[kind] = -1;
    for (i8 device = 0; device < x->devices; device++) {
        i8 kind = x->device_kind[device];
        if (x->idle[device] && x->busiest[device] < least[kind]) least[kind] = x->busiest[device], here[kind] = device;
        if (x->up[device]) soonest[kind] = min8(soonest[kind], x->queue_s[device]);
    }
    for (i8 i = 0; i < count; i++) {
        i8 gang = x->ready[i], kernel = x->kernel[row_of(x, gang)];
        f8 idle = 0, now_s = INFINITY, later_s = INFINITY;
        for (i8 kind = 0; kind < x->kinds; kind++)
            if (x->runs_on[gang] >> kind & 1) idle += s->idle_of[kind];
        if (!x->allowed_gang[i] || idle < x->workers[gang]) continue;
        for (i8 kind = 0; kind < x->kinds; kind++) {
            if (!(x->runs_on[gang] >> kind & 1)) continue;
            f8 seconds = kind_seconds(x, gang, kind), slow = 1;
            later_s = min8(later_s, seconds + soonest[kind]);
            if (here[kind] < 0) continue;
            for (i8 hop = 0; hop < x->hops; hop++) {
                f8 need = need_of(x, kernel, here[kind], hop);
                if (need > 0) slow = max8(slow, x->load[x->route_row[here[kind] * x->hops + hop]] + need);
            }
            now_s = min8(now_s, seconds * slow);
        }
        f8 gain = max8(now_s - later_s, 0), left = gain - x->held[gang];
        x->wait_s = min8(x->wait_s, left);
        if (left <= max8(x->min_share * gain, x->min_wait_s)) x->overdue_gang[i] = s->overdue = 1;
    }
}

enum { J_REMAINING, J_WORK, J_SLOWDOWN, J_AGE, J_READY, J_UNFINISHED, JOB_COLUMNS };
static const int JOB_COLUMN[JOB_COLUMNS] = {REMAINING, JOB_WORK, SLOWDOWN, AGE, READY_GANGS, UNFINISHED};

static void look_at_jobs(Tables *x, Scene *s) {
    f4 sum = 0;
    memset(x->job_ready, 0, sizeof(i4) * x->jobs);
    for (i8 i = 0; i < s->ready + (x->placing >= 0); i++) x->job_ready[x->ready[i] / x->tasks]++;
    for (i8 slot = 0; slot < x->jobs; slot++) {
        f4 left = 0, path = 0, *columns = x->job_columns + slot * JOB_COLUMNS;
        memset(columns, 0, sizeof(f4) * JOB_COLUMNS);
        x->left_s[slot] = x->path_s[slot] = 0;
        if (x->job[slot] < 0) continue;
        i8 known = x->graph[slot] * x->known_tasks;
        for (i8 task = 0; task < x->known_tasks; task++) {
            i1 status = x->status[slot * x->tasks + task];
            if (status == ABSENT || status == DONE || status == FINISHED) continue;
            left += x->best[known + task], path = max4(path, x->tail[known + task]);
        }
        f8 age = x->now_s - x->arrived[slot], slow = (age + path) / x->isolated[x->graph[slot]];
        x->left_s[slot] = left, x->path_s[slot] = path;
        s->jobs++, s->work += left, s->path += path, sum += (f4)slow;
        columns[J_REMAINING] = log_part(x, path / x->scale), columns[J_WORK] = log_part(x, left / x->scale);
        columns[J_SLOWDOWN] = log_part(x, slow), columns[J_AGE] = log1p_part(x, age / x->scale);
        columns[J_READY] = (f4)log1p(x->job_ready[slot]), columns[J_UNFINISHED] = (f4)log1p(x->unfinished[slot]);
    }
    for (i8 slot = 0; slot < x->jobs; slot++) {
        x->job_overdue[slot] = 0;
        if (x->job[slot] < 0) continue;
        f8 slow = (x->now_s - x->arrived[slot] + x->path_s[slot]) / x->isolated[x->graph[slot]];
        x->job_overdue[slot] = slow > x->max_delay * max8((sum - slow) / (s->jobs > 2 ? s->jobs - 1 : 1), 1);
    }
}

static inline i8 known_row(const Tables *x, i8 gang) {
    return x->graph[gang / x->tasks] * x->known_tasks + gang % x->tasks;
}

static void candidate_features(Tables *x, const i4 *gangs, i8 count, f4 *features) {
    for (i8 c = 0; c < count; c++, features += GANG_COLUMNS) {
        i8 gang = gangs[c], slot = gang / x->tasks, at = known_row(x, gang), shorter = 0;
        f4 path = x->path_s[slot];
        memcpy(features, x->gang_table + at * GANG_COLUMNS, sizeof(f4) * GANG_COLUMNS);
        for (int j = 0; j < JOB_COLUMNS; j++) features[JOB_COLUMN[j]] = x->job_columns[slot * JOB_COLUMNS + j];
        for (i8 other = 0; other < count; other++) shorter += path > x->path_s[gangs[other] / x->tasks];
        features[CRITICAL] = x->tail[at] / max4(path, 1e-12f);
        features[SHORTER_JOBS] = (f4)shorter / count;
        if (x->inputs_left[gang] > 0) features[INPUTS] = x->inputs[at];
        f4 placed = gang == x->placing ? x->placed : x->status[gang] >= QUEUED ? x->workers[gang] : 0;
        features[PLACED] = placed / (x->workers[gang] > 1 ? x->workers[gang] : 1);
        features[RESUMED] = x->resumed[gang];
    }
}

/* Candidates: of the highest priority, each job's most critical first, shortest job first. */
static void shortlist(Tables *x, Scene *s) {
    i8 count = s->ready + (x->placing >= 0), first = INT32_MIN, late = 0, allowed = 0;
    f4 *most = x->left_s; /* is no longer needed */
    for (i8 i = 0; i < count; i++)
        if (x->allowed_gang[i] && x->priority[x->ready[i] / x->tasks] > first)
            first = x->priority[x->ready[i] / x->tasks];
    for (i8 i = 0; i < count; i++) {
        i8 slot = x->ready[i] / x->tasks;
        x->allowed_gang[i] &= x->priority[slot] == first;
        late |= x->allowed_gang[i] && x->job_overdue[slot];
    }
    memset(most, 0, sizeof(f4) * x->jobs);
    for (i8 i = 0; i < count; i++) {
        i8 slot = x->ready[i] / x->tasks;
        x->allowed_gang[i] &= !late || x->job_overdue[slot];
        if (x->allowed_gang[i]) most[slot] = max4(most[slot], x->tail[known_row(x, x->ready[i])]), allowed++;
    }
    i8 urgent = -1, has_urgent = 0, kept = 0, position[MAX_CANDIDATES];
    for (i8 i = 0; i < count; i++) {
        if (!x->allowed_gang[i]) continue;
        i8 slot = x->ready[i] / x->tasks, at = kept;
        f4 path = x->path_s[slot], behind = 1 - x->tail[known_row(x, x->ready[i])] / max4(most[slot], 1e-12f);
        x->key[i] = behind + 0.5f * (path / (path + (f4)x->scale));
        if (x->overdue_gang[i] && (urgent < 0 || x->key[i] < x->key[urgent])) urgent = i;
        if (kept == MAX_CANDIDATES && !(x->key[i] < x->key[position[kept - 1]])) continue;
        if (kept < MAX_CANDIDATES) kept++;
        else at--;
        while (at > 0 && x->key[i] < x->key[position[at - 1]]) position[at] = position[at - 1], at--;
        position[at] = i;
    }
    for (i8 c = 0; c < kept; c++) has_urgent |= x->overdue_gang[position[c]];
    if (urgent >= 0 && !has_urgent) position[kept - 1] = urgent;
    for (i8 c = 0; c < kept; c++) x->candidate[c] = x->ready[position[c]];
    x->candidates = kept;
}

/* Devices where a gang may finish early, and those that hold its inputs, by a cheap estimate: `likely_devices`. */
static i8 likely_devices(Tables *x, i8 gang, const f8 *seconds, i4 *some) {
    f4 least[MAX_EVALUATED];
    i8 kept = 0, first = 0, edges = inputs_of(x, gang, &first), holds = 0;
    i4 holders[64];
    for (i8 edge = first; edge < first + edges && holds + COPIES <= 64; edge++)
        if (x->in_bytes[x->graph[gang / x->tasks] * x->edges + edge] > 0)
            holds += copies_of(x, gang, edge, holders + holds);
    for (i8 device = 0; device < x->devices; device++) {
        f8 run = seconds[x->device_kind[device]];
        if (!isfinite(run)) continue;
        f4 finish = x->queue_s[device] + (f4)(run * max8(x->busiest[device], 1));
        for (i8 i = 0; i < holds; i++)
            if (holders[i] == device) finish = 0;
        if (kept == MAX_EVALUATED && !(finish < least[kept - 1])) continue;
        if (!may_take(x, gang, device)) continue;
        i8 at = kept < MAX_EVALUATED ? kept++ : kept - 1;
        while (at > 0 && finish < least[at - 1]) least[at] = least[at - 1], some[at] = some[at - 1], at--;
        least[at] = finish, some[at] = device;
    }
    return kept;
}

/* For one candidate: the devices with the earliest finish times among those that can be trusted, and their features.
   `work_s`: seconds after which loads of our own are gone. */
static void pair_features(Tables *x, i8 c, i8 known, f8 work_s) {
    i8 gang = x->candidate[c], kernel = x->kernel[row_of(x, gang)], count = x->devices, kept = 0;
    i4 some[MAX_EVALUATED], chosen[MAX_CHOICES];
    f8 fetch[MAX_EVALUATED], cost[MAX_EVALUATED], finish[MAX_CHOICES], seconds[MAX_KINDS], least = INFINITY;
    for (i8 kind = 0; kind < x->kinds; kind++)
        seconds[kind] = x->runs_on[gang] >> kind & 1 ? kind_seconds(x, gang, kind) : INFINITY;
    if (x->devices > MAX_EVALUATED) count = likely_devices(x, gang, seconds, some);
    else
        for (i8 device = 0; device < x->devices; device++) some[device] = device;
    for (i8 i = 0; i < count; i++) {
        i8 device = some[i];
        f8 run = seconds[x->device_kind[device]];
        cost[i] = INFINITY;
        if (!isfinite(run) || !may_take(x, gang, device)) continue;
        const f8 *parts = contention(x, known, kernel, device);
        queue_moments(x, device);
        fetch[i] = fetch_s(x, gang, device);
        f8 run_s = run * parts[SLOW], share = run_s > work_s ? work_s / run_s : 1; /* under loads of our own */
        run_s = run * (share * parts[SLOW] * (1 + parts[HARM]) + (1 - share) * parts[OTHERS]);
        cost[i] = max8(x->queue_least[device], fetch[i]) + run_s;
        if (isnan(cost[i])) cost[i] = INFINITY;
        least = min8(least, cost[i]);
    }
    for (i8 i = 0; i < count; i++) {
        if (!isfinite(cost[i]) || cost[i] > (1 + x->max_regret) * least) continue;
        i8 device = some[i];
        f8 trained = contention(x, known, kernel, device)[TRAINED];
        f8 end = max8(x->queue_s[device], fetch[i]) + seconds[x->device_kind[device]] * trained;
        if (!isfinite(end) || (kept == x->choices && !(end < finish[kept - 1]))) continue;
        i8 at = kept < x->choices ? kept++ : kept - 1;
        while (at > 0 && end < finish[at - 1]) finish[at] = finish[at - 1], chosen[at] = chosen[at - 1], at--;
        finish[at] = end, chosen[at] = i;
    }
    f8 fastest = INFINITY;
    for (i8 i = 0; i < kept; i++) fastest = min8(fastest, seconds[x->device_kind[some[chosen[i]]]]);
    f4 *features = x->pair_features + c * x->choices * PAIR_COLUMNS;
    memset(features, 0, sizeof(f4) * x->choices * PAIR_COLUMNS);
    for (i8 i = 0; i < x->choices; i++, features += PAIR_COLUMNS) {
        x->pair_allowed[c * x->choices + i] = i < kept;
        x->pair_device[c * x->choices + i] = i < kept ? some[chosen[i]] : 0;
        if (i >= kept) continue;
        i8 device = some[chosen[i]];
        const f8 *parts = contention(x, known, kernel, device);
        f8 run = seconds[x->device_kind[device]];
        features[P_REGRET] = (f4)log1p(max8(finish[i] / max8(finish[0], 1e-12) - 1, 0));
        features[P_DELAY] = log1p_part(x, (finish[i] - finish[0]) / x->scale);
        features[P_FINISH] = log_part(x, finish[i] / x->scale);
        features[P_QUEUE] = log1p_part(x, x->queue_s[device] / x->scale);
        features[P_FETCH] = log1p_part(x, fetch[chosen[i]] / x->scale);
        features[P_ISOLATED] = log_part(x, run / x->scale);
        features[P_SLOWER_DEVICE] = (f4)log(run / fastest);
        features[P_SLOWDOWN] = (f4)log(parts[TRAINED]);
        features[P_UNCERTAINTY] = (f4)log(parts[HIGH] / parts[TRAINED]);
        features[P_HARM] = log1p_part(x, parts[HARM]);
        features[P_IDLE] = x->idle[device];
    }
}

/* Running gangs that are worth saving, the most work left first. */
static void other_actions(Tables *x, int allowed) {
    f4 most[MAX_PREEMPTS];
    x->others = 0;
    if (!x->any_preemptible || !allowed) return;
    for (i8 device = 0; device < x->devices; device++)
        for (i8 lane = x->lane_start[device]; lane < x->lane_start[device + 1]; lane++) {
            i8 gang = x->lane_holds[lane], at, seen = 0;
            if (gang < 0 || x->status[gang] != RUNNING || !x->preemptible[row_of(x, gang)]) continue;
            i8 row = row_of(x, gang);
            f8 ran = x->now_s - x->lane_since[lane];
            if (!(ran > x->checkpoint[row] + (f8)x->restore[row] * (1 + x->resumed[gang]))) continue;
            for (i8 i = 0; i < x->others; i++) seen |= x->victim[i] == gang;
            f4 left = x->best[known_row(x, gang)];
            if (seen) continue;
            for (at = x->others; at > 0 && (left > most[at - 1] || (left == most[at - 1] && gang < x->victim[at - 1]));)
                at--;
            if (at == MAX_PREEMPTS) continue;
            if (x->others < MAX_PREEMPTS) x->others++;
            for (i8 i = x->others - 1; i > at; i--)
                most[i] = most[i - 1], x->victim[i] = x->victim[i - 1], x->victim_device[i] = x->victim_device[i - 1];
            most[at] = left, x->victim[at] = gang, x->victim_device[at] = x->first_device[gang];
        }
    candidate_features(x, x->victim, x->others, x->victim_features);
    for (i8 i = 0; i < x->others; i++) {
        i8 row = row_of(x, x->victim[i]), device = x->victim_device[i];
        f4 *features = x->other_features + i * OTHER_COLUMNS;
        features[0] = 1, features[1] = log1p_part(x, most[i] / x->scale);
        features[2] = log1p_part(x, (x->checkpoint[row] + x->restore[row]) / x->scale);
        features[3] = (f4)x->lanes_free[device] / (x->slots[device] > 1 ? x->slots[device] : 1);
    }
}

static void device_features(Tables *x, const Scene *s) {
    f8 asked[MAX_KINDS], there[MAX_KINDS];
    f4 asks[MAX_KINDS];
    memset(asked, 0, sizeof asked), memset(there, 0, sizeof there);
    for (i8 i = 0; i < s->ready; i++)
        for (i8 kind = 0; kind < x->kinds; kind++)
            asked[kind] += x->fastest_s[known_row(x, x->ready[i]) * x->kinds + kind];
    for (i8 device = 0; device < x->devices; device++)
        if (x->up[device]) there[x->device_kind[device]] += x->slots[device] > 1 ? x->slots[device] : 1;
    for (i8 kind = 0; kind < x->kinds; kind++)
        asks[kind] = log1p_part(x, asked[kind] / max8(there[kind], 1) / x->scale);
    for (i8 device = 0; device < x->devices; device++) {
        f4 *features = x->device_features + device * DEVICE_COLUMNS;
        memset(features, 0, sizeof(f4) * DEVICE_COLUMNS);
        if (!x->up[device]) continue;
        i8 kind = x->device_kind[device];
        f8 slots = x->slots[device] > 1 ? x->slots[device] : 1;
        features[QUEUE] = log1p_part(x, x->queue_s[device] / x->scale);
        features[RUNS] = log1p_part(x, x->running_s[device] / slots / x->scale);
        features[READY_WORK] = asks[kind];
        features[FREE_SLOTS] = (f4)(x->lanes_free[device] / slots);
        features[QUEUED_WORKERS] = log1p_part(x, x->queued[device] / slots);
        features[SLOTS] = slots > 1 ? (f4)log(slots) : 0;
        features[FREE_MEMORY] = x->memory_free[device] / max4(x->kind_memory[kind], 1);
        features[IDLE] = x->idle[device], features[UP] = 1;
        features[SLOWER_KIND] = x->slower_kind[device];
    }
}

/* Everything that the network sees. Returns whether waiting and preemption are optional. */
static void see(Tables *x, Scene *s) {
    for (i8 device = 0; device < x->devices; device++) {
        f8 most = 0;
        for (i8 at = device * x->hops; at < (device + 1) * x->hops; at++)
            if (x->route_used[at]) most = max8(most, x->load[x->route_row[at]]);
        x->busiest[device] = most;
    }
    look_at_gangs(x, s);
    i8 enough = s->allowed;
    look_at_jobs(x, s);
    shortlist(x, s);
    candidate_features(x, x->candidate, x->candidates, x->gang_features);
    i8 any = 0, kernels[MAX_CANDIDATES];
    x->choices = x->devices < MAX_CHOICES ? x->devices : MAX_CHOICES;
    for (i8 c = 0; c < x->candidates; c++) { /* the first candidate with the same kernel keeps what is known of it */
        i8 known = 0;
        kernels[c] = x->kernel[row_of(x, x->candidate[c])];
        while (kernels[known] != kernels[c]) known++;
        pair_features(x, c, known, s->work / x->total_slots);
    }
    for (i8 i = 0; i < x->candidates * x->choices; i++) any |= x->pair_allowed[i];
    int optional = !s->overdue && x->placing < 0;
    other_actions(x, optional && s->ready > 0);
    device_features(x, s);
    x->may_wait = (x->busy > 0 && optional) || !any;
    x->scene[S_JOBS] = (f4)log1p(s->jobs), x->scene[S_READY] = (f4)log1p(enough), x->scene[S_BUSY] = (f4)log1p(x->busy);
    x->scene[S_WORK] = log1p_part(x, s->work / x->total_slots / x->scale);
    x->scene[S_PATH] = log1p_part(x, s->path / (s->jobs > 1 ? s->jobs : 1) / x->scale);
    x->scene[S_IDLE] = (f4)s->idle / x->devices;
    f8 mean = 0, std = 0;
    for (i8 row = 0; row < x->rows; row++) mean += x->background[row], std += x->deviation[row];
    x->scene[S_BACKGROUND] = (f4)(mean / x->rows), x->scene[S_BACKGROUND_STD] = (f4)(std / x->rows);
}

/* For tests: the features of one decision. */
void native_features(Tables *x) {
    Scene s;
    x->stamp++;
    look_at_devices(x, &s);
    look_at_rows(x);
    see(x, &s);
    for (i8 row = 0; row < x->rows; row++) {
        x->row_shown[row * ROW_COLUMNS] = log1p_part(x, x->own[row]);
        x->row_shown[row * ROW_COLUMNS + 1] = log1p_part(x, x->background[row]);
        x->row_shown[row * ROW_COLUMNS + 2] = log1p_part(x, x->deviation[row]);
    }
}

/* --- the network: `policies/learned.py` and `policies/encoders.py` */

/* y[WIDTH] = mean of the embeddings x[at[i]] */
static inline __attribute__((always_inline)) void
mean_of(const f4 *restrict x, const i4 *restrict at, i8 first, i8 end, f4 *restrict y) {
    f4 sum[WIDTH] = {0};
    for (i8 i = first; i < end; i++)
        for (int j = 0; j < WIDTH; j++) sum[j] += x[(i8)at[i] * WIDTH + j];
    f4 share = end > first ? 1.0f / (end - first) : 0;
    for (int j = 0; j < WIDTH; j++) y[j] = sum[j] * share;
}

/* Embeddings of devices: rows → devices → rows → devices. Those of rows are kept until their loads change. */
FOR_EACH_PROCESSOR static void embed_devices(Tables *x) {
    for (i8 row = 0; row < x->rows; row++) {
        if (x->row_from[row] == x->row_from[row + 1]) continue; /* no route crosses it */
        f4 now[ROW_COLUMNS] = {(f4)x->own[row], x->background[row], x->deviation[row]};
        f4 *seen = x->row_seen + row * ROW_COLUMNS, *features = x->row_features + row * ROW_COLUMNS;
        if (!memcmp(seen, now, sizeof now)) continue;
        for (int i = 0; i < ROW_COLUMNS; i++)
            if (seen[i] != now[i]) features[i] = now[i] > 0 ? log1pf(now[i]) : 0, seen[i] = now[i];
        for (int i = 0; i < ROW_COLUMNS; i++)
            if (features[i] > (f4)x->max_log) features[i] = (f4)x->max_log;
        f4 *first = x->row_first + row * WIDTH;
        memcpy(first, x->row_static + row * WIDTH, sizeof(f4) * WIDTH);
        add(x->w_row, ROW_COLUMNS, WIDTH, features, first);
        relu(first, WIDTH);
    }
    for (i8 device = 0; device < x->devices; device++) {
        if (!x->exists[device]) continue;
        f4 mean[WIDTH], *embedded = x->device_first + device * WIDTH;
        i8 first = x->device_from[device], end = x->device_from[device + 1];
        dense(x->w_device, x->b_device, DEVICE_COLUMNS, WIDTH, x->device_features + device * DEVICE_COLUMNS, embedded);
        if (end > first) {
            mean_of(x->row_first, x->device_row, first, end, mean);
            for (int j = 0; j < WIDTH; j++) embedded[j] += x->b_up[j];
            add(x->w_up, WIDTH, WIDTH, mean, embedded);
        }
        relu(embedded, WIDTH);
        dense(x->w_down, x->b_down, WIDTH, WIDTH, embedded, x->device_down + device * WIDTH);
    }
    for (i8 row = 0; row < x->rows; row++) {
        if (x->row_from[row + 1] - x->row_from[row] < 2) continue;
        f4 *second = x->row_second + row * WIDTH;
        mean_of(x->device_down, x->row_device, x->row_from[row], x->row_from[row + 1], second);
        for (int j = 0; j < WIDTH; j++) second[j] = max4(x->row_first[row * WIDTH + j] + second[j], 0);
    }
    for (i8 device = 0; device < x->devices; device++) {
        if (!x->exists[device]) continue;
        i8 first = x->device_from[device], end = x->device_from[device + 1];
        f4 *embedded = x->device_last + device * WIDTH, sum[WIDTH] = {0}, down[WIDTH];
        memcpy(down, x->device_down + device * WIDTH, sizeof down);
        memcpy(embedded, x->device_first + device * WIDTH, sizeof down);
        if (end > first) {
            for (i8 i = first; i < end; i++) {
                i8 row = x->device_row[i], own = x->row_from[row + 1] - x->row_from[row] < 2;
                const f4 *before = x->row_first + row * WIDTH, *second = x->row_second + row * WIDTH;
                if (own) /* only this device sends it a message */
                    for (int j = 0; j < WIDTH; j++) sum[j] += max4(before[j] + down[j], 0);
                else
                    for (int j = 0; j < WIDTH; j++) sum[j] += second[j];
            }
            for (int j = 0; j < WIDTH; j++) sum[j] /= end - first, embedded[j] += x->b_again[j];
            add(x->w_again, WIDTH, WIDTH, sum, embedded);
        }
        relu(embedded, WIDTH);
    }
}

static inline __attribute__((always_inline)) void embed_gang(const Tables *x, i8 gang, const f4 *features, f4 *y) {
    dense(x->w_gang, x->b_gang, GANG_COLUMNS, WIDTH, features, y);
    add(x->w_gang + GANG_COLUMNS * WIDTH, WIDTH, WIDTH, x->nodes + known_row(x, gang) * WIDTH, y);
    relu(y, WIDTH);
}

static inline __attribute__((always_inline)) f4
last_layer(const f4 *w, const f4 *b, f4 *hidden) { /* to one number */
    f4 sum = 0;
    for (int j = 0; j < WIDTH; j++) sum += max4(hidden[j], 0) * w[j];
    return sum + b[0];
}

static void remember(Tables *x, const f4 *scene) {
    f4 gates[4 * MEMORY];
    for (int g = 0; g < 4; g++) {
        f4 *gate = gates + g * MEMORY;
        for (int j = 0; j < MEMORY; j++) gate[j] = x->b_lstm[g * MEMORY + j];
        add(x->w_ih + g * MEMORY * MEMORY, MEMORY, MEMORY, scene, gate);
        add(x->w_hh + g * MEMORY * MEMORY, MEMORY, MEMORY, x->hidden, gate);
    }
    for (int j = 0; j < MEMORY; j++) {
        f4 in = 1 / (1 + expf(-gates[j])), keep = 1 / (1 + expf(-gates[MEMORY + j]));
        f4 out = 1 / (1 + expf(-gates[3 * MEMORY + j]));
        x->cell[j] = x->cell[j] * keep + tanhf(gates[2 * MEMORY + j]) * in;
        x->hidden[j] = tanhf(x->cell[j]) * out;
    }
}

/* Scores of all pairs, other actions and waiting. */
FOR_EACH_PROCESSOR static void score(Tables *x, f4 *scores, f4 *others, f4 *waits) {
    f4 gang[MAX_CANDIDATES][WIDTH], scene[MEMORY], inputs[WIDTH] = {0}, context[CONTEXT], order[MAX_CANDIDATES];
    f4 around[WIDE], best[WIDTH] = {0}, hidden[WIDTH], first = (f4)x->masked;
    i8 n = x->candidates, m = x->choices;
    memcpy(scene, x->b_scene, sizeof scene);
    add(x->w_scene, SCENE_COLUMNS, MEMORY, x->scene, scene);
    for (i8 c = 0; c < n; c++) {
        embed_gang(x, x->candidate[c], x->gang_features + c * GANG_COLUMNS, gang[c]);
        for (int j = 0; j < WIDTH; j++) inputs[j] += gang[c][j] / n;
    }
    add(x->w_scene + SCENE_COLUMNS * MEMORY, WIDTH, MEMORY, inputs, scene);
    memset(inputs, 0, sizeof inputs);
    for (i8 device = 0; device < x->devices; device++)
        if (x->exists[device])
            for (int j = 0; j < WIDTH; j++) inputs[j] += x->device_last[device * WIDTH + j];
    for (int j = 0; j < WIDTH; j++) inputs[j] /= x->existing > 1 ? x->existing : 1;
    add(x->w_scene + (SCENE_COLUMNS + WIDTH) * MEMORY, WIDTH, MEMORY, inputs, scene);
    relu(scene, MEMORY);
    remember(x, scene);
    memcpy(context, scene, sizeof scene), memcpy(context + MEMORY, x->hidden, sizeof(f4) * MEMORY);
    dense(x->w_pair_scene, x->b_pair_scene, CONTEXT, WIDE, context, around);

    for (i8 c = 0; c < n; c++) {
        const f4 *features = x->gang_features + c * GANG_COLUMNS;
        order[c] = (f4)x->critical * features[CRITICAL] - (f4)x->remaining * features[REMAINING];
        first = max4(first, order[c]);
    }
    for (i8 c = 0; c < n; c++) {
        const f4 *pair = x->pair_features + c * m * PAIR_COLUMNS;
        f4 mine[WIDE], mixed[WIDE];
        order[c] -= first + (f4)x->queue * max4(pair[P_QUEUE] - pair[P_FETCH], 0);
        dense(x->w_pair_gang, x->b_pair_gang, WIDTH, WIDE, gang[c], mine);
        for (int j = 0; j < WIDE; j++) mine[j] += around[j] + x->b_pair[j];
        for (i8 i = c * m; i < (c + 1) * m; i++, pair += PAIR_COLUMNS) {
            scores[i] = (f4)x->masked;
            if (!x->pair_allowed[i]) continue;
            i8 device = x->pair_device[i];
            f4 *here = x->device_pair + device * WIDE;
            if (x->device_stamp[device] != x->stamp) {
                x->device_stamp[device] = x->stamp;
                dense(x->w_pair_device, x->b_pair_device, WIDTH, WIDE, x->device_last + device * WIDTH, here);
            }
            for (int j = 0; j < WIDE; j++) mixed[j] = mine[j] + here[j];
            add(x->w_pair, PAIR_COLUMNS, WIDE, pair, mixed);
            relu(mixed, WIDE);
            for (int j = 0; j < WIDTH; j++) best[j] = max4(best[j], mixed[j]);
            dense(x->w_score0, x->b_score0, WIDE, WIDTH, mixed, hidden);
            scores[i] = last_layer(x->w_score1, x->b_score1, hidden) + order[c] - (f4)x->regret * pair[P_REGRET];
        }
    }
    for (i8 i = 0; i < x->others; i++) {
        const f4 *w = x->w_other0;
        f4 victim[WIDTH];
        embed_gang(x, x->victim[i], x->victim_features + i * GANG_COLUMNS, victim);
        dense(w, x->b_other0, OTHER_COLUMNS, WIDTH, x->other_features + i * OTHER_COLUMNS, hidden);
        add(w += OTHER_COLUMNS * WIDTH, WIDTH, WIDTH, victim, hidden);
        add(w += WIDTH * WIDTH, WIDTH, WIDTH, x->device_last + x->victim_device[i] * WIDTH, hidden);
        add(w += WIDTH * WIDTH, CONTEXT, WIDTH, context, hidden);
        others[i] = last_layer(x->w_other1, x->b_other1, hidden) + (f4)x->apart;
    }
    dense(x->w_waiting0, x->b_waiting0, CONTEXT, WIDTH, context, hidden);
    add(x->w_waiting0 + CONTEXT * WIDTH, WIDTH, WIDTH, best, hidden);
    *waits = x->may_wait ? last_layer(x->w_waiting1, x->b_waiting1, hidden) + (f4)x->idle_bias : (f4)x->masked;
}

/* Contention between two gangs of this kernel on a device: `late_binding.mutual_slowdown`. */
static f8 mutual_slowdown(const Tables *x, i8 kernel, i8 device) {
    f8 most = 1, sum = 0;
    for (i8 hop = 0; hop < x->hops; hop++) {
        if (x->is_compute[x->route_kind[device * x->hops + hop]]) continue;
        f8 need = need_of(x, kernel, device, hop), slow = max8(2 * need, 1);
        most = max8(most, slow), sum += need * (slow - 1);
    }
    return log(most) + min8(log1p(sum), x->max_log);
}

/* The best placement on a device that is about to be free, as `LateBinding`; leaves the action where there is none. */
static void bind_late(Tables *x, const f4 *scores) {
    f8 best = 0;
    i8 chosen = -1;
    for (i8 c = 0; c < x->candidates; c++) {
        i8 at = c * x->choices;
        for (i8 i = at; i < (c + 1) * x->choices; i++)
            if (scores[i] > scores[at]) at = i;
        i8 device = x->pair_device[at];
        if (!x->wants[device] || scores[at] <= x->masked / 2) continue;
        const f4 *pair = x->pair_features + at * PAIR_COLUMNS;
        f8 mutual = mutual_slowdown(x, x->kernel[row_of(x, x->candidate[c])], device);
        f8 worth = scores[at] - x->regret * (pair[P_SLOWDOWN] + pair[P_HARM] - mutual / 2);
        if (chosen < 0 || worth > best) best = worth, chosen = at;
    }
    if (chosen >= 0) {
        x->action_gang = x->candidate[chosen / x->choices], x->action_device = x->pair_device[chosen];
    } else if (x->may_wait) {
        x->action = WAIT;
    }
}

/* One decision: `action`, and what it is about; -1 where a score is not a number. */
void native_decide(Tables *x) {
    Scene s;
    f4 scores[MAX_CANDIDATES * MAX_CHOICES], others[MAX_PREEMPTS], waits, best = -INFINITY, other = -INFINITY;
    i8 at = 0, victim = 0, wants = 0;
    int broken;
    x->stamp++, x->action = WAIT, x->wait_s = INFINITY;
    look_at_devices(x, &s);
    for (i8 device = 0; device < x->devices; device++) wants |= x->wants[device];
    if (x->late && x->placing < 0 && !wants) return;
    look_at_rows(x);
    see(x, &s);
    embed_devices(x);
    score(x, scores, others, &waits);
    broken = isnan(waits);
    for (i8 i = 0; i < x->candidates * x->choices; i++) {
        broken |= isnan(scores[i]);
        if (scores[i] > best) best = scores[i], at = i;
    }
    for (i8 i = 0; i < x->others; i++)
        if (others[i] > other) other = others[i], victim = i;
    if (broken) {
        x->action = -1;
    } else if (best >= other && best >= waits) {
        x->action = PLACE, x->action_gang = x->candidate[at / x->choices], x->action_device = x->pair_device[at];
        if (x->late && x->placing < 0) bind_late(x, scores);
    } else if (other >= waits) {
        x->action = PREEMPT, x->action_gang = x->victim[victim], x->action_device = -1;
    }
}

/* One window of the filter over flows, as `update` of `flow_filter.py` has it: the rules and their reasons are there.

   In NumPy a window of one machine is 200 small operations, of a microsecond or more each. Here it is one call. Tests
   compare the two.

   Dimensions: G groups, E events, F flows, M runs, H hops, N readings of events and runs (at most E + M). */

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef int64_t i8;
typedef double f8;

enum { MAX_EXPLANATIONS = 8 };

/* The caller fills in these fields; `_Window` in flow_filter.py has the same, in this order. */
typedef struct {
    i8 groups, events, flows, runs, hops, explanations, clipped_flows;
    f8 burst, own_error, floor, freedom, run_error, max_rate, min_slow, min_evidence;
    const f8 *changes, *on_share, *on_mean, *on_std, *off_std, *drift, *lowest; /* [F] */
    const f8 *event, *counts;                                                   /* [G, E, F] */
    const f8 *windows;                                                          /* [G, F] */
    const f8 *rate, *own, *unseen, *read;                                       /* [G, E] */
    const f8 *slow, *error, *length, *run_freedom;                              /* [G, M]; the last may be absent, … */
    const f8 *run_own, *row, *uses;                                             /* [G, M, H] */
    const f8 *times;                                                            /* … and [G, M, F] with it */
    f8 *mean, *cov;                                                             /* [G, F], [G, F, F]: changed */
    f8 *room;                                                                   /* [flow_room()] */
} Window;

/* Readings of sums of flows, and what follows from them for a belief. */
typedef struct {
    i8 readings;
    f8 tails;                      /* log probability of errors that large */
    f8 *loads, *others, *noise;    /* [N, F]; [N]: less our own part; [N]: variance */
    f8 *root, *weighted, *moves;   /* with S = loads cov loads' + noise = root root': inv(root) loads, … loads cov */
    f8 *off;                       /* [N]: inv(root) (others - loads mean) */
} Evidence;

static inline f8 larger(f8 a, f8 b) { return a > b ? a : b; }
static inline f8 smaller(f8 a, f8 b) { return a < b ? a : b; }

static inline f8 dot(const f8 *restrict a, const f8 *restrict b, i8 count) {
    f8 sum = 0;
    for (i8 i = 0; i < count; i++) sum += a[i] * b[i];
    return sum;
}

/* loads' cov loads */
static f8 quadratic(const f8 *loads, const f8 *cov, i8 flows) {
    f8 sum = 0;
    for (i8 i = 0; i < flows; i++)
        for (i8 j = 0; j < flows && loads[i] != 0; j++)
            if (loads[j] != 0) sum += loads[i] * cov[i * flows + j] * loads[j];
    return sum;
}

/* Add a reading. `doubt`: variance of what was expected. The error is Student's t: a large one has a larger variance. */
static void add_reading(Evidence *e, f8 others, f8 expected, f8 noise, f8 freedom, f8 doubt) {
    f8 off = others - expected;
    f8 factor = larger((freedom + off * off / (noise + doubt)) / (freedom + 1), 1);
    e->tails += 0.5 * freedom * (1 - 1 / factor) - (0.5 * freedom + 1) * log(factor);
    e->others[e->readings] = others, e->noise[e->readings++] = noise * factor;
}

/* False for NaN, and for counters that go backwards. */
static inline int is_read(const Window *w, i8 at) {
    return w->read[at] && w->rate[at] >= 0 && w->rate[at] < w->max_rate && fabs(w->own[at]) < w->max_rate;
}

/* The readings of a window, with the errors of these levels. `halfway`: errors of events are those of a load halfway
   between what was expected and what was read. */
static void gather(const Window *w, i8 group, const f8 *mean, const f8 *cov, int halfway, Evidence *e) {
    i8 flows = w->flows, at = group * w->events;
    e->readings = 0, e->tails = 0;
    for (i8 i = 0; i < w->events; i++) {
        f8 rate = w->rate[at + i], own = w->own[at + i];
        if (!is_read(w, at + i)) continue;
        f8 *loads = e->loads + e->readings * flows;
        memcpy(loads, w->counts + (at + i) * flows, sizeof(f8) * flows);
        f8 expected = dot(loads, mean, flows), squared = 0.5 * (expected + larger(rate - own, 0));
        squared = halfway ? squared * squared : expected * expected + quadratic(loads, cov, flows);
        f8 noise = w->burst * w->burst * (squared + own * own) * w->unseen[at + i];
        noise += w->own_error * own * w->own_error * own + w->floor * w->floor;
        add_reading(e, rate - own, expected, noise, w->freedom, 0);
    }
    for (i8 run = group * w->runs; run < (group + 1) * w->runs; run++) {
        f8 busiest = 0, own = 0, slow = w->slow[run];
        const f8 *crossed = NULL;
        for (i8 hop = run * w->hops; hop < (run + 1) * w->hops; hop++) {
            if (!w->uses[hop] || !(fabs(w->run_own[hop]) < w->max_rate)) continue;
            const f8 *loads = w->event + (at + (i8)w->row[hop]) * flows;
            f8 load = dot(loads, mean, flows) + w->run_own[hop];
            if (!crossed || load > busiest) busiest = load, own = w->run_own[hop], crossed = loads;
        }
        if (!crossed || !(slow > 0 && slow < w->max_rate)) continue;
        f8 error = sqrt(w->run_error * w->run_error + w->error[run] * w->error[run]);
        int slowed = slow > 1 + 2 * error, says = slowed || busiest > 1;
        f8 noise = error * slow * error * slow * larger(w->length[run], 1);
        noise += w->own_error * own * w->own_error * own + w->floor * w->floor;
        f8 *loads = e->loads + e->readings * flows;
        for (i8 i = 0; i < flows; i++) loads[i] = says ? crossed[i] : 0;
        if (w->times == NULL) {
            f8 others = says ? (slowed ? slow : 1) - own : 0;
            add_reading(e, others, dot(loads, mean, flows), noise, w->freedom, 0);
        } else {
            f8 factor = larger(slow, w->min_slow), others = slow - (says ? own : 1);
            for (i8 i = 0; i < flows; i++) loads[i] += factor * w->times[run * flows + i];
            f8 doubt = quadratic(loads, cov, flows);
            add_reading(e, others, dot(loads, mean, flows), noise, w->run_freedom[run], doubt);
        }
    }
}

/* Factor the covariance of the readings under a belief; returns their log likelihood, up to a constant. */
static f8 factor(Evidence *e, const f8 *mean, const f8 *cov, i8 flows) {
    i8 n = e->readings;
    f8 fit = e->tails;
    for (i8 i = 0; i < n; i++) {
        f8 *loads = e->loads + i * flows, *moves = e->moves + i * flows, *root = e->root + i * n;
        memset(moves, 0, sizeof(f8) * flows);
        for (i8 j = 0; j < flows; j++)
            if (loads[j] != 0)
                for (i8 k = 0; k < flows; k++) moves[k] += loads[j] * cov[j * flows + k];
        for (i8 j = 0; j <= i; j++) root[j] = dot(moves, e->loads + j * flows, flows);
        root[i] += e->noise[i];
        e->off[i] = e->others[i] - dot(loads, mean, flows);
        memcpy(e->weighted + i * flows, loads, sizeof(f8) * flows);
    }
    for (i8 i = 0; i < n; i++) { /* Cholesky, and its inverse times the three right-hand sides */
        f8 *root = e->root + i * n;
        for (i8 j = 0; j <= i; j++) {
            root[j] -= dot(root, e->root + j * n, j);
            root[j] = j < i ? root[j] / e->root[j * n + j] : sqrt(larger(root[j], 1e-12));
            if (j == i) break;
            f8 share = root[j];
            for (i8 k = 0; k < flows; k++) {
                e->moves[i * flows + k] -= share * e->moves[j * flows + k];
                e->weighted[i * flows + k] -= share * e->weighted[j * flows + k];
            }
            e->off[i] -= share * e->off[j];
        }
        for (i8 k = 0; k < flows; k++) e->moves[i * flows + k] /= root[i], e->weighted[i * flows + k] /= root[i];
        e->off[i] /= root[i];
        fit -= log(root[i]) + 0.5 * e->off[i] * e->off[i];
    }
    return fit;
}

/* A flow that has been drawn anew, on or off. */
typedef struct {
    i8 flow, on;
    f8 prior, score; /* logarithms, relative to no change; the second with the likelihood of the readings */
} Change;

/* The most probable explanations by one flow that has been drawn anew; returns how many the readings speak for. */
static i8 explain(const Window *w, const Evidence *e, const f8 *mean, const f8 *cov, Change *found) {
    i8 count = 0, most = w->explanations - 1;
    for (i8 on = 0; on < 2; on++)
        for (i8 flow = 0; flow < w->flows; flow++) {
            f8 cc = 0, cs = 0, ss = 0, cv = 0, sv = 0;
            for (i8 i = 0; i < e->readings; i++) {
                f8 c = e->weighted[i * w->flows + flow], s = e->moves[i * w->flows + flow];
                cc += c * c, cs += c * s, ss += s * s, cv += c * e->off[i], sv += s * e->off[i];
            }
            f8 std = on ? w->on_std[flow] : w->off_std[flow], move = (on ? w->on_mean[flow] : 0) - mean[flow];
            f8 b = cs - 1, d = ss - cov[flow * w->flows + flow] - std * std;
            f8 determinant = larger(b * b - cc * d, 1e-9), u = cv - cc * move, v = sv - cs * move;
            f8 ratio = (2 * b * u * v - d * u * u - cc * v * v) / determinant;
            ratio = 0.5 * (ratio + 2 * move * cv - move * move * cc - log(determinant));
            if (!(ratio > w->min_evidence)) continue;
            f8 changes = w->changes[flow], share = on ? w->on_share[flow] : 1 - w->on_share[flow];
            Change new = {flow, on, log(changes / (1 - changes) * share), 0};
            new.score = new.prior + ratio;
            i8 at = count;
            while (at > 0 && new.score > found[at - 1].score) at--;
            if (at == most) continue;
            count += count < most;
            memmove(found + at + 1, found + at, sizeof(Change) * (count - 1 - at));
            found[at] = new;
        }
    return count;
}

static void change(const Window *w, Change c, f8 *mean, f8 *cov) {
    f8 std = c.on ? w->on_std[c.flow] : w->off_std[c.flow];
    mean[c.flow] = c.on ? w->on_mean[c.flow] : 0;
    for (i8 i = 0; i < w->flows; i++) cov[i * w->flows + c.flow] = cov[c.flow * w->flows + i] = 0;
    cov[c.flow * w->flows + c.flow] = std * std;
}

/* The belief before the window's readings: flows that were not read may have been drawn anew; all may have drifted. */
static void predict(const Window *w, i8 group, f8 *mean, f8 *cov) {
    i8 flows = w->flows;
    f8 *kept = w->room;
    for (i8 flow = 0; flow < flows; flow++) {
        f8 windows = w->windows[group * flows + flow];
        for (i8 at = group * w->events; at < (group + 1) * w->events && windows > 0; at++)
            if (is_read(w, at) && w->counts[at * flows + flow] > 0) windows = 0;
        kept[flow] = pow(1 - w->changes[flow], windows);
    }
    for (i8 i = 0; i < flows; i++) {
        f8 fresh = w->on_share[i] * w->on_mean[i], own = kept[i] * cov[i * flows + i], off = mean[i] - fresh;
        f8 variance = w->on_share[i] * (w->on_std[i] * w->on_std[i] + w->on_mean[i] * w->on_mean[i]) - fresh * fresh;
        for (i8 j = 0; j < flows; j++) cov[i * flows + j] *= kept[i] * kept[j];
        own += (1 - kept[i]) * variance + kept[i] * (1 - kept[i]) * off * off;
        mean[i] = kept[i] * mean[i] + (1 - kept[i]) * fresh;
        cov[i * flows + i] = own + w->drift[i] * mean[i] * w->drift[i] * mean[i];
    }
}

/* The mean, given that no level is below the lowest: those furthest below are raised, and others make up for it. */
static void not_below(const Window *w, f8 *mean, const f8 *cov) {
    for (i8 time = 0; time < w->clipped_flows; time++) {
        i8 worst = 0;
        f8 least = INFINITY;
        for (i8 i = 0; i < w->flows; i++) {
            f8 above = (mean[i] - w->lowest[i]) / sqrt(larger(cov[i * w->flows + i], 1e-12));
            if (above < least) least = above, worst = i;
        }
        f8 below = smaller(mean[worst] - w->lowest[worst], 0) / larger(cov[worst * w->flows + worst], 1e-12);
        if (below < 0)
            for (i8 i = 0; i < w->flows; i++) mean[i] -= cov[i * w->flows + worst] * below;
    }
    for (i8 i = 0; i < w->flows; i++) mean[i] = larger(mean[i], w->lowest[i]);
}

/* How many numbers fit into `room`. */
i8 flow_room(i8 events, i8 flows, i8 runs, i8 explanations) {
    i8 n = events + runs, beliefs = 2 * explanations - 1;
    return 3 * n * flows + n * n + 3 * n + flows + beliefs * (flows + flows * flows + 1);
}

void flow_update(const Window *w) {
    i8 flows = w->flows, n = w->events + w->runs, square = flows * flows;
    f8 *next = w->room + flows;
    Evidence e = {0};
    f8 **arrays[] = {&e.loads, &e.weighted, &e.moves, &e.root, &e.others, &e.noise, &e.off};
    i8 lengths[] = {n * flows, n * flows, n * flows, n * n, n, n, n};
    for (int i = 0; i < 7; i++) *arrays[i] = next, next += lengths[i];
    f8 *means = next, *covs = means + (2 * w->explanations - 1) * flows;
    f8 *weights = covs + (2 * w->explanations - 1) * square;
    for (i8 group = 0; group < w->groups; group++) {
        f8 *mean = w->mean + group * flows, *cov = w->cov + group * square, most = -INFINITY, sum = 0;
        Change first[MAX_EXPLANATIONS], second[MAX_EXPLANATIONS];
        predict(w, group, mean, cov);
        gather(w, group, mean, cov, 1, &e);
        factor(&e, mean, cov, flows);
        i8 singles = explain(w, &e, mean, cov, first), pairs = 0;
        memcpy(means, mean, sizeof(f8) * flows), memcpy(covs, cov, sizeof(f8) * square), weights[0] = 0;
        for (i8 k = 0; k < singles; k++) {
            f8 *new_mean = means + (1 + k) * flows, *new_cov = covs + (1 + k) * square;
            memcpy(new_mean, mean, sizeof(f8) * flows), memcpy(new_cov, cov, sizeof(f8) * square);
            change(w, first[k], new_mean, new_cov);
            weights[1 + k] = first[k].prior;
        }
        if (singles) { /* a second change beside the most probable one */
            factor(&e, means + flows, covs + square, flows);
            pairs = explain(w, &e, means + flows, covs + square, second);
            for (i8 k = 0; k < pairs; k++) {
                f8 *new_mean = means + (1 + singles + k) * flows, *new_cov = covs + (1 + singles + k) * square;
                memcpy(new_mean, means + flows, sizeof(f8) * flows);
                memcpy(new_cov, covs + square, sizeof(f8) * square);
                change(w, second[k], new_mean, new_cov);
                weights[1 + singles + k] = first[0].prior + second[k].prior;
            }
        }
        i8 all = 1 + singles + pairs;
        for (i8 k = 0; k < all; k++) {
            f8 *m = means + k * flows, *c = covs + k * square;
            gather(w, group, m, c, 0, &e);
            weights[k] += factor(&e, m, c, flows);
            most = larger(most, weights[k]);
            for (i8 i = 0; i < e.readings; i++) {
                const f8 *moves = e.moves + i * flows;
                for (i8 j = 0; j < flows; j++) {
                    m[j] += moves[j] * e.off[i];
                    for (i8 l = 0; l < flows; l++) c[j * flows + l] -= moves[j] * moves[l];
                }
            }
        }
        memset(mean, 0, sizeof(f8) * flows), memset(cov, 0, sizeof(f8) * square);
        for (i8 k = 0; k < all; k++) sum += weights[k] = exp(weights[k] - most);
        for (i8 k = 0; k < all; k++)
            for (i8 i = 0; i < flows; i++) mean[i] += weights[k] / sum * means[k * flows + i];
        for (i8 k = 0; k < all; k++) {
            const f8 *m = means + k * flows, *c = covs + k * square;
            for (i8 i = 0; i < flows; i++)
                for (i8 j = 0; j < flows; j++)
                    cov[i * flows + j] += weights[k] / sum * (c[i * flows + j] + (m[i] - mean[i]) * (m[j] - mean[j]));
        }
        not_below(w, mean, cov);
    }
}

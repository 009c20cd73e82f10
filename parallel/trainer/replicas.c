/* replicas.c -- compares the data that several ranks hold in common, by 64-bit hashes. See
 * replicas.h.
 *
 * The device computes one hash for each part of a unit that is held in common. The hash of several
 * parts is the sum of their hashes (op_hash), so a part that several groups of ranks hold in common
 * is read only once. In each group the ranks find the largest and the smallest hash. Only if these
 * two differ do the ranks send each other their hashes. */
#include "parallel/trainer/replicas.h"

#include "model/core/min_max.h"
#include "model/kernels/ops.h"
#include "parallel/comm/rank_list.h"
#include "parallel/grid/control.h"
#include "parallel/grid/machines.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is held in common ------------------------------------------------------------------ */

/* The kinds of groups whose ranks hold parts of units in common. */
typedef enum { OVER_DATA, OVER_GROUPS, OVER_TENSOR, OVER_HEADS, OVER_STAGES, OVERS } Over;
static const char *const over_name[OVERS] = {
    "data-parallel ranks", "ranks of several shard groups", "tensor-parallel ranks",
    "tensor-parallel ranks that share a kv head", "pipeline stages that share a tied table"};

/* What a part contains: weights of the unit, or one of its optimizer states. */
enum { KIND_WEIGHTS, KIND_SLOTS, KINDS = KIND_SLOTS + SLOT_MAX };

/* A part of a unit that is held in common. */
typedef struct {
    Tensor x;      /* flat, on the device */
    int64_t first; /* index of its first element in the unit */
    int unit, kind;
    bool over[OVERS]; /* over[g]: the ranks of group g hold it in common */
} Part;

typedef struct {
    Part *part;
    int n, room;
} Parts;

static Comm *group_of(Session *s, Over over)
{
    Grid *grid = &s->grid;
    Comm *group[OVERS] = {&grid->dp, &grid->replicate, &grid->tp, &grid->kv, &grid->tie};
    return group[over];
}

/* Returns over how many tensor-parallel ranks the gradient of rows of this kind is summed; 1: it is
 * not summed. */
static int addends_of(const Session *s, TpGrad kind)
{
    bool split = s->config->parallel.sequence_parallel;
    switch (kind) {
    case TP_GRAD_PARTIAL: return s->grid.tp.size;
    case TP_GRAD_PARTIAL_IF_SP: return split ? s->grid.tp.size : 1;
    case TP_GRAD_SUBGROUP: return s->grid.kv.size;
    case TP_GRAD_CUT:
    case TP_GRAD_WHOLE: break;
    }
    return 1;
}

/* Returns whether the ranks of this group all update this range of a unit themselves and get the
 * same bits. They get the same bits if they have the same gradient, because the norm is the same on
 * all ranks (session_sum_stats).
 *
 * Sums in rank order have the same bits in every group of ranks. NCCL gives all ranks of a group
 * the same sum, but another group may add equal numbers in another order, unless there are only
 * two. So with NCCL a gradient is equal on the ranks of a group if it was summed over them, and all
 * later sums had at most two addends. A gradient is summed over the data-parallel ranks, then over
 * tensor-parallel ones, then over the two stages of a tied table. */
static bool updates_alike(const Session *s, Over over, const Unit *unit, const Range *range)
{
    const Param *row = &s->table.param[unit->first];
    while (row->offset != range->offset)
        row++;
    bool ordered = !session_connects(s);
    int addends = addends_of(s, range->tp_grad);
    switch (over) {
    /* The sum over tensor-parallel ranks follows the sum over data-parallel ranks. */
    case OVER_DATA: return s->config->zero_optimization.stage == 0 && (ordered || addends <= 2);
    case OVER_GROUPS: return false; /* each of these ranks updates a different share */
    case OVER_TENSOR: return row->tp_dim < 0 && (ordered || addends > 1 || s->grid.dp.size <= 2);
    case OVER_HEADS: return row->tp_dim >= 0 && row->sharers > 1;
    case OVER_STAGES: return unit->home.n > 1;
    case OVERS: break;
    }
    return false;
}

static void add_part(Parts *parts, Part part)
{
    bool common = false;
    for (int over = 0; over < OVERS; over++)
        common |= part.over[over];
    if (!common || !tensor_present(part.x)) return;
    if (parts->n == parts->room) {
        parts->room = parts->room > 0 ? 2 * parts->room : 64;
        parts->part = must_realloc(parts->part, (size_t)parts->room * sizeof *parts->part);
    }
    parts->part[parts->n++] = part;
}

/* Adds to `parts` this rank's shard of a range, and the optimizer states of the shard. */
static void add_shard(Parts *parts, const Trainer *t, const Shard *shard)
{
    const Session *s = &t->session;
    const Unit *unit = &s->table.unit[shard->unit];
    const Range *range = &unit->range[0];
    /* The padding at the end of the unit belongs to the last range. */
    for (int r = 1; r < unit->n_ranges && unit->range[r].offset <= shard->offset; r++)
        range = &unit->range[r];
    Part part = {.x = shard->weight, .first = shard->offset, .unit = shard->unit};
    for (int over = 0; over < OVERS; over++)
        part.over[over] =
            group_of((Session *)s, over)->size > 1 && updates_alike(s, (Over)over, unit, range);
    add_part(parts, part);
    for (int slot = 0; slot < SLOT_MAX; slot++) {
        part.x = optimizer_slot_of(&t->optimizer, shard, slot);
        part.kind = KIND_SLOTS + slot;
        add_part(parts, part);
    }
}

/* Lists all parts that this rank holds in common with other ranks. All ranks of a group list the
 * same parts for the group. */
static Parts parts_of(Trainer *t)
{
    Session *s = &t->session;
    Parts parts = {0};
    int n = s->params->shards(s->params, PURPOSE_UPDATE, NULL, 0);
    Shard *shard = must_calloc((size_t)n + 1, sizeof *shard);
    s->params->shards(s->params, PURPOSE_UPDATE, shard, n);
    for (int i = 0; i < n; i++)
        add_shard(&parts, t, &shard[i]);
    free(shard);
    /* From stage 1 on each weight is updated by one rank and copied to the others, so the copies
     * are compared, too. */
    if (s->grid.dp.size == 1 || s->config->zero_optimization.stage == 0) return parts;
    for (int u = 0; u < s->table.n_units; u++) {
        add_part(
            &parts,
            (Part){.x = zero_whole_weights(s->store, u), .unit = u, .over = {[OVER_DATA] = true}});
        add_part(
            &parts,
            (Part){.x = zero_common_part(s->store, u), .unit = u, .over = {[OVER_GROUPS] = true}});
    }
    return parts;
}

/* ---- hashes ---------------------------------------------------------------------------------- */

static int64_t count_of(const Session *s)
{
    return (int64_t)s->table.n_units * KINDS;
}

/* Adds the hash of each part to the hashes of the groups that hold it: hash[over][unit * KINDS +
 * kind]. */
static void add_hashes(Trainer *t, const Parts *parts, uint64_t *hash)
{
    Device *dev = &t->session.dev;
    int64_t *far = t->state->hash, near[REPLICA_HASHES], count = count_of(&t->session);
    for (int at = 0; at < parts->n; at += REPLICA_HASHES) {
        int some = (int)min_i64(parts->n - at, REPLICA_HASHES);
        op_fill(dev, tensor_1d(far, I64, REPLICA_HASHES), 0);
        for (int i = 0; i < some; i++) {
            const Part *p = &parts->part[at + i];
            op_hash(dev, tensor_1d(far + i, I64, 1), p->x,
                    p->first * (int64_t)dtype_size(p->x.dtype) / 8);
        }
        device_copy_words(dev, near, far, sizeof near);
        device_synchronize(dev);
        for (int i = 0; i < some; i++) {
            const Part *p = &parts->part[at + i];
            for (int over = 0; over < OVERS; over++)
                if (p->over[over])
                    hash[over * count + (int64_t)p->unit * KINDS + p->kind] += (uint64_t)near[i];
        }
    }
}

/* Returns the first of n hashes that is not the same on all ranks of the group; n: there is none.
 */
static int64_t first_difference(Comm *group, const uint64_t *hash, int64_t n)
{
    int64_t first = n, *most = must_alloc(2 * (size_t)n * sizeof *most);
    if (group->size == 1) {
        free(most);
        return n;
    }
    for (int64_t i = 0; i < n; i++) {
        most[i] = (int64_t)hash[i];
        most[n + i] = (int64_t)~hash[i]; /* the maximum of these is the complement of the minimum */
    }
    comm_all_reduce(group, NULL, tensor_1d(most, I64, 2 * n), REDUCE_MAX);
    for (int64_t i = n; i-- > 0;)
        if (most[i] != ~most[n + i]) first = i;
    free(most);
    return first;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* The ranks of a group, divided into the majority that has the same hash, and the others. If there
 * is no majority, all ranks are in `others`. */
typedef struct {
    int *most, *others;
    int n_most, n_others;
} Vote;

/* Divides the ranks of the group by their hashes; all of its ranks call it. */
static Vote vote_of(Comm *group, int rank, uint64_t hash)
{
    size_t n = (size_t)group->size;
    int64_t mine[2] = {rank, (int64_t)hash}, *all = must_calloc(2 * n, sizeof *all);
    Vote v = {.most = must_calloc(n, sizeof *v.most), .others = must_calloc(n, sizeof *v.others)};
    comm_all_gather(group, NULL, tensor_1d(all, I64, (int64_t)(2 * n)), tensor_1d(mine, I64, 2));
    /* If a majority has the same hash, this hash remains after pairs of unequal hashes are removed
     * (Boyer and Moore). */
    int64_t majority = 0;
    for (size_t i = 0, left = 0; i < n; i++) {
        if (left == 0) majority = all[2 * i + 1];
        left = all[2 * i + 1] == majority ? left + 1 : left - 1;
    }
    size_t votes = 0;
    for (size_t i = 0; i < n; i++)
        votes += all[2 * i + 1] == majority;
    for (size_t i = 0; i < n; i++) {
        if (2 * votes > n && all[2 * i + 1] == majority)
            v.most[v.n_most++] = (int)all[2 * i];
        else
            v.others[v.n_others++] = (int)all[2 * i];
    }
    free(all);
    return v;
}

static const char *host_name(const void *world, int rank)
{
    return machines_host(world, machines_machine(world, rank));
}

/* Writes "ranks 3, 5 on n2" to `text`, and returns it. */
static const char *ranks_text(const Comm *world, const int *rank, int n, char *text, size_t bytes)
{
    char list[RANK_LIST_BYTES], on[RANK_HOSTS_BYTES];
    RankHosts hosts = {.name = machines_of(world).count > 1 ? host_name : NULL, .of = world};
    rank_list(rank, n, list, sizeof list);
    rank_hosts(&hosts, rank, n, on, sizeof on);
    snprintf(text, bytes, "%s%s%s", list, on[0] ? " " : "", on);
    return text;
}

/* Writes the name of a unit to `text`, and returns it: "block.3", or the name of its first
 * parameter. */
static const char *unit_text(const ParamTable *table, int unit, char *text, size_t n)
{
    const char *name = table->param[table->unit[unit].first].name;
    size_t digits, block = strlen("block.");
    snprintf(text, n, "%s", name);
    if (strncmp(name, "block.", block) != 0) return text;
    digits = strspn(name + block, "0123456789");
    if (block + digits < n) text[block + digits] = '\0';
    return text;
}

/* Sets err to a sentence about the difference; all ranks of the group must call it. */
static void describe(Trainer *t, Over over, int64_t item, uint64_t hash, char *err, size_t n)
{
    Session *s = &t->session;
    int unit = (int)(item / KINDS), kind = (int)(item % KINDS);
    char name[64], others[RANK_LIST_BYTES + RANK_HOSTS_BYTES],
        most[RANK_LIST_BYTES + RANK_HOSTS_BYTES];
    const char *state =
        kind == KIND_WEIGHTS ? NULL : optimizer_slot_name(t->optimizer.rule, kind - KIND_SLOTS);
    Vote v = vote_of(group_of(s, over), s->world->rank, hash);
    ranks_text(s->world, v.others, v.n_others, others, sizeof others);
    ranks_text(s->world, v.most, v.n_most, most, sizeof most);
    unit_text(&s->table, unit, name, sizeof name);
    if (v.n_most > 0)
        error_set(err, n, "%s differ in the %s%s of %s: %s, from the others (%s)", over_name[over],
                  state ? "optimizer state " : "weights", state ? state : "", name, others, most);
    else
        error_set(err, n, "%s differ in the %s%s of %s: %s; there is no majority", over_name[over],
                  state ? "optimizer state " : "weights", state ? state : "", name, others);
    free(v.most);
    free(v.others);
}

/* If one rank differs in more groups than every other rank, and in at least two, appends a text to
 * err that names this rank. */
static void add_suspect(Comm *world, int groups, char *err, size_t n)
{
    int64_t most = control_max(world, groups);
    int64_t ranks = control_sum(world, groups == most);
    int rank = (int)control_max(world, groups == most ? world->rank : 0);
    char text[RANK_LIST_BYTES + RANK_HOSTS_BYTES];
    size_t used = strlen(err);
    if (most < 2 || ranks > 1) return;
    snprintf(err + used, n - used, "; only %s differs in %lld groups",
             ranks_text(world, &rank, 1, text, sizeof text), (long long)most);
}

bool trainer_replicas_equal(Trainer *t, char *err, size_t n)
{
    Session *s = &t->session;
    int64_t count = count_of(s), first[OVERS];
    int groups = 0, worst = OVERS;
    if (s->world == NULL || s->world->size == 1) return true;
    uint64_t *hash = must_calloc((size_t)(OVERS * count), sizeof *hash);
    zero_gather_parts(s->store);
    /* Gathers of updated weights may still be running on the comm stream, so the device is waited
     * for. */
    device_synchronize(&s->dev);
    Parts parts = parts_of(t);
    add_hashes(t, &parts, hash);
    free(parts.part);
    for (int over = OVERS; over-- > 0;) {
        first[over] = first_difference(group_of(s, (Over)over), hash + over * count, count);
        if (first[over] == count) continue;
        groups++;
        worst = over;
    }
    bool equal = control_max(s->world, groups) == 0;
    for (int over = 0; over < OVERS && !equal; over++) {
        char other[2048], *to = over == worst ? err : other;
        if (first[over] < count)
            describe(t, (Over)over, first[over], hash[over * count + first[over]], to,
                     over == worst ? n : sizeof other);
    }
    free(hash);
    if (equal) return true;
    control_agree(s->world, groups == 0, err, n);
    add_suspect(s->world, groups, err, n);
    return false;
}

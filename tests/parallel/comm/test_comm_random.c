/* test_comm_random.c -- runs random sequences of collectives and messages over random groups, both
 * on thread ranks and in a sequential simulation. At the end the memory of all ranks must be equal,
 * bit for bit. */
#include "model/core/check.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_RANKS = 6, SPLITS = 4, CALLS = 40, LETTERS = 10, LONGEST = 50 };
/* A rank's numbers of one type. Calls work on the first half; results that are not in place go to
 * the second half. */
enum { HALF = MOST_RANKS * LONGEST, MEMORY = 2 * HALF };
enum { BARRIER = COMM_SEND, MESSAGES = COMM_RECEIVE, KINDS = COMM_VERBS };

typedef struct {
    int kind, split; /* index of the split whose groups make the call; 0 is the world */
    int color;       /* color of the only group that makes the call; -1: all groups of the split */
    int64_t n, root;
    DType dtype;
    ReduceOp op;
    bool in_place;
    int letters, from[LETTERS], to[LETTERS]; /* world ranks of each message */
} Call;

typedef struct {
    uint64_t seed;
    int ranks, color[SPLITS][MOST_RANKS], key[SPLITS][MOST_RANKS];
    Call call[CALLS];
    bool on_device;
} Program;

typedef struct {
    double f64[MEMORY];
    float f32[MEMORY];
} Memory;

static uint64_t draw(uint64_t *seed, uint64_t n)
{
    *seed += 0x9e3779b97f4a7c15u;
    uint64_t x = (*seed ^ *seed >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (x >> 32) % n;
}

static Program program_of(uint64_t seed)
{
    Program p = {.seed = seed, .ranks = 2 + (int)draw(&seed, MOST_RANKS - 1)};
    p.on_device = draw(&seed, 2);
    for (int s = 1; s < SPLITS; s++)
        for (int r = 0; r < p.ranks; r++) {
            p.color[s][r] = (int)draw(&seed, (uint64_t)s + 1);
            p.key[s][r] = (int)draw(&seed, 4);
        }
    for (int i = 0; i < CALLS; i++) {
        Call *c = &p.call[i];
        *c = (Call){.kind = (int)draw(&seed, KINDS), .split = (int)draw(&seed, SPLITS)};
        c->color = draw(&seed, 3) ? -1 : (int)draw(&seed, (uint64_t)c->split + 1);
        c->n = (int64_t)draw(&seed, LONGEST + 1);
        c->root = (int64_t)draw(&seed, MOST_RANKS);
        c->dtype = draw(&seed, 2) ? F64 : F32;
        c->op = draw(&seed, 3) ? REDUCE_SUM : REDUCE_MAX;
        c->in_place = draw(&seed, 2);
        c->letters = c->kind == MESSAGES ? 1 + (int)draw(&seed, LETTERS) : 0;
        for (int l = 0; l < c->letters; l++) {
            c->from[l] = (int)draw(&seed, (uint64_t)p.ranks);
            c->to[l] = (c->from[l] + 1 + (int)draw(&seed, (uint64_t)p.ranks - 1)) % p.ranks;
        }
    }
    return p;
}

static void fill(Memory *m, int rank)
{
    uint64_t seed = 1000 + (uint64_t)rank;
    for (int i = 0; i < MEMORY; i++) {
        m->f64[i] = (double)draw(&seed, 1 << 30) / (1 << 30) - 0.5;
        m->f32[i] = (float)m->f64[i];
    }
}

/* Returns n elements of the call's type, starting at `first`. */
static Tensor at(Memory *m, const Call *c, int64_t first, int64_t n)
{
    return c->dtype == F64 ? tensor_1d(m->f64 + first, F64, n) : tensor_1d(m->f32 + first, F32, n);
}

/* Return the part of member `me` of its group, and the memory that a message is sent from and
 * received to. */
static Tensor part_of(Memory *m, const Call *c, int me)
{
    return at(m, c, c->in_place ? me * c->n : HALF, c->n);
}

static Tensor letter_sent(Memory *m, const Call *c, int l)
{
    return at(m, c, l, c->n / 2);
}

static Tensor letter_received(Memory *m, const Call *c, int l)
{
    return at(m, c, HALF + l * (LONGEST / 2), c->n / 2);
}

/* ---- simulation: one call after the other ---------------------------------------------------- */

/* Writes the ranks of the color, ordered by key and then by rank, and returns their number. */
static int members(const Program *p, int split, int color, int *member)
{
    int n = 0;
    for (int key = 0; key < 4; key++)
        for (int r = 0; r < p->ranks; r++)
            if (p->color[split][r] == color && p->key[split][r] == key) member[n++] = r;
    return n;
}

static void copy(Tensor to, Tensor from)
{
    memmove(to.data, from.data, tensor_bytes(from));
}

/* Returns element i of the members' memory, reduced in their order. */
static double reduced(const Call *c, Memory *all, const int *member, int size, int64_t i)
{
    double x = dtype_get(c->dtype, at(&all[member[0]], c, i, 1).data, 0);
    for (int k = 1; k < size; k++) {
        double y = dtype_get(c->dtype, at(&all[member[k]], c, i, 1).data, 0);
        double sum = c->dtype == F32 ? (double)((float)x + (float)y) : x + y;
        x = c->kind == COMM_ALL_REDUCE && c->op == REDUCE_MAX ? (y > x ? y : x) : sum;
    }
    return x;
}

static void simulate_group(const Call *c, Memory *all, const int *member, int size)
{
    double sum[MOST_RANKS * LONGEST];
    int64_t n = c->n, most = c->kind == COMM_REDUCE_SCATTER ? n * size : n;
    for (int64_t i = 0; i < most; i++)
        sum[i] = reduced(c, all, member, size, i);
    for (int k = 0; k < size; k++) {
        Memory *m = &all[member[k]];
        for (int64_t i = 0; i < n && c->kind == COMM_ALL_REDUCE; i++)
            dtype_set(c->dtype, at(m, c, i, 1).data, 0, sum[i]);
        for (int64_t i = 0; i < n && c->kind == COMM_REDUCE_SCATTER; i++)
            dtype_set(c->dtype, part_of(m, c, k).data, i, sum[k * n + i]);
        if (c->kind == COMM_BROADCAST)
            copy(at(m, c, 0, n), at(&all[member[c->root % size]], c, 0, n));
        for (int j = 0; j < size && c->kind == COMM_ALL_GATHER && !c->in_place; j++)
            copy(at(m, c, j * n, n), part_of(&all[member[j]], c, j));
    }
    /* In place, a rank's own part keeps its value and is copied to the others. */
    for (int k = 0; k < size; k++)
        for (int j = 0; j < size && c->kind == COMM_ALL_GATHER && c->in_place; j++)
            copy(at(&all[member[k]], c, j * n, n), part_of(&all[member[j]], c, j));
}

static void simulate(const Program *p, Memory *all)
{
    for (int i = 0; i < CALLS; i++) {
        const Call *c = &p->call[i];
        int member[MOST_RANKS];
        for (int l = 0; l < c->letters; l++)
            copy(letter_received(&all[c->to[l]], c, l), letter_sent(&all[c->from[l]], c, l));
        for (int color = 0; color < SPLITS; color++) {
            int size = members(p, c->split, color, member);
            if (size > 0 && c->kind < BARRIER && (c->color < 0 || c->color == color))
                simulate_group(c, all, member, size);
        }
    }
}

/* ---- on thread ranks ------------------------------------------------------------------------- */

/* Each rank makes its calls in another order. Only messages of the same pair keep their order. */
static void exchange(Comm *world, Device *on, const Call *c, Memory *m)
{
    comm_group_begin(world);
    for (int pass = 0; pass < 2; pass++)
        for (int l = 0; l < c->letters; l++) {
            bool sends = c->from[l] == world->rank, first;
            /* All sends and receives of a pair are in the same pass. */
            first = sends ? (c->to[l] + world->rank) % 3 == 0 : (c->from[l] + world->rank) % 2 == 0;
            if (first != (pass == 0)) continue;
            if (sends) comm_send(world, on, letter_sent(m, c, l), c->to[l]);
            if (c->to[l] == world->rank)
                comm_receive(world, on, letter_received(m, c, l), c->from[l]);
        }
    comm_group_end(world);
}

static void make_call(Comm *world, Comm *comm, Device *on, const Call *c, Memory *m)
{
    Tensor x = at(m, c, 0, c->n), whole = at(m, c, 0, c->n * comm->size);
    switch (c->kind) {
    case COMM_ALL_REDUCE: comm_all_reduce(comm, on, x, c->op); break;
    case COMM_REDUCE_SCATTER:
        comm_reduce_scatter(comm, on, part_of(m, c, comm->rank), whole);
        break;
    case COMM_ALL_GATHER: comm_all_gather(comm, on, whole, part_of(m, c, comm->rank)); break;
    case COMM_BROADCAST: comm_broadcast(comm, on, x, (int)(c->root % comm->size)); break;
    case BARRIER: comm_barrier(comm); break;
    default: exchange(world, on, c, m);
    }
}

typedef struct {
    const Program *program;
    Memory *expected;
} Run;

static void run_program(Comm *world, void *context)
{
    const Run *run = context;
    const Program *p = run->program;
    Comm group[SPLITS];
    Device device;
    DeviceOptions options = {.threads = 1, .blas = BLAS_BUILTIN};
    Memory *m = must_alloc(sizeof *m);
    char err[256];
    if (!device_open(&device, "cpu", &options, err, sizeof err)) _exit(1);
    fill(m, world->rank);
    for (int s = 1; s < SPLITS; s++)
        group[s] = comm_split(world, "part", p->color[s][world->rank], p->key[s][world->rank]);
    for (int i = 0; i < CALLS; i++) {
        const Call *c = &p->call[i];
        bool takes_part = c->color < 0 || c->color == p->color[c->split][world->rank];
        if (takes_part || c->kind == MESSAGES)
            make_call(world, c->split ? &group[c->split] : world, p->on_device ? &device : NULL, c,
                      m);
    }
    const Memory *expected = &run->expected[world->rank];
    for (int i = 0; i < MEMORY; i++)
        if (memcmp(&m->f64[i], &expected->f64[i], 8) != 0 ||
            memcmp(&m->f32[i], &expected->f32[i], 4) != 0) {
            rank_wrong(world, "program %llu: element %d is %.17g, %.9g, not %.17g, %.9g",
                       (unsigned long long)p->seed, i, m->f64[i], (double)m->f32[i],
                       expected->f64[i], (double)expected->f32[i]);
            break;
        }
    for (int s = 1; s < SPLITS; s++)
        comm_close(&group[s]);
    comm_barrier(world); /* other ranks may still be reading this rank's memory */
    device_close(&device);
    free(m);
}

static void test_random_call_sequences_give_the_same_bits_as_a_simulation(void **state)
{
    (void)state;
    bool sample = getenv("TEST_SAMPLE") != NULL;
    Memory *expected = must_calloc(MOST_RANKS, sizeof *expected);
    for (uint64_t seed = 1; seed <= (sample ? 40 : 300); seed++) {
        Program p = program_of(seed);
        for (int r = 0; r < p.ranks; r++)
            fill(&expected[r], r);
        simulate(&p, expected);
        thread_ranks(p.ranks, 60, run_program, &(Run){&p, expected});
    }
    free(expected);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_call_sequences_give_the_same_bits_as_a_simulation)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

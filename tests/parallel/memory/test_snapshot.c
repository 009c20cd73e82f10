/* test_snapshot.c -- tests that the memory for snapshots of asynchronous saves is what the plan
 * says, on each rank, and is planned only if there is room for it. */
#include "model/core/figures.h"
#include "model/core/log.h"
#include "parallel/memory/memory_plan.h"
#include "parallel/memory/saved_bytes.h"
#include "tests/support/grid/thread_ranks.h"
#include "tests/support/trainer/trainer_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* ---- how much -------------------------------------------------------------------------------- */

#define SAVES "checkpoint.save_interval=2", "train_steps=8"

static void allocates_its_plan(const Folder *folder, const char *type)
{
    Opened o;
    trainer_run_open(&o, folder, (const char *const[]){SAVES, type, NULL});
    assert_null(o.trainer.async); /* a trainer saves asynchronously only if saves_async is set */
    const Training training = {.config = o.config, .data = o.data};
    Trainer t;
    training_lay_out(&t, NULL, &training);
    MemoryPlan plan = memory_plan(&t, &o.data);
    t.saves_async = true;
    training_allocate(&t, &training);
    assert_non_null(t.async);
    assert_true(plan.snapshot > (size_t)plan.checkpoint);
    assert_true(plan.snapshot < (size_t)plan.checkpoint + 8192);
    assert_int_equal(t.session.dev.host_held - o.trainer.session.dev.host_held, plan.snapshot);
    assert_int_equal(plan.host, o.plan.host);
    trainer_close(&t);
    trainer_run_close(&o);
}

/* The snapshots of f32 weights, and of bf16 weights with f32 master weights. */
static void a_trainer_allocates_the_snapshot_of_its_plan(void **state)
{
    allocates_its_plan(*state, "bf16.enabled=false");
    allocates_its_plan(*state, "bf16.enabled=true");
}

static void no_snapshot_is_planned_for_a_run_that_saves_only_at_its_end(void **state)
{
    static const char *const sets[][4] = {
        {"checkpoint.save_interval=0", "train_steps=8"},
        {"checkpoint.save_interval=8", "train_steps=8"},
        {"checkpoint.save_interval=2", "train_steps=8", "checkpoint.async=false"}};
    for (int i = 0; i < 3; i++) {
        Opened o;
        trainer_run_open(&o, *state, sets[i]);
        assert_int_equal(o.plan.snapshot, 0);
        trainer_run_close(&o);
    }
}

static int64_t one_of(const Opened *o, int rank)
{
    return (int64_t)snapshot_bytes_of(o->config, &o->trainer.session.table, 7, rank);
}

/* Together, the snapshots of the writers hold the whole checkpoint; those of other ranks hold only
 * a StepState. */
static void the_snapshots_of_all_ranks_add_up_to_the_checkpoint(void **state)
{
    Opened o;
    trainer_run_open(&o, *state, (const char *const[]){SAVES, "checkpoint.writers=3", NULL});
    const ParamTable *table = &o.trainer.session.table;
    int64_t sum = 0, writing = 0;
    for (int rank = 0; rank < 7; rank++) {
        int64_t bytes = (int64_t)snapshot_bytes_of(o.config, table, 7, rank);
        int64_t rest = (int64_t)sizeof(StepState) + 4 * 64;
        sum += bytes;
        writing += bytes > rest;
        if (bytes > rest) assert_in_range(bytes, o.plan.checkpoint / 6, o.plan.checkpoint / 2);
    }
    assert_int_equal(writing, 3);
    /* Ranks 0, 2 and 4 write: with two ranks per node, a node has at most one writer; with four
     * ranks, at most two. */
    int64_t one = snapshot_bytes_of_node(o.config, 7, 2),
            two = snapshot_bytes_of_node(o.config, 7, 4);
    assert_int_equal(snapshot_bytes_of_node(o.config, 7, 7), two + one_of(&o, 4));
    assert_true(one < two && one >= one_of(&o, 0) && two == one_of(&o, 0) + one_of(&o, 2));
    assert_in_range(sum, o.plan.checkpoint,
                    o.plan.checkpoint + 7 * ((int64_t)sizeof(StepState) + 256));
    trainer_run_close(&o);
}

/* ---- whether there is room ------------------------------------------------------------------- */

/* Each of three ranks needs 1000 bytes, and 100 for its snapshot. */
static MemoryPlan plan_of_rank(bool on_host)
{
    return (MemoryPlan){
        .total = 1000, .host = 200, .snapshot = 100, .on_host = on_host, .ranks = 1, .of = 1};
}

/* Reads what this rank has logged; "" if nothing. */
static void read_said(FILE *from, char *out, size_t n)
{
    rewind(from);
    out[fread(out, 1, n - 1, from)] = '\0';
}

static void decide(Comm *world, void *context)
{
    const size_t *available = context;
    char said[512], notice[256] = "";
    FILE *log = tmpfile();
    MemoryPlan own = plan_of_rank(true), all = memory_plan_of_ranks(world, &own, 0);
    bool fits = *available >= 3300;
    if (all.snapshot != 300) rank_wrong(world, "%zu for all snapshots", all.snapshot);
    MemoryRoom room = {.available = *available};
    log_set_file(log);
    if (memory_take_snapshot(world, &room, &own, &all) != fits)
        rank_wrong(world, "%zu available: not %d", *available, fits);
    log_set_file(NULL);
    read_said(log, said, sizeof said);
    fclose(log);
    /* The notice says how much memory is missing. */
    if (!fits)
        snprintf(notice, sizeof notice,
                 "checkpoint.async: training waits while a checkpoint is written, because a "
                 "snapshot needs %s more of the host's memory than are free",
                 figure_bytes((double)(3300 - *available)).text);
    if (fits ? said[0] != '\0' : strstr(said, notice) == NULL)
        rank_wrong(world, "%zu available: \"%s\", not \"%s\"", *available, said, notice);
    if (all.total != (fits ? 3300 : 3000) || all.host != (fits ? 900 : 600) ||
        all.snapshot != (fits ? 300 : 0) || own.total != (fits ? 1100 : 1000))
        rank_wrong(world, "%zu available: %zu in all", *available, all.total);
}

static void saves_are_asynchronous_if_the_plan_has_room_for_a_snapshot(void **state)
{
    (void)state;
    static const size_t available[] = {3299, 3300, 4000, 2000, 0};
    for (int i = 0; i < 5; i++)
        thread_ranks(3, 60, decide, (void *)(uintptr_t)&available[i]);
}

/* A device's plan is compared with its own memory, and the snapshot with that of the host. */
static void decide_beside_a_device(Comm *world, void *context)
{
    const size_t *snapshot = context;
    MemoryPlan own = plan_of_rank(false);
    own.snapshot = *snapshot;
    MemoryPlan all = memory_plan_of_ranks(world, &own, world->rank);
    MemoryRoom room = {.device = true, .available = 0, .host = SIZE_MAX / 8};
    bool fits = *snapshot < SIZE_MAX / 4;
    if (memory_take_snapshot(world, &room, &own, &all) != fits) rank_wrong(world, "not %d", fits);
    if (own.total != 1000 || own.host != (fits ? 200 + *snapshot : 200))
        rank_wrong(world, "%zu and %zu on the host", own.total, own.host);
}

static void with_a_gpu_the_hosts_memory_decides_about_asynchronous_saves(void **state)
{
    (void)state;
    static const size_t snapshot[] = {100, SIZE_MAX / 2};
    for (int i = 0; i < 2; i++)
        thread_ranks(2, 60, decide_beside_a_device, (void *)(uintptr_t)&snapshot[i]);
}

/* A snapshot holds a second copy of the states on the host. Because the states are page-locked, 150
 * of 3000 bytes (5 %) are kept free for the system. */
static void decide_beside_states(Comm *world, void *context)
{
    const size_t *host = context;
    MemoryPlan own = plan_of_rank(false);
    own.offloaded = own.offloaded_of_device = 150;
    own.snapshot = 1225;
    MemoryPlan all = memory_plan_of_ranks(world, &own, world->rank);
    MemoryRoom room = {.device = true, .host = *host};
    bool fits = *host == 3000;
    if (all.host != 400 || all.snapshot != 2450)
        rank_wrong(world, "%zu and %zu of snapshots on the host", all.host, all.snapshot);
    if (memory_take_snapshot(world, &room, &own, &all) != fits)
        rank_wrong(world, "%zu: not %d", *host, fits);
    if (all.host != (fits ? 2850 : 400)) rank_wrong(world, "%zu: %zu on the host", *host, all.host);
    if (all.host > memory_host_room(&all, &room))
        rank_wrong(world, "a snapshot keeps it from running");
}

static void states_on_the_host_leave_less_room_for_snapshots(void **state)
{
    (void)state;
    static const size_t host[] = {3000, 2998};
    for (int i = 0; i < 2; i++)
        thread_ranks(2, 60, decide_beside_states, (void *)(uintptr_t)&host[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trainer_allocates_the_snapshot_of_its_plan),
        cmocka_unit_test(no_snapshot_is_planned_for_a_run_that_saves_only_at_its_end),
        cmocka_unit_test(the_snapshots_of_all_ranks_add_up_to_the_checkpoint),
        cmocka_unit_test(saves_are_asynchronous_if_the_plan_has_room_for_a_snapshot),
        cmocka_unit_test(with_a_gpu_the_hosts_memory_decides_about_asynchronous_saves),
        cmocka_unit_test(states_on_the_host_leave_less_room_for_snapshots),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}

/* save_faults.c -- makes saves that fail, and looks at what they leave. See save_faults.h. */
#include "tests/support/checkpoint/save_faults.h"

#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/wait.h>
#include <unistd.h>

void save_fault_leaves(TestRun *r, const SaveFault *f, bool saved, const char *err, int64_t newest)
{
    bool always = f->fault == FAULT_ALWAYS;
    if (!saved && strstr(err, strerror(f->error)) == NULL)
        fail_msg("rank %d, call %d: no reason in '%s'", f->rank, f->at, err);
    /* If the disk keeps failing from the very last sync on, the complete save cannot be undone and
     * stays. */
    if (newest != (saved ? 2 : 1) && !(newest == 2 && f->rank == 0 && always))
        fail_msg("rank %d, call %d: step %lld is the newest (%s)", f->rank, f->at,
                 (long long)newest, saved ? "saved" : err);
    /* Some removals fail on a dead disk of rank 0. */
    int entries = test_run_entries(r), most = always && f->rank == 0 ? 2 : 1;
    if (!saved && (entries < 1 || entries > most))
        fail_msg("rank %d, call %d leaves %d entries: %s", f->rank, f->at, entries, err);
    test_run_goes_on(r);
}

bool save_kill_leaves(TestRun *r, const SaveFault *f, pid_t process, int64_t (*newest)(TestRun *r))
{
    int status;
    assert_int_equal(waitpid(process, &status, 0), process);
    bool killed = WIFEXITED(status) && WEXITSTATUS(status) == FAULTY_KILLED;
    assert_true(killed || status == 0);
    int64_t step = newest(r);
    if (step != 2 && (step != 1 || !killed))
        fail_msg("rank %d killed at call %d: step %lld is the newest", f->rank, f->at,
                 (long long)step);
    test_run_must_save(r, step + 1);
    assert_true(checkpoint_prune(&r->io, r->run, step + 1, 1, r->err, sizeof r->err));
    assert_int_equal(test_run_entries(r), 1);
    assert_int_equal(test_run_newest(r), step + 1);
    return killed;
}

static void save_body(Comm *world, void *context)
{
    ranks_save_here(context, world);
}

static int64_t resume_step(TestRun *r)
{
    return ranks_resume_step(r);
}

/* The save in a process of its own. */
static bool is_killed(TestRun *r, TestRanks *saving, const SaveFault *f)
{
    pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        thread_ranks(saving->ranks, 60, save_body, saving);
        _exit(saving->good[0] ? 0 : 1);
    }
    return save_kill_leaves(r, f, process, resume_step);
}

static bool fails(TestRun *r, TestRanks *saving, const SaveFault *f)
{
    ranks_save(saving);
    bool saved = ranks_agree(saving), reached = saving->fs[f->rank].calls >= f->at;
    assert_true(saved || reached);
    save_fault_leaves(r, f, saved, saving->err[0], ranks_resume_step(r));
    return reached;
}

bool ranks_save_with_fault(const TestRanks *how, const SaveFault *f)
{
    TestRun r;
    FaultyFs fs[RANKS_MOST];
    TestRanks saving = *how;
    test_run_open(&r);
    test_run_must_save(&r, 1);
    ranks_disks(fs, saving.ranks);
    faulty_fs_init(&fs[f->rank], f->fault, f->at, f->error);
    saving.run = r.run;
    saving.step = 2;
    saving.fs = fs;
    bool reached = f->fault == FAULT_KILL ? is_killed(&r, &saving, f) : fails(&r, &saving, f);
    test_run_close(&r);
    return reached;
}

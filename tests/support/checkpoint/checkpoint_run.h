/* checkpoint_run.h -- a run to be saved, without a model: one tensor of every type, in odd shapes,
 * whose contents are a function of the step. For the tests of checkpoints. */
#ifndef TESTS_SUPPORT_CHECKPOINT_CHECKPOINT_RUN_H
#define TESTS_SUPPORT_CHECKPOINT_CHECKPOINT_RUN_H

#include "parallel/checkpoint/checkpoint.h"

enum { N_WEIGHTS = 9, N_SLOTS = 3, N_ALL = N_WEIGHTS + N_SLOTS };

typedef struct {
    Piece tensor[N_ALL]; /* weights, then slots */
    StepState state;
    CheckpointIo io;
    char run[1400], err[1024];
} TestRun;

typedef struct {
    const char *name;
    DType dtype;
    int ndim;
    int64_t dim[4];
} TestTensor;
extern const TestTensor test_tensors[N_ALL];

/* A run in a new folder of its own, its tensors zero. */
void test_run_open(TestRun *r);
/* Removes the folder. */
void test_run_close(TestRun *r);
/* Gives tensors and state the values of that step. */
void test_run_fill(TestRun *r, int64_t step);
CheckpointContents test_run_contents(TestRun *r);
/* Fills and saves; must_save fails the test when that fails. */
bool test_run_save(TestRun *r, int64_t step);
void test_run_must_save(TestRun *r, int64_t step);
/* Opens a run and saves its steps 1 and 2; the file system calls of the second go to `log`, of 4096
 * bytes (tests/support/files/faulty_fs.h). */
void test_run_open_logged(TestRun *r, char *log);
/* Saves steps 2 and 3, of which all must be there once older ones are removed: what a save of step
 * 2 that failed, or came late, must not hinder. */
void test_run_goes_on(TestRun *r);
/* Reads all tensors from an opened checkpoint. */
bool test_run_read(TestRun *r, Checkpoint *c);
/* The step of the newest checkpoint that verifies, after comparing it bit by bit with that step's
 * values; -1: none. */
int64_t test_run_newest(TestRun *r);
/* How many entries RUN/checkpoints has, leftovers included. */
int test_run_entries(const TestRun *r);
/* Path of a file of the step's checkpoint; the caller frees. */
char *test_run_file(const TestRun *r, int64_t step, const char *file);
/* Opens and verifies the step's checkpoint; the reason is in r->err. */
bool test_run_whole(TestRun *r, int64_t step);

/* `./train ckpt COMMAND PATH`: its exit code; what it prints goes to the file `output`. */
int test_ckpt(const char *command, const char *path, const char *output);

/* Gives a manifest of no tensors the world of one rank and its two files, as small as they get. */
void manifest_two_files(Manifest *m);

/* Flips the bits of `mask` in one byte of a file; tells a file's size. */
void file_flip(const char *path, int64_t at, unsigned char mask);
int64_t file_size(const char *path);

/* A device whose memory the host must not touch: addresses are off by a page until the copy puts
 * them right. It counts copies in its index, and waits for their events. */
enum { DEVICE_OFFSET = 4096 };
extern const Backend test_offset_backend;

#endif

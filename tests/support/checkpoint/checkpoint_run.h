/* checkpoint_run.h -- a run without a model, for tests of checkpoints: tensors of every dtype in
 * odd shapes, whose values are a function of the step. */
#ifndef TESTS_SUPPORT_CHECKPOINT_CHECKPOINT_RUN_H
#define TESTS_SUPPORT_CHECKPOINT_CHECKPOINT_RUN_H

#include "parallel/checkpoint/checkpoint.h"

enum { N_WEIGHTS = 9, N_SLOTS = 3, N_ALL = N_WEIGHTS + N_SLOTS };

typedef struct {
    Piece tensor[N_ALL]; /* weights, then optimizer states */
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

/* Opens a run in a new folder; its tensors are zero. */
void test_run_open(TestRun *r);
/* Closes the run and removes its folder. */
void test_run_close(TestRun *r);
/* Sets tensors and state to the values of the step. */
void test_run_fill(TestRun *r, int64_t step);
CheckpointContents test_run_contents(TestRun *r);
/* Fills and saves a step; test_run_must_save fails the test if the save fails. */
bool test_run_save(TestRun *r, int64_t step);
void test_run_must_save(TestRun *r, int64_t step);
/* Opens a run and saves its steps 1 and 2. Writes the file system calls of the second save to
 * `log`, which has 4096 bytes (tests/support/files/faulty_fs.h). */
void test_run_open_logged(TestRun *r, char *log);
/* Saves steps 2 and 3, prunes to two checkpoints, and checks that both are there. A save of step 2
 * that has failed before must not prevent this. */
void test_run_goes_on(TestRun *r);
/* Reads all tensors from an open checkpoint. */
bool test_run_read(TestRun *r, Checkpoint *c);
/* Returns the step of the newest checkpoint that verifies, after comparing it bit for bit with the
 * values of that step; -1: none. */
int64_t test_run_newest(TestRun *r);
/* Returns the number of entries in RUN/checkpoints, including leftovers. */
int test_run_entries(const TestRun *r);
/* Returns the path of a file in the step's checkpoint; the caller frees it. */
char *test_run_file(const TestRun *r, int64_t step, const char *file);
/* Returns whether the step's checkpoint opens and verifies; if not, the reason is in r->err. */
bool test_run_whole(TestRun *r, int64_t step);

/* Runs `./train ckpt COMMAND PATH`, writes its output to the file `output`, and returns its exit
 * code. */
int test_ckpt(const char *command, const char *path, const char *output);

/* Adds the files of one rank, as small as possible, and its grid to a manifest without tensors. */
void manifest_two_files(Manifest *m);

/* file_flip flips the bits of `mask` in one byte of a file; file_size returns the size of a
 * file. */
void file_flip(const char *path, int64_t at, unsigned char mask);
int64_t file_size(const char *path);

/* A device whose memory the host must not access: its addresses are off by a page, which only its
 * copy function corrects. It counts copies in device->index. */
enum { DEVICE_OFFSET = 4096 };
extern const Backend test_offset_backend;

#endif

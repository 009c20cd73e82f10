/* checkpoint_run.c -- saves, reads and checks a run with generated tensors. See
 * checkpoint_run.h. */
#include "tests/support/checkpoint/checkpoint_run.h"

#include "model/core/check.h"
#include "parallel/commands/commands.h"
#include "tests/support/checkpoint/whole_pieces.h"
#include "tests/support/files/faulty_fs.h"
#include "tests/support/files/scratch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

const TestTensor test_tensors[N_ALL] = {
    {"embedding.token.weight", F32, 2, {17, 5}},
    {"block.0.norm.bias", BF16, 1, {3}},
    {"block.0.attn.q.weight", BF16, 2, {5, 7}},
    {"block.0.attn.k.weight", F64, 2, {3, 3}},
    {"block.0.mlp.up.weight", F16, 2, {1, 9}},
    {"ids", I32, 1, {1}},
    {"long", I64, 3, {1, 2, 3}},
    {"short", U16, 1, {5}},
    {"bytes", U8, 4, {1, 1, 1, 13}},
    {"embedding.token.weight.master", F64, 2, {17, 5}},
    {"embedding.token.weight.exp_avg", F32, 2, {17, 5}},
    {"block.0.norm.bias.exp_avg_sq", F32, 1, {3}},
};

void test_run_fill(TestRun *r, int64_t step)
{
    for (int i = 0; i < N_ALL; i++) {
        unsigned char *data = r->tensor[i].data.data;
        for (size_t b = 0; b < tensor_bytes(r->tensor[i].data); b++)
            data[b] =
                (unsigned char)(((size_t)step * 131 + (size_t)i * 71 + b * 29 + (b >> 5)) ^ 0x5a);
    }
    r->state = (StepState){.steps = step,
                           .samples = step * 32,
                           .tokens = (INT64_C(1) << 53) - step,
                           .updates = step - 1,
                           .skipped = 1,
                           .loss_scale = 1.0 / 3,
                           .loss_seed = 0x1p-30,
                           .hysteresis = 2,
                           .last_overflow = -1,
                           .scale_steps = step};
}

void test_run_open(TestRun *r)
{
    *r = (TestRun){0};
    snprintf(r->run, sizeof r->run, "%s/test_checkpoint.XXXXXX", test_scratch_folder());
    assert_non_null(mkdtemp(r->run));
    for (int i = 0; i < N_ALL; i++) {
        Tensor t = {.dtype = test_tensors[i].dtype, .ndim = test_tensors[i].ndim};
        memcpy(t.dim, test_tensors[i].dim, sizeof t.dim);
        t.ld = tensor_cols(t);
        t.data = must_calloc(1, tensor_bytes(t));
        r->tensor[i] = piece_whole(test_tensors[i].name, t);
    }
    checkpoint_io_open(&r->io, NULL, NULL);
}

void test_run_close(TestRun *r)
{
    char err[300];
    assert_true(fs_remove_tree(&fs_system, AT_FDCWD, r->run, err, sizeof err));
    for (int i = 0; i < N_ALL; i++)
        free(r->tensor[i].data.data);
    checkpoint_io_close(&r->io);
}

CheckpointContents test_run_contents(TestRun *r)
{
    return (CheckpointContents){.weights = r->tensor,
                                .n_weights = N_WEIGHTS,
                                .slots = r->tensor + N_WEIGHTS,
                                .n_slots = N_SLOTS,
                                .state = &r->state,
                                .config = "{\n  \"seed\": 1\n}",
                                .machine = "{\"cpu\": \"avx2\"}",
                                .code = "1.0",
                                .data = "tokenizer none; train 9 tokens 1; val none"};
}

bool test_run_save(TestRun *r, int64_t step)
{
    test_run_fill(r, step);
    CheckpointContents contents = test_run_contents(r);
    return checkpoint_write(&r->io, r->run, &contents, r->err, sizeof r->err);
}

void test_run_must_save(TestRun *r, int64_t step)
{
    if (!test_run_save(r, step)) fail_msg("step %lld: %s", (long long)step, r->err);
}

void test_run_open_logged(TestRun *r, char *log)
{
    FaultyFs fs;
    test_run_open(r);
    test_run_must_save(r, 1);
    faulty_fs_init(&fs, FAULT_NONE, 0, 0);
    *log = '\0';
    fs.log = log;
    r->io.fs = &fs.ops;
    test_run_must_save(r, 2);
    r->io.fs = &fs_system;
}

bool test_run_read(TestRun *r, Checkpoint *c)
{
    return checkpoint_read(&r->io, c, CHECKPOINT_WEIGHTS, r->tensor, N_WEIGHTS, r->err,
                           sizeof r->err) &&
           checkpoint_read(&r->io, c, CHECKPOINT_SLOTS, r->tensor + N_WEIGHTS, N_SLOTS, r->err,
                           sizeof r->err);
}

/* Checks that the newest checkpoint that verifies has the bits of its step. */
int64_t test_run_newest(TestRun *r)
{
    Checkpoint *c = NULL;
    TestRun expected;
    if (!checkpoint_open_newest(&r->io, r->run, &c, r->err, sizeof r->err) || c == NULL) return -1;
    StepState saved = checkpoint_manifest(c)->state;
    test_run_open(&expected);
    test_run_fill(&expected, saved.steps);
    assert_memory_equal(&saved, &expected.state, sizeof saved);
    for (int i = 0; i < N_ALL; i++)
        memset(r->tensor[i].data.data, 0xee, tensor_bytes(r->tensor[i].data));
    if (!test_run_read(r, c)) fail_msg("%s", r->err);
    for (int i = 0; i < N_ALL; i++)
        assert_memory_equal(r->tensor[i].data.data, expected.tensor[i].data.data,
                            tensor_bytes(r->tensor[i].data));
    test_run_close(&expected);
    checkpoint_close(c);
    return saved.steps;
}

/* Counts names that begin with a dot only if they are .trash-... folders. */
int test_run_entries(const TestRun *r)
{
    char *path = text_format("%s/checkpoints", r->run);
    DIR *dir = opendir(path);
    int n = 0;
    free(path);
    for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
        n += e->d_name[0] != '.' || e->d_name[1] == 't'; /* .trash-... folders are counted */
    if (dir != NULL) closedir(dir);
    return n;
}

void test_run_goes_on(TestRun *r)
{
    test_run_must_save(r, 2);
    test_run_must_save(r, 3);
    assert_true(checkpoint_prune(&r->io, r->run, 3, 2, r->err, sizeof r->err));
    assert_int_equal(test_run_entries(r), 2);
    assert_int_equal(test_run_newest(r), 3);
}

char *test_run_file(const TestRun *r, int64_t step, const char *file)
{
    char *folder = checkpoint_path(r->run, step), *path = text_format("%s/%s", folder, file);
    free(folder);
    return path;
}

/* Opens and verifies the step's checkpoint. */
bool test_run_whole(TestRun *r, int64_t step)
{
    char *path = checkpoint_path(r->run, step);
    Checkpoint *c = NULL;
    bool good = checkpoint_open(path, &c, r->err, sizeof r->err) &&
                checkpoint_verify(&r->io, c, r->err, sizeof r->err);
    checkpoint_close(c);
    free(path);
    return good;
}

int test_ckpt(const char *command, const char *path, const char *output)
{
    char *argv[] = {(char *)(uintptr_t) "ckpt", (char *)(uintptr_t)command, (char *)(uintptr_t)path,
                    NULL};
    fflush(NULL);
    int to = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0666), out = dup(1), errors = dup(2);
    dup2(to, 1);
    dup2(to, 2);
    int code = args_run(&cmd_ckpt, 3, argv);
    fflush(NULL);
    dup2(out, 1);
    dup2(errors, 2);
    close(to);
    close(out);
    close(errors);
    return code;
}

void manifest_two_files(Manifest *m)
{
    m->version = MANIFEST_VERSION;
    m->world = (ManifestWorld){.ranks = 1, .pp = 1, .dp = 1, .cp = 1, .tp = 1, .writers = 1};
    m->n_files = CHECKPOINT_PARTS;
    m->file = must_calloc(CHECKPOINT_PARTS, sizeof *m->file);
    for (int part = 0; part < CHECKPOINT_PARTS; part++) {
        m->file[part] =
            (ManifestFile){.part = (CheckpointPart)part, .bytes = 10, .header_bytes = 10};
        checkpoint_file_name(m->file[part].name, (CheckpointPart)part, 0, 1);
    }
}

void file_flip(const char *path, int64_t at, unsigned char mask)
{
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= mask;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

int64_t file_size(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

/* ---- a device ------------------------------------------------------------------------------- */

static void offset_copy(Device *device, Stream stream, Tensor dst, Tensor src)
{
    (void)stream;
    assert_int_not_equal(dst.place, src.place);
    char *to = (char *)dst.data - (dst.place == PLACE_DEVICE ? DEVICE_OFFSET : 0);
    char *from = (char *)src.data - (src.place == PLACE_DEVICE ? DEVICE_OFFSET : 0);
    memcpy(to, from, tensor_bytes(src));
    device->index++;
}

/* Stores in the event how many copies had been made when it was recorded. No event is reached
 * before it is waited for. */
static void offset_record(Device *device, Event *event, Stream stream)
{
    (void)stream;
    assert_true(event->seconds < (double)device->index); /* after at least one copy */
    event->seconds = device->index;
}

static void offset_await(Device *device, Event *event)
{
    assert_int_equal(event->seconds, device->index); /* no copy was made since */
}

static bool offset_reached(Device *device, Event *event)
{
    (void)device;
    (void)event;
    return false;
}

static void offset_destroy(Device *device, Event *event)
{
    (void)device;
    (void)event;
}

static void *offset_host_alloc(Device *device, size_t bytes)
{
    (void)device;
    return must_alloc(bytes);
}

static void offset_host_release(Device *device, void *p)
{
    (void)device;
    free(p);
}

const Backend test_offset_backend = {.name = "offset",
                                     .copy = offset_copy,
                                     .event_record = offset_record,
                                     .event_reached = offset_reached,
                                     .event_synchronize = offset_await,
                                     .event_destroy = offset_destroy,
                                     .host_alloc = offset_host_alloc,
                                     .host_release = offset_host_release};

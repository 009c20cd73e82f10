/* test_checkpoint_source.c -- a checkpoint's weights as a WeightSource: equal to what was saved,
 * with one file or many, and never a row of a damaged chunk. */
#include "model/core/check.h"
#include "parallel/checkpoint/source.h"
#include "tests/support/checkpoint/checkpoint_run.h"
#include "tests/support/checkpoint/whole_pieces.h"
#include "tests/support/files/data_support.h"
#include "tests/support/files/scratch.h"
#include "tests/support/grid/thread_ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>

/* The weights: one with three chunks, one whose row is larger than a chunk, all types, vectors. */
enum { WEIGHTS = 10, MOST_ROWS = 1200 };
static const struct {
    const char *name;
    DType dtype;
    int ndim;
    int64_t rows, cols;
} weights[WEIGHTS] = {
    {"token.weight", F32, 2, MOST_ROWS, 8192},     {"block.0.attn.norm.weight", F32, 1, 7, 1},
    {"block.0.attn.q.weight", BF16, 2, 5, 3},      {"block.0.attn.q.bias", BF16, 1, 5, 1},
    {"block.0.mlp.up.weight", F16, 2, 9, 2},       {"block.0.mlp.down.weight", F64, 2, 3, 3},
    {"block.1.attn.q.weight", F32, 2, 2, 5000000}, {"block.1.attn.q.bias", F32, 1, 2, 1},
    {"final_norm.weight", F64, 1, 1, 1},           {"head.weight", F32, 2, 4, 4},
};

/* A saved checkpoint of these weights, and the checkpoint and source that a test opens. */
typedef struct {
    char *run, *path, *data[WEIGHTS];
    int ranks; /* each of them writes one file of weights */
    char err[1024];
    Checkpoint *checkpoint;
    WeightSource *source;
} Saved;

static int64_t row_bytes(int i)
{
    return weights[i].cols * (int64_t)dtype_size(weights[i].dtype);
}

static int64_t bytes_of(int i)
{
    return weights[i].rows * row_bytes(i);
}

/* Saves on one rank: rank 0 has all weights, the others have empty parts. */
static void save_here(Comm *world, void *context)
{
    Saved *s = context;
    Piece piece[WEIGHTS];
    StepState state = {.steps = 5,
                       .updates = 5,
                       .loss_scale = 1,
                       .loss_seed = 1,
                       .hysteresis = 1,
                       .last_overflow = -1};
    CheckpointIo io;
    char err[1024];
    for (int i = 0; i < WEIGHTS; i++) {
        Tensor t = {.dtype = weights[i].dtype,
                    .ndim = weights[i].ndim,
                    .dim = {weights[i].rows, weights[i].cols},
                    .data = s->data[i]};
        if (t.ndim == 1) t.dim[1] = 0;
        t.ld = tensor_cols(t);
        piece[i] = piece_whole(weights[i].name, t);
        if (world->rank == 0) continue;
        piece[i].extent = (ParamExtent){.cols = 1, .whole_cols = 1};
        piece[i].data = tensor_1d(s->data[i], t.dtype, 0);
    }
    CheckpointContents contents = {.weights = piece,
                                   .n_weights = WEIGHTS,
                                   .slots = piece,
                                   .n_slots = 0,
                                   .state = &state,
                                   .config = "{}",
                                   .machine = "{}",
                                   .code = "1.0",
                                   .data = "none",
                                   .grid = {1, s->ranks, 1, 1},
                                   .writers = s->ranks};
    checkpoint_io_open(&io, NULL, world);
    if (!checkpoint_write(&io, s->run, &contents, err, sizeof err)) rank_wrong(world, "%s", err);
    checkpoint_io_close(&io);
}

static Saved save_on(int ranks)
{
    Saved s = {.ranks = ranks};
    s.run = text_format("%s/test_source.XXXXXX", test_scratch_folder());
    assert_non_null(mkdtemp(s.run));
    for (int i = 0; i < WEIGHTS; i++) {
        int64_t bytes = bytes_of(i);
        char *data = must_alloc((size_t)bytes);
        for (int64_t b = 0; b < bytes; b++)
            data[b] = (char)((b * 37 + (b >> 8) * 11 + i) ^ (b >> 20));
        s.data[i] = data;
    }
    thread_ranks(ranks, 60, save_here, &s);
    s.path = checkpoint_path(s.run, 5);
    return s;
}

static void open_saved(Saved *s)
{
    if (!checkpoint_open(s->path, &s->checkpoint, s->err, sizeof s->err) ||
        !checkpoint_source_open(s->checkpoint, &s->source, s->err, sizeof s->err))
        fail_msg("%s", s->err);
}

static void close_saved(Saved *s)
{
    s->source->close(s->source);
    checkpoint_close(s->checkpoint);
}

static void drop(Saved *s)
{
    assert_true(fs_remove_tree(&fs_system, AT_FDCWD, s->run, s->err, sizeof s->err));
    for (int i = 0; i < WEIGHTS; i++)
        free(s->data[i]);
    free(s->run);
    free(s->path);
}

/* Reads rows of weight `i`, and compares them with what was saved if they can be read. */
static bool reads(Saved *s, int i, int64_t first, int64_t rows)
{
    size_t bytes = (size_t)(rows * row_bytes(i));
    char *out = must_alloc(bytes + 1);
    int index = weight_source_find(s->source, weights[i].name);
    assert_in_range(index, 0, s->source->n_tensors - 1);
    out[bytes] = 'x';
    bool good = s->source->read(s->source, index, first, rows, out, s->err, sizeof s->err);
    if (good && memcmp(out, s->data[i] + first * row_bytes(i), bytes) != 0)
        fail_msg("%s, rows from %lld: other values than were saved", weights[i].name,
                 (long long)first);
    assert_int_equal(out[bytes], 'x');
    free(out);
    return good;
}

static void must_read(Saved *s, int i, int64_t first, int64_t rows)
{
    if (!reads(s, i, first, rows)) fail_msg("%s", s->err);
}

static void weights_are_read_back_exactly_as_they_were_saved(void **state)
{
    (void)state;
    static const int ranks[] = {1, 3, WEIGHTS};
    for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++) {
        Saved s = save_on(ranks[r]);
        open_saved(&s);
        assert_int_equal(s.source->n_tensors, WEIGHTS);
        for (int i = 0; i < WEIGHTS; i++) {
            const SourceTensor *t =
                &s.source->tensor[weight_source_find(s.source, weights[i].name)];
            assert_int_equal(t->dtype, weights[i].dtype);
            assert_int_equal(t->ndim, weights[i].ndim);
            assert_int_equal(t->dim[0], weights[i].rows);
            assert_int_equal(t->dim[1], weights[i].cols);
            must_read(&s, i, 0, weights[i].rows);
            must_read(&s, i, weights[i].rows, 0);
        }
        for (uint64_t draw = 0; draw < 60; draw++) {
            int i = (int)(drawn(1, 3 * draw) % WEIGHTS);
            int64_t first = (int64_t)(drawn(1, 3 * draw + 1) % (uint64_t)weights[i].rows);
            int64_t left = weights[i].rows - first;
            must_read(&s, i, first, (int64_t)(drawn(1, 3 * draw + 2) % (uint64_t)left) + 1);
        }
        close_saved(&s);
        drop(&s);
    }
}

/* The big weight has three chunks. Damage in one of them must not be read, however often it is
 * tried, and must not spoil the others. */
static void no_row_of_a_damaged_chunk_is_read(void **state)
{
    (void)state;
    Saved s = save_on(1);
    open_saved(&s);
    int64_t chunk = MANIFEST_CHUNK_BYTES / row_bytes(0);
    char *file = text_format("%s/model.safetensors", s.path);
    const Manifest *m = checkpoint_manifest(s.checkpoint);
    int64_t data_at = m->file[0].header_bytes, at = -1;
    for (int i = 0; i < m->n_tensors; i++)
        if (strcmp(m->tensor[i].entry.name, weights[0].name) == 0) at = m->tensor[i].entry.offset;
    assert_true(at >= 0);
    /* The second chunk is in memory when the disk changes: what has been checked stays valid. */
    must_read(&s, 0, chunk, 1);
    flip_bit(file, (long)(data_at + at + chunk * row_bytes(0) + 77777));
    must_read(&s, 0, chunk, 2);
    must_read(&s, 0, 0, chunk);
    for (int again = 0; again < 2; again++) {
        assert_false(reads(&s, 0, chunk + 3, 1));
        assert_non_null(
            strstr(s.err, "model.safetensors is damaged: tensor token.weight, chunk 2"));
        assert_true(s.source->damaged);
        assert_false(reads(&s, 0, chunk - 1, 2));
        must_read(&s, 0, 0, chunk);
        must_read(&s, 0, 2 * chunk, MOST_ROWS - 2 * chunk);
        must_read(&s, 2, 0, 5);
    }
    /* The last byte of the last chunk. */
    flip_bit(file, (long)(data_at + at + bytes_of(0) - 1));
    must_read(&s, 0, 0, 1);
    assert_false(reads(&s, 0, 2 * chunk, 1));
    assert_non_null(strstr(s.err, "chunk 3 of 3"));
    free(file);
    close_saved(&s);
    drop(&s);
}

/* A run that is still training may prune the checkpoint that is read. If the checkpoint has few
 * files, they stay open and can be read. If it has many, reading a removed file is an error that
 * names it. */
static void a_checkpoint_pruned_while_it_is_read_gives_its_weights_or_an_error(void **state)
{
    (void)state;
    static const int ranks[] = {1, 3, WEIGHTS};
    for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++) {
        Saved s = save_on(ranks[r]);
        open_saved(&s);
        int failed = 0;
        char *parent = text_format("%s/checkpoints", s.run);
        assert_true(fs_remove_tree(&fs_system, AT_FDCWD, parent, s.err, sizeof s.err));
        free(parent);
        for (int i = 0; i < WEIGHTS; i++)
            if (!reads(&s, i, 0, weights[i].rows)) {
                failed++;
                assert_non_null(strstr(s.err, "model-000"));
                assert_non_null(strstr(s.err, "No such file"));
            }
        if (ranks[r] < WEIGHTS)
            assert_int_equal(failed, 0);
        else
            assert_in_range(failed, 1, WEIGHTS);
        close_saved(&s);
        drop(&s);
    }
}

static void the_error_names_a_tensor_that_is_not_a_weight(void **state)
{
    (void)state;
    static const char long_name[] = "a.weight.whose.name.has.more.characters.than.a.parameter.has";
    /* a tensor of integers, one of three dimensions, and one whose name is too long */
    for (int i = 0; i < 3; i++) {
        TestRun r;
        Checkpoint *c;
        WeightSource *source;
        test_run_open(&r);
        test_run_fill(&r, 1);
        CheckpointContents contents = test_run_contents(&r);
        Piece piece = r.tensor[i == 2 ? 0 : i + 5];
        char name[sizeof long_name];
        memcpy(name, long_name, sizeof name);
        name[56] = '\0';
        if (i == 2) piece.name = name;
        contents.weights = &piece;
        contents.n_weights = 1;
        if (!checkpoint_write(&r.io, r.run, &contents, r.err, sizeof r.err)) fail_msg("%s", r.err);
        char *path = checkpoint_path(r.run, 1), *says = text_format("tensor %s is no", piece.name);
        assert_true(checkpoint_open(path, &c, r.err, sizeof r.err));
        assert_false(checkpoint_source_open(c, &source, r.err, sizeof r.err));
        assert_null(source);
        if (strstr(r.err, says) == NULL) fail_msg("%s", r.err);
        checkpoint_close(c);
        free(path);
        free(says);
        test_run_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_read_back_exactly_as_they_were_saved),
        cmocka_unit_test(no_row_of_a_damaged_chunk_is_read),
        cmocka_unit_test(a_checkpoint_pruned_while_it_is_read_gives_its_weights_or_an_error),
        cmocka_unit_test(the_error_names_a_tensor_that_is_not_a_weight),
    };
    return cmocka_run_group_tests_name("checkpoint source", tests, NULL, NULL);
}

/* test_take.c -- weights that are taken from a source: which tensors fit and what is said about the
 * others, which rows are left out, values that a dtype cannot hold, and checkpoints that hold
 * weights alone. */
#include "model/core/check.h"
#include "parallel/checkpoint/prune.h"
#include "parallel/checkpoint/source.h"
#include "parallel/checkpoint/take.h"
#include "tests/support/checkpoint/checkpoint_run.h"
#include "tests/support/checkpoint/whole_pieces.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- a source in memory ---------------------------------------------------------------------- */

/* A source in memory. Element i of its tensor number t is t plus a thousandth of i; elements of the
 * last row are `large` if that is not 0. */
typedef struct {
    WeightSource source; /* must come first: a WeightSource is this struct */
    double large;
} Made;

static bool read_made(WeightSource *source, int index, int64_t first, int64_t rows, void *out,
                      char *err, size_t n)
{
    const SourceTensor *t = &source->tensor[index];
    double large = ((Made *)source)->large;
    int64_t cols = t->ndim > 1 ? t->dim[1] : 1;
    (void)err, (void)n;
    for (int64_t i = 0; i < rows * cols; i++) {
        int64_t at = first * cols + i;
        bool last = large != 0 && at / cols == t->dim[0] - 1;
        ((double *)out)[i] = last ? large : index + (double)at / 1000;
    }
    return true;
}

static SourceTensor held[] = {{"token.weight", F64, 2, {12, 4}},
                              {"position.weight", F64, 2, {9, 4}},
                              {"block.0.attn.q.weight", F64, 2, {4, 4}},
                              {"norm.weight", F64, 1, {4, 1}}};
enum { HELD = sizeof held / sizeof *held };

static Made made(double large)
{
    return (Made){.source = {.tensor = held, .n_tensors = HELD, .read = read_made}, .large = large};
}

/* Memory of the pieces below. */
static float memory[4][64];

/* Fills the pieces of a model with a token table of `tokens` x 4 and a position table of
 * `positions` x 4. */
static void pieces_of(Piece *out, int64_t tokens, int64_t positions)
{
    const int64_t rows[HELD] = {tokens, positions, 4, 4};
    memset(memory, 0, sizeof memory);
    for (int i = 0; i < HELD; i++)
        out[i] = piece_whole(held[i].name, held[i].ndim > 1 ? tensor_2d(memory[i], F32, rows[i], 4)
                                                            : tensor_1d(memory[i], F32, 4));
}

/* Returns what take_fits says about a model of these sizes: the notice if the source fits,
 * otherwise the error. */
static const char *said_about(int64_t tokens, int64_t positions, bool same_ids, bool *fits)
{
    static char err[2048];
    static Take take;
    Piece w[HELD];
    Made m = made(0);
    pieces_of(w, tokens, positions);
    take = (Take){.from = "x", .same_ids = same_ids};
    *fits = take_fits(&m.source, &take, w, HELD, err, sizeof err);
    assert_int_equal(take.refused, !*fits);
    return *fits ? take.notice : err;
}

static void only_rows_of_unused_positions_and_token_ids_are_left_out(void **state)
{
    (void)state;
    static const struct {
        int64_t tokens, positions;
        bool same_ids, fits;
        const char *says;
    } cases[] = {
        {12, 9, false, true, ""},
        {12, 7, false, true, "position.weight: the first 7 of 9 positions are taken"},
        {12, 10, true, false,
         "x: the weights do not fit this model: position.weight is [9, 4] there and [10, 4] here "
         "(model.max_position_embeddings can be 9 at most)"},
        {11, 9, true, true, "token.weight: the first 11 of 12 token ids are taken"},
        {11, 8, true, true,
         "token.weight: the first 11 of 12 token ids are taken; position.weight: the first 8 of 9 "
         "positions are taken"},
        {11, 9, false, false,
         "x: the weights do not fit this model: token.weight is [12, 4] there and [11, 4] here "
         "(the vocabulary is another one)"},
        {13, 9, true, false,
         "x: the weights do not fit this model: token.weight is [12, 4] there and [13, 4] here "
         "(the vocabulary is another one)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool fits;
        const char *says =
            said_about(cases[i].tokens, cases[i].positions, cases[i].same_ids, &fits);
        assert_string_equal(says, cases[i].says);
        assert_int_equal(fits, cases[i].fits);
    }
}

static void every_tensor_that_does_not_fit_is_named_with_both_shapes(void **state)
{
    (void)state;
    char err[2048];
    Piece w[3];
    Made m = made(0);
    Take take = {.from = "x"};
    w[0] = piece_whole("token.weight", tensor_2d(memory, F32, 12, 3));
    w[1] = piece_whole("norm.weight", tensor_1d(memory, F32, 4));
    w[2] = piece_whole("norm.bias", tensor_1d(memory, F32, 4));
    assert_false(take_fits(&m.source, &take, w, 3, err, sizeof err));
    assert_string_equal(err, "x: the weights do not fit this model: token.weight is [12, 4] there "
                             "and [12, 3] here; norm.bias is not there and [4] here; "
                             "position.weight is [9, 4] there and not here; "
                             "block.0.attn.q.weight is [4, 4] there and not here");
}

static void an_error_names_12_misfits_and_counts_the_others(void **state)
{
    (void)state;
    enum { N = 20 };
    char err[4096], name[N][16];
    Piece w[N];
    Made m = made(0);
    Take take = {.from = "x"};
    m.source.n_tensors = 0;
    for (int i = 0; i < N; i++) {
        snprintf(name[i], sizeof name[i], "t%d", i);
        w[i] = piece_whole(name[i], tensor_1d(memory, F32, 4));
    }
    assert_false(take_fits(&m.source, &take, w, N, err, sizeof err));
    assert_non_null(strstr(err, "t11 is not there and [4] here; and 8 more"));
    assert_null(strstr(err, "t12"));
}

/* Only rows at the end are left out; all others arrive unchanged. */
static void a_shorter_table_receives_the_first_rows_of_the_source(void **state)
{
    (void)state;
    char err[1024];
    Piece w[HELD], none[HELD] = {{0}};
    CheckpointIo io;
    Made m = made(0);
    Take take = {.from = "x", .same_ids = true};
    checkpoint_io_open(&io, NULL, NULL);
    pieces_of(w, 11, 7);
    assert_true(take_fits(&m.source, &take, w, HELD, err, sizeof err));
    assert_true(take_weights(&io, &m.source, &take, w, none, HELD, err, sizeof err));
    for (int t = 0; t < HELD; t++)
        for (int64_t i = 0; i < piece_elements(&w[t]); i++)
            assert_true(memory[t][i] == (float)(t + (double)i / 1000));
    checkpoint_io_close(&io);
}

/* The largest finite number is 65504 in f16. A double beyond the range of f32 is refused if the run
 * computes in f32. */
static void a_value_beyond_the_range_of_a_dtype_is_refused_with_the_tensors_name(void **state)
{
    (void)state;
    static const struct {
        DType dtype;
        double large;
        const char *says;
    } cases[] = {{F16, 65500, NULL},
                 {F16, 70000,
                  "token.weight: 4 values are beyond the range of f16, in which this "
                  "run has its weights"},
                 {BF16, 70000, NULL},
                 {BF16, 1e39,
                  "token.weight: 4 values are beyond the range of f32, in which this "
                  "run has its weights"},
                 {F32, 1e39,
                  "token.weight: 4 values are beyond the range of f32, in which this "
                  "run has its weights"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char err[1024] = "";
        Made m = made(cases[i].large);
        Take take = {.from = "x"};
        Piece none = {0}, w = piece_whole("token.weight", tensor_2d(memory, cases[i].dtype, 12, 4));
        CheckpointIo io;
        checkpoint_io_open(&io, NULL, NULL);
        bool good = take_weights(&io, &m.source, &take, &w, &none, 1, err, sizeof err);
        checkpoint_io_close(&io);
        assert_int_equal(good, cases[i].says == NULL);
        assert_int_equal(take.refused, !good);
        if (!good) assert_string_equal(err, cases[i].says);
    }
}

/* ---- weights alone --------------------------------------------------------------------------- */

/* Saves step 0 with this number of slots. Without slots it holds only weights, as an import saves
 * it. */
static void save_step_0(TestRun *r, int slots)
{
    test_run_fill(r, 0);
    r->state = (StepState){.loss_scale = 1, .last_overflow = -1};
    CheckpointContents contents = test_run_contents(r);
    contents.n_slots = slots;
    if (!checkpoint_write(&r->io, r->run, &contents, r->err, sizeof r->err)) fail_msg("%s", r->err);
}

/* Returns whether step 0 is there and still has weights alone. */
static bool is_alone(TestRun *r)
{
    Checkpoint *c;
    char *path = checkpoint_path(r->run, 0);
    bool opened = checkpoint_open(path, &c, r->err, sizeof r->err);
    bool alone = opened && checkpoint_weights_only(c) && checkpoint_verify(&r->io, c, r->err, 1024);
    if (opened) checkpoint_close(c);
    free(path);
    return alone;
}

static void a_checkpoint_with_only_weights_verifies_and_can_be_the_newest(void **state)
{
    (void)state;
    TestRun r;
    Checkpoint *c;
    test_run_open(&r);
    save_step_0(&r, 0);
    assert_true(is_alone(&r));
    assert_true(checkpoint_open_newest(&r.io, r.run, &c, r.err, sizeof r.err));
    assert_true(checkpoint_weights_only(c));
    checkpoint_close(c);
    test_run_must_save(&r, 1);
    assert_true(checkpoint_open_newest(&r.io, r.run, &c, r.err, sizeof r.err));
    assert_false(checkpoint_weights_only(c));
    checkpoint_close(c);
    test_run_close(&r);
}

static void a_checkpoint_with_only_weights_is_neither_pruned_nor_replaced(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    save_step_0(&r, 0);
    for (int64_t step = 1; step <= 3; step++) {
        test_run_must_save(&r, step);
        if (!checkpoint_prune(&r.io, r.run, step, 1, r.err, sizeof r.err)) fail_msg("%s", r.err);
    }
    assert_true(is_alone(&r));
    assert_int_equal(test_run_entries(&r), 2);
    assert_int_equal(checkpoint_removable(r.io.fs, r.run, 3, 0), 0);
    assert_int_equal(checkpoint_make_room(&r.io, r.run, INT64_C(1) << 60), 0);
    assert_true(is_alone(&r));
    /* A run that is stopped before its first step saves step 0, which is there already. */
    save_step_0(&r, N_SLOTS);
    assert_true(is_alone(&r));
    test_run_close(&r);
}

/* A checkpoint of step 0 with optimizer states is an ordinary one. */
static void a_checkpoint_of_step_0_with_optimizer_states_is_pruned(void **state)
{
    (void)state;
    TestRun r;
    test_run_open(&r);
    save_step_0(&r, N_SLOTS);
    assert_false(is_alone(&r));
    test_run_must_save(&r, 1);
    assert_int_equal(checkpoint_removable(r.io.fs, r.run, 1, 0), 1);
    assert_true(checkpoint_prune(&r.io, r.run, 1, 1, r.err, sizeof r.err));
    assert_int_equal(test_run_entries(&r), 1);
    test_run_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_rows_of_unused_positions_and_token_ids_are_left_out),
        cmocka_unit_test(every_tensor_that_does_not_fit_is_named_with_both_shapes),
        cmocka_unit_test(an_error_names_12_misfits_and_counts_the_others),
        cmocka_unit_test(a_shorter_table_receives_the_first_rows_of_the_source),
        cmocka_unit_test(a_value_beyond_the_range_of_a_dtype_is_refused_with_the_tensors_name),
        cmocka_unit_test(a_checkpoint_with_only_weights_verifies_and_can_be_the_newest),
        cmocka_unit_test(a_checkpoint_with_only_weights_is_neither_pruned_nor_replaced),
        cmocka_unit_test(a_checkpoint_of_step_0_with_optimizer_states_is_pruned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

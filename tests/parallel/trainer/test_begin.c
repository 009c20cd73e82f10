/* test_begin.c -- a trainer that begins with the weights of a checkpoint trains with the same bits
 * as one whose weights were set by hand, whether the checkpoint is a whole one or has weights
 * alone. */
#include "parallel/checkpoint/source.h"
#include "tests/support/files/scratch.h"
#include "tests/support/trainer/trainer_fixture.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BEFORE = 3, AFTER = 4 };

/* Opens the newest checkpoint of the run in `folder`. */
static Checkpoint *newest(Trainer *t, const char *folder)
{
    char err[1024];
    Checkpoint *c = NULL;
    if (!checkpoint_open_newest(&t->io, folder, &c, err, sizeof err) || c == NULL)
        fail_msg("%s", err);
    return c;
}

/* Trains a few steps; saves the whole state in `whole`, and weights alone, as an import does, in
 * `alone`. Returns the bytes of the weights. */
static unsigned char *make_source(const Folder *folder, const char *const *sets, const char *whole,
                                  const char *alone)
{
    char err[1024];
    Opened o;
    Trained trained = {0};
    trainer_run_open(&o, folder, sets);
    Trainer *t = &o.trainer;
    trainer_run_steps(&o, &trained, BEFORE);
    trainer_run_read(&o, &trained);
    if (!trainer_save(t, whole, "{}", "{}", err, sizeof err)) fail_msg("%s", err);
    const StepState none = {.loss_scale = 1, .last_overflow = -1};
    const CheckpointContents contents = {.weights = t->weights,
                                         .n_weights = t->session.table.n_params,
                                         .state = &none,
                                         .config = "{}",
                                         .machine = "{}",
                                         .code = "test",
                                         .data = ""};
    if (!checkpoint_write(&t->io, alone, &contents, err, sizeof err)) fail_msg("%s", err);
    trainer_run_close(&o);
    return trained.bytes;
}

/* Sets the weights of a new trainer. */
static void set_by_hand(Trainer *t, const unsigned char *bytes)
{
    Device *dev = &t->session.dev;
    for (int i = 0; i < t->session.table.n_params; i++) {
        Tensor x = t->weights[i].data;
        device_copy(dev, tensor_flat(x),
                    tensor_1d((void *)(uintptr_t)bytes, x.dtype, tensor_count(x)));
        bytes += tensor_bytes(x);
    }
    session_publish_weights(&t->session);
    device_synchronize(dev);
    optimizer_init(&t->optimizer, dev);
}

/* How a trainer gets its first weights. */
typedef enum { BY_HAND, OF_WHOLE, OF_ALONE } Begin;

static void train(Trained *out, const Folder *folder, const char *const *sets, Begin begin,
                  const unsigned char *bytes, const char *from)
{
    char err[1024];
    Opened o;
    *out = (Trained){0};
    trainer_run_open(&o, folder, sets);
    Trainer *t = &o.trainer;
    Take take = {.from = "test"};
    Checkpoint *c = begin == BY_HAND ? NULL : newest(t, from);
    if (begin == BY_HAND) set_by_hand(t, bytes);
    WeightSource *source = NULL;
    if (begin == OF_WHOLE && !(checkpoint_source_open_masters(c, &source, err, sizeof err) &&
                               trainer_begin_with(t, source, &take, err, sizeof err)))
        fail_msg("%s", err);
    if (source) source->close(source);
    if (begin == OF_ALONE && !trainer_load(t, c, err, sizeof err)) fail_msg("%s", err);
    checkpoint_close(c);
    assert_int_equal(t->steps, 0);
    trainer_run_steps(&o, out, AFTER);
    trainer_run_read(&o, out);
    trainer_run_close(&o);
}

static void check(const Folder *folder, const char *const *sets, const char *what)
{
    char at[] = "/tmp/test_begin_XXXXXX", whole[64], alone[64], err[512];
    assert_non_null(mkdtemp(at));
    snprintf(whole, sizeof whole, "%s/whole", at);
    snprintf(alone, sizeof alone, "%s/alone", at);
    unsigned char *bytes = make_source(folder, sets, whole, alone);
    Trained hand, from_whole, from_alone;
    train(&hand, folder, sets, BY_HAND, bytes, NULL);
    train(&from_whole, folder, sets, OF_WHOLE, NULL, whole);
    train(&from_alone, folder, sets, OF_ALONE, NULL, alone);
    trained_equal(&hand, &from_whole, what);
    trained_equal(&hand, &from_alone, what);
    free(hand.bytes);
    free(from_whole.bytes);
    free(from_alone.bytes);
    free(bytes);
    fs_remove_tree(&fs_system, AT_FDCWD, at, err, sizeof err);
}

static void weights_read_from_a_checkpoint_train_like_weights_set_by_hand(void **state)
{
    check(*state, (const char *[]){NULL}, "f32");
    check(*state, (const char *[]){"fp64.enabled=true", NULL}, "f64");
    check(*state,
          (const char *[]){"bf16.enabled=true", "bf16.bf16_master_weights_and_grads=true", NULL},
          "bf16 without masters");
    check(*state, (const char *[]){"optimizer.type=SGD", "optimizer.params.lr=0.1", NULL}, "SGD");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_read_from_a_checkpoint_train_like_weights_set_by_hand),
    };
    return cmocka_run_group_tests(tests, trainer_folder_setup, trainer_folder_teardown);
}

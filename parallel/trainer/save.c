/* save.c -- see save.h. */
#include "parallel/trainer/save.h"

#include "model/core/log.h"
#include "model/core/version.h"

bool trainer_save(Trainer *t, const char *run, const char *config_text, const char *machine,
                  char *err, size_t n)
{
    StepState state = trainer_state(t);
    CheckpointContents contents = {.weights = t->weights,
                                   .n_weights = t->session.table.n_params,
                                   .slots = t->slots,
                                   .n_slots = t->n_slots,
                                   .state = &state,
                                   .config = config_text,
                                   .machine = machine,
                                   .code = program_version(),
                                   .data = t->data->identity};
    /* 0: every one is wanted, and none makes room. */
    int keep = t->keep_all ? 0 : (int)t->config->checkpoint.keep;
    bool saved = keep > 0 ? checkpoint_write_making_room(&t->io, run, &contents, err, n)
                          : checkpoint_write(&t->io, run, &contents, err, n);
    if (!saved || keep == 0) return saved;
    if (!checkpoint_prune(&t->io, run, state.steps, keep, err, n))
        log_warning("%s; older checkpoints stay", err);
    return true;
}

bool trainer_load(Trainer *t, Checkpoint *checkpoint, char *err, size_t n)
{
    Device *dev = &t->session.dev;
    if (!session_load_weights(&t->session, &t->io, checkpoint, err, n)) return false;
    if (!checkpoint_read(&t->io, checkpoint, CHECKPOINT_SLOTS, t->slots, t->n_slots, err, n))
        return false;
    StepState state = checkpoint_manifest(checkpoint)->state;
    state.loss_seed = state.loss_scale / t->rules.nominal_targets;
    int64_t words = (int64_t)(sizeof state / sizeof(int64_t));
    device_copy(dev, tensor_1d(&t->state->state, I64, words), tensor_1d(&state, I64, words));
    device_synchronize(dev);
    t->steps = t->drained = state.steps;
    t->samples = state.samples;
    return true;
}

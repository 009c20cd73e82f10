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
    /* keep 0: every checkpoint is wanted, and none makes room for this one. */
    int keep = t->keep_all ? 0 : (int)t->config->checkpoint.keep;
    bool saved = keep > 0 ? checkpoint_write_making_room(&t->io, run, &contents, err, n)
                          : checkpoint_write(&t->io, run, &contents, err, n);
    if (!saved || keep == 0) return saved;
    /* Only now, when this one is durable, may older ones go; where that fails the save has not. */
    if (!checkpoint_prune(&t->io, run, state.steps, keep, err, n))
        log_warning("%s; older checkpoints stay", err);
    return true;
}

bool trainer_load(Trainer *t, Checkpoint *checkpoint, char *err, size_t n)
{
    if (!session_load_weights(&t->session, &t->io, checkpoint, err, n)) return false;
    if (!checkpoint_read(&t->io, checkpoint, CHECKPOINT_SLOTS, t->slots, t->n_slots, err, n))
        return false;
    trainer_set_state(t, checkpoint_manifest(checkpoint)->state);
    return true;
}

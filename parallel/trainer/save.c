/* save.c -- describes a trainer's weights and optimizer states as pieces (for each tensor, the
 * elements that this rank has), and saves and loads them. See save.h. */
#include "parallel/trainer/save.h"

#include "model/core/check.h"
#include "model/core/log.h"
#include "model/core/version.h"
#include "parallel/checkpoint/source.h"

#include <stdlib.h>

/* Writes the pieces of all optimizer states to `out`, in the order of t->slot_names: by parameter,
 * in the same order on all ranks. */
static void slot_pieces(Trainer *t, Purpose purpose, Piece *out)
{
    const ParamTable *table = &t->session.table;
    SessionExtent *extents = must_calloc((size_t)table->n_params, sizeof *extents);
    int n = 0;
    session_extents(&t->session, purpose, extents);
    for (int p = 0; p < table->n_params; p++) {
        const Param *row = &table->param[p];
        const SessionExtent *e = &extents[p];
        for (int slot = 0; slot < SLOT_MAX; slot++) {
            if (!optimizer_has_slot(t->config, row->dtype, slot)) continue;
            out[n] = piece_of_row(t->slot_names[n], row,
                                  optimizer_slot_dtype(t->config, row->dtype, slot));
            if (e->extent.count > 0)
                piece_fill(&out[n], &e->extent, optimizer_slot_of(&t->optimizer, &e->shard, slot),
                           e->shard.offset);
            n++;
        }
    }
    free(extents);
}

/* Returns the contents of a checkpoint of `state`, except its tensors. */
static CheckpointContents contents_of(const Trainer *t, const StepState *state,
                                      const char *config_text, const char *machine)
{
    return (CheckpointContents){.n_weights = t->session.table.n_params,
                                .n_slots = t->n_slots,
                                .state = state,
                                .config = config_text,
                                .machine = machine,
                                .code = program_version(),
                                .data = t->data->identity,
                                .grid = t->session.grid.size,
                                .zero_stage = (int)t->config->zero_optimization.stage,
                                .writers = (int)t->config->checkpoint.writers};
}

void save_open(Trainer *t)
{
    const ParamTable *table = &t->session.table;
    t->weights = must_calloc((size_t)table->n_params, sizeof *t->weights);
    session_weights(&t->session, PURPOSE_UPDATE, t->weights);
    t->slots = must_calloc((size_t)table->n_params * SLOT_MAX, sizeof *t->slots);
    t->slot_names = must_calloc((size_t)table->n_params * SLOT_MAX, sizeof *t->slot_names);
    for (int p = 0; p < table->n_params; p++)
        for (int slot = 0; slot < SLOT_MAX; slot++)
            if (optimizer_has_slot(t->config, table->param[p].dtype, slot))
                t->slot_names[t->n_slots++] = text_format(
                    "%s.%s", table->param[p].name, optimizer_slot_name(t->optimizer.rule, slot));
    slot_pieces(t, PURPOSE_UPDATE, t->slots);
    checkpoint_io_open(&t->io, &t->session.dev, t->session.world);
    t->io.keep_every = t->config->checkpoint.keep_every;
    if (!t->saves_async) return;
    CheckpointContents contents = contents_of(t, NULL, "", "");
    contents.weights = t->weights;
    contents.slots = t->slots;
    t->async = async_save_open(&t->io, &contents);
}

void save_close(Trainer *t)
{
    async_save_close(t->async);
    checkpoint_io_close(&t->io);
    for (int i = 0; i < t->n_slots; i++)
        free(t->slot_names[i]);
    free(t->slot_names);
    free(t->slots);
    free(t->weights);
}

/* Fills in the tensors of a save, which the caller frees. With PURPOSE_COUNT each element is saved
 * by exactly one rank; otherwise ranks that keep a copy of the same element would all save it. */
static void save_pieces(Trainer *t, CheckpointContents *contents)
{
    Piece *weights = must_calloc((size_t)contents->n_weights, sizeof *weights),
          *slots = must_calloc((size_t)contents->n_slots + 1, sizeof *slots);
    session_weights(&t->session, PURPOSE_COUNT, weights);
    slot_pieces(t, PURPOSE_COUNT, slots);
    contents->weights = weights;
    contents->slots = slots;
}

static void free_pieces(const CheckpointContents *contents)
{
    free((void *)(uintptr_t)contents->weights);
    free((void *)(uintptr_t)contents->slots);
}

/* Writes a checkpoint. If keep > 0 and the disk is full, removes older checkpoints and tries again
 * (checkpoint_write_making_room). */
static bool write_checkpoint(Trainer *t, const char *run, CheckpointContents *contents, int keep,
                             char *err, size_t n)
{
    save_pieces(t, contents);
    bool saved = keep > 0 ? checkpoint_write_making_room(&t->io, run, contents, err, n)
                          : checkpoint_write(&t->io, run, contents, err, n);
    free_pieces(contents);
    return saved;
}

/* Returns how many checkpoints a save keeps, or 0 for all. With 0 no checkpoint is removed, not
 * even to make room for the new one. */
static int present_keep(const Trainer *t)
{
    return t->keep_all ? 0 : (int)t->config->checkpoint.keep;
}

bool trainer_save(Trainer *t, const char *run, const char *config_text, const char *machine,
                  char *err, size_t n)
{
    StepState state = trainer_state(t);
    CheckpointContents contents = contents_of(t, &state, config_text, machine);
    int keep = present_keep(t);
    if (!write_checkpoint(t, run, &contents, keep, err, n)) return false;
    /* Older checkpoints may be removed only now that this one is durable. If that fails, the save
     * has still succeeded. */
    bool pruned = keep == 0 || checkpoint_prune(&t->io, run, state.steps, keep, err, n);
    if (!pruned && (t->session.world == NULL || t->session.world->rank == 0))
        log_warning("%s; older checkpoints stay", err);
    return true;
}

bool trainer_save_begin(Trainer *t, const char *run, const char *config_text, const char *machine,
                        CheckpointHook hook)
{
    /* With a single rank the state is copied together with the tensors, so the host need not know
     * it. */
    bool alone = t->session.world == NULL || t->session.world->size == 1;
    StepState state = alone ? (StepState){.steps = t->steps} : trainer_state(t);
    CheckpointContents contents = contents_of(t, &state, config_text, machine);
    save_pieces(t, &contents);
    /* The snapshot is copied after all work issued to the compute stream. That stream must
     * therefore wait for the updates on other streams first. */
    optimizer_await(&t->optimizer);
    AsyncRequest request = {.run = run,
                            .contents = &contents,
                            .on_device = alone ? &t->state->state : NULL,
                            .hook = hook};
    bool begun = async_save_begin(t->async, &request);
    free_pieces(&contents);
    return begun;
}

AsyncState trainer_save_advance(Trainer *t, bool meet, bool drop, AsyncResult *result)
{
    AsyncRules rules = {.keep = present_keep(t), .drop = drop};
    return async_save_advance(t->async, &rules, meet, result);
}

AsyncState trainer_save_await(Trainer *t, bool drop, AsyncResult *result)
{
    AsyncRules rules = {.keep = present_keep(t), .drop = drop};
    return async_save_await(t->async, &rules, result);
}

bool trainer_try_save(Trainer *t, const char *run, const char *config_text, const char *machine,
                      char *err, size_t n)
{
    StepState state = trainer_state(t);
    CheckpointContents contents = contents_of(t, &state, config_text, machine);
    contents.trial = true;
    return write_checkpoint(t, run, &contents, 0, err, n);
}

/* Writes this rank's piece of the master copy of each parameter p to out[p]; the piece's name is
 * NULL if there is no master copy. */
static void master_pieces(const Trainer *t, Piece *out)
{
    const ParamTable *table = &t->session.table;
    for (int p = 0, n = 0; p < table->n_params; p++) {
        out[p] = (Piece){0};
        for (int slot = 0; slot < SLOT_MAX; slot++) {
            if (!optimizer_has_slot(t->config, table->param[p].dtype, slot)) continue;
            if (slot == SLOT_MASTER) out[p] = t->slots[n];
            n++;
        }
    }
}

bool trainer_begin_with(Trainer *t, WeightSource *source, Take *take, char *err, size_t n)
{
    Session *s = &t->session;
    Piece *masters = must_calloc((size_t)s->table.n_params, sizeof *masters);
    master_pieces(t, masters);
    bool good = session_take_weights(s, &t->io, source, take, masters, err, n);
    free(masters);
    if (good) session_publish_weights(s);
    return good;
}

/* Loads the weights of a checkpoint that contains only weights. */
static bool begin_alone(Trainer *t, Checkpoint *checkpoint, char *err, size_t n)
{
    Take take = {.from = checkpoint_folder(checkpoint), .same_ids = true};
    WeightSource *source = NULL;
    bool opened = checkpoint_source_open(checkpoint, &source, err, n);
    bool good =
        session_agree(&t->session, opened, err, n) && trainer_begin_with(t, source, &take, err, n);
    if (good && take.notice[0] != '\0') log_notice("%s", take.notice);
    if (opened) source->close(source);
    return good;
}

static bool load(Trainer *t, Checkpoint *checkpoint, char *err, size_t n)
{
    if (checkpoint_weights_only(checkpoint)) return begin_alone(t, checkpoint, err, n);
    if (!session_read_weights(&t->session, &t->io, checkpoint, err, n)) return false;
    session_publish_weights(&t->session);
    if (!checkpoint_read(&t->io, checkpoint, CHECKPOINT_SLOTS, t->slots, t->n_slots, err, n))
        return false;
    trainer_set_state(t, checkpoint_manifest(checkpoint)->state);
    return true;
}

bool trainer_load(Trainer *t, Checkpoint *checkpoint, char *err, size_t n)
{
    int64_t noted = flight_work_begin(t->session.flight, FLIGHT_DISK);
    bool good = load(t, checkpoint, err, n);
    flight_work_end(t->session.flight, noted);
    return good;
}

/* trainer.h -- one rank's training: data, model, optimizer and their state, and the step that joins
 * them. */
#ifndef PARALLEL_TRAINER_TRAINER_H
#define PARALLEL_TRAINER_TRAINER_H

#include "model/generate.h"
#include "optim/grad_norm.h"
#include "optim/optimizer.h"
#include "parallel/report/metrics.h"
#include "parallel/trainer/feed.h"
#include "parallel/trainer/phases.h"
#include "parallel/trainer/session.h"

/* Steps whose records wait until the host asks for them. */
enum { TRAINER_HISTORY = 256 };

/* What lives on the device besides tensors. */
typedef struct {
    StepState state;
    StepStats stats, eval_stats;
    StepDecision decision; /* of the step under way */
} TrainerState;

/* What a step's StepRecord is made of, as it comes from the device. */
typedef struct {
    StepDecision decision;
    StepState after; /* the state after the step */
} TrainerRecord;

typedef struct {
    const Config *config;
    const DataSet *data;
    Session session;
    Gpt *gpt;
    Decoder *decoder; /* for samples; NULL without */
    Optimizer optimizer;
    GradNorm norm;
    StepConstants constants;
    Loader *train, *val;    /* val NULL: no validation data */
    TrainerState *state;    /* device memory */
    TrainerRecord *records; /* page-locked: step s in place s % TRAINER_HISTORY */
    Event *recorded;        /* per place: the record has come from the device */
    Tensor lr_table;        /* (train_steps) f64 on the device */
    Feed feed;
    int64_t steps, samples; /* tried so far, the host's own count */
    int64_t steps_read;     /* steps whose records were handed over */
    Phases phases;          /* with wall_clock_breakdown; its seconds since the last report */
    void *optimizer_memory, *lr_memory;
    size_t optimizer_bytes, lr_bytes;
    Piece *slots;   /* all that this rank keeps of the optimizer's */
    Piece *weights; /* for tests: the same of the weights */
    char **slot_names;
    int n_slots;
    CheckpointIo io;
    bool keep_all; /* saves remove no older checkpoint */
} Trainer;

/* Opens the device and lays out what a trainer of config will hold, without allocating it: the
 * memory plan is asked of that. All ranks of `world` call it, and the world outlives the trainer;
 * NULL: a single rank. False with a sentence when there is no such device. */
bool trainer_open(Trainer *trainer, const Config *config, Comm *world, char *err, size_t n);
/* For tests: the same without a device, where only the memory plan is asked for. */
void trainer_measure(Trainer *trainer, const Config *config);
/* Allocates it, opens the data, and initialises weights and optimizer from the seed. `config` is
 * the one measured, or one that differs in the number of micro-batches and their clocks alone, as a
 * dry run's does. False with a sentence when the data are damaged; memory that is refused ends the
 * run (EXIT_NO_MEMORY). */
bool trainer_allocate(Trainer *trainer, const Config *config, const DataSet *data, char *err,
                      size_t n);
/* Whether a trainer of config over these data draws samples, and so holds a decoder. Random data
 * replace data that are missing, which are assumed to have a tokenizer. */
bool trainer_samples(const Config *config, const DataSet *data);
/* Frees what a trainer holds, whether it is opened, measured or allocated. */
void trainer_close(Trainer *trainer);

/* Calls once whatever a step, an evaluation and a sample call on a device with memory of its own.
 * The first call of a kernel or a product loads code, chooses algorithms and may allocate; so this
 * happens, or fails for want of memory, before the run. Changes no number: runs with and without it
 * have the same bits. Does nothing on the CPU. Call it before the first step and before
 * trainer_load. */
void trainer_warm_up(Trainer *trainer);
/* One optimizer step: all micro-batches, gradient norm, decision, update. Device order only: the
 * host waits for nothing but data. Damaged data ends the run (EXIT_DAMAGED). */
void trainer_step(Trainer *trainer);
/* decide.c: reads the records of the steps that have ended on the device since the last call into
 * `out` (room
 * for TRAINER_HISTORY), oldest first, waiting for none. Returns their number. At most
 * TRAINER_HISTORY steps may be unread at any time. */
int trainer_read(Trainer *trainer, StepRecord *out);
/* The same for all steps, waiting for the last one to end. */
int trainer_read_all(Trainer *trainer, StepRecord *out);
/* The state on the host, waiting for the device. */
StepState trainer_state(Trainer *trainer);
/* Goes on from `state`: its steps, samples and loss scale. Waits for the device. */
void trainer_set_state(Trainer *trainer, StepState state);

#endif

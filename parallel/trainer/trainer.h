/* trainer.h -- trains a model on one rank: joins data, model, optimizer and their state into
 * optimizer steps. */
#ifndef PARALLEL_TRAINER_TRAINER_H
#define PARALLEL_TRAINER_TRAINER_H

#include "model/generate.h"
#include "optim/grad_norm.h"
#include "optim/optimizer.h"
#include "parallel/checkpoint/async_save.h"
#include "parallel/report/metrics.h"
#include "parallel/trainer/feed.h"
#include "parallel/trainer/host_states.h"
#include "parallel/trainer/phases.h"
#include "parallel/trainer/session.h"

/* TRAINER_HISTORY: maximum number of steps whose records the host has not read yet. TRAINER_LEAD:
 * maximum number of steps that the host has issued and the device has not finished, if the ranks
 * are on several machines. It limits how many operations wait in NCCL at once: with thousands, the
 * threads that serve the network may block each other (https://github.com/NVIDIA/nccl/issues/2353).
 */
enum { TRAINER_HISTORY = 256, TRAINER_LEAD = 2 };
/* Number of hashes that are computed on the device before the host reads them (replicas.h). */
enum { REPLICA_HASHES = 64 };

/* The trainer's data on the device, apart from tensors. */
typedef struct {
    StepState state;
    StepStats stats, eval_stats;
    StepDecision decision; /* decision about the current step */
    int64_t hash[REPLICA_HASHES];
} TrainerState;

/* What the device reports of a step; a StepRecord is made from it. */
typedef struct {
    StepDecision decision;
    StepState after; /* state after the step */
} TrainerRecord;

typedef struct {
    const Config *config;
    const DataSet *data;
    Session session;
    Gpt *gpt;
    Decoder *decoder; /* draws samples; NULL if the run draws none */
    Optimizer optimizer;
    GradNorm norm;
    StepConstants constants;
    Loader *train, *val; /* val is NULL if there are no validation data */
    Loader **sets;       /* (n_sets) validation loaders of data->sets */
    int n_sets;
    TrainerState *state;    /* in device memory */
    TrainerRecord *records; /* page-locked; index s % TRAINER_HISTORY for step s */
    Event *recorded; /* one event per record, recorded after the copy of the record to the host */
    Tensor lr_table; /* (train_steps) f64 on the device */
    Feed feed;
    int64_t steps, samples; /* steps issued and their samples, counted by the host */
    int64_t position;       /* number of the next sample in the data: samples + data_offset */
    int64_t steps_read;     /* steps whose records have been read */
    Phases phases;          /* phase times since the last report, for wall_clock_breakdown */
    void *optimizer_memory, *lr_memory;
    OptimizerBytes optimizer_bytes;
    HostStates host_states;
    bool untimed_update; /* true: phases.seconds lacks the last step's updates of host states */
    size_t lr_bytes;
    Piece *slots;      /* this rank's parts of the optimizer states */
    Piece *weights;    /* this rank's parts of the weights */
    char **slot_names; /* names of `slots` in checkpoints */
    int n_slots;
    CheckpointIo io;
    bool keep_all; /* true: saves do not remove older checkpoints */
    /* If true, trainer_allocate allocates memory for snapshots, so that saves can be asynchronous.
     */
    bool saves_async;
    AsyncSave *async; /* NULL: saves are synchronous */
} Trainer;

/* Opens the device and lays out what a trainer of `config` will hold, without allocating it; the
 * memory plan is computed from this layout. All ranks of `world` must call it, and the world must
 * outlive the trainer; `world` is NULL for a single rank. Returns false and sets `err` if there is
 * no such device. */
bool trainer_open(Trainer *trainer, const Config *config, Comm *world, char *err, size_t n);
/* Does the same for one rank of a counted world (session_open_counted), in which nothing is
 * computed. memory_plan, trainer_allocate and trainer_step can then be called as on any device; of
 * the data they read only whether there is a tokenizer. There are no evaluations, and records of
 * steps are empty. */
void trainer_open_counted(Trainer *trainer, const Config *config, Comm *world,
                          const CountedFacts *facts);
/* For tests that need only the memory plan: lays out the trainer without opening a device. */
void trainer_measure(Trainer *trainer, const Config *config);
/* Allocates the trainer's memory, opens the data, and initializes weights and optimizer from the
 * seed. `config` must be the config that was laid out, or differ from it only in the number of
 * micro-batches and in wall_clock_breakdown, as in a dry run. Returns false and sets `err` if the
 * data are damaged. Ends the program if memory cannot be allocated (EXIT_NO_MEMORY). */
bool trainer_allocate(Trainer *trainer, const Config *config, const DataSet *data, char *err,
                      size_t n);
/* Makes the micro-batch of an allocated trainer smaller: frees what depends on its size and
 * allocates it again. `config` must differ from the trainer's only in the micro-batch, which must
 * be smaller, and in train_batch_size. Afterwards the trainer can only make steps, because the
 * validation data keep the former micro-batch size. Returns false and sets `err` if the data are
 * damaged. */
bool trainer_shrink(Trainer *trainer, const Config *config, char *err, size_t n);
/* Returns whether a trainer of `config` draws samples with these data, and so needs a decoder.
 * Random data replace data that do not exist yet, so they count as having a tokenizer. */
bool trainer_samples(const Config *config, const DataSet *data);
/* Frees everything that a trainer holds, after trainer_open, trainer_measure or
 * trainer_allocate. */
void trainer_close(Trainer *trainer);

/* If the device has its own memory, runs once everything that steps, evaluations and samples use.
 * The first call of a kernel or a matrix product loads code, chooses algorithms and may allocate
 * memory, so a lack of memory shows before the run instead of during it. Changes no result: runs
 * with and without it have the same bits. Does nothing on the CPU. Call it before the first step
 * and before trainer_load. */
void trainer_warm_up(Trainer *trainer);
/* Makes one optimizer step: all micro-batches, gradient norm, decision, update. Issues the work to
 * the device and waits for nothing but data. If the ranks are on several machines, it first waits
 * until at most TRAINER_LEAD - 1 earlier steps are unfinished. Damaged data end the program
 * (EXIT_DAMAGED). */
void trainer_step(Trainer *trainer);
/* Reads the records of the steps that the device has finished since the last call, and writes them
 * to `out`, oldest first; `out` has room for TRAINER_HISTORY. Does not wait. Returns their number.
 * At most TRAINER_HISTORY steps may be unread at any time. Defined in decide.c. */
int trainer_read(Trainer *trainer, StepRecord *out);
/* Waits for the last step to end and reads the records of all steps. */
int trainer_read_all(Trainer *trainer, StepRecord *out);
/* Returns a copy of the StepState, after waiting for the device. */
StepState trainer_state(Trainer *trainer);
/* Makes training continue from `state`: from its number of steps, its position in the data and its
 * loss scale. Waits for the device. */
void trainer_set_state(Trainer *trainer, StepState state);

#endif

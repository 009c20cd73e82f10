/* session.h -- a model on a device: what training, generating, evaluating and measuring have in
 * common. */
#ifndef PARALLEL_TRAINER_SESSION_H
#define PARALLEL_TRAINER_SESSION_H

#include "model/gpt.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/grid/gpus.h"
#include "parallel/grid/grid.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/pipeline/relay.h"
#include "parallel/trainer/step_plan.h"
#include "parallel/zero/zero.h"

typedef struct {
    const Config *config;
    Device dev;
    Comm *world; /* of all ranks; NULL: a single one */
    Gpus gpus;   /* which the ranks have; from session_open on */
    Grid grid;
    Region tp, uncut; /* from session_allocate on: of training; of passes that cut no rows */
    ParamTable table;
    GptLayers layers;
    StepPlan step;      /* of training; nothing without gradients */
    StepRoom room;      /* for it, for shorter ones and for evaluations */
    Pipeline *pipeline; /* between stages; NULL: a single one */
    StageRelay stages;  /* the same for passes of a decoder */
    Relay relay;
    ZeroStore *store;
    ParamStore *params;
} Session;

/* Opens the device that config->device and the section cpu ask for, for a rank of `world`, whose
 * ranks share this machine's cores; NULL: a single rank. False with a sentence. */
bool session_open_device(Device *dev, const Config *config, const Comm *world, char *err, size_t n);
/* Whether that will be a CUDA device: looks for one where the config leaves it open. The answer
 * that config_load asks for. */
bool session_on_cuda(const Config *config);

/* Before so many ranks are started that will open a session of the config (gpus_prepare). */
void session_prepare_ranks(const Config *config, int ranks);
/* Whether its ranks, several, have a GPU each, so that NCCL carries what devices carry: known from
 * session_open on. */
bool session_connects(const Session *session);

/* Where each run of layers begins that the config cuts the model into, and the last ends: runs + 1
 * rows of the layers' table (layers.h), malloc'ed. config->model.vocab_size is known. */
int *session_borders(const Config *config, int runs);
/* Builds what needs no device: grid, table of parameters, layers and their store (with gradients,
 * too, when asked, and then the plan of a training step), laid out without memory.
 * config->model.vocab_size is known. All ranks of `world` call it, and the world outlives the
 * session; NULL: a single rank. */
void session_build(Session *session, const Config *config, Comm *world, bool gradients);
/* Opens the device that the config asks for, then session_build. False with a sentence when there
 * is no such device; ends the program where ranks cannot share out the GPUs (gpus_agree). */
bool session_open(Session *session, const Config *config, Comm *world, bool gradients, char *err,
                  size_t n);
/* On the open device, together with the other ranks: connects the grid where each rank has a GPU of
 * its own; allocates weights and gradients, zeroed, and opens what tensor-parallel ranks
 * (the regions) and stages (pipeline and relay) send each other through. Warns first if "auto" had
 * to pass over a device that is there. (Opening does not warn, so that a run's plan is printed
 * before.) */
void session_allocate(Session *session);
void session_close(Session *session);

/* How a decoder's passes go through the stages; NULL: a single one. */
const Relay *session_relay(const Session *session);
/* Seconds that this rank has spent so far in communication of device memory (CommCounts): tensor
 * and collectives are the collectives of tensor-parallel ranks and all others, including the wait
 * for peers; exchanges is what moves between stages, and stages the wait for other stages. */
typedef struct {
    double tensor, collectives, exchanges, stages;
} CommSeconds;
CommSeconds session_comm_seconds(const Session *session);
/* Whether all ranks' hosts want to go on; they ask together, and get the same answer. */
bool session_all_go_on(Session *session, bool go_on);
/* Rank 0's value. */
int64_t session_first(Session *session, int64_t value);
/* The sum of what the data-parallel ranks have. */
int64_t session_sum_over_data(Session *session, int64_t value);

/* Fills all weights from the seed. */
void session_init_weights(Session *session);
/* This rank's elements of a row of the table, and the shard that holds them. */
typedef struct {
    ParamExtent extent; /* of no elements where this rank has nothing of the row */
    Shard shard;
} SessionExtent;
/* All of them, by row: out[0..table.n_params). */
void session_extents(Session *session, Purpose purpose, SessionExtent *out);
/* What this rank has of every weight, in table order; out has room for table.n_params. To count: a
 * part that no other rank has, to be saved. To update: all that it keeps, to be read. Shards are
 * resident, so the pieces are valid as long as the session. */
void session_weights(Session *session, Purpose purpose, Piece *out);
/* Reads the weights of a checkpoint and publishes them. False with a sentence. */
bool session_load_weights(Session *session, CheckpointIo *io, Checkpoint *checkpoint, char *err,
                          size_t n);

#endif

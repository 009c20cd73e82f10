/* session.h -- a model on a device with its grid of ranks, parameter store and pipeline. Training,
 * text generation, evaluation and benchmarks all build on it. */
#ifndef PARALLEL_TRAINER_SESSION_H
#define PARALLEL_TRAINER_SESSION_H

#include "model/core/device_counted.h"
#include "model/gpt.h"
#include "parallel/checkpoint/checkpoint.h"
#include "parallel/checkpoint/take.h"
#include "parallel/grid/gpus.h"
#include "parallel/grid/grid.h"
#include "parallel/grid/launch.h"
#include "parallel/pipeline/pipeline.h"
#include "parallel/pipeline/relay.h"
#include "parallel/trainer/step_plan.h"
#include "parallel/zero/zero.h"

typedef struct {
    const Config *config;
    Device dev;
    Comm *world;    /* all ranks; NULL: a single rank */
    Flight *flight; /* flight recorder; NULL without gradients, and in a counted session */
    Gpus gpus;      /* whether ranks share a GPU or have one each */
    /* The device and the world are only counted (device_counted.h, counted.h): nothing is computed
     * or sent, and nothing reads the memory. */
    bool counted;
    Grid grid;
    /* Set by session_allocate. `tp` is used in training. `uncut` is used in a decoder's passes, in
     * which rows are not divided between tensor-parallel ranks. */
    Region tp, uncut;
    ParamTable table;
    GptLayers layers;
    StepPlan step;      /* plan of a training step; empty without gradients */
    StepRoom room;      /* numbers of buffers that steps and evaluations need */
    Pipeline *pipeline; /* connection between stages; NULL: a single stage */
    StageRelay stages;  /* connection between stages for a decoder's passes */
    Relay relay;
    ZeroStore *store;
    ParamStore *params;
} Session;

/* Opens the device that config->device and the config section "cpu" ask for. The ranks of `world`
 * that are on this machine share its cores; NULL means a single rank. Ranks started by a launcher
 * must call it together: all get the same number of threads and, with cpu.level "auto", the highest
 * level that all of their CPUs have. Returns false and sets `err` on failure. Ends the program
 * (EXIT_CONFIG) if a CPU of these ranks lacks the level that the config gives. */
bool session_open_device(Device *dev, const Config *config, Comm *world, char *err, size_t n);
/* Returns whether session_open_device will open a CUDA device. Looks for one if the config leaves
 * the choice open, and prepares the driver for config->world ranks. */
bool session_on_cuda(const Config *config);
/* Returns what config_settle must know about the devices that the config's ranks will open
 * (ConfigFacts.device); all fields are 0 if these devices are CPUs. */
DeviceFacts session_facts(const Config *config);
/* Like session_facts, for ranks that a launcher has started and that are connected: returns the
 * smallest value of each property among the devices of all ranks. */
DeviceFacts session_least_facts(const Config *config, Comm *world);
/* Settles a config (config_settle) for the devices that its ranks will open, with data of this
 * vocabulary size (0: not known). Ends the program (EXIT_CONFIG) if config_settle refuses it. */
const Config *session_settle(const Config *config, int64_t vocab_size);
/* Returns what config_load must know about this machine to read a config for `world` ranks
 * (ConfigContext.world): its devices. */
ConfigContext session_context(int64_t world);

/* Returns the options for starting `ranks` ranks, as processes or as threads (`kind`, see
 * gpus_prepare), each of which will open a session of the config. */
LaunchOptions session_launch(const Config *config, int ranks, LaunchKind kind);
/* Returns whether there are several ranks with one GPU each; NCCL then transfers device memory
 * between them. Known after session_open has returned. */
bool session_connects(const Session *session);

/* Splits the model's layers into `runs` consecutive ranges, as the config asks. Returns runs + 1
 * row numbers of the layers' table (layers.h): where each range begins, and where the last one
 * ends. The caller frees the array. config->model.vocab_size must be set. */
int *session_borders(const Config *config, int runs);
/* Builds everything that needs no device: grid, table of parameters, layers and their store, all
 * laid out without memory. With `gradients`, the store also gets gradients, and the schedule of a
 * training step is planned. config->model.vocab_size must be set. All ranks of `world` must call
 * it, and the world must outlive the session; `world` is NULL for a single rank. */
void session_build(Session *session, const Config *config, Comm *world, bool gradients);
/* Opens the device that the config asks for, then calls session_build. Returns false and sets `err`
 * if there is no such device. Ends the program if the ranks cannot divide the GPUs among them
 * (gpus_agree). */
bool session_open(Session *session, const Config *config, Comm *world, bool gradients, char *err,
                  size_t n);
/* Does the same as session_open for one rank of a counted world (counted.h) on a counted device. No
 * other rank takes part, and the devices of this machine do not matter. If the world has several
 * ranks, each counts as having its own device, unless `facts` says that device memory is host
 * memory. */
void session_open_counted(Session *session, const Config *config, Comm *world,
                          const CountedFacts *facts, bool gradients);
/* Allocates the session's memory on the open device; all ranks must call it together. Prepares the
 * grid for NCCL if each rank has a GPU, allocates weights and gradients and sets them to zero, and
 * opens what tensor-parallel ranks (the regions) and stages (pipeline and relay) use to send data
 * to each other. First warns if device "auto" had to skip a device that exists; the warning comes
 * here and not in session_open, so that a run prints its plan before it. The caller must then call
 * session_connect. Until then, communication calls with device memory transfer no data if each rank
 * has its own GPU. */
void session_allocate(Session *session);
/* session_connect connects the ranks by NCCL; session_meet ends the use of NCCL. Both do nothing
 * unless each rank has its own GPU, and all ranks must call them together. They keep a rule: all
 * ranks pass a barrier between the last allocation and the first NCCL call, and between the last
 * NCCL call and the first release. Without it the ranks could deadlock: allocating or releasing
 * device memory, or loading a kernel, may wait for another GPU, and that GPU may be in an NCCL call
 * that waits for a rank which has not made the call yet. So all memory is allocated and all
 * computation warmed up before session_connect, and released after session_meet. Between the two
 * the device's memory is fixed (Device.fixed in device.h). */
void session_connect(Session *session);
void session_meet(Session *session);
/* Call it after session_allocate. Replaces everything that depends on the size of a micro-batch;
 * `config` may differ from the session's config only in this size. All ranks must call it together.
 */
void session_shrink(Session *session, const Config *config);
void session_close(Session *session);

/* Runs the actions of a schedule one by one, and records them in the flight recorder. Calls `after`
 * after each action, unless `after` is NULL. */
void session_run(Session *session, const Stage *stage, const Schedule *schedule,
                 void (*after)(void *context), void *context);
/* Returns the connection over which a decoder sends tensors from stage to stage; NULL if there is a
 * single stage. */
const Relay *session_relay(const Session *session);
/* Seconds that this rank has spent so far communicating device memory (CommCounts). `tensor` is the
 * time of collectives of tensor-parallel ranks, and `collectives` that of all other collectives;
 * both include the wait for peers. `exchanges` is the time of transfers between stages, and
 * `stages` the wait for other stages. */
typedef struct {
    double tensor, collectives, exchanges, stages;
} CommSeconds;
CommSeconds session_comm_seconds(const Session *session);
/* Returns whether `go_on` is true on all ranks. All ranks must call it together, and all get the
 * same result. */
bool session_all_go_on(Session *session, bool go_on);
/* Returns whether `good` is true on all ranks (control_agree). In a session without a world,
 * returns `good`. */
bool session_agree(Session *session, bool good, char *err, size_t n);
/* Returns rank 0's value on all ranks. */
int64_t session_first(Session *session, int64_t value);
/* Returns the sum of the data-parallel ranks' values. */
int64_t session_sum_over_data(Session *session, int64_t value);

/* Initializes all weights from the seed. */
void session_init_weights(Session *session);
/* This rank's elements of one parameter, and the shard that holds them. */
typedef struct {
    ParamExtent extent; /* count is 0 if this rank has none */
    Shard shard;
} SessionExtent;
/* Writes the SessionExtent of each parameter to out[0..table.n_params). */
void session_extents(Session *session, Purpose purpose, SessionExtent *out);
/* Writes this rank's piece of every weight to `out`, in table order; `out` has room for
 * table.n_params. With PURPOSE_COUNT, for saving, the pieces of different ranks do not overlap.
 * With PURPOSE_UPDATE, for reading, they contain everything that this rank keeps. The memory of
 * shards never moves, so the pieces are valid as long as the session. */
void session_weights(Session *session, Purpose purpose, Piece *out);
/* Reads the weights of a checkpoint. Returns false and sets `err` on failure. The dtype may differ
 * from the session's only if the checkpoint holds nothing but weights (checkpoint_weights_only). */
bool session_read_weights(Session *session, CheckpointIo *io, Checkpoint *checkpoint, char *err,
                          size_t n);
/* Loads the weights from a source, which may have other dtypes than the session. Also fills the
 * master copy that masters[i] describes, for each parameter i whose masters[i].name is not NULL
 * (take_weights). `masters` may be NULL. Each rank passes its own source. Returns false and sets
 * `err` if the weights do not fit or cannot be read. */
bool session_take_weights(Session *session, CheckpointIo *io, WeightSource *source, Take *take,
                          const Piece *masters, char *err, size_t n);
/* Tells the store that all weights have changed (ParamStore.publish). Call it after
 * session_connect. */
void session_publish_weights(Session *session);

#endif

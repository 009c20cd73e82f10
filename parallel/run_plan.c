/* run_plan.c -- what a run will take, told before anything is allocated: model, batch, memory,
 * disk. */
#include "model/core/log.h"
#include "parallel/machine.h"
#include "parallel/run.h"

#include <stdio.h>
#include <sys/statvfs.h>

static const double MiB = 1048576.0;

/* Numbers of the model and of one step. */
static void tell_model(const Config *c, const GptShape *s)
{
    GptLayers layers;
    ParamTable table = {0};
    double tokens = (double)c->train_batch_size * (double)c->data.seq_length;
    gpt_layers_build(&layers, &table, s);
    log_info(
        "model   %lld layers, %lld wide, %lld heads (%lld kv) of %lld, mlp %lld, vocabulary %lld "
        "(padded %lld), %s: %.2f M parameters",
        (long long)s->L, (long long)s->C, (long long)s->H, (long long)s->G, (long long)s->D,
        (long long)s->F, (long long)s->V, (long long)s->Vp, dtype_name(s->dtype),
        (double)param_table_count(&table) / 1e6);
    log_info(
        "batch   %lld x %lld tokens x %lld accumulation = %.0f tokens a step; %lld steps = %.2f M "
        "tokens",
        (long long)c->train_micro_batch_size_per_gpu, (long long)c->data.seq_length,
        (long long)c->gradient_accumulation_steps, tokens, (long long)c->train_steps,
        tokens * (double)c->train_steps / 1e6);
    gpt_layers_free(&layers);
    param_table_free(&table);
}

/* Room for the checkpoints that will lie there at once: those kept, and the one being written. */
static void check_disk(const Config *c, const MemoryPlan *p)
{
    struct statvfs disk;
    double need = (double)p->checkpoint * (double)(c->checkpoint.keep + 1);
    log_info("disk    %.1f MiB a checkpoint, %lld kept", (double)p->checkpoint / MiB,
             (long long)c->checkpoint.keep);
    if (statvfs(".", &disk) != 0) return;
    double available = (double)disk.f_bavail * (double)disk.f_frsize;
    if (need > available)
        log_warning("checkpoints will need %.1f GiB of disk and %.1f GiB are free here; lower "
                    "checkpoint.keep or choose another disk with --out",
                    need / MiB / 1024, available / MiB / 1024);
}

/* What a device's memory must have beside the plan: kernels, which are loaded when they are first
 * used, and the ends of allocations' pages. */
#define DEVICE_SLACK ((size_t)256 << 20)

/* Where the plan's memory comes from, and how much there is. */
typedef struct {
    bool device; /* memory of its own; else the host's */
    size_t available, total;
} Room;

/* How much of it the plan may take. */
static size_t room_for_plan(const Room *room)
{
    size_t slack = room->device ? DEVICE_SLACK : 0;
    return room->available > slack ? room->available - slack : 0;
}

/* Opens the device to ask it: its context, product library and scratch are then taken off already.
 * Ends the program when there is no such device. */
static Room find_room(const Config *c)
{
    Room room = {.available = memory_available()};
    char err[2048];
    Device device;
    if (!session_open_device(&device, c, err, sizeof err)) fail(EXIT_UNAVAILABLE, "%s", err);
    room.device = device_memory(&device, &room.available, &room.total);
    device_close(&device);
    return room;
}

static void tell_memory(const MemoryPlan *p, const Room *room)
{
    char where[64] = "";
    if (room->device)
        snprintf(where, sizeof where, " of %.1f on the GPU", (double)room->total / MiB / 1024);
    log_info(
        "memory  plan %.1f MiB: weights %.1f  gradients %.1f  optimizer %.1f  activations %.1f  "
        "scratch %.1f  other %.1f; available %.1f GiB%s",
        (double)p->total / MiB, (double)p->weights / MiB, (double)p->gradients / MiB,
        (double)p->optimizer / MiB, (double)p->activations / MiB, (double)p->scratch / MiB,
        (double)p->other / MiB, (double)room->available / MiB / 1024, where);
}

/* On the CPU the host's share comes from the same memory. */
static void add_host(MemoryPlan *p)
{
    bool over = __builtin_add_overflow(p->total, p->host, &p->total);
    p->other += p->host;
    if (over) p->total = SIZE_MAX;
}

/* What a long step takes of the host's memory, on every device. */
static void check_host(const MemoryPlan *p, const Config *c)
{
    size_t available = memory_available();
    if (c->gradient_accumulation_steps > 1 && p->host > available)
        fail(EXIT_NO_MEMORY,
             "the plan needs %.1f GiB of the host's memory and %.1f GiB are available; lower "
             "gradient_accumulation_steps (now %lld)",
             (double)p->host / MiB / 1024, (double)available / MiB / 1024,
             (long long)c->gradient_accumulation_steps);
}

void run_plan(Run *run)
{
    const Config *c = run->config;
    GptShape shape = gpt_shape(c);
    Room room = find_room(c);
    run->plan = memory_plan(c); /* before others count what it may refuse */
    if (!room.device) add_host(&run->plan);
    const MemoryPlan *p = &run->plan;
    tell_model(c, &shape);
    tell_memory(p, &room);
    check_disk(c, p);
    check_host(p, c);
    if (p->total > room_for_plan(&room))
        fail(EXIT_NO_MEMORY,
             "the plan needs %.1f GiB and %.1f GiB%s are available for it; lower "
             "train_micro_batch_size_per_gpu (now %lld), data.seq_length, or the model, or set "
             "activation_checkpointing.policy to \"selective\" or \"full\"",
             (double)p->total / MiB / 1024, (double)room_for_plan(&room) / MiB / 1024,
             room.device ? " of the GPU's memory" : "",
             (long long)c->train_micro_batch_size_per_gpu);
}

void run_tell_memory(const Run *run, const char *when)
{
    long long resident = 0, peak = 0;
    char line[256];
    FILE *f = run->config->memory_breakdown ? fopen("/proc/self/status", "r") : NULL;
    if (f == NULL) return;
    while (fgets(line, sizeof line, f) != NULL) {
        sscanf(line, "VmRSS: %lld", &resident); /* kB */
        sscanf(line, "VmHWM: %lld", &peak);
    }
    fclose(f);
    log_info("memory  %s: resident %.1f MiB, peak %.1f MiB, plan %.1f MiB", when,
             (double)resident / 1024, (double)peak / 1024, (double)run->plan.total / MiB);
}

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
    int64_t tokens = c->train_batch_size * c->data.seq_length;
    gpt_layers_build(&layers, &table, s);
    log_info(
        "model   %lld layers, %lld wide, %lld heads (%lld kv) of %lld, mlp %lld, vocabulary %lld "
        "(padded %lld), %s: %.2f M parameters",
        (long long)s->L, (long long)s->C, (long long)s->H, (long long)s->G, (long long)s->D,
        (long long)s->F, (long long)s->V, (long long)s->Vp, dtype_name(s->dtype),
        (double)param_table_count(&table) / 1e6);
    log_info(
        "batch   %lld x %lld tokens x %lld accumulation = %lld tokens a step; %lld steps = %.2f M "
        "tokens",
        (long long)c->train_micro_batch_size_per_gpu, (long long)c->data.seq_length,
        (long long)c->gradient_accumulation_steps, (long long)tokens, (long long)c->train_steps,
        (double)(tokens * c->train_steps) / 1e6);
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

void run_plan(Run *run)
{
    const Config *c = run->config;
    GptShape shape = gpt_shape(c);
    size_t available = memory_available();
    tell_model(c, &shape);
    run->plan = memory_plan(c);
    const MemoryPlan *p = &run->plan;
    log_info(
        "memory  plan %.1f MiB: weights %.1f  gradients %.1f  optimizer %.1f  activations %.1f  "
        "scratch %.1f  other %.1f; available %.1f GiB",
        (double)p->total / MiB, (double)p->weights / MiB, (double)p->gradients / MiB,
        (double)p->optimizer / MiB, (double)p->activations / MiB, (double)p->scratch / MiB,
        (double)p->other / MiB, (double)available / MiB / 1024);
    check_disk(c, p);
    if (p->total > available)
        fail(EXIT_NO_MEMORY,
             "the plan needs %.1f GiB and %.1f GiB are available; lower "
             "train_micro_batch_size_per_gpu (now %lld), data.seq_length, or the model, or set "
             "activation_checkpointing.policy to \"selective\" or \"full\"",
             (double)p->total / MiB / 1024, (double)available / MiB / 1024,
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

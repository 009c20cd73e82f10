/* json.c -- prints a plan as JSON, with bytes as integers; see plan.h. */
#include "parallel/plan/plan.h"

#include "model/core/json_write.h"

#include <stdio.h>

/* A number and its key. */
typedef struct {
    const char *key;
    double value;
} Real;
typedef struct {
    const char *key;
    int64_t value;
} Integer;

#define ROWS(array) ((int)(sizeof(array) / sizeof *(array)))

/* Prints real numbers as members of an object, with a comma between them. */
static void reals(const Real *row, int n)
{
    for (int i = 0; i < n; i++) {
        printf("%s\"%s\": ", i ? ", " : "", row[i].key);
        json_print_number(stdout, row[i].value);
    }
}

static void integers(const Integer *row, int n)
{
    for (int i = 0; i < n; i++)
        printf("%s\"%s\": %lld", i ? ", " : "", row[i].key, (long long)row[i].value);
}

static void print_subject(const Plan *plan, const char *machine)
{
    const Config *c = plan->config;
    const char *assumed = plan_vocabulary(c);
    const Integer counts[] = {{"ranks", plan->ranks},
                              {"nodes", plan->nodes},
                              {"pp", plan->grid.pp},
                              {"dp", plan->grid.dp},
                              {"shard", config_shard(c, plan->grid.dp)},
                              {"cp", plan->grid.cp},
                              {"tp", plan->grid.tp},
                              {"pipeline_chunks", c->parallel.pipeline_chunks},
                              {"zero_stage", c->zero_optimization.stage},
                              {"train_batch_size", c->train_batch_size},
                              {"micro_batch_size", c->train_micro_batch_size_per_gpu},
                              {"gradient_accumulation_steps", c->gradient_accumulation_steps},
                              {"seq_length", c->data.seq_length},
                              {"train_steps", c->train_steps},
                              {"parameters", plan->parameters},
                              {"vocab_size", c->model.vocab_size}};
    printf("  \"config\": ");
    json_print_string(stdout, c->path);
    printf(",\n  \"machine\": {\"file\": ");
    json_print_string(stdout, machine);
    printf(", \"name\": ");
    json_print_string(stdout, plan->hardware.name);
    printf(", \"cuda\": %s},\n  ", plan->hardware.cuda ? "true" : "false");
    integers(counts, ROWS(counts));
    printf(",\n  \"schedule\": \"%s\", \"recompute\": \"%s\", \"sequence_parallel\": %s",
           config_word(c, "parallel.schedule"), config_word(c, "activation_checkpointing.policy"),
           c->parallel.sequence_parallel ? "true" : "false");
    printf(",\n  \"vocabulary\": ");
    json_print_string(stdout, assumed ? assumed : "known");
    printf(",\n");
}

static void print_room(const char *key, const PlanRoom *room)
{
    const Integer rows[] = {{"needed", room->needed},
                            {"room", room->room},
                            {"left", room->room - room->needed},
                            {"margin", room->margin},
                            {"stage", room->stage}};
    printf("    \"%s\": {", key);
    integers(rows, ROWS(rows));
    printf("},\n");
}

static void print_stage_memory(const StagePlan *stage)
{
    const MemoryPlan *m = &stage->memory;
    const struct {
        const char *key;
        size_t bytes;
    } rows[] = {
        {"weights", m->weights},     {"gradients", m->gradients},     {"buffers", m->buffers},
        {"optimizer", m->optimizer}, {"activations", m->activations}, {"scratch", m->scratch},
        {"other", m->other},         {"reserve", m->reserve},         {"total", m->total},
        {"host", m->host},           {"offloaded", m->offloaded}};
    printf("      {\"stage\": %d", stage->stage);
    for (int i = 0; i < ROWS(rows); i++)
        printf(", \"%s\": %zu", rows[i].key, rows[i].bytes);
    printf("}");
}

/* Prints which part of a rank's optimizer states the config puts on the host, which part is really
 * there (in whole shards), and the seconds in which the link moves that part both ways
 * (plan_offloaded_seconds). */
static void print_offload(const Plan *plan)
{
    const OffloadConfig *offload = &plan->config->zero_optimization.offload_optimizer;
    const Real rows[] = {{"ratio", offload->device == OFFLOAD_CPU ? offload->ratio : 0},
                         {"share", plan_offloaded_share(plan)},
                         {"seconds", plan_offloaded_seconds(plan)}};
    printf("    \"offload_optimizer\": {\"device\": \"%s\", ",
           config_word(plan->config, "zero_optimization.offload_optimizer.device"));
    reals(rows, ROWS(rows));
    printf(", \"node_bytes\": %lld},\n",
           (long long)(plan->hardware.cuda ? plan->host : plan->device).offloaded);
}

static void print_memory(const Plan *plan)
{
    printf("  \"fits\": %s,\n  \"memory\": {\n", plan->fits ? "true" : "false");
    print_room(plan->hardware.cuda ? "device" : "node", &plan->device);
    if (plan->hardware.cuda) print_room("host", &plan->host);
    printf("    \"snapshot\": %lld, \"snapshot_missing\": %lld,\n", (long long)plan->snapshot,
           (long long)plan->snapshot_missing);
    print_offload(plan);
    if (plan->remedy) {
        printf("    \"remedy\": ");
        json_print_string(stdout, plan->remedy);
        printf(",\n");
    }
    printf("    \"reserve_is_an_estimate\": true,\n    \"rank_of_stage\": [\n");
    for (int s = 0; s < plan->grid.pp; s++) {
        print_stage_memory(&plan->stage[s]);
        printf("%s\n", s + 1 < plan->grid.pp ? "," : "");
    }
    printf("    ]\n  },\n");
}

static void print_wire(const Plan *plan)
{
    bool first = true;
    printf("  \"wire\": [\n");
    for (int s = 0; s < plan->grid.pp; s++)
        for (int g = 0; g < GRID_COMMS; g++)
            for (int i = 0; i < COMM_VERBS * DTYPE_COUNT; i++) {
                const StagePlan *stage = &plan->stage[s];
                int verb = i / DTYPE_COUNT, dtype = i % DTYPE_COUNT;
                const CommCount *count = &stage->wire[g].of[verb][dtype];
                if (count->calls == 0 || stage->group_size[g] == 1) continue;
                const Integer rows[] = {{"ranks", stage->group_size[g]},
                                        {"calls", count->calls},
                                        {"elements", count->elements},
                                        {"bytes", count->bytes}};
                printf("%s    {\"stage\": %d, \"group\": \"%s\", \"operation\": \"%s\", "
                       "\"dtype\": \"%s\", ",
                       first ? "" : ",\n", s, stage->group[g], comm_verb_name[verb],
                       dtype_name((DType)dtype));
                integers(rows, ROWS(rows));
                printf("}");
                first = false;
            }
    printf("%s  ],\n", first ? "" : "\n");
}

/* Prints how a rank of a stage spends a step, as members of an object. */
static void parts(const StageTime *t)
{
    const Real rows[] = {{"products", t->products},
                         {"attention", t->attention},
                         {"memory_bound", t->memory_bound},
                         {"optimizer", t->optimizer},
                         {"copies", t->copies},
                         {"exposed_dp", t->exposed_dp},
                         {"exposed_tp", t->exposed_tp},
                         {"exposed_pp", t->exposed_pp},
                         {"exposed_host", t->exposed_host},
                         {"bubble", t->bubble}};
    reals(rows, ROWS(rows));
}

static void print_stage_times(const Plan *plan)
{
    printf("    \"stages\": [\n");
    for (int s = 0; s < plan->grid.pp; s++) {
        printf("      {\"stage\": %d, ", s);
        parts(&plan->time.stage[s]);
        printf("}%s\n", s + 1 < plan->grid.pp ? "," : "");
    }
    printf("    ]\n");
}

static void print_predicted(const Plan *plan)
{
    const StageTime *t = &plan->step;
    const PlanRange *range = &plan->range;
    double run = plan_run_seconds(plan, t->seconds);
    double devices = (double)(plan->hardware.cuda ? plan->ranks : plan->nodes);
    double steps = (double)plan->config->train_steps;
    PlanSaves waits = plan_saves(plan, t->seconds);
    const Real saves[] = {{"snapshots", waits.snapshots / steps}, {"saves", waits.written / steps}};
    int64_t every = plan->config->checkpoint.save_interval;
    const Real rows[] = {{"step_seconds", t->seconds},
                         {"step_seconds_fast", range->fast},
                         {"step_seconds_slow", range->slow},
                         {"step_seconds_half_network", range->half_network},
                         {"tokens_per_second", plan->tokens / t->seconds},
                         {"tokens_per_second_of_device", plan->tokens / t->seconds / devices},
                         {"mfu6", plan->mfu6},
                         {"save_seconds", plan->save_seconds},
                         {"snapshot_seconds", plan->snapshot_seconds},
                         {"pending_seconds", plan_pending_seconds(plan, t->seconds, every)},
                         {"days", run / 86400},
                         {"days_fast", plan_run_seconds(plan, range->fast) / 86400},
                         {"days_slow", plan_run_seconds(plan, range->slow) / 86400},
                         {"device_hours", run / 3600 * devices}};
    printf("  \"predicted\": {\n    ");
    reals(rows, ROWS(rows));
    printf(",\n    \"last_stage\": %d,\n    \"parts\": {", plan->time.last);
    parts(t);
    printf(", ");
    reals(saves, ROWS(saves));
    printf("},\n");
    print_stage_times(plan);
    printf("  }\n");
}

void plan_print_json(const Plan *plan, const char *machine)
{
    printf("{\n");
    print_subject(plan, machine);
    print_memory(plan);
    print_wire(plan);
    printf("  \"checkpoint\": {\"bytes\": %lld, \"saves\": %lld},\n",
           (long long)plan->stage[0].checkpoint_bytes, (long long)plan->saves);
    print_predicted(plan);
    printf("}\n");
}

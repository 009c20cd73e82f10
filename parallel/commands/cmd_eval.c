/* cmd_eval.c -- `./train eval RUN`: computes the loss of a checkpoint, by default the best, on all
 * validation data, or its accuracy on multiple-choice questions. */
#include "parallel/commands/cmd_eval.h"

#include "model/core/check.h"
#include "model/core/figures.h"
#include "model/core/json_write.h"
#include "model/core/log.h"
#include "model/core/terminal.h"
#include "parallel/commands/commands.h"
#include "parallel/run/ranks_option.h"
#include "parallel/trainer/evaluate.h"

#include <stdlib.h>
#include <string.h>

bool eval_print_progress(void *progress, const Work *work)
{
    progress_count(progress, work->done, work->all, "evaluating micro-batch %s of %s",
                   figure_count((double)(work->done < work->all ? work->done + 1 : work->all)).text,
                   figure_count((double)work->all).text);
    return true;
}

/* Prints the members of a JSON object for a set, or for the main data with the prefix "val_". */
static void print_members(const EvalRecord *r, const char *prefix)
{
    printf("\"%sloss\": ", prefix);
    json_print_number(stdout, r->loss);
    printf(", \"targets\": %lld", (long long)r->targets);
    if (r->bytes <= 0) return;
    printf(", \"bits_per_byte\": ");
    json_print_number(stdout, r->bits_per_byte);
    printf(", \"bytes\": %lld", (long long)r->bytes);
}

/* Prints the records as a JSON object. A record without the name of a set is of the main data, and
 * comes first. */
static void print_json(const OpenedRank *rank, const EvalRecord *r, int n)
{
    bool sets = false;
    printf("{\"step\": %lld", (long long)rank->step);
    for (int i = 0; i < n; i++) {
        printf(r[i].set == NULL ? ", " : sets ? ", \"%s\": {" : ", \"sets\": {\"%s\": {", r[i].set);
        print_members(&r[i], r[i].set ? "" : "val_");
        if (r[i].set) printf("}");
        sets |= r[i].set != NULL;
    }
    printf(sets ? "}}\n" : "}\n");
}

static void print_result(const OpenedRank *rank, const EvalRecord *r, int n)
{
    for (int i = 0; i < n; i++) {
        char bits[80] = "";
        if (r[i].bytes > 0)
            snprintf(bits, sizeof bits, "   %.6f bits per byte over %lld bytes", r[i].bits_per_byte,
                     (long long)r[i].bytes);
        terminal_print(stdout, 4, "step %lld   %s loss %.6f nats a token over %lld targets%s",
                       (long long)rank->step, r[i].set ? r[i].set : "val", r[i].loss,
                       (long long)r[i].targets, bits);
    }
}

/* Evaluates all windows of the main validation data, or of a set. The evaluation during training
 * stops after eval.steps micro-batches instead. */
static EvalRecord evaluate_data(OpenedRank *rank, const ValidationSet *set, Feed *feed, Gpt *gpt,
                                StepStats *stats)
{
    const Config *c = rank->run->config;
    Session *s = &rank->session;
    char err[1024];
    LoaderOptions options = {.split = SPLIT_VAL,
                             .tokens = set ? &set->tokens : NULL,
                             .B = c->train_micro_batch_size_per_gpu,
                             .T = c->data.seq_length,
                             .vocab_size = c->model.vocab_size,
                             .dp_rank = s->grid.at.dp,
                             .dp_size = s->grid.size.dp,
                             .micros = INT64_MAX};
    if (!loader_create(&feed->val, &rank->run->data, &options, err, sizeof err))
        fail(EXIT_DAMAGED, "%s", err);
    progress_again(&rank->progress);
    EvalRecord r = evaluate_model(feed, s, gpt, stats, 0);
    r.set = set ? set->name : NULL;
    loader_free(feed->val);
    return r;
}

/* Returns a batch of zeros. Used instead of feed_batch to run each computation for the first time.
 */
static GptBatch empty_batch(void *context, const Action *action)
{
    Feed *feed = context;
    int64_t N = tensor_count(feed->place[0].tokens);
    int32_t *ids = must_calloc((size_t)N, sizeof *ids);
    const Tensor zeros = tensor_1d(ids, I32, N);
    const Batch batch = {.tokens = zeros, .targets = zeros, .positions = zeros};
    GptBatch placed =
        action->chunk > 0 ? feed->batch[action->batch] : feed_send(feed, action, &batch);
    free(ids);
    return placed;
}

/* Evaluates this rank's share of every batch. Rank 0 prints the results over all ranks. */
static int evaluate_on(OpenedRank *rank, void *context)
{
    const EvalArguments *a = context;
    const DataSet *data = &rank->run->data;
    const Config *c = rank->run->config;
    Session *s = &rank->session;
    EvalRecord r[EVAL_SETS_MOST + 1];
    int n = 0;
    int64_t B = c->train_micro_batch_size_per_gpu, T = c->data.seq_length;
    Feed feed;
    feed_open(&feed, &s->dev, B * T, s->room.batches);
    StepStats *stats = device_alloc(&s->dev, sizeof *stats, "the loss");
    Gpt *gpt =
        gpt_create(&s->dev, &s->layers, s->params, &s->tp, B, T, GPT_EVALUATE, s->room.slots);
    gpt_connect(gpt, empty_batch, &feed, stats, NULL);
    if (session_connects(s)) evaluate_warm_up(s, gpt);
    opened_rank_connect(rank);
    gpt_connect(gpt, feed_batch, &feed, stats, NULL);
    /* Only rank 0 prints progress. The callback never ends the evaluation, so the ranks need not
     * agree on its result. */
    if (rank->leads) feed.watch = eval_print_progress;
    feed.watch_context = &rank->progress;
    if (data->val.n_files > 0) r[n++] = evaluate_data(rank, NULL, &feed, gpt, stats);
    for (int i = 0; i < data->n_sets; i++)
        r[n++] = evaluate_data(rank, &data->sets[i], &feed, gpt, stats);
    if (rank->leads) {
        progress_end(&rank->progress);
        (a->json ? print_json : print_result)(rank, r, n);
    }
    session_meet(s);
    gpt_destroy(gpt);
    device_release(&s->dev, stats, sizeof *stats);
    feed_close(&feed);
    return EXIT_OK;
}

/* Returns the --set value that adds validation data to a run without any. It depends on the kind of
 * data that the run was trained on. */
static const char *other_data(const Config *c)
{
    if (c->data.train.count > 0) return "data.val=FILE";
    return c->data.corpus ? "data.val_fraction=0.05" : "data.val_text=FILE";
}

static int eval(const void *values)
{
    EvalArguments a = *(const EvalArguments *)values;
    OpenedRun run;
    /* The output consists of the JSON object alone. */
    if (a.json) log_set_level(LOG_WARNING);
    if (a.choices) return eval_choices(&a);
    opened_run_open(&run, &a.opened, true);
    if (run.data.val.n_files == 0 && run.data.n_sets == 0)
        fail(EXIT_MISSING, "%s has no validation data; write --set %s", a.opened.run,
             other_data(run.config));
    int code = opened_run_on(&run, evaluate_on, &a);
    opened_run_close(&run);
    return code;
}

static const ArgOption options[] = {
    {.name = "--set",
     .value = "key=value",
     .help = "override a key of the config, e.g. to evaluate\nanother text: --set "
             "data.val_text=other.txt",
     .kind = ARG_SETTINGS,
     .at = offsetof(OpenedArguments, set)},
    {.name = "--multiple-choice",
     .value = "FILE",
     .help = "print the accuracy on these questions instead: a file in\nllm.c's evaluation format, "
             "such as HellaSwag",
     .kind = ARG_NAME,
     .at = offsetof(EvalArguments, choices)},
    {.name = "--json",
     .help = "print the result as a JSON object",
     .kind = ARG_FLAG,
     .at = offsetof(EvalArguments, json)},
    OPENED_CHOICES,
    RANKS_OPTION(OpenedArguments),
};

const ArgCommand cmd_eval = {
    .name = "eval",
    .call = "./train eval",
    .usage = "RUN [options]",
    .summary = "validation loss and bits per byte of a run, or its accuracy",
    .about = "RUN is a run folder, or one of its checkpoints. Prints the loss in nats a token\n"
             "and bits per byte over all windows of the validation data.\n" OPENED_GRID,
    .options = options,
    .n_options = ARG_ROWS(options),
    .words = {.least = 1,
              .most = 1,
              .at = offsetof(EvalArguments, opened.run),
              .missing = "which run? ./train eval out/demo",
              .plural = "runs"},
    .size = sizeof(EvalArguments),
    .run = eval,
};

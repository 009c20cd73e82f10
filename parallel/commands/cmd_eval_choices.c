/* cmd_eval_choices.c -- `./train eval RUN --multiple-choice FILE`: how often a model gives the
 * right completion the lowest loss. */
#include "model/core/figures.h"
#include "model/core/hash.h"
#include "model/core/json_write.h"
#include "model/core/log.h"
#include "model/core/terminal.h"
#include "parallel/commands/cmd_eval.h"
#include "parallel/grid/control.h"
#include "parallel/trainer/evaluate.h"
#include "parallel/trainer/score.h"

#include <math.h>
#include <stdlib.h>

typedef struct {
    const EvalArguments *arguments;
    const ChoiceFile *file;
    int64_t cut; /* number of completions whose contexts lose their first tokens */
} Choosing;

/* An accuracy and its standard error (that of a sample mean). */
typedef struct {
    double share, error;
} Accuracy;

static Accuracy accuracy_of(int64_t right, int64_t all)
{
    double p = (double)right / (double)all;
    return (Accuracy){p, all > 1 ? sqrt(p * (1 - p) / (double)(all - 1)) : 0};
}

static void print_json(const OpenedRank *rank, const Choosing *c, ChoiceScore score)
{
    const ChoiceFile *f = c->file;
    printf("{\"step\": %lld, \"file\": ", (long long)rank->step);
    json_print_string(stdout, f->name);
    printf(", \"examples\": %lld, \"completions\": %lld, \"cut\": %lld", (long long)f->n_examples,
           (long long)f->n_rows, (long long)c->cut);
    printf(", \"right\": %lld, \"accuracy\": ", (long long)score.right);
    json_print_number(stdout, accuracy_of(score.right, f->n_examples).share);
    printf(", \"right_by_sum\": %lld, \"accuracy_by_sum\": ", (long long)score.right_by_sum);
    json_print_number(stdout, accuracy_of(score.right_by_sum, f->n_examples).share);
    printf(", \"right_loss\": ");
    json_print_number(stdout, score.loss);
    printf("}\n");
}

static void print_score(const OpenedRank *rank, const Choosing *c, ChoiceScore score)
{
    const ChoiceFile *f = c->file;
    Accuracy mean = accuracy_of(score.right, f->n_examples),
             sum = accuracy_of(score.right_by_sum, f->n_examples);
    terminal_print(stdout, 4,
                   "step %lld   accuracy %.4f +- %.4f by loss per token, %.4f +- %.4f by summed "
                   "loss; %s with %s; right ones %.6f nats a token",
                   (long long)rank->step, mean.share, mean.error, sum.share, sum.error,
                   figure_of(f->n_examples, "example").text,
                   figure_of(f->n_rows, "completion").text, score.loss);
}

/* Ends the program if a rank on another machine has a different file. */
static void require_same_file(const OpenedRank *rank, const ChoiceFile *f)
{
    char hash[20];
    const ChoiceRow *last = &f->row[f->n_rows - 1];
    int64_t words = last->completion + last->completion_tokens;
    snprintf(hash, sizeof hash, "%016llx",
             (unsigned long long)hash_bytes(1, f->word, words * (int64_t)sizeof *f->word));
    control_require_alike(rank->session.world, "scores a file with the hash", hash,
                          "give all machines the same file");
}

/* Computes this rank's share of the losses. Rank 0 prints the score. */
static int choose_on(OpenedRank *rank, void *context)
{
    const Choosing *c = context;
    const Config *config = rank->run->config;
    Session *s = &rank->session;
    Feed feed;
    Scoring scoring;
    int64_t B = config->train_micro_batch_size_per_gpu, T = config->data.seq_length;
    double *nats = must_calloc((size_t)c->file->n_rows, sizeof *nats);
    require_same_file(rank, c->file);
    feed_open(&feed, &s->dev, B * T, s->room.batches);
    scoring_open(&scoring, &feed, s, c->file, B, T);
    StepStats *stats = device_alloc(&s->dev, sizeof *stats, "the loss");
    Gpt *gpt =
        gpt_create(&s->dev, &s->layers, s->params, &s->tp, B, T, GPT_EVALUATE, s->room.slots);
    gpt_connect(gpt, scoring_batch, &scoring, stats, NULL);
    if (session_connects(s)) evaluate_warm_up(s, gpt);
    opened_rank_connect(rank);
    progress_again(&rank->progress);
    if (rank->leads) feed.watch = eval_print_progress;
    feed.watch_context = &rank->progress;
    scoring_run(&scoring, gpt, nats);
    if (rank->leads) {
        progress_end(&rank->progress);
        (c->arguments->json ? print_json : print_score)(rank, c, choice_file_score(c->file, nats));
    }
    session_meet(s);
    gpt_destroy(gpt);
    scoring_close(&scoring);
    device_release(&s->dev, stats, sizeof *stats);
    feed_close(&feed);
    free(nats);
    return EXIT_OK;
}

/* Returns how many ids have tokens. The model may have additional rows, which were never trained.
 */
static int64_t ids_with_tokens(const OpenedRun *run)
{
    int64_t model = run->config->model.vocab_size,
            own = run->tokenizer ? tokenizer_vocab_size(run->tokenizer) : model;
    return own < model ? own : model;
}

int eval_choices(const EvalArguments *a)
{
    char err[1024];
    bool missing;
    OpenedRun run;
    ChoiceFile file;
    Choosing choosing = {.arguments = a, .file = &file};
    opened_run_open(&run, &a->opened, false);
    const Config *config = run.config;
    if (!choice_file_open(&file, a->choices, ids_with_tokens(&run), &missing, err, sizeof err))
        fail(missing ? EXIT_MISSING : EXIT_DAMAGED, "%s", err);
    int64_t T = config->data.seq_length;
    if (!choice_file_fits(&file, T, &choosing.cut, err, sizeof err)) fail(EXIT_CONFIG, "%s", err);
    if (choosing.cut > 0)
        log_warning("%s: the first tokens of the context are left out for %s, because the model "
                    "reads %lld tokens",
                    file.name, figure_of(choosing.cut, "completion").text, (long long)T);
    /* Questions are often much shorter than the sequences of training, so shorter ones are
     * computed. */
    const Config shorter = config_of_short_sequences(config, choice_file_longest(&file));
    run.config = &shorter;
    int code = opened_run_on(&run, choose_on, &choosing);
    run.config = config;
    choice_file_close(&file);
    opened_run_close(&run);
    return code;
}

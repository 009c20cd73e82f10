/* evaluate.c -- runs evaluations over validation data and draws samples of text. See evaluate.h. */
#include "parallel/trainer/evaluate.h"

#include "model/core/clock.h"
#include "model/core/min_max.h"
#include "parallel/trainer/decide.h"

#include <math.h>
#include <stdlib.h>

/* Runs micro-batches [first, first + n) through the stages. */
static void evaluate_micros(Session *s, const Stage *stage, int64_t first, int64_t n)
{
    StepPlan plan = step_plan_create(s->config, &s->layers, s->grid.size, s->grid.at, n, true);
    for (int64_t i = 0; i < plan.schedule.n; i++)
        plan.schedule.action[i].micro += first;
    session_run(s, stage, &plan.schedule, NULL, NULL);
    step_plan_free(&plan);
}

void evaluate_warm_up(Session *session, Gpt *gpt)
{
    Stage stage = gpt_stage(gpt);
    session->params->step_begin(session->params, NULL, 0);
    evaluate_micros(session, &stage, 0, 1);
    session->params->step_end(session->params);
}

int64_t evaluate_batches(Feed *f, Session *session, Gpt *gpt, int64_t batches)
{
    Stage stage = gpt_stage(gpt);
    int64_t done = 0;
    /* NULL: the uses of units are not announced. An evaluation only reads weights, and the number
     * of its micro-batches is not known in advance, because a stop signal may end it early. */
    session->params->step_begin(session->params, NULL, 0);
    while (done < batches &&
           session_all_go_on(session, feed_may_continue(f, WORK_EVALUATION, done, batches))) {
        int64_t group = min_i64(evaluate_group(session->grid.size), batches - done);
        evaluate_micros(session, &stage, done, group);
        done += group;
    }
    session->params->step_end(session->params);
    flight_action(session->flight, -1, FLIGHT_BETWEEN);
    return done;
}

EvalRecord evaluate_model(Feed *f, Session *session, Gpt *gpt, StepStats *stats, int64_t batches)
{
    Device *dev = &session->dev;
    StepStats sums = {0};
    double start = seconds_now(), waited = f->seconds;
    int64_t all = loader_batches(f->val);
    if (batches == 0 || batches > all) batches = all;
    /* The sums over all batches are computed on the device, and the host waits once at the end. The
     * mean is over targets, so it does not depend on how they are distributed over batches. */
    device_copy_words(dev, stats, &sums, sizeof sums);
    gpt_set_stats(gpt, stats);
    f->target_bytes = 0;
    int64_t done = evaluate_batches(f, session, gpt, batches);
    session_sum_stats(session, stats);
    device_copy_words(dev, &sums, stats, sizeof sums);
    device_synchronize(dev);
    f->seconds = waited; /* the feed's clock counts training steps only */
    EvalRecord r = {.targets = (int64_t)sums.targets,
                    .bytes = session_sum_over_data(session, f->target_bytes),
                    .loss = sums.nats / sums.targets,
                    .bits_per_byte = -1,
                    .seconds = seconds_now() - start,
                    .cut = done < batches};
    r.batches = loader_micro_batches(f->val, &r.all_batches);
    /* Bits per byte can be compared between tokenizers, unlike the loss. They are unknown if the
     * number of bytes is. */
    if (r.bytes > 0) r.bits_per_byte = sums.nats / log(2.0) / (double)r.bytes;
    return r;
}

EvalRecord trainer_evaluate(Trainer *t, int64_t batches)
{
    EvalRecord r = evaluate_model(&t->feed, &t->session, t->gpt, &t->state->eval_stats, batches);
    gpt_set_stats(t->gpt, &t->state->stats);
    r.step = t->steps;
    return r;
}

EvalRecord trainer_evaluate_set(Trainer *t, int set)
{
    t->feed.val = t->sets[set];
    EvalRecord r = trainer_evaluate(t, 0);
    t->feed.val = t->val;
    r.set = t->data->sets[set].name;
    return r;
}

/* Collects sampled tokens until the end of the text, or until the watch ends the sample. Every rank
 * draws the same text. Rank 0 alone decides where the text ends: the last bit of a logit may differ
 * between ranks with different processors, and all must end at the same token. */
typedef struct {
    TokenBuffer tokens;
    int32_t end;
    const Feed *feed;
    Session *session;
    int64_t all;
    bool cut;
} Collected;

static bool collect(void *context, int32_t token)
{
    Collected *c = context;
    bool end = session_first(c->session, token) == c->end;
    if (!end) token_buffer_add(&c->tokens, token);
    c->cut = !end && !session_all_go_on(c->session, feed_may_continue(c->feed, WORK_SAMPLE,
                                                                      c->tokens.count, c->all));
    return !end && !c->cut;
}

char *trainer_sample(Trainer *t, const char *prompt, int64_t tokens)
{
    const Tokenizer *tokenizer = t->data->tokenizer;
    if (t->decoder == NULL || tokenizer == NULL) return NULL;
    Sampling sampling = {.temperature = t->config->eval.sample_temperature,
                         .top_k = t->config->eval.sample_top_k,
                         .top_p = 1.0,
                         .seed = (uint64_t)t->config->seed};
    TokenBuffer start = {0};
    Collected out = {.end = tokenizer_end_of_text(tokenizer),
                     .feed = &t->feed,
                     .session = &t->session,
                     .all = tokens};
    tokenizer_encode_prompt(tokenizer, prompt, &start);
    t->session.params->step_begin(t->session.params, NULL, 0);
    generate(t->decoder, &sampling, start.id, start.count, tokens, collect, &out);
    t->session.params->step_end(t->session.params);
    char *text =
        out.cut ? NULL : tokenizer_decode(tokenizer, out.tokens.id, out.tokens.count, false, NULL);
    token_buffer_free(&start);
    token_buffer_free(&out.tokens);
    return text;
}

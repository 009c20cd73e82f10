/* own_training.c -- training steps and evaluations without the trainer. See own_training.h. */
#include "tests/support/trainer/own_training.h"

#include "model/core/check.h"
#include "optim/lr_schedule.h"
#include "optim/step_constants.h"
#include "tests/support/device/op_devices.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

void own_training_open(OwnTraining *t, Fixture *model, const Config *config, int64_t steps)
{
    Device *dev = &model->dev;
    *t = (OwnTraining){.model = model, .constants = step_constants(config, 1)};
    t->bytes = optimizer_bytes(config, model->params).device;
    t->memory = device_alloc(dev, t->bytes, "slots");
    Arena arena = device_arena(dev, t->memory, t->bytes);
    optimizer_plan(&t->optimizer, config, model->params, &arena, NULL);
    optimizer_init(&t->optimizer, dev);
    t->norm = grad_norm_create(model->params);
    StepState state = step_state_initial(config);
    t->state = device_put_bytes(dev, &state, sizeof state);
    t->decision = device_alloc(dev, sizeof *t->decision, "a decision");
    double *lr = must_alloc((size_t)steps * sizeof *lr);
    lr_schedule_fill(config, lr, steps);
    t->lr = device_put(dev, tensor_1d(lr, F64, steps));
    free(lr);
}

void own_training_close(OwnTraining *t)
{
    Device *dev = &t->model->dev;
    device_drop(dev, t->lr);
    device_release(dev, t->decision, sizeof *t->decision);
    device_release(dev, t->state, sizeof *t->state);
    grad_norm_free(&t->norm);
    optimizer_free(&t->optimizer);
    device_release(dev, t->memory, t->bytes);
}

StepDecision own_training_step(OwnTraining *t)
{
    Fixture *f = t->model;
    StepDecision decision;
    int64_t words = sizeof decision / sizeof(int64_t);
    fixture_backward(f);
    StepStats *stats = device_put_bytes(&f->dev, &f->stats, sizeof f->stats);
    grad_norm_add(&t->norm, &f->dev, stats);
    op_step_decide(&f->dev, t->state, stats, t->decision, t->lr, &t->constants);
    optimizer_step(&t->optimizer, &f->dev, f->params, t->decision);
    device_copy(&f->dev, tensor_1d(&decision, I64, words), tensor_1d(t->decision, I64, words));
    device_synchronize(&f->dev);
    device_release(&f->dev, stats, sizeof *stats);
    return decision;
}

/* ---- windows --------------------------------------------------------------------------------- */

static void read_tokens(const TokenFile *file, int32_t *out)
{
    FILE *f = fopen(file->path, "rb");
    CHECK(f != NULL && fseek(f, TOKEN_FILE_HEADER, SEEK_SET) == 0, "cannot read %s", file->path);
    for (int64_t i = 0; i < file->n_tokens; i++) {
        uint8_t byte[4] = {0};
        CHECK(fread(byte, (size_t)file->width, 1, f) == 1, "%s ends early", file->path);
        out[i] = byte[0] | byte[1] << 8 | byte[2] << 16 | byte[3] << 24;
    }
    fclose(f);
}

OwnTokens own_tokens_read(const TokenSet *set)
{
    OwnTokens tokens = {.id = must_alloc((size_t)set->n_tokens * sizeof *tokens.id)};
    for (int i = 0; i < set->n_files; tokens.n += set->file[i++].n_tokens)
        read_tokens(&set->file[i], tokens.id + tokens.n);
    return tokens;
}

void own_tokens_free(OwnTokens *tokens)
{
    free(tokens->id);
    *tokens = (OwnTokens){0};
}

void own_window(Fixture *f, const OwnTokens *tokens, int64_t w, int64_t row)
{
    CHECK(f->B == 1 && w >= 0 && (w + 1) * f->T < tokens->n, "window %lld of %lld tokens",
          (long long)w, (long long)tokens->n);
    for (int64_t i = 0; i < f->T; i++) {
        f->tokens[row * f->T + i] = tokens->id[w * f->T + i];
        f->targets[row * f->T + i] = tokens->id[w * f->T + i + 1];
    }
}

/* Returns -log(softmax(logits)[target]). */
static double nats_of(const double *logits, int64_t V, int64_t target)
{
    double most = -INFINITY, sum = 0;
    for (int64_t v = 0; v < V; v++)
        most = fmax(most, logits[v]);
    for (int64_t v = 0; v < V; v++)
        sum += exp(logits[v] - most);
    return log(sum) + most - logits[target];
}

OwnEvaluation own_evaluate(Fixture *f, const OwnTokens *tokens, int64_t windows,
                           const Tokenizer *tokenizer)
{
    OwnEvaluation e = {0};
    int64_t Vp = f->layers.shape.Vp, V = f->layers.shape.V, T = f->T;
    Tensor logits = tensor_2d(must_alloc((size_t)(T * Vp) * sizeof(double)), F64, T, Vp);
    for (int64_t w = 0; w < windows; w++) {
        int64_t bytes;
        own_window(f, tokens, w, 0);
        fixture_logits(f, 0, logits);
        for (int64_t i = 0; i < T; i++)
            e.nats += nats_of(tensor_row(logits, i), V, f->targets[i]);
        free(tokenizer_decode(tokenizer, f->targets, T, false, &bytes));
        e.bytes += bytes;
    }
    e.targets = windows * T;
    free(logits.data);
    return e;
}

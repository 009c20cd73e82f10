/* generate.h -- text from a model: a decoder with a cache of keys and values, and sampling from its
 * logits. */
#ifndef MODEL_GENERATE_H
#define MODEL_GENERATE_H

#include "model/gpt.h"

typedef struct Decoder Decoder;

/* A decoder of one sequence of at most `max_tokens` tokens, 1 ... P. Borrows layers, store, tp and
 * relay. tp cuts no rows, whatever the layers' shape says of training: a pass may have a single
 * one. All ranks of a model make the same calls, and get the same logits. */
Decoder *decoder_create(Device *dev, const GptLayers *layers, ParamStore *store, const Region *tp,
                        const Relay *relay, int64_t max_tokens);
void decoder_destroy(Decoder *decoder);
/* Device bytes it takes, for the memory plan. */
size_t decoder_bytes(const GptLayers *layers, int64_t max_tokens);

/* For tests: what of decoder_bytes has been used so far, by the layout and by the passes since. */
size_t decoder_used(const Decoder *decoder);

/* For how many more tokens there is room. */
int64_t decoder_room(const Decoder *decoder);
/* Appends n >= 1 tokens (n <= room) and returns the logits (V) in the compute dtype after the last,
 * on the host, valid until the next call. */
Tensor decoder_feed(Decoder *decoder, const int32_t *tokens, int64_t n);

typedef struct {
    double temperature; /* 0: the most probable token */
    int64_t top_k;      /* 0: all */
    double top_p; /* 1: all; else the smallest set of most probable tokens whose mass reaches it */
    uint64_t seed;
} Sampling;

/* Draws a token from softmax(logits / temperature) cut to top_k and top_p (Holtzman et al.,
 * arXiv:1904.09751); `index` is its position in the sequence, so the draw is a pure function of
 * (logits, seed, index). order (V) is scratch. */
int32_t sample_token(const Sampling *sampling, Tensor logits, uint64_t index, int32_t *order);

/* Called with each new token; returning false ends the text. */
typedef bool (*TokenSink)(void *context, int32_t token);

/* Feeds the prompt (n >= 1 tokens) and then up to `tokens` sampled ones, each given to sink. When
 * the context is full the last half of it is fed anew. */
void generate(Decoder *decoder, const Sampling *sampling, const int32_t *prompt, int64_t n,
              int64_t tokens, TokenSink sink, void *context);

#endif

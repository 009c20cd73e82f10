/* generate.h -- generates text: a decoder with a cache of keys and values, and sampling from its
 * logits. */
#ifndef MODEL_GENERATE_H
#define MODEL_GENERATE_H

#include "model/gpt.h"

typedef struct Decoder Decoder;

/* Creates a decoder for one sequence of at most `max_tokens` tokens, from 1 to P (the context
 * size). It keeps pointers to layers, store, tp and relay. `tp` must not use sequence parallelism,
 * even if training does, because a pass may have only one row. All ranks of a model must make the
 * same calls, and all get the same logits. */
Decoder *decoder_create(Device *dev, const GptLayers *layers, ParamStore *store, const Region *tp,
                        const Relay *relay, int64_t max_tokens);
void decoder_destroy(Decoder *decoder);
/* Returns the device memory in bytes that a decoder takes, for the memory plan. */
size_t decoder_bytes(const GptLayers *layers, int64_t max_tokens);

/* For tests: returns how much of decoder_bytes has been used so far. */
size_t decoder_used(const Decoder *decoder);

/* Returns how many more tokens fit. */
int64_t decoder_room(const Decoder *decoder);
/* Appends n >= 1 tokens (n <= decoder_room) and returns the logits (V) after the last one, in the
 * compute dtype, on the host. They are valid until the next call. */
Tensor decoder_feed(Decoder *decoder, const int32_t *tokens, int64_t n);

typedef struct {
    double temperature; /* 0: always the most probable token */
    int64_t top_k;      /* 0: all tokens */
    /* Sample from the smallest set of most probable tokens whose mass reaches top_p; 1: all
     * tokens. */
    double top_p;
    uint64_t seed;
} Sampling;

/* Draws a token from softmax(logits / temperature) restricted by top_k and top_p (Holtzman et al.,
 * arXiv:1904.09751). `index` is the token's position in the sequence, so the result is a pure
 * function of (logits, seed, index). order (V) is scratch memory. */
int32_t sample_token(const Sampling *sampling, Tensor logits, uint64_t index, int32_t *order);

/* Called with each new token. Returning false stops the generation. */
typedef bool (*TokenSink)(void *context, int32_t token);

/* Feeds the prompt (n >= 1 tokens) and then samples up to `tokens` tokens, passing each one to
 * `sink`. When the context is full, its last half is fed again. */
void generate(Decoder *decoder, const Sampling *sampling, const int32_t *prompt, int64_t n,
              int64_t tokens, TokenSink sink, void *context);

#endif

/* option_rows.h -- the macros for the rows of option_table.c: one for each type of value, with the
 * columns that every key has. Further columns follow as designated initializers. */
#ifndef CONFIGS_READER_OPTION_ROWS_H
#define CONFIGS_READER_OPTION_ROWS_H

#include "configs/reader/choices.h"

#include <stddef.h>

#define HUGE_COUNT 1e12 /* the largest count of steps, samples or elements that a key accepts */

#define ROW(field, kind) .key = #field, .offset = offsetof(Config, field), .type = OPTION_##kind
#define FLAG(field, fallback_, effect_, changes_, ...)                                             \
    {                                                                                              \
        ROW(field, BOOL), .fallback = fallback_, .effect = EFFECT_##effect_,                       \
                          .changes = (changes_), .help = __VA_ARGS__                               \
    }
#define INT(field, fallback_, min_, max_, effect_, changes_, ...)                                  \
    {                                                                                              \
        ROW(field, INT), .fallback = fallback_, .min = min_, .max = max_,                          \
                         .effect = EFFECT_##effect_, .changes = (changes_), .help = __VA_ARGS__    \
    }
#define NUMBER(field, fallback_, min_, max_, effect_, changes_, ...)                               \
    {                                                                                              \
        ROW(field, NUMBER), .fallback = fallback_, .min = min_, .max = max_,                       \
                            .effect = EFFECT_##effect_, .changes = (changes_), .help = __VA_ARGS__ \
    }
#define CHOICE(field, fallback_, choices_, effect_, changes_, ...)                                 \
    {                                                                                              \
        ROW(field, CHOICE), .fallback = fallback_, .choices = choices_,                            \
                            .effect = EFFECT_##effect_, .changes = (changes_), .help = __VA_ARGS__ \
    }
#define TEXT(field, fallback_, effect_, changes_, ...)                                             \
    {                                                                                              \
        ROW(field, STRING), .fallback = fallback_, .effect = EFFECT_##effect_,                     \
                            .changes = (changes_), .help = __VA_ARGS__                             \
    }
#define PATHS(field, effect_, changes_, ...)                                                       \
    {                                                                                              \
        ROW(field, STRINGS), .effect = EFFECT_##effect_, .changes = (changes_), .derived = "none", \
                             .help = __VA_ARGS__                                                   \
    }

#define SETS(field, effect_, changes_, ...)                                                        \
    {                                                                                              \
        ROW(field, SETS), .effect = EFFECT_##effect_, .changes = (changes_), .derived = "none",    \
                          .help = __VA_ARGS__                                                      \
    }

/* A number of elements. DeepSpeed's files use the largest integer of the machine for "no limit". */
#define ELEMENTS(field, fallback_, changes_, ...)                                                  \
    {                                                                                              \
        ROW(field, INT), .fallback = fallback_, .min = 0, .max = HUGE_COUNT,                       \
                         .flags = OPTION_AUTO | OPTION_CLAMPED, .effect = EFFECT_NONE,             \
                         .changes = (changes_), .help = __VA_ARGS__                                \
    }

/* The maximum number of CTAs (thread blocks) of one of NCCL's groups of ranks; NCCL has at most 64
 * channels. */
#define CTAS(field, fallback_, ...)                                                                \
    {                                                                                              \
        ROW(field, INT), .fallback = fallback_, .max = 64, .effect = EFFECT_ROUNDING,              \
                         .changes = CHANGES_PLAN, .help = __VA_ARGS__                              \
    }

/* The optimizers, schedulers or types of RoPE scaling that a key belongs to (Option.types). */
#define ADAMS  (1u << OPTIMIZER_ADAMW | 1u << OPTIMIZER_ADAM)
#define SGD    (1u << OPTIMIZER_SGD)
#define WARM   (1u << SCHEDULER_WARMUP_LR | 1u << SCHEDULER_WARMUP_DECAY_LR)
#define COSINE (1u << SCHEDULER_WARMUP_COSINE_LR)
#define RANGE  (1u << SCHEDULER_LR_RANGE_TEST)
#define CYCLE  (1u << SCHEDULER_ONE_CYCLE)
#define WSD    (1u << SCHEDULER_WSD)
#define LLAMA3 (1u << ROPE_SCALING_LLAMA3)
#define TOTAL  (1u << SCHEDULER_WARMUP_DECAY_LR | COSINE | WSD)

#define EXACT 9007199254740992.0 /* 2^53: up to here, a double holds every integer */

/* What changes in a run if the key changes (Option.changes). */
#define NOTHING CHANGES_NOTHING
#define LOSSES  CHANGES_LOSSES
#define SAMPLES CHANGES_SAMPLES
#define PLAN    CHANGES_PLAN
#define FILES   CHANGES_FILES
#define CONSOLE CHANGES_CONSOLE
#define WIRE    CHANGES_WIRE

#endif

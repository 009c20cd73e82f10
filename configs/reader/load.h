/* load.h -- struct Load, the state of loading one config: each value's origin and the errors found
 * so far; private to configs/. */
#ifndef CONFIGS_READER_LOAD_H
#define CONFIGS_READER_LOAD_H

#include "configs/candidate.h"
#include "configs/reader/options.h"

#define LOAD_MAX_ERRORS 100

/* A position in the config file, or the number of a --set. */
typedef struct {
    int set; /* 0: the file; otherwise the number of the --set, from 1 */
    int line, column;
} ConfigPlace;

typedef enum { ORIGIN_DEFAULT, ORIGIN_DERIVED, ORIGIN_FILE, ORIGIN_SET } OriginKind;
/* Where a value came from. */
typedef struct {
    OriginKind kind;
    ConfigPlace place; /* position of the key, if it was given */
    /* it was given and refused; rules that read it are skipped, so one mistake gives one error */
    bool wrong;
    bool automatic;    /* it was given as "auto" */
    const char *alias; /* the other name under which it was given; NULL: none */
    char *text;        /* returned by config_origin; malloc'ed */
    char *given_at;    /* returned by config_given_at; malloc'ed; NULL: it was not given */
} Origin;

static inline bool origin_given(const Origin *origin)
{
    return origin->kind == ORIGIN_FILE || origin->kind == ORIGIN_SET;
}

/* An error makes the config invalid. A notice reports a setting that may not have the intended
 * effect. An idle notice reports a key that has no effect here; a routine notice reports which
 * default was used. The last two are only counted, and shown with --verbose. */
typedef enum { FINDING_ERROR, FINDING_NOTICE, FINDING_IDLE, FINDING_ROUTINE } FindingKind;
typedef struct {
    FindingKind kind;
    ConfigPlace place;
    char *key, *text;
    char *remedy; /* see load_remedy; NULL: none is known */
} Finding;

/* Position and value of a key in the document that is being read. */
typedef struct {
    ConfigPlace place;
    const cJSON *value; /* valid until the document is freed */
    bool asks; /* the key is another name of an option, and its value is neither null nor ignored */
} Seen;

/* The state of one load. All findings are collected here in the order in which rules are checked;
 * config.c sorts them by position at the end. */
typedef struct {
    const char *path; /* the file's name in messages; NULL: no file */
    const char *const *sets;
    int n_sets;
    ConfigContext context;
    Config *config;
    Origin *origin;   /* one per option; becomes config->provenance */
    Seen *seen;       /* one per option and per known key */
    ConfigPlace root; /* where the config begins: the position reported for a missing key */
    bool unreadable;  /* the file is not JSON, so rules between keys are skipped */
    Json *set_value;  /* per --set: its value, while the --set options are read */
    bool *dropped;    /* per --set: it is KEY=null, and the KEY in the file was skipped */
    bool foreign;     /* the file has no section "model", so it is assumed to be for DeepSpeed */
    Finding *finding;
    int n_findings, capacity, n_errors;
    /* The sizes that depend on each other, and the set of rules that they break. Both are computed
     * before the rules of the grid are checked, and again before the other rules are checked. */
    Candidate candidate;
    unsigned broken;
} Load;

/* Returns the name of a position in messages, malloc'ed: "c.json:2:5", or for a --set, which has no
 * line number, the whole option: "--set seed=1". */
char *load_place_text(const Load *load, ConfigPlace place);
/* Each of these adds a finding whose text is "PLACE: key: message", or "PLACE: alias (key):
 * message" if the value was given under another name of the key. */
void load_error(Load *load, ConfigPlace place, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void load_notice(Load *load, ConfigPlace place, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void load_idle(Load *load, ConfigPlace place, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void load_routine(Load *load, ConfigPlace place, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Stores, for the error that was added last, the command-line options that remove it: one on each
 * line, "KEY=VALUE" for --set, or "--ranks N". */
void load_remedy(Load *load, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Removes the errors and notices recorded for this key, because a later --set has replaced its
 * value. */
void load_forget(Load *load, const char *key);
/* Removes only the notices recorded for this key, because the key has an effect after all. */
void load_forget_notices(Load *load, const char *key);
/* Sets an option to its default. An option without one becomes null, zero, false or a number below
 * its range. */
void load_default(Load *load, int row);
/* Return whether the key was given a value, whether it was given as "auto", and whether its value
 * was refused and cannot be used. */
bool load_given(const Load *load, const char *key);
bool load_automatic(const Load *load, const char *key);
bool load_wrong(const Load *load, const char *key);
/* Returns whether the value of any of these keys was refused; the list ends with NULL. */
bool load_any_wrong(const Load *load, const char *const *keys);
/* Returns the position of the key, or the start of the config if the key was not given. */
ConfigPlace load_place(const Load *load, const char *key);
/* Marks the key's value as derived from other keys. */
void load_derived(Load *load, const char *key);
/* Sets an integer that was not given to `value`, which was computed from other keys. Does nothing
 * if value <= 0, which means that one of those keys was refused. */
void load_follow(Load *load, const char *key, int64_t *field, int64_t value);

/* assign.c: stores all keys of a document, or the values of all --set options. */
void assign_document(Load *load, Json *json);
void assign_sets(Load *load);
/* value.c: checks one JSON value and stores it in the option's field. If it is refused, adds an
 * error at position `at` and returns false. */
bool assign_field(Load *load, const Json *json, int node, int row, ConfigPlace at);
/* Calls assign_field, but also handles null and "auto" and records the value's origin. `alias` is
 * the other name under which it is given (NULL: none), `key_at` and `value_at` are the positions of
 * the key and of its value. */
void assign_value(Load *load, const Json *json, int node, int row, const char *alias,
                  ConfigPlace key_at, ConfigPlace value_at);
/* world.c: determines the number of ranks and parallel.data. */
void derive_world(Load *load);
/* Returns the largest number of ranks that may be suggested instead of `ranks` (0: not known). This
 * is the maximum of --ranks, unless `ranks` is above it: then a launcher is needed anyway, and its
 * maximum is returned. */
static inline int64_t load_most_ranks(int64_t ranks)
{
    return ranks > CONFIG_OWN_RANKS ? CONFIG_MAX_RANKS : CONFIG_OWN_RANKS;
}
/* batch.c: derives missing batch keys, and reports batch keys that contradict each other. */
void derive_batch(Load *load);
void check_batch(Load *load);
/* parallel.c handles the sections parallel and pipeline. fit_opened adapts the grid of a stored
 * config to the ranks that open it now. */
void fit_opened(Load *load);
/* Drops sequence_parallel of a stored config if the rows of a micro-batch cannot be divided among
 * the tensor-parallel ranks. To be called when the micro-batch is known. */
void fit_opened_rows(Load *load);
/* Drops the value that one of DeepSpeed's names gave for parallel.shard, with a notice, if it has
 * no effect or does not fit. */
void derive_shard(Load *load);
/* Drops parallel.shard of a stored config if it does not fit the ranks that open the config. To be
 * called when the number of data-parallel ranks is known. */
void fit_opened_shard(Load *load);
/* Reads "_shard" of a printed config (see config_print): the DeepSpeed name under which
 * parallel.shard was given. The rules of that name then apply. */
void read_shard_name(Load *load, const char *name);
void derive_parallel(Load *load);
void check_parallel(Load *load);
/* cut.c: checks the rules of the grid: whether its sizes divide the model evenly and fit the number
 * of ranks. Keys that a broken rule makes meaningless are marked as refused. */
void check_grid(Load *load);
/* candidate_of.c: returns the sizes of the config that is being loaded, given and derived. */
Candidate candidate_of_load(const Load *load);
/* near.c: writes suggestions. After each suggested change the rule holds, and so do all other
 * rules, except those that have or will have errors of their own. */
/* Returns whether load->candidate breaks the rule. */
bool load_breaks(const Load *load, RuleId rule);
/* Writes the nearest legal values of `key`, below and above the current one, as "2 or 4". If there
 * is none, one key of `with` is changed, too, and the text says so: "2 or 4 and leave
 * gradient_accumulation_steps out". Returns false if that does not help either. */
bool near_values(const Load *load, RuleId rule, CandidateKey key, unsigned with, char *out,
                 size_t n);
/* Writes the nearest legal value of `key` on one side of the current one (`side` -1: below, 1:
 * above), with no other key changed. Returns false if there is none. */
bool near_value(const Load *load, RuleId rule, CandidateKey key, int side, char *out, size_t n);
/* Writes the nearest legal sizes of the grid, for the case that changing one key cannot help: up to
 * two keys are changed, or more if necessary. If these include the schedule or the number of
 * chunks, the schedule gets no error of its own. */
void near_sizes(Load *load, RuleId rule, char *out, size_t n);
/* derive.c derives values from other values, and validate.c checks rules between keys. scheduler.c
 * does both for the section `scheduler`. */
void derive_values(Load *load);
void validate_config(Load *load);
/* Checks the keys of `checkpoint`. Defined in checkpoint.c. */
void checkpoint_validate(Load *load);
/* Checks zero_optimization.offload_optimizer and activation_checkpointing.partition_activations.
 * Defined in offload.c. */
void offload_validate(Load *load);
/* Reports a health.policy that can never take effect. Defined in health.c. */
void health_validate(Load *load);
/* attention.c: checks the rules of cuda.attention that do not depend on the devices. */
void attention_validate(Load *load);
void derive_scheduler(Load *load);
void check_scheduler(Load *load);
/* settle.c: returns whether backward recomputes GELU from sums that were rounded to 16 bits. Such a
 * config cannot have model.fused_gelu, with which forward computes GELU from the unrounded sums. */
bool config_rounds_before_gelu(const Config *config);

#endif

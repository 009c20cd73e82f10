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
    bool automatic; /* it was given as "auto" */
    bool aliased;   /* it was given under another name */
    char *text;     /* returned by config_origin; malloc'ed */
    char *given_at; /* returned by config_given_at; malloc'ed; NULL: it was not given */
} Origin;

static inline bool origin_given(const Origin *origin)
{
    return origin->kind == ORIGIN_FILE || origin->kind == ORIGIN_SET;
}

/* An error makes the config invalid. A notice reports a setting that perhaps does not have the
 * intended effect. An idle notice reports a key that has no effect here, and a routine notice which
 * default was used; both are only counted, and shown with --verbose. */
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
    const cJSON *value; /* until the document is freed */
    bool asks;          /* another name of an option, with a value that is not ignored */
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
    bool *dropped;    /* per --set: it is KEY=null, and the file has KEY, which is not read */
    bool foreign;     /* the file has no section "model": it was written for DeepSpeed */
    Finding *finding;
    int n_findings, capacity, n_errors;
    /* The numbers that rules relate, and the set of rules that they break. Both are computed before
     * the rules of the grid are checked, and again before all others are. */
    Candidate candidate;
    unsigned broken;
} Load;

/* Returns how messages name a place, malloc'ed: "c.json:2:5", or the whole --set, because that has
 * no line number: "--set seed=1". */
char *load_place_text(const Load *load, ConfigPlace place);
/* Each adds a finding whose text is "PLACE: key: message". */
void load_error(Load *load, ConfigPlace place, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void load_notice(Load *load, ConfigPlace place, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void load_idle(Load *load, ConfigPlace place, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void load_routine(Load *load, ConfigPlace place, const char *key, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* Gives the error that was added last the command-line options that mend it: one on each line,
 * "KEY=VALUE" for --set, or "--ranks N". */
void load_remedy(Load *load, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Removes the errors and notices recorded for this key, because a later --set has replaced its
 * value. */
void load_forget(Load *load, const char *key);
/* Removes only the notices: the key has an effect after all. */
void load_forget_notices(Load *load, const char *key);
/* Sets an option to its default. An option without one becomes null, zero, false or a number below
 * its range. */
void load_default(Load *load, int row);
/* Whether the key was given a value; whether it was given as "auto"; whether its value is unusable
 * because it was refused. */
bool load_given(const Load *load, const char *key);
bool load_automatic(const Load *load, const char *key);
bool load_wrong(const Load *load, const char *key);
/* Whether the value of any of these keys is unusable; the list ends with NULL. */
bool load_any_wrong(const Load *load, const char *const *keys);
/* Returns the position of the key, or where the config begins if the key was not given. */
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
/* Calls assign_field, but also handles null and "auto" and records the value's origin. `key_at` and
 * `value_at` are the positions of the key and of its value. */
void assign_value(Load *load, const Json *json, int node, int row, ConfigPlace key_at,
                  ConfigPlace value_at);
/* world.c: determines the number of ranks and parallel.data. */
void derive_world(Load *load);
/* Returns the most ranks that may be suggested instead of `ranks` (0: not known): those that a
 * launcher can start if it has started these, or could, and otherwise those that --ranks can. */
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
/* Adapts sequence_parallel as well, once the micro-batch is known: drops it if the rows of a
 * micro-batch cannot be divided among the tensor-parallel ranks. */
void fit_opened_rows(Load *load);
/* Sets a value that DeepSpeed's names of parallel.shard gave aside, with a notice, where it has no
 * effect or does not fit. */
void derive_shard(Load *load);
/* Adapts parallel.shard to the ranks that open a stored config, once the data-parallel ranks are
 * known. */
void fit_opened_shard(Load *load);
void derive_parallel(Load *load);
void check_parallel(Load *load);
/* cut.c checks the rules of the grid: can the model be divided that way, and among these ranks?
 * Marks what depends on a size that does not fit as refused. */
void check_grid(Load *load);
/* candidate_of.c: the numbers of the config that is being loaded, and those that follow. */
Candidate candidate_of_load(const Load *load);
/* near.c: text for what to write instead. Each change mends the rule, and breaks no rule but those
 * that have errors of their own. */
/* Returns whether the candidate breaks the rule. */
bool load_breaks(const Load *load, RuleId rule);
/* Writes the nearest legal values of `key`, below and above its own, as "2 or 4"; if there is none,
 * and one with a change of a key of `with`, what else changes after it: "2 or 4 and leave
 * gradient_accumulation_steps out". Returns false if there is none. */
bool near_values(const Load *load, RuleId rule, CandidateKey key, unsigned with, char *out,
                 size_t n);
/* The same for values on one side alone: -1 below, 1 above. */
bool near_value(const Load *load, RuleId rule, CandidateKey key, int side, char *out, size_t n);
/* Writes the nearest legal sizes of the grid, for the case that changing one key cannot help: up to
 * two keys, more if need be. If these say which schedule is right, it gets no error of its own. */
void near_sizes(Load *load, RuleId rule, char *out, size_t n);
/* derive.c derives values from other values, validate.c checks rules between keys, and scheduler.c
 * does both for its section. */
void derive_values(Load *load);
void validate_config(Load *load);
/* Checks the keys of `checkpoint`. Defined in checkpoint.c. */
void checkpoint_validate(Load *load);
/* Checks zero_optimization.offload_optimizer and activation_checkpointing.partition_activations.
 * Defined in offload.c. */
void offload_validate(Load *load);
/* Reports a health.policy that nothing can bring into effect. Defined in health.c. */
void health_validate(Load *load);
void derive_scheduler(Load *load);
void check_scheduler(Load *load);
/* settle.c: returns whether backward makes gelu again from sums that were rounded to 16 bits, which
 * model.fused_gelu does not allow. */
bool config_rounds_before_gelu(const Config *config);

#endif

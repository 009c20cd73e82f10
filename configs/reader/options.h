/* options.h -- the option table, which has one row per config key with its type, default, range and
 * help, and the functions that read the rows; private to configs/.
 *
 * Each of this program's own keys has a row in option_table.c. Each DeepSpeed key that is known but
 * not implemented here has a row in known_keys.c. Parsing, --set, check, explain, defaults, show
 * and diff all loop over these rows. Keys are listed nowhere else. */
#ifndef CONFIGS_READER_OPTIONS_H
#define CONFIGS_READER_OPTIONS_H

#include "configs/config.h"
#include "model/core/json.h"
#include "model/core/json_write.h"

typedef enum {
    OPTION_BOOL,
    OPTION_INT,     /* the field is an int64_t */
    OPTION_NUMBER,  /* the field is a double */
    OPTION_BETAS,   /* the field is a double[2] */
    OPTION_STRING,  /* the field is a char *, owned by the Config; it may be NULL */
    OPTION_STRINGS, /* the field is a StringList; a single string is read as a list of one */
    /* the field is an IntegerList with at least one element; null gives an empty list */
    OPTION_INTEGERS,
    OPTION_CHOICE, /* the field is an enum */
    OPTION_SETS,   /* the field is an EvalSets (eval_sets.h); null gives none */
} OptionType;

typedef enum {
    OPTION_AUTO = 1,  /* "auto" is accepted and means the same as leaving the key out */
    OPTION_ABOVE = 2, /* the minimum itself is not allowed */
    OPTION_BELOW = 4, /* the maximum itself is not allowed */
    /* true and false are accepted for 1 and 0 (an obsolete form in DeepSpeed) */
    OPTION_BOOL_INT = 8,
    OPTION_QUOTED = 16,  /* "true" and "false" are also accepted in quotes */
    OPTION_CLAMPED = 32, /* an integer above the maximum is read as the maximum */
    /* A derived value is printed only as a comment (or as "auto", if that was given). So it is
     * derived again when the printed config is loaded with other values. */
    OPTION_FOLLOWS = 64,
    OPTION_GRID = 128, /* the key describes how several ranks share the work (the grid) */
    /* If the value is above 0, the optimizer has state tensors that it does not have at 0.
     * Checkpoints of the two cases differ, so a resumed run cannot change from or to 0. */
    OPTION_STATE = 256,
    /* the default depends on the devices of the machine, and does not change results */
    OPTION_MACHINE = 512,
    /* the default depends on the device, and config_settle determines it */
    OPTION_DEVICE = 1024,
} OptionFlags;

/* One accepted value of a choice; the list ends with name NULL. */
typedef struct {
    const char *name;
    /* -1: known, but not implemented. If the name ends with a colon, it matches every value that
     * begins with it. */
    int value;
    bool any_case;
} Choice;

/* The outputs of a run that change if this key changes, as a bit set, which a test compares with
 * real runs. The set is empty if the key has only one implemented value. Only the first effect is
 * listed: if the losses change, samples and files always change as well. */
typedef enum {
    CHANGES_NOTHING = 0,
    CHANGES_LOSSES = 1,   /* the training losses: their values or their number */
    CHANGES_SAMPLES = 2,  /* the text sampled between steps, with the same losses */
    CHANGES_PLAN = 4,     /* the number of bytes in the memory plan */
    CHANGES_FILES = 8,    /* which files a run writes, or which validation records they contain */
    CHANGES_CONSOLE = 16, /* what is printed, with the same losses */
    CHANGES_WIRE = 32     /* which reductions and gathers ranks exchange, and their sizes */
} OptionChanges;

/* One row: a key, its field in Config, and everything that messages, printing and resuming need to
 * know about it. */
typedef struct {
    const char *key; /* for example "optimizer.params.lr" */
    size_t offset;
    OptionType type;
    unsigned flags;
    const char *fallback; /* the default as JSON; NULL: derived from other keys, or none */
    const char *derived;  /* the default in words, if it depends on other keys or is absent */
    double min, max;
    const Choice *choices;
    /* implemented values, in the form "|a|b|" of their JSON; NULL: all */
    const char *built;
    /* If this key is given, the key whose value is derived from it: a ratio determines a number of
     * steps. */
    const char *settles;
    /* The types of optimizer, scheduler or RoPE scaling that have this key, as a bit set; 0: all
     * types. */
    unsigned types;
    ConfigEffect effect;
    unsigned changes; /* a set of OptionChanges */
    const char *help;
} Option;

extern const Option option_table[];
extern const int option_count;

typedef enum {
    KNOWN_IGNORED, /* any value of the right type is accepted; one not in `inert` gives a notice */
    /* any value is accepted silently: the key's feature is off, or another key gives the notice */
    KNOWN_QUIET,
    KNOWN_UNBUILT, /* only the values in `inert` are accepted */
    /* a section that is accepted with any content if its "enabled" is false or absent */
    KNOWN_SWITCH,
    KNOWN_ON_SWITCH, /* like KNOWN_SWITCH, but "enabled" is true by default */
    KNOWN_TOOL,      /* like KNOWN_SWITCH, but accepted with a notice if "enabled" is true */
    /* a section that is accepted with any content if no "enabled" at any depth in it is true */
    KNOWN_DEEP_SWITCH,
    KNOWN_TREE,  /* a section that is accepted with any content, with a notice */
    KNOWN_WRONG, /* no value is accepted; `why` says what to write instead */
    /* a section that may also be true or false; then the key `stands_for` in it gets that value */
    KNOWN_SHORT,
    KNOWN_ALIAS, /* another name of the option `stands_for`; values in `inert` are ignored */
} KnownKind;

/* Features that are not implemented and that have several keys; known_feature has one row of
 * explanations per feature. */
typedef enum {
    FEATURE_NONE,    /* the key has an explanation of its own */
    FEATURE_OFFLOAD, /* offloading of parameters to the host */
    FEATURE_CPU_UPDATE,
    FEATURE_NVME,
    FEATURE_CHECKPOINT_WRITER,
    FEATURE_MONITOR,
    FEATURE_FLOPS_PROFILER,
    FEATURE_MUON,
    FEATURE_LAMB,
    FEATURE_ONE_BIT_ADAM,
    FEATURE_ZERO_ONE_ADAM,
    FEATURE_ONE_BIT_LAMB,
    FEATURE_MOMENTUM_CYCLING,
    FEATURE_COUNT,
} Feature;

typedef struct {
    const char *asks; /* what a key that needs this feature asks for, for error messages */
    const char *idle; /* why the feature's other keys have no effect */
} KnownFeature;

typedef struct {
    const char *key;
    KnownKind kind;
    Feature feature;
    const char *inert;   /* values that have no effect, in the form "|a|b|" of their JSON */
    const char *why;     /* the text that known_why returns; NULL: that of the feature */
    const char *example; /* a value of the right type, for an ignored key without `inert` */
    /* KNOWN_ALIAS: the option that this key is another name of. KNOWN_SHORT: the option that gets
     * the value. Other kinds: the row of this table that this key is another name of, or NULL. */
    const char *stands_for;
    /* KNOWN_UNBUILT: which keys help instead, as the end of the error message; NULL: none do. */
    const char *helps;
    /* KNOWN_ALIAS: what `true` means, as a JSON value of the option; NULL: the value is taken as it
     * is. */
    const char *means;
    bool negated;       /* KNOWN_ALIAS of a flag: false stands for true */
    bool positive_only; /* negative numbers have no effect, like the values in `inert` */
} KnownKey;

extern const KnownFeature known_feature[];
extern const KnownKey known_table[];
extern const int known_count;

/* Return the row number of `key`, or -1 if there is none. */
int option_find(const char *key);
int known_find(const char *key);
/* Returns whether some key begins with `key` and a dot. */
bool option_is_section(const char *key);
/* Returns whether the list "|a|b|" contains `value`. */
bool option_among(const char *list, const char *value);
/* Returns the length of the first value in "|a|b|"; the value begins after the first bar. */
int option_first(const char *list);
/* Returns an example of a valid value for the key: JSON text that may continue after this value. */
const char *known_example(const KnownKey *known);
/* Returns whether the value has no effect: it is accepted silently, or, for an alias, ignored. */
bool known_is_inert(const KnownKey *known, const cJSON *value);
/* Returns what the key asks for, or why it has no effect, as text for use in brackets. */
const char *known_why(const KnownKey *known);
/* Returns the name that a choice has for `value`. */
const char *option_choice_name(const Option *option, int value);
/* Returns the key that selects the type for a row with `types`: optimizer.type, scheduler.type or
 * model.rope_scaling.type. */
const char *option_type_key(const Option *option);
/* Returns the value of that key in this config. */
int option_type(const Option *option, const Config *config);
/* Returns whether this config's optimizer, scheduler or RoPE scaling reads the row. */
bool option_applies(const Option *option, const Config *config);
/* Returns the address of the row's field in the config. */
void *option_field(const Option *option, const Config *config);
/* Returns the row's value as malloc'ed JSON text, "null" if it has none. */
char *option_text(const Option *option, const Config *config);
/* Describes what the row accepts: "an integer from 1 to 100", "one of \"a\", \"b\"". */
void option_expects(const Option *option, char *out, size_t n);
/* Returns whether the upper limit only guards against absurd values, so that messages omit it. */
bool option_hides_limit(const Option *option);

/* suggest.c: the keys that the user probably meant by a misspelt key. */
typedef struct {
    char key[128];   /* "" if there is none */
    char other[128]; /* another key that is equally similar; "" if there is none */
} Suggestion;
/* Suggests a key of the same section, the key that another program's name stands for, or a key with
 * the same name in another section; never `key` itself. Keys that take a value like `value` (NULL:
 * any) are preferred. */
void suggest_key(const char *key, const cJSON *value, Suggestion *near);
/* Returns the key of this program for a name that another trainer uses; NULL if it is no such
 * name. */
const char *suggest_alias(const char *key);
/* Returns whether `word` is probably a misspelling of `name`. */
bool suggest_is_near(const char *word, const char *name);
/* Suggests only keys of the same section; returns false if none is similar. */
bool suggest_sibling(const char *key, const cJSON *value, Suggestion *near);
/* Does the same as suggest_key, but writes the whole dotted key to `out`; "" if there is none. */
void suggest_path(const char *key, char *out, size_t n);
/* Returns the name of the choice most similar to `value`, or NULL if none is similar. */
const char *suggest_choice(const Choice *choices, const char *value);

#endif

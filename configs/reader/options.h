/* options.h -- the option table and what its readers share; private to configs/.
 *
 * One row per key of ours (option_table.c), one per DeepSpeed key that is known and not honoured
 * (known_keys.c). Parsing, --set, check, explain, defaults, show and diff walk these rows; no key
 * is listed anywhere else. */
#ifndef CONFIGS_READER_OPTIONS_H
#define CONFIGS_READER_OPTIONS_H

#include "configs/config.h"
#include "model/core/json.h"
#include "model/core/json_write.h"

typedef enum {
    OPTION_BOOL,
    OPTION_INT,      /* int64_t */
    OPTION_NUMBER,   /* double */
    OPTION_BETAS,    /* double[2] */
    OPTION_STRING,   /* char *, owned, or NULL */
    OPTION_STRINGS,  /* StringList; a single string is a list of one */
    OPTION_INTEGERS, /* IntegerList of one at least; null: an empty one */
    OPTION_CHOICE,   /* an enum */
} OptionType;

typedef enum {
    OPTION_AUTO = 1,     /* "auto" is accepted and means: as if the key were absent */
    OPTION_ABOVE = 2,    /* the minimum itself is outside */
    OPTION_BELOW = 4,    /* the maximum itself is outside */
    OPTION_BOOL_INT = 8, /* true and false are accepted for 1 and 0 (a dead form of DeepSpeed's) */
    OPTION_NO_NULL = 16, /* null is refused, where the default is nobody's choice */
    OPTION_CLAMPED = 32, /* a whole number above the maximum means the maximum */
    OPTION_FOLLOWS = 64, /* where it is derived, a printed config shows it as a comment only (or as
                            the "auto" that it was given as), so that it is derived anew when the
                            text is read beside other values */
    OPTION_GRID = 128,   /* says how several ranks share the work: part of what makes a grid */
} OptionFlags;

/* One value of a choice; the list ends with name NULL. */
typedef struct {
    const char *name;
    int value; /* -1: known, not built yet; a name with a colon at its end begins the values then */
    bool any_case;
} Choice;

/* Where a run shows that a key has another value: a set, which a test compares with real runs;
 * empty where only one value is built. Only the first effect is named: other losses always bring
 * other samples and files. */
typedef enum {
    CHANGES_NOTHING = 0,
    CHANGES_LOSSES = 1,   /* the training losses: their values or how many there are */
    CHANGES_SAMPLES = 2,  /* the text drawn between steps, over the same losses */
    CHANGES_PLAN = 4,     /* the bytes of the memory plan */
    CHANGES_FILES = 8,    /* which files a run leaves, or which validation records are in them */
    CHANGES_CONSOLE = 16, /* what is printed, over the same losses */
    CHANGES_WIRE = 32     /* which sums and gathers go between ranks, and how large they are */
} OptionChanges;

/* One row: a key of ours, its field, and all that messages, printing and resume must know of it. */
typedef struct {
    const char *key; /* "optimizer.params.lr" */
    size_t offset;
    OptionType type;
    unsigned flags;
    const char *fallback; /* the default as JSON; NULL: derived, or none */
    const char *derived;  /* the default in words where it depends on other keys or is absent */
    double min, max;
    const Choice *choices;
    const char *built;   /* the values that are built, as "|a|b|" of their JSON; NULL: all */
    const char *settles; /* the row that follows from this one where this one is given: a ratio's
                            steps */
    unsigned types; /* bits of the optimizer's or scheduler's types that take this key; 0: all */
    ConfigEffect effect;
    unsigned changes; /* of OptionChanges */
    const char *help;
} Option;

extern const Option option_table[];
extern const int option_count;

typedef enum {
    KNOWN_IGNORED, /* any value of its type passes; one that is not inert with a notice */
    KNOWN_QUIET,   /* any value passes in silence: it belongs to something that is off */
    KNOWN_UNBUILT, /* only the inert values pass */
    KNOWN_SWITCH,  /* an object with anything inside, as long as its "enabled" is false or absent */
    KNOWN_ON_SWITCH, /* the same with true as the default of "enabled" */
    KNOWN_TREE,      /* an object with anything inside passes with a notice */
    KNOWN_WRONG,     /* no value passes: `why` says what to write instead */
    KNOWN_SHORT,     /* a section of which true and false stand for a key inside, `stands_for` */
    KNOWN_ALIAS,     /* another name of an option, `stands_for`; an inert value says nothing */
} KnownKind;

/* The features that several keys belong to, each with one row of reasons (known_feature). */
typedef enum {
    FEATURE_NONE, /* the key says why in its own words */
    FEATURE_OFFLOAD,
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
    const char *asks; /* what a key asks for that only this feature could give */
    const char *idle; /* why any other key of it changes nothing */
} KnownFeature;

typedef struct {
    const char *key;
    KnownKind kind;
    Feature feature;
    const char *inert;      /* "|a|b|" of JSON values */
    const char *why;        /* what the key asks for; NULL: what its feature says */
    const char *example;    /* a value of the type of an ignored key that has no inert values */
    const char *stands_for; /* the key that this is another name of: of KNOWN_SHORT and KNOWN_ALIAS
                               an option, else a row of this table */
} KnownKey;

extern const KnownFeature known_feature[];
extern const KnownKey known_table[];
extern const int known_count;

/* Number of the row of `key`, -1 if there is none. */
int option_find(const char *key);
int known_find(const char *key);
/* Whether some key begins with `key` and a dot. */
bool option_is_section(const char *key);
/* Whether "|a|b|" holds `value`. */
bool option_among(const char *list, const char *value);
/* Length of the first value in "|a|b|", which begins after the first bar. */
int option_first(const char *list);
/* A value of the type that the key takes, as the beginning of a JSON text. */
const char *known_example(const KnownKey *known);
/* Whether the value is one of those that pass, or of an alias say nothing. */
bool known_is_inert(const KnownKey *known, const cJSON *value);
/* What the key asks for, or why it changes nothing: half a sentence for brackets. */
const char *known_why(const KnownKey *known);
/* The name of a choice's value. */
const char *option_choice_name(const Option *option, int value);
/* The key of the type that decides whether a row with `types` is read: the optimizer's or the
 * scheduler's; and that type in this config. */
const char *option_type_key(const Option *option);
int option_type(const Option *option, const Config *config);
/* Whether the row is read by this config's optimizer and scheduler. */
bool option_applies(const Option *option, const Config *config);
/* The address of the row's field. */
void *option_field(const Option *option, const Config *config);
/* The row's value as JSON, malloc'ed; "null" where there is none. */
char *option_text(const Option *option, const Config *config);
/* "an integer from 1 to 100", "one of \"a\", \"b\"": what the row takes. */
void option_expects(const Option *option, char *out, size_t n);
/* Whether the upper limit is only there against nonsense, so that messages leave it out. */
bool option_hides_limit(const Option *option);

/* suggest.c: a key for a misspelt one: its sibling, an alias, the same name in another section; ""
 * if none. */
void suggest_key(const char *key, char *out, size_t n);
/* Whether the name is near enough to the word to be meant by it. */
bool suggest_is_near(const char *word, const char *name);
/* A key's misspelt sibling alone; false if none is near. */
bool suggest_sibling(const char *key, char *out, size_t n);
/* The same as suggest_key, as a whole key. */
void suggest_path(const char *key, char *out, size_t n);
/* The choice nearest to `value`, NULL if none is near. */
const char *suggest_choice(const Choice *choices, const char *value);

#endif

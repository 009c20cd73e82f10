/* identity.h -- what makes a run the one it is: its config, its tokenizer and its data, held
 * against those that its folder or a checkpoint keeps. Nothing here writes. */
#ifndef PARALLEL_RUN_IDENTITY_H
#define PARALLEL_RUN_IDENTITY_H

#include "configs/config.h"
#include "data/tokenizer/tokenizer.h"

/* Whether the run in `folder`, started with `stored`, may go on with `config`. Differences that
 * matter (those that change the run, unless allowed, and what cannot change at all) go into err,
 * all at once; the others are printed if `aloud`. */
bool identity_may_resume(const char *folder, const Config *stored, const Config *config, bool allow,
                         bool aloud, char *err, size_t n);
/* The same for the checkpoint `path` of another run, from which a new one starts: prints what
 * changes the run; a difference that its weights cannot follow ends the program (EXIT_CONFIG). */
void identity_check_start_config(const char *path, const Config *stored, const Config *config);

/* The tokenizer that a run's weights belong to, RUN/tokenizer.json; NULL when its data were bare
 * token files. A damaged one ends the program with a sentence. The caller frees. */
Tokenizer *identity_tokenizer(const char *run);
/* A run goes on in its own tokens only: with those of a text that has changed since, every id would
 * mean something else to the weights. Ends the program (EXIT_CONFIG) where `tokenizer` (NULL: none,
 * nothing to compare) is not the one stored in `folder`. */
void identity_check_tokenizer(const char *folder, const Tokenizer *tokenizer);

/* A run that goes on has the data of its newest checkpoint, or `allow`; otherwise the program ends
 * (EXIT_CONFIG). `data` is the identity of the data it has now (data/identity.h). */
void identity_check_data(const char *folder, const char *data, bool allow);
/* The same for the checkpoint `path` of another run, whose data were `was`: another tokenizer is
 * refused, other data are printed. */
void identity_check_start_data(const char *path, const char *was, const char *is);
/* Warns when the data of a finished run are no longer those of its newest checkpoint. */
void identity_warn_data_change(const char *folder, const char *data);

#endif

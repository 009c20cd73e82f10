/* identity.h -- checks, before a run resumes, that its config, tokenizer and data match those
 * stored in its folder or in a checkpoint. These functions write no files. */
#ifndef PARALLEL_RUN_IDENTITY_H
#define PARALLEL_RUN_IDENTITY_H

#include "configs/config.h"
#include "data/tokenizer/tokenizer.h"
#include "parallel/checkpoint/checkpoint.h"

/* Opens the newest checkpoint of a run whose manifest and headers are whole; damaged ones are
 * skipped, as in a resume, and data are not read. Sets *out to NULL if there is none; the caller
 * closes it. Returns false and sets err if the checkpoints cannot be listed. */
bool identity_newest_checkpoint(const char *run, Checkpoint **out, char *err, size_t n);

/* Returns true if the run in `folder`, which was started with `stored`, may continue with `config`.
 * Otherwise returns false and lists all refused differences in err: those that change the run
 * (unless `allow`) and those that make its weights unusable. Values that only follow from another
 * key that differs are not listed.
 * `aloud`: the user has named this folder. The other differences are printed, and another length of
 * the run is accepted if the learning rate of no step depends on it, unless the run's newest
 * checkpoint is past the new end. */
bool identity_may_resume(const char *folder, const Config *stored, const Config *config, bool allow,
                         bool aloud, char *err, size_t n);
/* Returns whether `config` is that of a stored run with more steps, and else changes nothing in the
 * training. */
bool identity_is_longer(const Config *stored, const Config *config);
/* Returns the option, with a space before it, that a command needs to give a run with this config
 * another train_steps: --allow-config-change if the learning rate depends on it, otherwise "". */
const char *identity_length_option(const Config *config);
/* Ends the program (EXIT_CONFIG) if `step`, at which a new run starts from `path`, a checkpoint or
 * a run whose newest checkpoint it is, is past the end of the run that `config` describes. */
void identity_check_start_step(const char *path, int64_t step, const Config *config);
/* Compares the configs when a new run starts from `path`, a checkpoint of another run. Prints the
 * differences that change the run. Ends the program (EXIT_CONFIG) if a difference makes the
 * checkpoint's weights unusable. */
void identity_check_start_config(const char *path, const Config *stored, const Config *config);

/* Reads RUN/tokenizer.json, the tokenizer that the run's weights were trained with. Returns NULL if
 * there is none, because the run's data were token files. Ends the program with an error message if
 * the file is damaged. The caller frees the result. */
Tokenizer *identity_tokenizer(const char *run);
/* Ends the program (EXIT_CONFIG) if `tokenizer` differs from the one stored in `folder`: after the
 * text has changed, a newly trained tokenizer would give the same ids to other words. Does nothing
 * if `tokenizer` is NULL. */
void identity_check_tokenizer(const char *folder, const Tokenizer *tokenizer);

/* Ends the program (EXIT_CONFIG) if the data differ from those of the newest checkpoint in
 * `folder`, unless `allow`. `data` is the identity of the current data (data/identity.h). */
void identity_check_data(const char *folder, const char *data, bool allow);
/* Compares the data when a new run starts from `path`, a checkpoint of another run, whose data had
 * the identity `was`. Ends the program (EXIT_CONFIG) if the tokenizer differs; other differences
 * are only printed. */
void identity_check_start_data(const char *path, const char *was, const char *is);
/* Warns when the data of a finished run are no longer those of its newest checkpoint. */
void identity_warn_data_change(const char *folder, const char *data);

#endif

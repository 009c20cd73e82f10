/* identity.h -- checks, before a run resumes, that its config, tokenizer and data match those
 * stored in its folder or in a checkpoint. These functions write no files. */
#ifndef PARALLEL_RUN_IDENTITY_H
#define PARALLEL_RUN_IDENTITY_H

#include "configs/config.h"
#include "data/tokenizer/tokenizer.h"
#include "parallel/checkpoint/checkpoint.h"

/* Opens the newest checkpoint of a run whose manifest and headers are intact; damaged ones are
 * skipped, as in a resume. Does not read the tensor data. Sets *out to NULL if there is none; the
 * caller closes it. Returns false and sets err if the checkpoints cannot be listed. */
bool identity_newest_checkpoint(const char *run, Checkpoint **out, char *err, size_t n);

/* Returns true if the run in `folder`, whose stored config is `stored`, may continue with `config`.
 * Otherwise returns false and lists all refused differences in err: those that change the run
 * (unless `allow`) and those that make its weights unusable. Differences of derived values are not
 * listed, only those of the keys that cause them. `aloud`: the user has named this folder. Then the
 * accepted differences are printed, and a different length of the run is accepted if the learning
 * rate of no step depends on it, unless the run's newest checkpoint is past the new end. */
bool identity_may_resume(const char *folder, const Config *stored, const Config *config, bool allow,
                         bool aloud, char *err, size_t n);
/* Returns whether `config` has more steps than the stored one, and no other difference that changes
 * the training. */
bool identity_is_longer(const Config *stored, const Config *config);
/* Returns the option, with a space before it, that a command needs to change train_steps of a run
 * with this config: --allow-config-change if the learning rate depends on it, otherwise "". */
const char *identity_length_option(const Config *config);
/* Checks the step at which a new run starts: ends the program (EXIT_CONFIG) if `step` is past the
 * end of the run that `config` describes. `path`, for the message, is the checkpoint of that step,
 * or a run folder whose newest checkpoint has it. */
void identity_check_start_step(const char *path, int64_t step, const Config *config);
/* Compares the configs when a new run starts from `path`, a checkpoint of another run. Prints the
 * differences that change the run. Ends the program (EXIT_CONFIG) if a difference makes the
 * checkpoint's weights unusable. */
void identity_check_start_config(const char *path, const Config *stored, const Config *config);

/* Reads RUN/tokenizer.json, the tokenizer that the run's weights were trained with. Returns NULL if
 * there is none, because the run's data were token files. Ends the program with an error message if
 * the file is damaged. The caller frees the result. */
Tokenizer *identity_tokenizer(const char *run);
/* Ends the program (EXIT_CONFIG) if `tokenizer` differs from the one stored in `folder`: if the
 * text has changed, a newly trained tokenizer would assign the same ids to different words. Does
 * nothing if `tokenizer` is NULL. */
void identity_check_tokenizer(const char *folder, const Tokenizer *tokenizer);

/* Ends the program (EXIT_CONFIG) if the data differ from those of the newest checkpoint in
 * `folder`, unless `allow`. `data` is the identity of the current data (data/identity.h). */
void identity_check_data(const char *folder, const char *data, bool allow);
/* Compares the data when a new run starts from `path`, a checkpoint of another run, whose data had
 * the identity `was`. Ends the program (EXIT_CONFIG) if the tokenizer differs; other differences
 * are only printed. */
void identity_check_start_data(const char *path, const char *was, const char *is);
/* Warns if the data of a finished run differ from the data of its newest checkpoint. */
void identity_warn_data_change(const char *folder, const char *data);

#endif

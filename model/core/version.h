/* version.h -- the program's version and commit. */
#ifndef MODEL_CORE_VERSION_H
#define MODEL_CORE_VERSION_H

/* Return "train 0.1 (commit 1a2b3c4)", and the commit alone. */
const char *program_version(void);
const char *program_commit(void);

#endif

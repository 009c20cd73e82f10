/* version.h -- which program this is. */
#ifndef MODEL_CORE_VERSION_H
#define MODEL_CORE_VERSION_H

/* "train 0.1 (commit 1a2b3c4)", and the commit alone. */
const char *program_version(void);
const char *program_commit(void);

#endif

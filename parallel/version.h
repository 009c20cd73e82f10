/* version.h -- which program this is. */
#ifndef PARALLEL_VERSION_H
#define PARALLEL_VERSION_H

/* "train 0.1 (commit 1a2b3c4)", and the commit alone. */
const char *program_version(void);
const char *program_commit(void);

#endif

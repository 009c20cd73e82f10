/* version.c -- returns the program's version and commit. The build passes the commit to this file
 * only, so a new commit recompiles nothing else. */
#include "model/core/version.h"

const char *program_commit(void)
{
    return PROGRAM_COMMIT;
}

const char *program_version(void)
{
    return "train 0.1 (commit " PROGRAM_COMMIT ")";
}

/* folder.h -- reads the files of a run's newest dump from RUN/flight. */
#ifndef PARALLEL_FLIGHT_FOLDER_H
#define PARALLEL_FLIGHT_FOLDER_H

#include "model/core/string_list.h"
#include "parallel/flight/ring.h"

/* What is known of a rank. */
typedef enum {
    RANK_SILENT,  /* it has no file of this dump, so it has not answered */
    RANK_READ,    /* its file has been read */
    RANK_UNKNOWN, /* its file is damaged, or was left out to save time */
} RankState;

typedef struct {
    int ranks; /* of the world */
    RankState *state;
    RingFile **ring; /* [ranks] the parsed file of each rank; for a silent rank the file of an
                        earlier dump, or NULL; for an unknown rank NULL */
    int read, silent, unknown; /* numbers of ranks in each state */
    bool several_hosts;        /* the ranks are on different machines, as far as that is known */
    const RingFile *first;     /* file of the lowest rank that was read */
    StringList damaged;        /* messages about files that cannot be read */
} FlightFiles;

/* Reads the files in RUN/flight. After `seconds` the remaining files are left out (0: no limit).
 * Returns false and sets err if no file was read; *missing is then true unless there are files
 * that could not be read. The caller calls flight_files_free in both cases. */
bool flight_files_read(FlightFiles *files, const char *run, double seconds, bool *missing,
                       char *err, size_t n);
/* Does the same with files that have been parsed already, and takes ownership of them:
 * rings[0..count), of any ranks and dumps, at least one. */
void flight_files_take(FlightFiles *files, RingFile **rings, int count);
void flight_files_free(FlightFiles *files);

#endif

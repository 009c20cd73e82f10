/* out_file.h -- writes one file of a save from its first byte to its last, and syncs it. Private to
 * parallel/checkpoint. */
#ifndef PARALLEL_CHECKPOINT_OUT_FILE_H
#define PARALLEL_CHECKPOINT_OUT_FILE_H

#include "model/core/fs.h"

/* The file that is being written, and whether it and the files before it were written without an
 * error. */
typedef struct {
    const FsOps *fs;
    const char *folder; /* path of the folder */
    int folder_fd;      /* -1: the folder could not be opened */
    int fd;             /* -1: no file is open */
    char *path;
    bool good; /* false after an error, whose message is in err[0..n): nothing more is written */
    char *err;
    size_t n;
} OutFile;

/* Opens the folder. The caller must call out_file_close. */
OutFile out_file_open(const FsOps *fs, const char *folder, char *err, size_t n);
void out_file_close(OutFile *out);
/* Creates the file `name`, which must not exist. */
void out_file_begin(OutFile *out, const char *name);
/* Appends bytes. */
void out_file_put(OutFile *out, const void *data, size_t bytes);
/* Syncs and closes the file. */
void out_file_end(OutFile *out);
/* Creates the file `path`, writes `bytes` bytes of `data` to it and syncs it. `folder` is the
 * descriptor of its folder. */
bool write_whole_file(const FsOps *fs, int folder, const char *path, const void *data, size_t bytes,
                      char *err, size_t n);

#endif

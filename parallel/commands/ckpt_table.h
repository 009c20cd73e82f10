/* ckpt_table.h -- the table that `./train ckpt list` prints: one row for each checkpoint of a run,
 * with the losses of its step from the run's metrics.jsonl. */
#ifndef PARALLEL_COMMANDS_CKPT_TABLE_H
#define PARALLEL_COMMANDS_CKPT_TABLE_H

#include "parallel/checkpoint/checkpoint.h"
#include "parallel/report/history.h"

typedef struct {
    char *folder;    /* contains the checkpoints */
    History history; /* of the run; empty if it has no metrics.jsonl that can be read */
    CheckpointBest best;
    int rows; /* number of rows printed so far */
} CkptTable;

/* Begins a table of the checkpoints in one folder; `checkpoint` is the path of one of them. */
void ckpt_table_begin(CkptTable *table, const char *checkpoint, const CheckpointBest *best);
/* Prints the row of an open checkpoint. The first call also prints the header before it. */
void ckpt_table_row(CkptTable *table, const Checkpoint *checkpoint);
void ckpt_table_end(CkptTable *table);

#endif

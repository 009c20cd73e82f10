/* world.h -- the ranks of a run: how they start, what they tell each other, and how they agree. */
#ifndef PARALLEL_RUN_WORLD_H
#define PARALLEL_RUN_WORLD_H

#include "parallel/run/run.h"

/* Ends the program with `code` on all ranks unless all are `good`, with the sentence err[0..n) of
 * the lowest that is not. All ranks call it. */
void run_require(const Run *run, bool good, ExitCode code, char *err, size_t n);
/* What a pipeline does in a step: "1f1b, 8 micro-batches, bubble 11 %". The bubble is the share of
 * a step in which a stage waits for the others, idle / (idle + work), where stages are equal and a
 * backward takes twice as long as a forward. For gpipe and 1f1b it is (stages - 1) /
 * (micro-batches + stages - 1). Returns `text`. */
char *run_schedule_text(const Config *config, char *text, size_t n);
/* Holds the schedules of all stages to each other, which no stage can do alone: those that do not
 * fit would wait for each other for ever. A bug ends the program. */
void run_check_schedules(const Config *config);
/* One line on the ranks and how they share the work, where there are several; compares what they
 * compute with (EXIT_CONFIG where it differs). */
void run_print_ranks(Run *run);
/* Tells the other ranks what rank 0 has chosen: the folder's path, state and attempt. */
void run_share_folder(Run *run);
/* Adds to a rank's own seconds what wall_clock_breakdown says of all ranks: their work, and for
 * each axis the exposed communication of the rank that has most. One message; all ranks call it. */
void run_compare_ranks(const Run *run, SpeedRecord *speed);
/* --log-ranks: opens RUN/logs/rank_NNN.log, which gets what this rank says from here on. */
void run_open_log(Run *run);
void run_close_log(Run *run);
/* From here on rank 0's errors carry its place, or none, as at the start: what it does there it
 * does for all, but for what each rank allocates. */
void run_take_place(const Run *run);
void run_speak_for_all(const Run *run);

#endif

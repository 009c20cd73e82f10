/* words.h -- sentences about what a dump shows. */
#ifndef PARALLEL_FLIGHT_WORDS_H
#define PARALLEL_FLIGHT_WORDS_H

#include "parallel/flight/chain.h"

/* A dump that has been read and analysed. */
typedef struct {
    FlightFiles files;
    Net net;
    Search search;
    Chain chain;
} FlightReading;

/* Reads and analyses the newest dump of a run. After `seconds` the remaining files are left out (0:
 * no limit). Returns false and sets err if no file was read; *missing is then true unless
 * there are files that could not be read. If it returns true, the caller calls
 * flight_reading_close. */
bool flight_reading_open(FlightReading *reading, const char *run, double seconds, bool *missing,
                         char *err, size_t n);
/* Does the same with files that have been parsed already, like flight_files_take. */
void flight_reading_take(FlightReading *reading, RingFile **rings, int count);
void flight_reading_close(FlightReading *reading);

/* The following functions return texts that the caller frees. */

/* Returns where the hang begins: "rank 2 (on n2) is late: it has been in the wait for its training
 * data for 12.3 s, in the forward pass of micro-batch 3 of step 12". */
char *flight_words_begin(const FlightReading *reading);
/* Returns which ranks wait in the same call: "ranks 0, 1, 3 have waited up to 12.3 s for rank 2 in
 * all-reduce of 64 f32 (group dp, call 17), in the backward pass of micro-batch 3 of step 12". */
char *flight_words_wait(const FlightReading *reading, const ChainWait *wait);
/* Returns what to do about the cause. */
char *flight_words_advice(const FlightReading *reading);
/* Returns a description of an entry: "all-reduce of 64 f32 (group dp, call 17)". */
char *flight_words_entry(const RingFile *ring, const RingEntry *entry);
/* Returns the place in training: "in the backward pass of micro-batch 3 of step 12". */
char *flight_words_place(int64_t step, int64_t micro_batch, FlightAction action);

#endif

/* flight_inside.h -- the fields of a Flight, for flight.c, which writes it, and flight_read.c,
 * which reads it.
 *
 * An entry is eight words; the first one is the entry's number. The writer sets the number to 0,
 * stores the other words and then the number. A reader that finds the same number before and after
 * it has read the words has read one whole entry: each word is stored with release and loaded with
 * acquire, so a reader that sees a word of a newer entry no longer finds the old number. */
#ifndef MODEL_CORE_FLIGHT_INSIDE_H
#define MODEL_CORE_FLIGHT_INSIDE_H

#include "model/core/flight.h"

#include <stdatomic.h>
#include <string.h>

/* WORDS: number of words in an entry. FINISHED: index of the word that is FlightEntry.finished.
 * PAIRS: number of message counters. */
enum { WORDS = 8, FINISHED = 4, PAIRS = 512 };
_Static_assert(sizeof(FlightEntry) == WORDS * sizeof(uint64_t), "an entry is eight words");
_Static_assert(offsetof(FlightEntry, n) == 0, "the number is the first word");
_Static_assert(offsetof(FlightEntry, finished) == FINISHED * sizeof(uint64_t), "FINISHED");
_Static_assert((FLIGHT_ENTRIES & (FLIGHT_ENTRIES - 1)) == 0, "a power of two");

typedef struct {
    _Atomic uint64_t word[WORDS];
} Slot;

/* Counts the messages so far between this rank and another rank of a group, in one direction. */
typedef struct {
    int64_t key; /* 0: unused */
    int64_t count;
} Pair;

struct Flight {
    _Atomic int64_t issued; /* number of the last entry */
    _Atomic int64_t step, micro_batch;
    _Atomic int action;
    int unit, hidden;
    bool asynchronous; /* the device may still work after a call has returned */
    Device device;     /* a view, for Backend.mark */
    const void *stream[GRAPH_STREAMS];
    /* Numbers of entries, for each stream. last: its last entry. marked: the last entry for which
     * its progress word will be written. ended: the last entry that is known to have finished
     * without a progress word. */
    int64_t last[GRAPH_STREAMS], marked[GRAPH_STREAMS];
    _Atomic int64_t ended[GRAPH_STREAMS];
    _Atomic(int64_t *)
        progress; /* (GRAPH_STREAMS) progress words, page-locked; NULL: no device writes them */
    _Atomic int groups;
    GraphGroup group[FLIGHT_GROUPS];
    Pair pair[PAIRS];
    int works;
    Slot work[FLIGHT_OPEN]; /* copies of the entries of running tasks */
    Slot slot[FLIGHT_ENTRIES];
};

/* Stores an entry. */
static inline void slot_store(Slot *slot, const FlightEntry *entry)
{
    uint64_t word[WORDS];
    memcpy(word, entry, sizeof word);
    atomic_store_explicit(&slot->word[0], 0, memory_order_relaxed);
    for (int w = 1; w < WORDS; w++)
        atomic_store_explicit(&slot->word[w], word[w], memory_order_release);
    atomic_store_explicit(&slot->word[0], word[0], memory_order_release);
}

/* Reads a whole entry. Returns false if the slot is empty, or if the entry is being replaced. */
static inline bool slot_load(const Slot *slot, FlightEntry *entry)
{
    uint64_t word[WORDS];
    for (int w = 0; w < WORDS; w++)
        word[w] = atomic_load_explicit(&slot->word[w], memory_order_acquire);
    memcpy(entry, word, sizeof word);
    return word[0] != 0 && atomic_load_explicit(&slot->word[0], memory_order_relaxed) == word[0];
}

#endif

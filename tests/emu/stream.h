/* stream.h -- what streams are to events. */
#ifndef TESTS_EMU_STREAM_H
#define TESTS_EMU_STREAM_H

#include "tests/emu/emu.h"

/* How far a stream has come: its point-th piece of work is done. */
typedef struct {
    cudaStream_t stream;
    int64_t point;
} EmuPoint;

/* All that the stream has been asked for so far. */
EmuPoint emu_stream_now(cudaStream_t stream);
/* Does that work; whether there was anything left to do. Who `asks` only is not held up. */
bool emu_stream_reach(EmuPoint to, bool asks);
/* What the stream is asked for from here on is done once that work is. */
void emu_stream_wait_for(cudaStream_t stream, EmuPoint to);

#endif

/* llmc_write.c -- writes a model file of llm.c. See llmc.h. */
#include "model/core/check.h"
#include "model/weights/llmc.h"
#include "model/weights/sink.h"

#include <stdlib.h>
#include <string.h>

/* Returns the index of the source's tensor that has the name and shape of `place`. If there is
 * none, returns -1 and sets `err`. */
static int find(const WeightSource *source, const SourceTensor *place, char *err, size_t n)
{
    int index = weight_source_find(source, place->name);
    if (index < 0) return error_set(err, n, "there is no tensor %s", place->name) - 1;
    const SourceTensor *t = &source->tensor[index];
    if (t->ndim == place->ndim && t->dim[0] == place->dim[0] && t->dim[1] == place->dim[1])
        return index;
    return error_set(err, n, "tensor %s is %lld x %lld, the config describes %lld x %lld",
                     place->name, (long long)t->dim[0], (long long)t->dim[1],
                     (long long)place->dim[0], (long long)place->dim[1]) -
           1;
}

/* Checks that the source has every tensor of the file, and no other: a tensor without a place in
 * the file would be left out, which would change the model. */
static bool check_all(const WeightSource *source, const LlmcPlace *place, int count, char *err,
                      size_t n)
{
    for (int i = 0; i < count; i++)
        if (find(source, &place[i].tensor, err, n) < 0) return false;
    for (int i = 0; i < source->n_tensors && source->n_tensors != count; i++) {
        int at = 0;
        while (at < count && strcmp(place[at].tensor.name, source->tensor[i].name) != 0)
            at++;
        if (at == count)
            return error_set(err, n, "llm.c's files have no tensor %s", source->tensor[i].name);
    }
    return true;
}

bool llmc_write(const FsOps *fs, const char *path, const LlmcHeader *header, WeightSource *source,
                Progress *progress, int64_t *overflows, char *err, size_t n)
{
    unsigned char bytes[LLMC_HEADER_BYTES];
    WeightSink sink;
    int count;
    int64_t size = (int64_t)dtype_size(header->dtype), total = llmc_file_bytes(header);
    CHECK(total > 0, "%s: its size overflows", path);
    LlmcPlace *place = llmc_places(header, &count);
    bool good =
        check_all(source, place, count, err, n) && sink_open(&sink, fs, path, total, err, n);
    if (good) {
        llmc_header_bytes(header, bytes);
        good = sink_write(&sink, bytes, sizeof bytes, err, n);
        for (int i = 0; good && i < count; i++) {
            progress_count(progress, sink.written, total, "exporting the weights");
            good = sink_tensor(&sink, source, find(source, &place[i].tensor, err, n), header->dtype,
                               0, err, n) &&
                   sink_zeros(&sink, place[i].gap * size, err, n);
        }
        CHECK(!good || sink.written == total, "%s: %lld of %lld bytes", path,
              (long long)sink.written, (long long)total);
        *overflows = sink.overflows;
        good = sink_close(&sink, good, err, n);
    }
    free(place);
    return good;
}

/* tensorboard.c -- writes event files and cuts them back. See tensorboard.h. */
#include "parallel/report/tensorboard.h"

#include "model/core/check.h"
#include "model/core/clock.h"
#include "model/core/crc32c.h"
#include "model/core/files.h"
#include "model/core/log.h"
#include "model/core/utf8.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Sizes of a record's parts before and after its data, and the most bytes of data in a record of
 * figures. */
enum { HEAD_BYTES = 12, TAIL_BYTES = 4, DATA_MOST = 1024 };

/* How the value of a field is encoded. */
enum { WIRE_VARINT = 0, WIRE_8_BYTES = 1, WIRE_BYTES = 2, WIRE_4_BYTES = 5 };

/* Field numbers of the messages Event, Summary, Summary.Value and SessionLog; of SummaryMetadata
 * and its PluginData; of TensorProto, TensorShapeProto and its Dim. */
enum { EVENT_TIME = 1, EVENT_STEP = 2, EVENT_VERSION = 3, EVENT_SUMMARY = 5, EVENT_SESSION = 7 };
enum { SUMMARY_VALUE = 1, VALUE_TAG = 1, VALUE_SIMPLE = 2, SESSION_STATUS = 1 };
enum { SESSION_START = 1 };
enum { VALUE_TENSOR = 8, VALUE_METADATA = 9, METADATA_PLUGIN = 1, PLUGIN_NAME = 1 };
enum { TENSOR_TYPE = 1, TENSOR_SHAPE = 2, TENSOR_STRING = 8, SHAPE_DIM = 2, DIM_SIZE = 1 };
enum { TYPE_STRING = 7 };

static const char file_prefix[] = "events.out.tfevents.";

/* ---- encoding ---------------------------------------------------------------------------------
 */

/* A message that is being encoded, in memory of the caller. */
typedef struct {
    uint8_t *data;
    size_t n, capacity;
} Message;

/* Declares a message with room for `bytes` bytes. */
#define MESSAGE(name, bytes)                                                                       \
    uint8_t name##_data[bytes];                                                                    \
    Message name = {.data = name##_data, .capacity = (bytes)}

static void put_bytes(Message *m, const void *bytes, size_t n)
{
    CHECK(n <= m->capacity - m->n, "%zu bytes after %zu", n, m->n);
    memcpy(m->data + m->n, bytes, n);
    m->n += n;
}

static void put_varint(Message *m, uint64_t value)
{
    for (; value >= 128; value >>= 7)
        put_bytes(m, &(uint8_t){(uint8_t)(value | 128)}, 1);
    put_bytes(m, &(uint8_t){(uint8_t)value}, 1);
}

static void put_key(Message *m, int field, int wire)
{
    put_varint(m, (uint64_t)(field << 3 | wire));
}

static void put_field(Message *m, int field, const void *bytes, size_t n)
{
    put_key(m, field, WIRE_BYTES);
    put_varint(m, n);
    put_bytes(m, bytes, n);
}

/* Encodes, as field `field` of m, a message whose only field, `number_field`, is a number. */
static void put_number_message(Message *m, int field, int number_field, uint64_t number)
{
    MESSAGE(inner, 16);
    put_key(&inner, number_field, WIRE_VARINT);
    put_varint(&inner, number);
    put_field(m, field, inner.data, inner.n);
}

/* ---- records ----------------------------------------------------------------------------------
 */

/* Declares an event whose record has room for `bytes` bytes of data. */
#define EVENT(name, bytes) MESSAGE(name, HEAD_BYTES + (bytes) + TAIL_BYTES)

static uint32_t masked_checksum(const void *data, size_t n)
{
    uint32_t c = crc32c(0, data, n);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

/* Begins an event with the time of day and its position on the horizontal axis. The head of its
 * record comes first, and write_record fills it in. */
static void begin_event(Message *m, int64_t samples)
{
    static const uint8_t head[HEAD_BYTES];
    double now = wall_seconds_now();
    m->n = 0;
    put_bytes(m, head, sizeof head);
    put_key(m, EVENT_TIME, WIRE_8_BYTES);
    put_bytes(m, &now, sizeof now);
    if (samples == 0) return; /* the default, which the format leaves out */
    put_key(m, EVENT_STEP, WIRE_VARINT);
    put_varint(m, (uint64_t)samples);
}

static void write_record(EventFile *f, Message *event)
{
    uint64_t length = event->n - HEAD_BYTES;
    memcpy(event->data, &length, 8);
    uint32_t sum = masked_checksum(event->data, 8);
    memcpy(event->data + 8, &sum, 4);
    sum = masked_checksum(event->data + HEAD_BYTES, length);
    put_bytes(event, &sum, TAIL_BYTES);
    metrics_file_put(&f->file, (const char *)event->data, event->n);
}

void event_file_put(EventFile *f, int64_t samples, const EventScalar *scalar, int n)
{
    EVENT(event, DATA_MOST);
    MESSAGE(summary, DATA_MOST);
    MESSAGE(value, DATA_MOST);
    if (f->file.fd < 0) return;
    CHECK(n > 0 && n <= EVENT_SCALARS_MOST, "%d figures", n);
    for (int i = 0; i < n; i++) {
        float simple = (float)scalar[i].value;
        value.n = 0;
        put_field(&value, VALUE_TAG, scalar[i].tag, strlen(scalar[i].tag));
        put_key(&value, VALUE_SIMPLE, WIRE_4_BYTES);
        put_bytes(&value, &simple, sizeof simple);
        put_field(&summary, SUMMARY_VALUE, value.data, value.n);
    }
    begin_event(&event, samples);
    put_field(&event, EVENT_SUMMARY, summary.data, summary.n);
    write_record(f, &event);
}

/* Encodes a tensor of one string. */
static void put_text_tensor(Message *m, const char *text)
{
    MESSAGE(shape, 16);
    put_number_message(&shape, SHAPE_DIM, DIM_SIZE, 1);
    put_key(m, TENSOR_TYPE, WIRE_VARINT);
    put_varint(m, TYPE_STRING);
    put_field(m, TENSOR_SHAPE, shape.data, shape.n);
    put_field(m, TENSOR_STRING, text, strlen(text));
}

void event_file_put_text(EventFile *f, int64_t samples, const char *tag, const char *text)
{
    static const char plugin[] = "text"; /* the part of TensorBoard that shows the tensor */
    if (f->file.fd < 0) return;
    char *clean = utf8_clean(text);
    size_t most = strlen(clean) + DATA_MOST;
    Message tensor = {.data = must_alloc(most), .capacity = most}, value = tensor, event = tensor;
    value.data = must_alloc(most);
    event.data = must_alloc(most);
    MESSAGE(name, 16);
    MESSAGE(metadata, 32);
    put_field(&name, PLUGIN_NAME, plugin, sizeof plugin - 1);
    put_field(&metadata, METADATA_PLUGIN, name.data, name.n);
    put_text_tensor(&tensor, clean);
    put_field(&value, VALUE_TAG, tag, strlen(tag));
    put_field(&value, VALUE_METADATA, metadata.data, metadata.n);
    put_field(&value, VALUE_TENSOR, tensor.data, tensor.n);
    tensor.n = 0; /* from here on it holds the summary */
    put_field(&tensor, SUMMARY_VALUE, value.data, value.n);
    begin_event(&event, samples);
    put_field(&event, EVENT_SUMMARY, tensor.data, tensor.n);
    write_record(f, &event);
    free(event.data);
    free(value.data);
    free(tensor.data);
    free(clean);
}

/* Writes the first events of a file: the version of the format and, for a resumed run, the start of
 * a session, after which TensorBoard forgets the later events that it has read from other files. */
static void write_first(EventFile *f, int64_t resumed_samples)
{
    static const char version[] = "brain.Event:2";
    EVENT(event, DATA_MOST);
    begin_event(&event, 0);
    put_field(&event, EVENT_VERSION, version, sizeof version - 1);
    write_record(f, &event);
    if (resumed_samples < 0) return;
    begin_event(&event, resumed_samples + 1);
    put_number_message(&event, EVENT_SESSION, SESSION_STATUS, SESSION_START);
    write_record(f, &event);
}

/* ---- cutting back -----------------------------------------------------------------------------
 */

/* Reads a varint at data[*at] and moves *at past it; returns false if there is none. */
static bool take_varint(const uint8_t *data, size_t n, size_t *at, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; *at < n && shift < 64; shift += 7) {
        uint8_t byte = data[(*at)++];
        *out |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) return true;
    }
    return false;
}

/* Finds the step of an event; 0 if it has none. Returns false if the data are not a valid message.
 */
static bool event_step(const uint8_t *data, size_t n, uint64_t *step)
{
    *step = 0;
    for (size_t at = 0; at < n;) {
        uint64_t key, value = 0;
        if (!take_varint(data, n, &at, &key)) return false;
        switch (key & 7) {
        case WIRE_VARINT:
            if (!take_varint(data, n, &at, &value)) return false;
            if (key >> 3 == EVENT_STEP) *step = value;
            continue;
        case WIRE_8_BYTES: value = 8; break;
        case WIRE_4_BYTES: value = 4; break;
        case WIRE_BYTES:
            if (!take_varint(data, n, &at, &value)) return false;
            break;
        default: return false;
        }
        if (value > n - at) return false;
        at += value;
    }
    return true;
}

/* Returns the size of the record at data[0..n); 0 if it is damaged or incomplete. */
static size_t record_size(const uint8_t *data, size_t n)
{
    uint64_t length;
    uint32_t sum;
    if (n < HEAD_BYTES + TAIL_BYTES) return 0;
    memcpy(&length, data, 8);
    memcpy(&sum, data + 8, 4);
    if (sum != masked_checksum(data, 8) || length > n - HEAD_BYTES - TAIL_BYTES) return 0;
    memcpy(&sum, data + HEAD_BYTES + length, 4);
    if (sum != masked_checksum(data + HEAD_BYTES, length)) return 0;
    return HEAD_BYTES + length + TAIL_BYTES;
}

size_t events_until(const uint8_t *data, size_t size, int64_t samples)
{
    size_t at = 0, bytes;
    while ((bytes = record_size(data + at, size - at)) > 0) {
        uint64_t step;
        if (!event_step(data + at + HEAD_BYTES, bytes - HEAD_BYTES - TAIL_BYTES, &step)) break;
        if (step > (uint64_t)samples) break;
        at += bytes;
    }
    return at;
}

/* Cuts the events after `samples` off the file. */
static bool cut_file(const char *path, int64_t samples, char *err, size_t n)
{
    char *data;
    size_t size;
    if (!file_read_own(path, &data, &size, err, n)) return false;
    size_t kept = events_until((const uint8_t *)data, size, samples);
    free(data);
    return kept == size || truncate(path, (off_t)kept) == 0 ||
           error_set(err, n, "cannot shorten %s: %s", path, strerror(errno));
}

/* Gives the file a name that TensorBoard does not recognize. */
static bool set_aside(const FsOps *fs, const char *folder, const char *name, char *err, size_t n)
{
    const char *rest = name + sizeof file_prefix - 1;
    char *from = text_format("%s/%s", folder, name);
    char *to = text_format("%s/events.before-restart.%s", folder, rest);
    bool good = fs->rename(fs->self, AT_FDCWD, from, AT_FDCWD, to) == 0 ||
                error_set(err, n, "cannot rename %s to %s: %s", from, to, strerror(errno));
    free(from);
    free(to);
    return good;
}

/* Cuts the files of the run's earlier attempts back to the events up to run->resumed_samples or, if
 * the run begins again at its first step, renames them (set_aside). The run's files are those whose
 * name contains `id`. */
static bool cut_files(const FsOps *fs, const EventRun *run, const char *id, char *err, size_t n)
{
    DIR *folder = opendir(run->folder);
    bool good = folder != NULL ||
                error_set(err, n, "cannot read the folder %s: %s", run->folder, strerror(errno));
    for (struct dirent *entry; good && (entry = readdir(folder)) != NULL;) {
        const char *name = entry->d_name;
        if (strncmp(name, file_prefix, sizeof file_prefix - 1) != 0 || strstr(name, id) == NULL)
            continue;
        if (run->resumed_samples > 0) {
            char *path = text_format("%s/%s", run->folder, name);
            good = cut_file(path, run->resumed_samples, err, n);
            free(path);
        } else {
            good = set_aside(fs, run->folder, name, err, n);
        }
    }
    if (folder) closedir(folder);
    return good;
}

/* ---- the file ---------------------------------------------------------------------------------
 */

/* Returns the part of a file's name that identifies the run: a checksum of its folder's path. The
 * caller frees it. */
static char *run_id(const char *run_folder)
{
    char *path = realpath(run_folder, NULL);
    const char *known = path ? path : run_folder;
    char *id = text_format(".run-%08x.", crc32c(0, known, strlen(known)));
    free(path);
    return id;
}

/* Returns the name of a new file: the time in seconds (so that files sort by age), host, run and
 * attempt. The caller frees it. */
static char *file_name(const char *id, int attempt)
{
    char host[64] = "host";
    if (gethostname(host, sizeof host) != 0) strcpy(host, "host");
    host[sizeof host - 1] = '\0';
    for (char *c = host; *c; c++)
        if (*c == '/' || *c < ' ') *c = '_';
    return text_format("%s%010lld.%s%s%d", file_prefix, (long long)wall_seconds_now(), host, id,
                       attempt);
}

/* Checks the folders below the run's folder, down to the folder of its events: returns false and
 * sets err if one of them is a symbolic link. */
static bool check_links(const EventRun *run, char *err, size_t n)
{
    size_t length = strlen(run->run_folder);
    bool good = true;
    if (strncmp(run->folder, run->run_folder, length) != 0 || run->folder[length] != '/')
        return true; /* the user chose this folder, so links are allowed */
    char *part = must_strdup(run->folder);
    for (char *slash = strchr(part + length + 1, '/'); good && slash != NULL;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        good = fs_not_linked(part, err, n);
        *slash = '/';
    }
    good = good && fs_not_linked(part, err, n);
    free(part);
    return good;
}

bool event_file_open(EventFile *f, const FsOps *fs, const EventRun *run, char *err, size_t n)
{
    MetricsTail none;
    *f = (EventFile){.file.fd = -1};
    char *id = run_id(run->run_folder), *name = file_name(id, run->attempt);
    bool good = check_links(run, err, n) && fs_make_folders(fs, run->folder, err, n) &&
                (run->resumed_samples < 0 || cut_files(fs, run, id, err, n)) &&
                metrics_file_open(&f->file, fs, run->folder, name, -1, 0, &none, err, n);
    if (good) write_first(f, run->resumed_samples);
    free(id);
    free(name);
    return good;
}

void event_file_close(EventFile *f)
{
    if (f->file.path) metrics_file_close(&f->file);
}

void event_file_sync(EventFile *f)
{
    char err[512];
    if (f->file.fd < 0 || metrics_file_sync(&f->file, err, sizeof err)) return;
    if (!f->warned)
        log_warning("the TensorBoard events are not written: %s; metrics.jsonl has every figure",
                    err);
    f->warned = true;
}

void event_file_end(EventFile *f)
{
    metrics_file_end(&f->file);
}

/* dump.c -- the ranks of this process whose flight recorders are dumped, and what the thread of
 * dumps.h does with them. */
#include "parallel/flight/dump.h"

#include "model/core/check.h"
#include "model/core/log.h"
#include "parallel/flight/say.h"
#include "parallel/flight/write.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The most ranks of a process. */
enum { MOST_SOURCES = 64 };

static struct {
    pthread_mutex_t life;  /* held while the thread is started or ended */
    pthread_mutex_t mutex; /* guards the sources, and is held while they are used */
    FlightSource source[MOST_SOURCES];
    int n;
    /* Used by the thread: the paths of RUN and RUN/flight, and buffers for writing. */
    char *run, *folder;
    FlightRoom *room;
    /* For the newest dump: which ranks have written their files, and whether this process has
     * failed to write one. */
    bool *written; /* [ranks] */
    bool failed;
} flights = {.life = PTHREAD_MUTEX_INITIALIZER, .mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- the thread ------------------------------------------------------------------------------ */

/* Opens RUN/flight. Returns -1 and sets errno if it cannot be opened. */
static int open_folder(void)
{
    return open(flights.folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Returns 0 or the errno value of the first file that could not be written. */
static int write_files(Dump dump)
{
    const mode_t mode = 0777;
    if (mkdir(flights.folder, mode) != 0 && errno != EEXIST) return errno;
    int folder = open_folder(), error = 0;
    if (folder < 0) return errno;
    for (int i = 0; i < flights.n && error == 0; i++)
        error = flight_write(&flights.source[i], dump, folder, flights.room);
    close(folder);
    return error;
}

/* Makes this thread log as the lowest rank of this process, and returns the source of that rank. As
 * only rank 0 prints warnings (log.h), only the process that contains rank 0 then prints them. */
static const FlightSource *speaker(void)
{
    const FlightSource *lowest = &flights.source[0];
    for (int i = 1; i < flights.n; i++)
        if (flights.source[i].rank < lowest->rank) lowest = &flights.source[i];
    log_set_rank(lowest->rank, NULL);
    log_set_file(lowest->log);
    return lowest;
}

static void write_all(void *unused, Dump dump)
{
    (void)unused;
    pthread_mutex_lock(&flights.mutex);
    int error = write_files(dump);
    if (flights.n > 0) memset(flights.written, 0, (size_t)flights.source[0].ranks);
    flights.failed = error != 0;
    if (error != 0 && flights.n > 0 && speaker())
        log_warning("the flight recorder cannot be written to %s: %s", flights.folder,
                    strerror(error));
    pthread_mutex_unlock(&flights.mutex);
}

/* Returns whether this process prints what a dump shows. This function and the next one are called
 * with the mutex held. */
static bool speaks(Dump dump)
{
    return flights.n > 0 && !flights.failed && (dump.number == 0 || speaker()->rank == 0);
}

static int count_missing(const FlightSource *own, Dump dump)
{
    uint64_t name = flight_dump_name(own->start, dump.number);
    int folder = open_folder(), n = 0;
    for (int r = 0; r < own->ranks; r++) {
        flights.written[r] =
            flights.written[r] || (folder >= 0 && flight_is_written(folder, r, name));
        n += !flights.written[r];
    }
    if (folder >= 0) close(folder);
    return n;
}

static int missing(void *unused, Dump dump)
{
    (void)unused;
    pthread_mutex_lock(&flights.mutex);
    int n = speaks(dump) ? count_missing(speaker(), dump) : 0;
    pthread_mutex_unlock(&flights.mutex);
    return n;
}

static void say(void *unused, Dump dump)
{
    (void)unused;
    pthread_mutex_lock(&flights.mutex);
    if (speaks(dump)) flight_say(flights.run, dump);
    pthread_mutex_unlock(&flights.mutex);
}

/* ---- the ranks of this process --------------------------------------------------------------- */

static void start(const char *run, int ranks)
{
    static const DumpWriter writer = {.write = write_all, .missing = missing, .say = say};
    flights.run = must_strdup(run);
    flights.folder = text_format("%s/flight", run);
    flights.room = must_alloc(sizeof *flights.room);
    flights.written = must_calloc((size_t)ranks, sizeof *flights.written);
    int error = dumps_open(&writer);
    if (error != 0)
        log_warning("no thread for the files of the flight recorder: %s", strerror(error));
}

static void stop(void)
{
    dumps_close();
    free(flights.run);
    free(flights.folder);
    free(flights.room);
    free(flights.written);
    flights.run = flights.folder = NULL;
    flights.room = NULL;
    flights.written = NULL;
}

/* Replaces characters that JSON would escape by '?'. */
static void make_plain(char *name)
{
    for (; *name; name++)
        if (*name < ' ' || *name > '~' || *name == '"' || *name == '\\') *name = '?';
}

void flight_dump_add(const FlightSource *source, const char *run)
{
    pthread_mutex_lock(&flights.life);
    pthread_mutex_lock(&flights.mutex);
    CHECK(flights.n < MOST_SOURCES, "more than %d ranks in a process", MOST_SOURCES);
    FlightSource *own = &flights.source[flights.n++];
    *own = *source;
    own->log = log_file();
    make_plain(own->host);
    bool all = flights.n == source->here;
    pthread_mutex_unlock(&flights.mutex);
    if (all) start(run, source->ranks);
    pthread_mutex_unlock(&flights.life);
}

void flight_dump_remove(const Flight *flight)
{
    int at = 0;
    pthread_mutex_lock(&flights.life);
    pthread_mutex_lock(&flights.mutex);
    while (at < flights.n && flights.source[at].flight != flight)
        at++;
    bool last = at < flights.n && flights.n == 1;
    if (at < flights.n) flights.source[at] = flights.source[--flights.n];
    pthread_mutex_unlock(&flights.mutex);
    if (last) stop();
    pthread_mutex_unlock(&flights.life);
}

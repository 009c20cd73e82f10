/* launch_meeting.c -- fills in the options with which ranks find each other. See launch_meeting.h.
 */
#include "parallel/grid/launch_meeting.h"

#include "model/core/check.h"
#include "model/core/hash.h"
#include "model/core/version.h"
#include "parallel/grid/grid.h"
#include "parallel/grid/node_list.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* USUAL_PORT: torchrun's default of --master-port. MOST_PORT: the largest number of a port. */
enum { USUAL_PORT = 29500, MOST_PORT = 65535 };

/* Returns the value of a variable, or NULL if it is empty. */
static const char *value_of(const Environment *environment, const char *name)
{
    const char *value = environment->get(environment->context, name);
    return value && *value ? value : NULL;
}

/* Reads the secret, and sets *found to whether one is given. The secret is never printed. */
static bool find_secret(LaunchMeeting *m, const Environment *environment, const Config *config,
                        bool *found, ExitCode *code, char *err, size_t n)
{
    const char *text = value_of(environment, "TRAIN_SECRET"), *path = config->parallel.secret_file;
    *found = text || path;
    if (text) return meeting_secret_text(text, m->secret, code, err, n);
    return path == NULL || meeting_secret_file(path, m->secret, code, err, n);
}

/* ---- the place ------------------------------------------------------------------------------- */

static bool find_port(const Environment *environment, int *port, char *err, size_t n)
{
    const char *text = value_of(environment, "MASTER_PORT");
    char *end;
    *port = USUAL_PORT;
    if (text == NULL) return true;
    long number = *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : 0;
    *port = (int)number;
    if (number <= 0 || number > MOST_PORT || *end != '\0')
        return error_set(err, n, "MASTER_PORT=%.80s is not the number of a port", text);
    return number <= MOST_PORT - MEETING_PORTS ||
           error_set(err, n,
                     "MASTER_PORT=%.80s: rank 0 takes one of the %d ports after it, and %d is the "
                     "last there is; set it to %d or less",
                     text, MEETING_PORTS, MOST_PORT, MOST_PORT - MEETING_PORTS);
}

/* Sets the options for ranks that know a secret, which connect to rank 0's address. */
static bool meet_at_master(LaunchMeeting *m, const Environment *environment, char *err, size_t n)
{
    const char *master = value_of(environment, "MASTER_ADDR");
    if (master == NULL && m->hosts.count > 0) master = m->hosts.item[0];
    if (master == NULL)
        return error_set(err, n,
                         "ranks that know a secret (TRAIN_SECRET, parallel.secret_file) meet at "
                         "rank 0's address: set MASTER_ADDR");
    if (strlen(master) >= sizeof m->master)
        return error_set(err, n, "MASTER_ADDR=%.80s... is too long for an address", master);
    /* An IPv6 address may be in brackets, as in a URL. */
    size_t length = strlen(master);
    bool bracketed = length > 2 && master[0] == '[' && master[length - 1] == ']';
    snprintf(m->master, sizeof m->master, "%.*s", (int)(bracketed ? length - 2 : length),
             master + bracketed);
    m->options.master = m->master;
    m->options.secret = m->secret;
    return find_port(environment, &m->options.port, err, n);
}

/* Sets the options for ranks without a secret, which find each other by a file that rank 0 writes.
 * `named`: whether the launcher's variables identify this start of the ranks. */
static bool meet_by_file(LaunchMeeting *m, const StartedBy *by, bool named, const Config *config,
                         char *err, size_t n)
{
    const char *folder = config->parallel.rendezvous;
    if (*folder == '\0')
        return error_set(err, n, "parallel.rendezvous is empty; write the name of a folder");
    if (!named && strcmp(folder, CONFIG_RENDEZVOUS) == 0)
        return error_set(err, n,
                         "%s gives its ranks no number that tells this start from others: set "
                         "parallel.rendezvous to a folder that only this run uses, and that all "
                         "machines share",
                         by->launcher->name);
    m->options.folder = folder;
    return true;
}

/* ---- what must be alike ---------------------------------------------------------------------- */

/* Writes the hash of the program's file, or "unknown" if it cannot be read. The hash is fast and
 * not cryptographic: the file may be large, all ranks read it at every start, and they trust each
 * other. */
static void hash_program(char hex[PROGRAM_HASH_BYTES])
{
    struct stat st;
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    void *file = MAP_FAILED;
    snprintf(hex, PROGRAM_HASH_BYTES, "unknown");
    if (fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0)
        file = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (fd >= 0) close(fd);
    if (file == MAP_FAILED) return;
    snprintf(hex, PROGRAM_HASH_BYTES, "%016llx",
             (unsigned long long)hash_bytes(1, file, (int64_t)st.st_size));
    munmap(file, (size_t)st.st_size);
}

/* Copies a text of n bytes to `words`, the value of a fact (MeetingFact: it must be equal on all
 * ranks). If the text is too long for that, writes only its first KEPT bytes, and after them a hash
 * of the whole text. */
static void shorten(char words[LAUNCH_WORD_BYTES], const char *text, size_t n)
{
    enum { KEPT = 200 };
    unsigned char digest[SHA256_BYTES];
    snprintf(words, LAUNCH_WORD_BYTES, "%s", text);
    if (n < LAUNCH_WORD_BYTES) return;
    sha256(text, n, digest);
    size_t used = (size_t)snprintf(words, LAUNCH_WORD_BYTES, "%.*s... ", KEPT, text);
    for (int i = 0; i < 8; i++)
        used += (size_t)snprintf(words + used, LAUNCH_WORD_BYTES - used, "%02x", digest[i]);
}

void launch_words(char words[LAUNCH_WORD_BYTES], int argc, char **argv, bool command)
{
    char *text = NULL;
    size_t n;
    struct stat st;
    FILE *to = text_stream(&text, &n);
    const char *space = command ? "" : " ";
    if (!command) fputs("train", to);
    for (int i = 1; i < argc; i++) {
        bool file = !command && stat(argv[i], &st) == 0 && S_ISREG(st.st_mode);
        if (strcmp(argv[i], "--set") == 0) i++;
        if (file || i == argc || strcmp(argv[i - 1], "--set") == 0 ||
            strncmp(argv[i], "--set=", strlen("--set=")) == 0)
            continue;
        fprintf(to, "%s%s", space, argv[i]);
        space = " ";
    }
    fclose(to);
    shorten(words, text, n);
    free(text);
}

static void add_facts(LaunchMeeting *m, const char *words)
{
    hash_program(m->binary);
    snprintf(m->words, sizeof m->words, "%s", words ? words : "");
    m->fact[0] =
        (MeetingFact){"the version", program_version(), "start the same program on all machines"};
    m->fact[1] =
        (MeetingFact){"the program's hash", m->binary, "start the same file on all machines"};
    m->fact[2] = (MeetingFact){"the command", m->words,
                               "start all of them with the same command and the same options"};
    m->options.fact = m->fact;
    m->options.facts = LAUNCH_FACTS;
}

/* ---- for messages ---------------------------------------------------------------------------- */

static const char *host_of(const void *context, int rank, char *buf, size_t n)
{
    const LaunchMeeting *m = context;
    if (rank >= m->hosts.count) return NULL;
    snprintf(buf, n, "%s", m->hosts.item[rank]);
    return buf;
}

static const char *place_of(const void *context, int rank, char *buf, size_t n)
{
    const LaunchMeeting *m = context;
    return grid_place_text(m->size, rank, buf, n);
}

/* Finds out on which machines the launcher has started the ranks. If srun was given a distribution
 * of tasks, SLURM_DISTRIBUTION contains it. The lists of nodes and of tasks per node give the
 * machine of each rank only with "block", the default, which places consecutive ranks on a
 * machine. */
static void find_hosts(LaunchMeeting *m, const StartedBy *by, const Environment *environment)
{
    char err[512];
    const char *nodes = started_by_nodes(by, environment);
    const char *tasks = nodes ? value_of(environment, by->named_by->local_sizes) : NULL;
    const char *distribution = value_of(environment, "SLURM_DISTRIBUTION");
    bool blocks = distribution == NULL || strncmp(distribution, "block", strlen("block")) == 0;
    if (tasks && blocks && node_list_of_tasks(nodes, tasks, by->size, &m->hosts, err, sizeof err))
        return;
    string_list_free(&m->hosts);
    m->hosts = (StringList){0};
}

bool launch_meeting_open(LaunchMeeting *m, const StartedBy *by, const Environment *environment,
                         const Config *config, const char *words, ExitCode *code, char *err,
                         size_t n)
{
    bool secret;
    *m = (LaunchMeeting){.size = config_grid(config, by->size),
                         .options = {.rank = by->rank,
                                     .size = by->size,
                                     .local_rank = by->local_rank,
                                     .local_size = by->local_size,
                                     .interface = config->parallel.interface,
                                     .timeout = config->parallel.timeout,
                                     .host = host_of,
                                     .place = place_of,
                                     .context = m}};
    bool named = started_by_meeting(by, environment, m->name);
    if (!named) snprintf(m->name, sizeof m->name, "ranks");
    m->options.name = m->name;
    *code = EXIT_CONFIG;
    add_facts(m, words);
    find_hosts(m, by, environment);
    if (!find_secret(m, environment, config, &secret, code, err, n)) return false;
    return secret ? meet_at_master(m, environment, err, n)
                  : meet_by_file(m, by, named, config, err, n);
}

void launch_meeting_close(LaunchMeeting *m)
{
    explicit_bzero(m->secret, sizeof m->secret);
    string_list_free(&m->hosts);
}

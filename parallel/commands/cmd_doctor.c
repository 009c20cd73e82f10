/* cmd_doctor.c -- `./train doctor`: prints what this machine has (CPU, GPUs, libraries, memory),
 * and which Debian package provides what is missing. */
#include "parallel/commands/cmd_doctor.h"
#include "configs/advice.h"
#include "data/text/unpack.h"
#include "model/core/check.h"
#include "model/core/child.h"
#include "model/core/device_cpu.h"
#include "model/core/figures.h"
#include "model/core/machine.h"
#include "model/core/terminal.h"
#include "model/core/utf8.h"
#include "model/core/version.h"
#include "parallel/comm/nccl/nccl.h"
#include "parallel/commands/commands.h"
#include "parallel/grid/launch.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

void print_finding(const char *mark, const char *what, const char *fmt, ...)
{
    enum { COLUMN = 18 };
    char text[2048];
    va_list args;
    va_start(args, fmt);
    utf8_format(text, sizeof text, fmt, args);
    va_end(args);
    terminal_print(stdout, COLUMN, "%s  %-14s%s", mark, what, text);
}

/* Prints the error of a child process that ended early: the last line of its stderr without the
 * error code, or how the process ended if it printed no error. */
static void print_ending(const char *what, char *text, int status)
{
    /* The last line is the error; the lines before it are warnings. */
    char *line = text + strcspn(text, "\n");
    while (*line && line[1])
        text = line + 1, line = text + strcspn(text, "\n");
    *line = '\0';
    const char *code = strncmp(text, "error[", 6) == 0 ? strstr(text, "] ") : NULL;
    if (code)
        print_finding("!!", what, "%s", code + 2);
    else
        print_finding("!!", what, "looking at it %s", figure_ending(status).text);
}

/* Runs `finding` in a child process. If a device check ends the child by an error or a signal, that
 * is printed as a finding, and the checks after it still run. */
static void look(const char *what, void (*finding)(void))
{
    Child child;
    int ends[2], status = 0;
    char text[4096];
    size_t at = 0;
    ssize_t got;
    /* Otherwise the child would print the buffered output a second time. */
    fflush(stdout);
    if (pipe(ends) != 0) fail(EXIT_SYSTEM, "no pipe to a child: %s", strerror(errno));
    pid_t pid = child_fork(&child);
    if (pid < 0) fail(EXIT_SYSTEM, "no child can be started: %s", strerror(errno));
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        finding();
        fflush(stdout);
        _exit(EXIT_OK);
    }
    /* The read below ends only when all writers, including this process, have closed their end. */
    close(ends[1]);
    while (at < sizeof text - 1 && (got = read(ends[0], text + at, sizeof text - 1 - at)) > 0)
        at += (size_t)got;
    text[at] = '\0';
    close(ends[0]);
    if (child_wait(&child, &status, 0) < 0)
        fail(EXIT_SYSTEM, "the child is gone: %s", strerror(errno));
    if (status == 0)
        fputs(text, stderr); /* the child's warnings */
    else
        print_ending(what, text, status);
}

/* Prints the instruction levels (CpuLevel) whose kernels this CPU can run. */
static void print_levels(void)
{
    static const char *const name[CPU_LEVEL_COUNT] = {
        [CPU_LEVEL_BASELINE] = "baseline", [CPU_LEVEL_V3] = "v3", [CPU_LEVEL_V4] = "v4"};
    char there[64] = "", err[512];
    for (CpuLevel level = CPU_LEVEL_BASELINE; level < CPU_LEVEL_COUNT; level++) {
        Device device;
        DeviceOptions options = {
            .threads = 1, .local_ranks = 1, .level = level, .blas = BLAS_BUILTIN};
        if (!device_open(&device, "cpu", &options, err, sizeof err)) continue;
        device_close(&device);
        snprintf(there + strlen(there), sizeof there - strlen(there), " %s", name[level]);
    }
    print_finding(there[0] ? "ok" : "!!", "levels", "kernels that this CPU runs:%s",
                  there[0] ? there : " none");
}

static void print_device(void)
{
    char buf[512];
    Device device;
    DeviceOptions options = {.local_ranks = 1};
    if (!device_open(&device, "cpu", &options, buf, sizeof buf)) {
        print_finding("!!", "device", "%s", buf);
        return;
    }
    print_finding("ok", "device", "%s", device_describe(&device, buf, sizeof buf));
    /* An installed library that cannot be used is a problem; a missing one is not. */
    const CpuDevice *cpu = device.impl;
    if (cpu->library != NULL)
        print_finding("ok", "blas", "%s", cpu->blas_name);
    else if (device.lacking[0])
        print_finding("!!", "blas", "%s", device.lacking);
    else
        print_finding(
            "--", "blas",
            "no OpenBLAS: products are several times slower; apt-get install libopenblas0-pthread");
    device_close(&device);
}

static const Backend *cuda_backend(void)
{
    const Backend *backend;
    for (int i = 0; (backend = backend_linked(i)) != NULL; i++)
        if (strcmp(backend->name, "cuda") == 0) return backend;
    return NULL;
}

/* Prints which attention kernels GPU 0 has, and which of them are the default. */
static void print_attention(const Backend *cuda)
{
    DeviceFacts facts = cuda->facts(0);
    bool hopper = facts.capability == 90 && !facts.lacks_hopper;
    const char *others = facts.capability != 90 ? "those for Hopper need compute capability 9.0"
                         : facts.lacks_hopper   ? "this program is built without 90a in ARCH"
                                                : "no GPU has run those for Hopper yet";
    print_finding("ok", "attention", "kernels %s; cuda.attention auto takes %s (%s)",
                  hopper ? "portable and hopper" : "portable",
                  config_attention_auto(facts) == ATTENTION_HOPPER ? "hopper" : "portable", others);
}

/* Prints whether the CUDA backend is built in, and which device it opens. */
static void print_cuda(void)
{
    if (cuda_backend() == NULL) {
        print_finding("--", "cuda", "not built into this program; make CUDA=1 where nvcc is");
        return;
    }
    char buf[512];
    Device device;
    DeviceOptions options = {.threads = 1, .local_ranks = 1};
    if (!device_open(&device, "cuda", &options, buf, sizeof buf)) {
        bool trouble = device.trouble[0] != '\0';
        print_finding(trouble ? "!!" : "--", "cuda", "built in; %s: %s; the CPU path is ready",
                      trouble ? "trouble" : "no device", buf);
        return;
    }
    print_finding("ok", "cuda", "%s", device_describe(&device, buf, sizeof buf));
    print_attention(device.backend);
    device_close(&device);
}

/* Prints which GPUs can access each other's memory: one line if all or none can, otherwise the list
 * of peers of each GPU. */
static void print_peers(const Backend *cuda, int count)
{
    char seen[1024];
    size_t used = 0;
    int pairs = 0;
    /* Check both directions: GPU a may access GPU b although b cannot access a. */
    for (int i = 0; i < count; i++) {
        used += (size_t)snprintf(seen + used, sizeof seen - used, "%s%d:", i ? "; " : "", i);
        for (int peer = 0; peer < count && used < sizeof seen; peer++) {
            if (peer == i || !cuda->sees(i, peer)) continue;
            used += (size_t)snprintf(seen + used, sizeof seen - used, " %d", peer);
            pairs++;
        }
        if (used >= sizeof seen) used = sizeof seen - 1;
    }
    if (pairs == count * (count - 1))
        print_finding("ok", "peers", "all GPUs see each other");
    else if (pairs == 0)
        print_finding("--", "peers", "no GPU sees another: NCCL goes through the host's memory");
    else
        print_finding("--", "peers", "GPUs see these, others through the host's memory: %s", seen);
}

/* Reports a GPU that CUDA lists under two numbers. A run with one GPU per rank would be refused
 * then. */
static void print_doubles(const Backend *cuda, int count)
{
    char one[32], other[32];
    for (int a = 0; a < count; a++)
        for (int b = a + 1; b < count; b++) {
            cuda->bus_id(a, one, sizeof one);
            if (one[0] == '\0' || strcmp(one, cuda->bus_id(b, other, sizeof other)) != 0) continue;
            print_finding("!!", "gpus",
                          "%d and %d are the same GPU, %s; name each GPU once in "
                          "CUDA_VISIBLE_DEVICES",
                          a, b, one);
            return;
        }
}

/* Prints the PCI bus ids of the GPUs and, if there are several, which can access each other. */
static void print_gpus(void)
{
    char places[1024] = "", place[32];
    const Backend *cuda = cuda_backend();
    int count = cuda ? cuda->count() : 0;
    if (count == 0) return;
    size_t used = 0;
    for (int i = 0; i < count && used < sizeof places; i++)
        used += (size_t)snprintf(places + used, sizeof places - used, "%s%s", i ? ", " : "",
                                 cuda->bus_id(i, place, sizeof place));
    print_finding("ok", "gpus", "%d: %s", count, places);
    print_doubles(cuda, count);
    if (count > 1) print_peers(cuda, count);
}

/* Prints whether NCCL can be used. Ranks with one GPU each need it, so its absence is a problem,
 * printed with the reason, only if the machine has several GPUs. */
static void print_nccl(void)
{
    char text[1536];
    const Backend *cuda = cuda_backend();
    if (cuda == NULL) return;
    if (nccl_open(text, sizeof text))
        print_finding("ok", "nccl", "%s", nccl_describe(text, sizeof text));
    else if (cuda->count() > 1)
        print_finding("!!", "nccl", "%s", text);
    else
        print_finding("--", "nccl",
                      "none that can be used, and none needed: only several GPUs reach each other "
                      "through it");
}

/* Prints whether compressed text files can be read. */
static void print_unpackers(void)
{
    static const struct {
        Packed kind;
        const char *label, *ending;
    } list[] = {{PACKED_GZIP, "zlib", ".gz"}, {PACKED_ZSTD, "libzstd", ".zst"}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char err[1024];
        UnpackLibrary library = unpack_library(list[i].kind);
        Unpacker *u = unpacker_open(list[i].kind, "", NULL, err, sizeof err);
        if (u)
            print_finding("ok", list[i].label, "%s: reads text files that end in %s", library.name,
                          list[i].ending);
        else
            print_finding("--", list[i].label,
                          "no %s that works: text files that end in %s cannot be read; apt-get "
                          "install %s",
                          library.name, list[i].ending, library.package);
        unpacker_close(u);
    }
}

static void print_memory(void)
{
    size_t bytes = memory_available();
    double gib = (double)bytes / 1073741824.0;
    if (bytes == SIZE_MAX)
        print_finding("!!", "memory", "the kernel does not tell how much is available");
    else
        print_finding(gib < 0.5 ? "!!" : "ok", "memory", "%.1f GiB available to this process", gib);
}

static void print_disk(void)
{
    /* out/ may be a link to another disk, and may not exist yet. */
    const char *folder = access("out", F_OK) == 0 ? "out" : ".";
    struct statvfs fs;
    if (statvfs(folder, &fs) != 0) {
        print_finding("!!", "disk", "the size of ./%s cannot be told", folder);
        return;
    }
    double gib = (double)fs.f_bavail * (double)fs.f_frsize / 1073741824.0;
    bool writable = access(folder, W_OK) == 0;
    print_finding(gib < 1 || !writable ? "!!" : "ok", "disk", "%.1f GiB free for ./out%s", gib,
                  writable ? "" : ", but nothing can be written there");
}

/* Prints which helpful programs are installed. None is needed to train on one's own text. */
static void print_programs(void)
{
    static const struct {
        const char *program, *package, *what;
    } list[] = {
        {"bible", "bible-kjv", "the text of configs/demo.json"},
        {"clang-format", "clang-format", "make check"},
        {"clang-tidy", "clang-tidy", "make check"},
        {"strace", "strace", "tests that kill at a chosen write"},
        {"tmux", "tmux", "tests of what a terminal shows"},
        {"shellcheck", "shellcheck", "make check looks at scripts"},
        {"python3", "python3",
         "tests that read what a run writes; scripts/compare_pytorch.sh (with PyTorch)"},
    };
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        if (program_find(list[i].program) == 0)
            print_finding("ok", list[i].program, "%s", list[i].what);
        else
            print_finding("--", list[i].program, "%s: apt-get install %s", list[i].what,
                          list[i].package);
    }
}

static int doctor(const void *values)
{
    char cpu[512];
    (void)values;
    print_finding("ok", "program", "%s, gcc %s", program_version(), __VERSION__);
    print_finding("ok", "cpu", "%s", machine_cpu_model(cpu, sizeof cpu));
    look("levels", print_levels);
    look("device", print_device);
    print_finding("ok", "cores", "%d allowed to this process", pool_allowed_cores());
    print_finding(
        "ok", "ranks",
        "threads of one process, or processes where there is a GPU for each or with --processes: "
        "--ranks 1 to %d, more with a launcher, up to %d; each has cores / ranks threads of its "
        "own",
        LAUNCH_MAX_RANKS, CONFIG_MAX_RANKS);
    print_launcher();
    print_limits();
    look("zlib", print_unpackers);
    print_memory();
    print_disk();
    look("cuda", print_cuda);
    look("gpus", print_gpus);
    look("nccl", print_nccl);
    print_programs();
    return EXIT_OK;
}

const ArgCommand cmd_doctor = {
    .name = "doctor",
    .call = "./train doctor",
    .summary = "what this machine has, and which package turns on the rest",
    .about = "One line per finding: ok, -- (missing, with the Debian package that\n"
             "has it, or a limit that some runs may reach), !! (trouble).",
    .run = doctor,
};

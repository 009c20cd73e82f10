/* hardware.h -- the hardware that a machine file describes: a device's speed and memory, the links
 * inside a node and between nodes. ./train plan computes its predictions from these figures.
 *
 * "Machine" alone means a host of ranks elsewhere (model/core/machine.h). A node is such a host.
 * Machine files are JSON; presets are in configs/machines and are embedded in the program. Each
 * figure has the same name in the file, where sections of this struct are prefixes: product.most
 * is "product_most". All seconds, bytes and FLOP are single ones (no milli, no giga). */
#ifndef CONFIGS_MACHINE_FILE_HARDWARE_H
#define CONFIGS_MACHINE_FILE_HARDWARE_H

#include "model/core/device_facts.h"
#include "model/core/dtype.h"
#include "model/core/exit_codes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* latency: seconds of one hop of a collective or message, without its share of the bytes.
 * bandwidth: bytes per second in one direction that long transfers reach: of one device (inside a
 * node), of one network interface (between nodes). */
typedef struct {
    double latency, bandwidth;
} LinkSpeed;

/* Figures of one device and its node. If `cuda` is false, the device is the whole node's processor
 * with all its threads, and the ranks on a node share it (hardware_of_rank). */
typedef struct {
    char name[64];
    bool cuda;
    char gpu[64];             /* the whole name that its driver gives it; "" of a CPU */
    DeviceFacts device;       /* bytes: of device memory; 0: device memory is host memory */
    int64_t workspace_bytes;  /* that the library of matrix products takes on each device */
    int64_t host_bytes;       /* memory of the node, for all its ranks */
    double peak[DTYPE_COUNT]; /* FLOP/s of dense products by storage type; 0 for integers */
    double peak_tf32;         /* those of f32 if factors may be rounded to TF32 (cuda.tf32) */
    double memory_bandwidth;  /* bytes/s by the data sheet, or measured */
    double memory_efficiency; /* share of memory_bandwidth that memory-bound kernels reach */
    double launch;            /* seconds of every kernel beyond its work: none takes less */
    /* A product of m x n x k by itself takes as long as one of (m + edge) x (n + edge) x (k + edge)
     * at the share `most` of the peak; a CPU's edge is that of all its threads. Within a step it
     * reaches the share `sustained` of this speed: the limit of power lowers the clock, operands
     * are not in caches, and other kernels run beside it. Of a GPU, published step times decide
     * `sustained`, and may decide `edge`, memory_efficiency and launch, within the limits of their
     * keys. */
    struct {
        double most, edge, sustained;
    } product;
    /* Share of the peak that attention with heads of 128 reaches at a very long sequence, and the
     * length at which it reaches half of this share. FLOP are those of causal attention; of
     * backward 2.5 times those of forward. */
    struct {
        double share, length;
    } attention_forward, attention_backward;
    double collective; /* seconds of every collective and message beyond its hops and bytes */
    LinkSpeed inside, between;
    int devices_per_node; /* CPUs: the most ranks that a node takes, for example its cores */
    int nics_per_node;
    /* Bytes/s of a checkpoint: of all writers together, and of those on one node. */
    double disk_bandwidth, node_disk_bandwidth;
    /* Bytes/s each way of the link between a GPU and page-locked host memory while it carries as
     * much the other way; 0 of a CPU, whose memory is the host's. */
    double host_bandwidth;
} Hardware;

/* Reads a preset, if `name` is the name of one ("h100"), or else the file `name`. Returns false and
 * sets *code and err: EXIT_CONFIG if the file has mistakes, all of them, one on each line, with
 * file:line:column, the key and what to write instead; EXIT_MISSING or what error_exit_code gives
 * if it cannot be read. */
bool hardware_load(Hardware *hardware, const char *name, ExitCode *code, char *err, size_t n);
/* Reads a machine file's text. `path` names it in messages. Returns false and sets err as above if
 * it has mistakes. */
bool hardware_parse(Hardware *hardware, const char *path, const char *text, size_t length,
                    char *err, size_t n);
/* Returns the name of the i-th preset, or NULL past the last. */
const char *hardware_preset(int i);
/* Copies the name of a GPU from what device_describe says of its device; "" of a CPU. */
void hardware_gpu_name(const char *description, char name[64]);
/* Returns the preset of the GPU that its driver names so, or NULL. Other GPUs of its generation
 * have other memories and links, so only whole names count. */
const char *hardware_preset_of(const char *gpu);
/* Writes a machine file, which hardware_parse reads again. source(context, key) returns where the
 * number of a key is from. */
void hardware_print(FILE *to, const Hardware *hardware,
                    const char *(*source)(void *context, const char *key), void *context);
/* What is physically possible for the number of a key on a GPU or a CPU. Files with other numbers
 * are refused, and fits to measurements stay within. */
typedef struct {
    double least, most;
} HardwareLimits;
/* Returns the limits of a key that is a number, such as "launch". */
HardwareLimits hardware_limits(const char *key, bool cuda);
/* Returns the number of this key. */
double hardware_number(const Hardware *hardware, const char *key);
/* Moves each number that was measured into the limits of its key, for hardware_print. */
void hardware_limit(Hardware *hardware);
/* Returns the FLOP/s of products by this type. `tf32`: cuda.tf32, which CPUs do not heed. */
double hardware_peak(const Hardware *hardware, DType dtype, bool tf32);
/* Returns what one of `world` ranks has. Each rank has a CUDA device of its own. CPU ranks share
 * their node: each has an equal part of the threads, and so of the peaks, the edge
 * and the memory bandwidth. */
Hardware hardware_of_rank(const Hardware *hardware, int64_t world);

#endif

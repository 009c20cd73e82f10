/* hardware.h -- the hardware that a machine file describes: a device's speed and memory, the links
 * inside a node and between nodes. ./train plan computes its predictions from these figures.
 *
 * Elsewhere, "machine" alone means a host of ranks (model/core/machine.h), which is called a node
 * here. Machine files are JSON; presets are in configs/machines and are embedded in the program.
 * Each figure has the same name in the file, where sections of this struct are prefixes:
 * product.most is "product_most". Units are seconds, bytes and FLOP, without milli or giga. */
#ifndef CONFIGS_MACHINE_FILE_HARDWARE_H
#define CONFIGS_MACHINE_FILE_HARDWARE_H

#include "model/core/device_facts.h"
#include "model/core/dtype.h"
#include "model/core/exit_codes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* latency: seconds of one hop of a collective or message, not counting the transfer of its bytes.
 * bandwidth: bytes per second in one direction that long transfers reach, per device (inside a
 * node) or per network interface (between nodes). */
typedef struct {
    double latency, bandwidth;
} LinkSpeed;

/* Figures of one device and its node. If `cuda` is false, the device is the node's processor with
 * all its threads, and the ranks on a node share it (hardware_of_rank). */
typedef struct {
    char name[64];
    bool cuda;
    char gpu[64];             /* the full name that the driver reports; "" for a CPU */
    DeviceFacts device;       /* `bytes`: device memory; 0: it is host memory */
    int64_t workspace_bytes;  /* used by the matrix library on each device */
    int64_t host_bytes;       /* memory of the node, for all its ranks */
    double peak[DTYPE_COUNT]; /* FLOP/s of dense products by storage type; 0 for integers */
    double peak_tf32; /* FLOP/s of f32 products if factors may be rounded to TF32 (cuda.tf32) */
    double memory_bandwidth;  /* bytes/s, from the data sheet or measured */
    double memory_efficiency; /* share of memory_bandwidth that memory-bound kernels reach */
    double launch;            /* seconds of overhead per kernel, so no kernel takes less */
    /* A matrix product of m x n x k that runs alone takes as long as one of (m + edge) x (n + edge)
     * x (k + edge) at `most` times the peak. A CPU's edge is for all its threads together. Within a
     * training step, products run at `sustained` times this speed: the power limit lowers the
     * clock, operands are not in caches, and other kernels run at the same time.
     *
     * For a GPU, `sustained` is fitted to published step times. `edge`, memory_efficiency and
     * launch may be fitted as well, within the limits of their keys. */
    struct {
        double most, edge, sustained;
    } product;
    /* Share of the peak that attention with head size 128 reaches for very long sequences, and the
     * sequence length at which it reaches half of this share. FLOP are counted for causal
     * attention, backward as 2.5 times forward. */
    struct {
        double share, length;
    } attention_forward, attention_backward;
    double collective; /* seconds per collective or message, in addition to hops and bytes */
    LinkSpeed inside, between;
    int devices_per_node; /* for CPUs: the most ranks on a node, such as its number of cores */
    int nics_per_node;
    /* Bytes/s at which a checkpoint is written: by all writers together, and by those on one
     * node. */
    double disk_bandwidth, node_disk_bandwidth;
    /* Bytes/s per direction between a GPU and page-locked host memory when both directions are in
     * use; 0 for a CPU, whose memory is the host's. */
    double host_bandwidth;
} Hardware;

/* Reads the preset `name` ("h100"), or else the file `name`. Returns false and sets *code and err
 * on failure. *code is EXIT_CONFIG if the file has mistakes: err then lists all of them, one on
 * each line, with file:line:column, the key and what to write instead. If the file cannot be read,
 * *code is EXIT_MISSING or what error_exit_code returns. */
bool hardware_load(Hardware *hardware, const char *name, ExitCode *code, char *err, size_t n);
/* Reads a machine file's text. `path` names it in messages. Returns false and sets err as above if
 * it has mistakes. */
bool hardware_parse(Hardware *hardware, const char *path, const char *text, size_t length,
                    char *err, size_t n);
/* Returns the name of the i-th preset, or NULL past the last. */
const char *hardware_preset(int i);
/* Copies the name of a GPU from `description`, the text that device_describe returns; "" for a
 * CPU. */
void hardware_gpu_name(const char *description, char name[64]);
/* Returns the preset whose `gpu` is this full name, as the driver reports it, or NULL. A part of
 * the name is not enough, because GPUs of one generation differ in memory and links. */
const char *hardware_preset_of(const char *gpu);
/* Writes a machine file, which hardware_parse can read. source(context, key) returns the text that
 * says where the number of a key is from. */
void hardware_print(FILE *to, const Hardware *hardware,
                    const char *(*source)(void *context, const char *key), void *context);
/* The physically possible range of a number on a GPU or a CPU. Files with other numbers are
 * refused, and fits to measurements stay within the range. */
typedef struct {
    double least, most;
} HardwareLimits;
/* Returns the limits of a key whose value is a number, such as "launch". */
HardwareLimits hardware_limits(const char *key, bool cuda);
/* Returns the value of this key, which must be a number. */
double hardware_number(const Hardware *hardware, const char *key);
/* Clamps each measured number to the limits of its key, before hardware_print. */
void hardware_limit(Hardware *hardware);
/* Returns the peak FLOP/s of matrix products of this type. `tf32`: the value of cuda.tf32, which
 * has no effect on CPUs. */
double hardware_peak(const Hardware *hardware, DType dtype, bool tf32);
/* Returns the hardware of one of `world` ranks. On CUDA, each rank has its own device. CPU ranks
 * share their node: each gets an equal part of the threads, and so of the peaks, the edge and the
 * memory bandwidth. */
Hardware hardware_of_rank(const Hardware *hardware, int64_t world);

#endif

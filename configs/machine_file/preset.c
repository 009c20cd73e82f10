/* preset.c -- finds machine files: presets by name, others by path; see hardware.h. */
#include "configs/machine_file/embedded.h"
#include "configs/machine_file/hardware.h"

#include "model/core/check.h"
#include "model/core/files.h"
#include "model/core/min_max.h"
#include "model/core/nearest.h"

#include <stdlib.h>
#include <string.h>

const char *hardware_preset(int i)
{
    return i >= 0 && i < embedded_machines ? embedded_machine[i].name : NULL;
}

void hardware_gpu_name(const char *description, char name[64])
{
    const char *begin = strncmp(description, "cuda: ", 6) == 0 ? description + 6 : "";
    const char *end = strstr(begin, " (sm_");
    snprintf(name, 64, "%.*s", end ? (int)(end - begin) : 0, begin);
}

const char *hardware_preset_of(const char *gpu)
{
    char err[512];
    for (int i = 0; i < embedded_machines && *gpu; i++) {
        const EmbeddedFile *file = &embedded_machine[i];
        Hardware preset;
        CHECK(hardware_parse(&preset, file->name, file->text, strlen(file->text), err, sizeof err),
              "%s", err);
        if (strcmp(preset.gpu, gpu) == 0) return file->name;
    }
    return NULL;
}

/* Sets `err` for a name that is neither a preset nor a file. */
static void refuse_name(const char *name, char *err, size_t n)
{
    char known[256] = "", near[160];
    for (int i = 0; i < embedded_machines; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "",
                 embedded_machine[i].name);
    did_you_mean(
        near, sizeof near,
        nearest_name(name, embedded_machine, (size_t)embedded_machines, sizeof *embedded_machine),
        "write the path of a machine file, which `./train bench machine` makes");
    error_set(err, n, "%s: there is no such file, and no preset of this name (%s)%s", name, known,
              near);
}

bool hardware_load(Hardware *hardware, const char *name, ExitCode *code, char *err, size_t n)
{
    char *text;
    size_t length;
    bool missing = false;
    *code = EXIT_CONFIG;
    for (int i = 0; i < embedded_machines; i++) {
        const EmbeddedFile *file = &embedded_machine[i];
        if (strcmp(file->name, name) == 0)
            return hardware_parse(hardware, name, file->text, strlen(file->text), err, n);
    }
    if (!file_read(name, &text, &length, &missing, err, n)) {
        *code = error_exit_code(err, missing ? EXIT_MISSING : EXIT_INPUT_OUTPUT);
        /* A name without a slash or a dot was probably meant to be a preset. */
        if (*code == EXIT_MISSING && strpbrk(name, "/.") == NULL) refuse_name(name, err, n);
        return false;
    }
    bool good = hardware_parse(hardware, name, text, length, err, n);
    free(text);
    return good;
}

double hardware_peak(const Hardware *hardware, DType dtype, bool tf32)
{
    return dtype == F32 && tf32 && hardware->cuda ? hardware->peak_tf32 : hardware->peak[dtype];
}

Hardware hardware_of_rank(const Hardware *hardware, int64_t world)
{
    Hardware own = *hardware;
    if (hardware->cuda) return own;
    double ranks = (double)min_i64(max_i64(world, 1), hardware->devices_per_node);
    for (int t = 0; t < DTYPE_COUNT; t++)
        own.peak[t] /= ranks;
    own.peak_tf32 /= ranks;
    own.memory_bandwidth /= ranks;
    own.product.edge /= ranks;
    return own;
}

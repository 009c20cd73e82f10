/* print.c -- writes a machine file; see hardware.h. */
#include "configs/machine_file/keys.h"

#include "model/core/json_write.h"

static void print_value(FILE *to, const Hardware *hardware, const MachineKey *key)
{
    const void *field = (const char *)hardware + key->at;
    char number[40];
    switch (key->type) {
    case KEY_TEXT: json_print_string(to, field); return;
    case KEY_DEVICE: json_print_string(to, hardware->cuda ? "cuda" : "cpu"); return;
    case KEY_INT: fprintf(to, "%d", *(const int *)field); return;
    case KEY_INT64: fprintf(to, "%lld", (long long)*(const int64_t *)field); return;
    case KEY_NUMBER:
        json_number(*(const double *)field, number, sizeof number);
        fputs(number, to);
        return;
    }
}

void hardware_print(FILE *to, const Hardware *hardware,
                    const char *(*source)(void *context, const char *key), void *context)
{
    fputs("{\n", to);
    for (int i = 0; i < MACHINE_KEYS; i++) {
        fprintf(to, "  \"%s\": ", machine_key[i].name);
        print_value(to, hardware, &machine_key[i]);
        fputs(",\n", to);
    }
    fputs("  \"sources\": {", to);
    const char *comma = "\n";
    for (int i = 0; i < MACHINE_KEYS; i++) {
        if (!machine_key_is_number(&machine_key[i])) continue;
        fprintf(to, "%s    \"%s\": ", comma, machine_key[i].name);
        json_print_string(to, source(context, machine_key[i].name));
        comma = ",\n";
    }
    fputs("\n  }\n}\n", to);
}

void hardware_limit(Hardware *hardware)
{
    for (int i = 0; i < MACHINE_KEYS; i++) {
        const MachineKey *key = &machine_key[i];
        double *x = (double *)(void *)((char *)hardware + key->at);
        if (key->type != KEY_NUMBER) continue;
        HardwareLimits limits = machine_key_limits(key, hardware->cuda);
        if (!(*x >= limits.least)) *x = limits.least;
        if (*x > limits.most) *x = limits.most;
    }
}

/* embedded.h -- the texts of configs/machines/NAME.json, which the Makefile writes into a C file,
 * so that the program has its presets wherever it is started. */
#ifndef CONFIGS_MACHINE_FILE_EMBEDDED_H
#define CONFIGS_MACHINE_FILE_EMBEDDED_H

typedef struct {
    const char *name, *text;
} EmbeddedFile;

extern const EmbeddedFile embedded_machine[];
extern const int embedded_machines;

#endif

/* embedded.h -- the contents of configs/machines/NAME.json. The Makefile writes them into a C file,
 * so that the program has its presets in whatever folder it is started. */
#ifndef CONFIGS_MACHINE_FILE_EMBEDDED_H
#define CONFIGS_MACHINE_FILE_EMBEDDED_H

typedef struct {
    const char *name, *text;
} EmbeddedFile;

extern const EmbeddedFile embedded_machine[];
extern const int embedded_machines;

#endif

/* exit_codes.h -- the program's exit codes, which tell a batch script whether to retry, resume or
 * give up. */
#ifndef MODEL_CORE_EXIT_CODES_H
#define MODEL_CORE_EXIT_CODES_H

/* One row per exit code: name, number, meaning. `./train --help exit-codes` prints this table. If
 * the program cannot yet end with a code, its meaning says so, so that no script relies on it. */
#define EXIT_CODE_LIST(X)                                                                          \
    X(EXIT_OK, 0, "the target was reached")                                                        \
    X(EXIT_DIFFERENT, 1, "config diff found differences (no other command ends with 1)")           \
    X(EXIT_USAGE, 64, "the command line is wrong, or the launcher that started the program")       \
    X(EXIT_DAMAGED, 65, "data or a checkpoint is damaged")                                         \
    X(EXIT_MISSING, 66, "an input is missing")                                                     \
    X(EXIT_UNAVAILABLE, 69, "a peer, a device or a library that is needed is not there")           \
    X(EXIT_BUG, 70, "an internal invariant is broken: a bug")                                      \
    X(EXIT_SYSTEM, 71, "the operating system or a device library reported an error")               \
    X(EXIT_CANNOT_CREATE, 73, "an output cannot be created, or another run holds it")              \
    X(EXIT_INPUT_OUTPUT, 74, "input or output failed, disk full included")                         \
    X(EXIT_TEMPORARY, 75, "a temporary failure: a retry is useful")                                \
    X(EXIT_PROTOCOL, 76,                                                                           \
      "a peer speaks wrongly or does not know the secret, or a rank has arrived twice")            \
    X(EXIT_PERMISSION, 77, "permission is missing")                                                \
    X(EXIT_CONFIG, 78, "the config is invalid")                                                    \
    X(EXIT_REQUEUE, 85, "checkpointed on request: start again to go on")                           \
    X(EXIT_HANG, 86, "a rank waited for another beyond parallel.timeout")                          \
    X(EXIT_PEER_LOST, 87, "a rank ended while others waited for it")                               \
    X(EXIT_DIVERGED, 88, "the numbers diverged")                                                   \
    X(EXIT_REPLICAS, 89, "replicas, or a grid and its single rank, disagree")                      \
    X(EXIT_NO_MEMORY, 90, "out of memory")

typedef enum {
#define X(name, number, meaning) name = number,
    EXIT_CODE_LIST(X)
#undef X
} ExitCode;

#endif

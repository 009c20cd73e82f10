/* last_words.h -- helpers for tests of fatal errors: run code in a child process, which must die
 * and print a given message. */
#ifndef TESTS_EMU_DEVICE_LAST_WORDS_H
#define TESTS_EMU_DEVICE_LAST_WORDS_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

/* Runs `run` in a child process, which must not end with 0, and stores what it prints on stderr. */
static void last_words(const char *call, void (*run)(void), char *words, size_t n)
{
    int ends[2], status = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        setenv("EMU_FORK", "allow", 1);
        struct rlimit none = {0, 0};
        setrlimit(RLIMIT_CORE, &none);
        signal(SIGABRT, SIG_DFL); /* cmocka's handlers would report a failed test */
        signal(SIGSEGV, SIG_DFL);
        signal(SIGILL, SIG_DFL);
        dup2(ends[1], 2);
        close(ends[0]);
        run();
        _exit(0);
    }
    close(ends[1]);
    size_t have = 0;
    for (ssize_t got; have + 1 < n && (got = read(ends[0], words + have, n - 1 - have)) > 0;)
        have += (size_t)got;
    words[have] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        fail_msg("%s ended well, saying \"%s\"", call, words);
}

/* Checks that every part, up to a NULL, is in the child's last message; "|" separates two
 * alternatives. */
static void dies_saying(const char *call, void (*run)(void), const char *part, ...)
{
    char words[16384], either[256];
    va_list parts;
    last_words(call, run, words, sizeof words);
    va_start(parts, part);
    for (; part != NULL; part = va_arg(parts, const char *)) {
        snprintf(either, sizeof either, "%s", part);
        char *second = strchr(either, '|');
        if (second != NULL) *second++ = 0;
        if (strstr(words, either) == NULL && (second == NULL || strstr(words, second) == NULL))
            fail_msg("%s: \"%s\" is not in: %s", call, part, words);
    }
    va_end(parts);
}

#endif

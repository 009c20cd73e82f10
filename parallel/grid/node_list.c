/* node_list.c -- expands SLURM's lists of machines. The lists come from the environment, so they
 * are checked strictly, and their expanded length is limited. */
#include "parallel/grid/node_list.h"

#include "model/core/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The largest number of digits in a number, so that it fits into 64 bits. */
enum { MOST_DIGITS = 18 };

/* The list that is being read, where its names go, and the name that is being built. */
typedef struct {
    const char *list;
    StringList *names;
    char name[NODE_NAME_MOST + 1];
    char *err;
    size_t n;
} Expansion;

/* Writes an error message about the character at `at`; always returns false. */
static bool refuse(const Expansion *e, const char *at, const char *what)
{
    return error_set(e->err, e->n,
                     "the list of machines \"%.200s\" is not valid at character %td: "
                     "%s",
                     e->list, at - e->list + 1, what);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_of_name(char c)
{
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '_' || c == '.';
}

static bool expand(Expansion *e, size_t used, const char *at);

/* Reads digits; returns the position after them, or NULL if there are none or too many. */
static const char *read_digits(const char *at, uint64_t *number)
{
    const char *from = at;
    for (*number = 0; is_digit(*at) && at - from < MOST_DIGITS; at++)
        *number = 10 * *number + (uint64_t)(*at - '0');
    return at > from && !is_digit(*at) ? at : NULL;
}

/* Continues the name e->name[0..used) with each number of the range at `*range`, and then with the
 * text after the brackets, at `rest`. Sets *range to the position after the range. */
static bool expand_range(Expansion *e, size_t used, const char **range, const char *rest)
{
    uint64_t first, last;
    const char *from = *range, *at = read_digits(from, &first), *to = from;
    if (at == NULL) return refuse(e, from, "brackets have numbers of at most 18 digits");
    int width = (int)(at - from), other = width;
    last = first;
    if (*at == '-') {
        to = at + 1;
        at = read_digits(to, &last);
        if (at == NULL) return refuse(e, to, "a range has a number on each side");
        other = (int)(at - to);
    }
    /* All numbers of a range are padded with zeros to the width of the first one. So the last
     * number has at least this many digits, and begins with 0 only if it has exactly this many. */
    if (last < first || other < width || (other > width && *to == '0'))
        return refuse(e, from, "a range goes up, with as many zeros before its last number");
    if (last - first >= NODE_LIST_MOST) return refuse(e, from, "a range has too many numbers");
    for (uint64_t i = first; i <= last; i++) {
        int digits = snprintf(e->name + used, sizeof e->name - used, "%0*" PRIu64, width, i);
        if (used + (size_t)digits > NODE_NAME_MOST) return refuse(e, from, "a name is too long");
        if (!expand(e, used + (size_t)digits, rest)) return false;
    }
    *range = at;
    return true;
}

/* Continues the name with each number in the brackets that begin at `at`. */
static bool expand_brackets(Expansion *e, size_t used, const char *at)
{
    const char *end = strchr(at, ']');
    if (end == NULL) return refuse(e, at, "a bracket is not closed");
    do {
        at++;
        if (!expand_range(e, used, &at, end + 1)) return false;
    } while (*at == ',');
    return at == end || refuse(e, at, "numbers in brackets are separated by commas");
}

/* Continues the name e->name[0..used) with the text at `at`, up to a comma or the end, and adds
 * each name that results. */
static bool expand(Expansion *e, size_t used, const char *at)
{
    const char *from = at;
    for (; is_of_name(*at); at++) {
        if (used == NODE_NAME_MOST) return refuse(e, at, "a name is too long");
        /* Some programs would treat a name that begins with a hyphen as an option. */
        if (used == 0 && *at == '-') return refuse(e, at, "a name begins with a hyphen");
        e->name[used++] = *at;
    }
    if (*at == '[') return expand_brackets(e, used, at);
    if (*at != ',' && *at != '\0') return refuse(e, at, "no name has this character");
    if (used == 0) return refuse(e, at, "a name is empty");
    if (from > e->list && from[-1] == ']' && at > from)
        return refuse(e, from, "a name goes on after its last bracket");
    if (e->names->count >= NODE_LIST_MOST) return refuse(e, at, "there are too many names");
    e->name[used] = '\0';
    string_list_add(e->names, e->name);
    return true;
}

/* Returns the comma or the end that follows the name at `at`. */
static const char *end_of_name(const char *at)
{
    for (bool inside = false; *at != '\0' && (inside || *at != ','); at++)
        inside = *at == '[' || (inside && *at != ']');
    return at;
}

bool node_list_expand(const char *list, StringList *names, char *err, size_t n)
{
    StringList own = {0};
    Expansion e = {.list = list, .names = &own, .err = err, .n = n};
    bool good = expand(&e, 0, list);
    for (const char *at = end_of_name(list); good && *at == ','; at = end_of_name(at + 1))
        good = expand(&e, 0, at + 1);
    for (int i = 0; i < own.count; i++)
        string_list_add(names, own.item[i]);
    string_list_free(&own);
    return good;
}

/* Reads a number of tasks, and for how many machines it applies: "2(x3)" or "2". Returns the
 * position after it, or NULL. */
static const char *read_tasks(const char *at, uint64_t *tasks, uint64_t *machines)
{
    *machines = 1;
    at = read_digits(at, tasks);
    if (at == NULL || strncmp(at, "(x", 2) != 0) return at;
    at = read_digits(at + 2, machines);
    return at != NULL && *at == ')' ? at + 1 : NULL;
}

/* Adds the machine of each task to `hosts`; `at`: the list with the number of tasks of each
 * machine. Returns whether the list is valid, covers all machines, and has `ranks` tasks in all. */
static bool place_tasks(const StringList *names, const char *at, uint64_t ranks, StringList *hosts)
{
    uint64_t each, times, machine = 0, placed = 0, machines = (uint64_t)names->count;
    do {
        at = read_tasks(at, &each, &times);
        if (at == NULL || times > machines - machine || each > ranks ||
            each * times > ranks - placed)
            return false;
        for (uint64_t i = 0; i < each * times; i++)
            string_list_add(hosts, names->item[machine + i / each]);
        machine += times;
        placed += each * times;
    } while (*at++ == ',');
    return at[-1] == '\0' && machine == machines && placed == ranks;
}

bool node_list_of_tasks(const char *list, const char *tasks, int ranks, StringList *hosts,
                        char *err, size_t n)
{
    StringList names = {0};
    bool good = node_list_expand(list, &names, err, n);
    if (good && !place_tasks(&names, tasks, (uint64_t)ranks, hosts))
        good =
            error_set(err, n, "\"%.200s\" does not say which of %d ranks each of %d machines has",
                      tasks, ranks, names.count);
    string_list_free(&names);
    return good;
}

/* string_list.h -- a growing list of strings: paths, patterns, values of a config. {0} is an empty
 * list. */
#ifndef MODEL_CORE_STRING_LIST_H
#define MODEL_CORE_STRING_LIST_H

typedef struct {
    int count;
    char **item;
} StringList;

/* Appends a copy of the string. The list must be empty, or all its items must have been appended by
 * this function. */
void string_list_add(StringList *list, const char *item);
/* Frees the items and leaves an empty list. Not for lists that do not own their items. */
void string_list_free(StringList *list);

#endif

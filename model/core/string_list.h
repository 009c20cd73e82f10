/* string_list.h -- a list of strings: paths, patterns, values of a config. {0} is an empty one. */
#ifndef MODEL_CORE_STRING_LIST_H
#define MODEL_CORE_STRING_LIST_H

typedef struct {
    int count;
    char **item;
} StringList;

/* Appends a copy. */
void string_list_add(StringList *list, const char *item);
/* Frees the items and leaves an empty list; not for lists whose items are borrowed. */
void string_list_free(StringList *list);

#endif

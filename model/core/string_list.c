/* string_list.c -- implements string_list.h: appends strings and frees lists. */
#include "model/core/string_list.h"

#include "model/core/check.h"

#include <stdlib.h>

void string_list_add(StringList *list, const char *item)
{
    size_t n = (size_t)list->count;
    /* The room for items is the next power of two, so long lists are not copied for each item. */
    if ((n & (n - 1)) == 0)
        list->item = must_realloc(list->item, (n > 0 ? 2 * n : 1) * sizeof *list->item);
    list->item[list->count++] = must_strdup(item);
}

void string_list_free(StringList *list)
{
    for (int i = 0; i < list->count; i++)
        free(list->item[i]);
    free(list->item);
    *list = (StringList){0};
}

/* string_list.c -- implements string_list.h: appends strings and frees lists. */
#include "model/core/string_list.h"

#include "model/core/check.h"

#include <stdlib.h>

void string_list_add(StringList *list, const char *item)
{
    list->item = must_realloc(list->item, (size_t)(list->count + 1) * sizeof *list->item);
    list->item[list->count++] = must_strdup(item);
}

void string_list_free(StringList *list)
{
    for (int i = 0; i < list->count; i++)
        free(list->item[i]);
    free(list->item);
    *list = (StringList){0};
}

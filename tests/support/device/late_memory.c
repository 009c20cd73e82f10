/* late_memory.c -- lists the device memory and the page-locked memory of late devices, and what of
 * it is used. */
#include "tests/support/device/late_inside.h"

#include "model/core/check.h"

#include <string.h>

void late_touch(const void *words, size_t bytes)
{
    pthread_mutex_lock(&late_all.mutex);
    for (int i = 0; i < late_all.memories; i++) {
        LateMemory *m = &late_all.memory[i];
        for (size_t at = 0; m->host && !m->used && at + sizeof(uintptr_t) <= bytes;
             at += sizeof(uintptr_t)) {
            uintptr_t word;
            memcpy(&word, (const char *)words + at, sizeof word);
            m->used = word - (uintptr_t)m->data < m->bytes;
        }
    }
    pthread_mutex_unlock(&late_all.mutex);
}

void *late_remember(void *p, size_t bytes, bool host)
{
    if (p == NULL) return NULL;
    pthread_mutex_lock(&late_all.mutex);
    CHECK(late_all.memories < LATE_MEMORIES && !late_all.burst, "%d pieces of memory, or a burst",
          late_all.memories);
    late_all.memory[late_all.memories++] = (LateMemory){.data = p, .bytes = bytes, .host = host};
    pthread_mutex_unlock(&late_all.mutex);
    return p;
}

void late_forget(const void *p)
{
    int i = 0;
    pthread_mutex_lock(&late_all.mutex);
    while (i < late_all.memories && late_all.memory[i].data != p)
        i++;
    CHECK(i < late_all.memories, "memory %p of no late device", p);
    late_all.memory[i] = late_all.memory[--late_all.memories];
    pthread_mutex_unlock(&late_all.mutex);
}

bool late_is_remembered(const void *p)
{
    const unsigned char *at = p;
    bool found = false;
    pthread_mutex_lock(&late_all.mutex);
    for (int i = 0; i < late_all.memories && !found; i++) {
        LateMemory *m = &late_all.memory[i];
        found = at >= m->data && at < m->data + m->bytes;
        m->used |= found;
    }
    pthread_mutex_unlock(&late_all.mutex);
    return found;
}

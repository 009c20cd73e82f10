/* rank_list.c -- formats a list of ranks, with consecutive ranks as ranges. */
#include "parallel/comm/rank_list.h"

#include <stdio.h>
#include <string.h>

/* If there are at most ALL ranks, all are listed; of more ranks, only the first PIECES ranges and
 * single ranks. */
enum { ALL = 64, PIECES = 10 };
/* At most HOSTS machines are named, with at most HOST_BYTES bytes of each name. */
enum { HOSTS = 3, HOST_BYTES = 64 };

const char *rank_list(const int *rank, int ranks, char *text, size_t n)
{
    size_t used = (size_t)snprintf(text, n, ranks == 1 ? "rank" : "ranks");
    for (int i = 0, last, pieces = 0; i < ranks && used < n; i = last + 1) {
        if (ranks > ALL && pieces++ == PIECES) {
            snprintf(text + used, n - used, " and %d more", ranks - i);
            break;
        }
        /* Consecutive ranks: two are listed separately, three or more become a range. */
        for (last = i; last + 1 < ranks && rank[last + 1] == rank[last] + 1;)
            last++;
        used += (size_t)snprintf(text + used, n - used, "%s %d", i > 0 ? "," : "", rank[i]);
        if (last > i && used < n)
            used += (size_t)snprintf(text + used, n - used, "%s%d", last > i + 1 ? "-" : ", ",
                                     rank[last]);
    }
    return text;
}

const char *rank_hosts(const RankHosts *hosts, const int *rank, int ranks, char *text, size_t n)
{
    const char *named[HOSTS];
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0, count = 0; hosts->name != NULL && i < ranks; i++) {
        const char *host = hosts->name(hosts->of, rank[i]);
        int at = 0;
        while (at < count && strcmp(named[at], host) != 0)
            at++;
        if (at < count) continue;
        if (count == HOSTS) {
            snprintf(text + used, n - used, " and others");
            break;
        }
        named[count++] = host;
        used += (size_t)snprintf(text + used, n - used, "%s%.*s", count > 1 ? ", " : "on ",
                                 HOST_BYTES, host);
    }
    return text;
}

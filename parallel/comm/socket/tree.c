/* tree.c -- see tree.h. */
#include "parallel/comm/socket/tree.h"

#include "model/core/check.h"
#include "model/core/min_max.h"

#include <stdlib.h>

static int fan_out = TREE_FAN_OUT;

void socket_tree_set_fan_out(int most)
{
    CHECK(most >= 0, "a tree in which ranks have %d children", most);
    fan_out = most ? most : TREE_FAN_OUT;
}

bool socket_tree_is_deep(int size)
{
    return size - 1 > fan_out;
}

TreePlace socket_tree_place(int size, int member)
{
    CHECK(member >= 0 && member < size, "member %d of %d", member, size);
    TreePlace at = {.member = 0, .parent = -1, .end = size};
    for (;;) {
        int below = at.end - at.member - 1;
        at.width = (int)max_i64(1, (below + fan_out - 1) / fan_out);
        at.children = (below + at.width - 1) / at.width;
        if (at.member == member) return at;
        int k = (member - at.member - 1) / at.width, child = socket_tree_child(&at, k);
        at = (TreePlace){
            .member = child, .parent = at.member, .end = child + socket_tree_child_range(&at, k)};
    }
}

/* ---- ranks that pass on control packets ------------------------------------------------------ */

bool socket_tree_parents(int ranks, const int *machine, int *parent)
{
    /* leader_of[machine]: 1 + the rank of the machine's leader; 0: not found yet. leader[]: the
     * leaders in ascending order. */
    int *leader_of = must_calloc((size_t)ranks, sizeof *leader_of);
    int *leader = must_calloc((size_t)ranks, sizeof *leader);
    int machines = 0;
    for (int r = 0; r < ranks; r++) {
        CHECK(machine[r] >= 0 && machine[r] < ranks, "machine %d of %d ranks", machine[r], ranks);
        if (leader_of[machine[r]] > 0) {
            parent[r] = leader_of[machine[r]] - 1;
            continue;
        }
        leader_of[machine[r]] = r + 1;
        parent[r] = r == 0 ? -1 : leader[(machines - 1) / fan_out];
        leader[machines++] = r;
    }
    bool deep = machines > fan_out;
    for (int r = 1; r < ranks && !deep; r++)
        parent[r] = 0;
    free(leader_of);
    free(leader);
    return deep;
}

int socket_tree_towards(const int *parent, int rank, int below)
{
    /* Go up from `below`. A parent has a lower rank than its children, so this ends. */
    while (below > rank && parent[below] != rank)
        below = parent[below];
    return below > rank ? below : -1;
}

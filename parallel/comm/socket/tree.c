/* tree.c -- see tree.h. */
#include "parallel/comm/socket/tree.h"

#include "model/core/check.h"
#include "model/core/min_max.h"

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

/* tree.h -- inside parallel/comm/socket: the trees over which the ranks of large worlds meet.
 * Everything follows from a few numbers that all ranks know, so nobody sends a tree to another one.
 */
#ifndef PARALLEL_COMM_SOCKET_TREE_H
#define PARALLEL_COMM_SOCKET_TREE_H

#include <stdbool.h>

/* No rank has more children in a tree, and groups of at most so many other members need none. */
enum { TREE_FAN_OUT = 64 };

/* For tests: another number than TREE_FAN_OUT. 0: TREE_FAN_OUT. */
void socket_tree_set_fan_out(int most);

/* ---- members of a group that meet ------------------------------------------------------------ */

/* A member's place among `size` members. It and all that are below it are the members [member,
 * end). Its children divide [member + 1, end) into ranges of `width` members, the last of which may
 * be shorter; the first member of a range is the child. In a small group all are children of member
 * 0. */
typedef struct {
    int member, parent; /* parent: -1 for member 0 */
    int end, width, children;
} TreePlace;

/* Returns the place of a member. */
TreePlace socket_tree_place(int size, int member);
/* Returns child number k, 0 <= k < children, and the number of members of its range. */
static inline int socket_tree_child(const TreePlace *place, int k)
{
    return place->member + 1 + k * place->width;
}

static inline int socket_tree_child_range(const TreePlace *place, int k)
{
    int left = place->end - socket_tree_child(place, k);
    return left < place->width ? left : place->width;
}

/* Returns which child a member is; -1: none. */
static inline int socket_tree_which_child(const TreePlace *place, int member)
{
    int after = member - place->member - 1;
    bool is_child = after >= 0 && member < place->end && after % place->width == 0;
    return is_child ? after / place->width : -1;
}

/* Returns whether so many members meet over a tree of several levels. */
bool socket_tree_is_deep(int size);

#endif

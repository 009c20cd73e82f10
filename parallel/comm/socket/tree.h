/* tree.h -- inside parallel/comm/socket: the trees over which the ranks of large worlds meet,
 * and over which rank 0 hears of them. Everything follows from a few numbers that all ranks know,
 * so nobody sends a tree to another one. */
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

/* ---- ranks that pass on control packets ------------------------------------------------------ */

/* Writes the parent of each rank, parent[ranks], over which control packets travel: reports and
 * failures up to rank 0, questions and verdicts down; parent[0] = -1. machine[ranks]: the machine
 * of each rank; equal numbers from 0 to ranks - 1 are the same machine.
 *
 * Up to TREE_FAN_OUT machines form a star: rank 0 is the parent of all. In larger worlds the lowest
 * rank of each machine leads it, and is the parent of all other ranks of the machine. Machines
 * count in the order of their leaders, and the leader of machine m > 0 has as its parent the leader
 * of machine (m - 1) / TREE_FAN_OUT. So each parent has a lower rank than its children, and no rank
 * has children on more than TREE_FAN_OUT other machines. Returns whether it is no star. */
bool socket_tree_parents(int ranks, const int *machine, int *parent);
/* Returns to which of its children `rank` passes on what is for `below`; -1: `below` is not below
 * `rank`. */
int socket_tree_towards(const int *parent, int rank, int below);

#endif

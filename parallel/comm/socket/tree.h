/* tree.h -- inside parallel/comm/socket: the trees over which the ranks of large worlds hold their
 * meetings and report to rank 0. Each rank computes a tree from numbers that all ranks know, so no
 * tree is ever sent. */
#ifndef PARALLEL_COMM_SOCKET_TREE_H
#define PARALLEL_COMM_SOCKET_TREE_H

#include <stdbool.h>

/* The most children of a member in the tree of a group. A group of at most this many members
 * besides member 0 needs no tree. In the control tree, the most other machines on which a rank has
 * children. */
enum { TREE_FAN_OUT = 64 };

/* For tests: replaces TREE_FAN_OUT by `most`; 0 restores it. */
void socket_tree_set_fan_out(int most);

/* ---- members of a group that meet ------------------------------------------------------------ */

/* A member's place in the tree of `size` members. The member and all members below it are [member,
 * end). Its children divide [member + 1, end) into ranges of `width` members, the last of which may
 * be shorter; the first member of a range is the child. In a small group all are children of member
 * 0. */
typedef struct {
    int member, parent; /* parent: -1 for member 0 */
    int end, width, children;
} TreePlace;

/* Returns the place of a member. */
TreePlace socket_tree_place(int size, int member);
/* Returns the member that is child number k, 0 <= k < children. */
static inline int socket_tree_child(const TreePlace *place, int k)
{
    return place->member + 1 + k * place->width;
}

/* Returns the number of members in the range of child number k. */
static inline int socket_tree_child_range(const TreePlace *place, int k)
{
    int left = place->end - socket_tree_child(place, k);
    return left < place->width ? left : place->width;
}

/* Returns k if `member` is child number k of this place's member; -1: it is not its child. */
static inline int socket_tree_which_child(const TreePlace *place, int member)
{
    int after = member - place->member - 1;
    bool is_child = after >= 0 && member < place->end && after % place->width == 0;
    return is_child ? after / place->width : -1;
}

/* Returns whether `size` members meet over a tree of more than one level. */
bool socket_tree_is_deep(int size);

/* ---- ranks that pass on control packets ------------------------------------------------------ */

/* Writes the parent of each rank in the control tree to parent[ranks]; parent[0] = -1. Reports and
 * failures are sent up to rank 0 over it, questions and verdicts down. machine[ranks]: number of
 * the machine of each rank, from 0 to ranks - 1.
 *
 * Up to TREE_FAN_OUT machines form a star: rank 0 is the parent of all. With more machines, the
 * lowest rank of each machine is its leader, and the parent of all other ranks of the machine.
 * Machines are numbered in the order of their leaders, and the leader of machine m > 0 has as its
 * parent the leader of machine (m - 1) / TREE_FAN_OUT. So each parent has a lower rank than its
 * children, and no rank has children on more than TREE_FAN_OUT other machines. Returns whether the
 * tree is not just a star. */
bool socket_tree_parents(int ranks, const int *machine, int *parent);
/* Returns the child of `rank` to which it forwards packets for the rank `below`; -1: that rank is
 * not below `rank` in the tree. */
int socket_tree_towards(const int *parent, int rank, int below);

#endif

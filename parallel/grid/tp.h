/* tp.h -- the borders of a tensor-parallel region: Megatron-LM's conjugate operators f and g
 * (arXiv:1909.08053, fig. 3).
 *
 * Layers call them in every mode. In a group of one, dst is src: the activation layout gives both
 * the same memory. */
#ifndef PARALLEL_GRID_TP_H
#define PARALLEL_GRID_TP_H

#include "parallel/comm/comm.h"

typedef struct {
    Comm *comm;
    bool sequence_parallel; /* rows are cut between regions; may be off for a pass */
} TpGroup;

/* Entry: dst = what every rank of the group needs of src. Exit: dst = sum over the group of src. */
void tp_enter_forward(TpGroup *tp, Tensor dst, Tensor src);
void tp_exit_forward(TpGroup *tp, Tensor dst, Tensor src);
/* Their transposes: the gradient leaving the region through its entry is summed; entering through
 * its exit it is copied. */
void tp_enter_backward(TpGroup *tp, Tensor dst, Tensor src);
void tp_exit_backward(TpGroup *tp, Tensor dst, Tensor src);

#endif

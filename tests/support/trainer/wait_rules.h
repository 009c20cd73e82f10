/* wait_rules.h -- what may wait for what in a step: rules that the graph of a step (step_graph.h)
 * must keep. A path leads through streams, events and peers; its end is the work of the compute
 * stream that waits for its beginning. These are the earliest ends that are allowed:
 *
 * - of a sum of gradients: the step's norm. From ZeRO stage 2 on gradients are made in ZERO_SLOTS
 *   buffers; there it is the next use of the buffer, ZERO_SLOTS uses of units later, or that of the
 *   buffer of a later sum, because collectives of one communicator are done in their order;
 * - of a gather of weights: the first use of a unit that is gathered with it, or the end that a
 *   later sum may have;
 * - of an exchange: the first action that uses a buffer of it, or of a later exchange, because the
 *   messages of a group are moved in their order;
 * - of the sum of an input gradient over tensor-parallel ranks: the place where it is awaited.
 *
 * Besides, a gather for an action does not begin after an exchange that this action waits for, and
 * the sum of a gradient not after one that a later action waits for. */
#ifndef TESTS_SUPPORT_TRAINER_WAIT_RULES_H
#define TESTS_SUPPORT_TRAINER_WAIT_RULES_H

#include "tests/support/trainer/step_graph.h"

typedef enum {
    RULE_SUMS,
    RULE_GATHERS,
    RULE_EXCHANGES,
    RULE_TP_SUMS,
    RULE_AHEAD,
    RULE_LATE_SUM,
    RULES
} WaitRule;
extern const char *const wait_rule_name[RULES];

typedef struct {
    int broken[RULES], held[RULES]; /* how often */
    char example[RULES][256];
} StepFindings;

/* Adds what there is to find on a rank: how often each rule is held and broken. */
void wait_rules_look(StepFindings *findings, const StepGraph *graph, int rank);

#endif

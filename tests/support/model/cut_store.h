/* cut_store.h -- a ParamStore over flat units that are cut into pieces at odd elements, of which a
 * rank updates, and counts, one, for tests of what must not depend on how weights are cut.
 *
 * Pieces begin within rows and within packs of what moves at once. Of every third unit the last
 * piece is padding alone, and of every other third the later pieces are nothing at all. The pieces'
 * owners take turns in one store: set `part`. */
#ifndef TESTS_SUPPORT_MODEL_CUT_STORE_H
#define TESTS_SUPPORT_MODEL_CUT_STORE_H

#include "model/param/store.h"

enum { CUT_MOST_UNITS = 16 };

typedef struct {
    ParamStore base; /* first: the contract's pointer is the store's */
    Tensor weight[CUT_MOST_UNITS], grad[CUT_MOST_UNITS]; /* with a tail after the unit */
    int parts, part;
    int published; /* units, which are published in order, from 0 on; set it back to 0 */
} CutStore;

/* All of a store in `parts` pieces for the rank at `at`, zeroed; gradients of this type. The table
 * must outlive it. */
CutStore *cut_store_open(const ParamTable *table, GridPlace at, int parts, DType grad);
void cut_store_close(CutStore *store);

/* Element of the unit at which piece `part` begins; that of piece `parts` is the end. */
int64_t cut_store_border(const CutStore *store, int unit, int part);

/* Parameters of which every rank has some rows (padding rows are the last ones'), some columns,
 * half of the rows or all, in three units, of this type, over `tp` tensor-parallel ranks: 1, 2
 * or 4. */
void cut_table(ParamTable *table, int tp, DType dtype);
/* Element k of this rank's part of a parameter as an element of the whole one, padding rows after
 * the logical ones. */
int64_t cut_element(const Param *param, GridPlace at, int64_t k);

#endif

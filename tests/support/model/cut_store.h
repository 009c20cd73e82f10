/* cut_store.h -- a ParamStore for tests whose results must not depend on how weights are split. Its
 * units are split into pieces at odd elements; a rank updates and counts one piece.
 *
 * Pieces begin inside rows and inside the groups of elements that kernels handle at once. In every
 * third unit the last piece is only padding, and in another third the later pieces are empty. The
 * owners of the pieces use the same store one after the other: set `part`. */
#ifndef TESTS_SUPPORT_MODEL_CUT_STORE_H
#define TESTS_SUPPORT_MODEL_CUT_STORE_H

#include "model/param/store.h"

enum { CUT_MOST_UNITS = 16 };

typedef struct {
    ParamStore base; /* first, so that a ParamStore pointer is also a CutStore pointer */
    /* Each has extra elements after the unit, because pieces may extend past it. */
    Tensor weight[CUT_MOST_UNITS], grad[CUT_MOST_UNITS];
    int parts, part;
    int published; /* units published so far; they must come in order; reset it to 0 */
} CutStore;

/* Opens a store of all units in `parts` pieces for the rank at `at`, filled with zeros, with
 * gradients of this type. The table must outlive the store. */
CutStore *cut_store_open(const ParamTable *table, GridPlace at, int parts, DType grad);
void cut_store_close(CutStore *store);

/* Returns the element of the unit at which piece `part` begins; for piece `parts`, the end. */
int64_t cut_store_border(const CutStore *store, int unit, int part);

/* Makes a table with three units of this type, split over `tp` tensor-parallel ranks (1, 2 or 4).
 * Of its parameters, each rank has some rows (the last ranks also have padding rows), some columns,
 * half of the rows, or all. */
void cut_table(ParamTable *table, int tp, DType dtype);
/* Returns the index in the whole parameter of element k of this rank's part; padding rows come
 * after the logical ones. */
int64_t cut_element(const Param *param, GridPlace at, int64_t k);

#endif

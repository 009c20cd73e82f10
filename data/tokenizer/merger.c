/* merger.c -- merges symbols; see merger.h.
 *
 * In a short word, each pair is a number made of its rank and its position. The smallest number is
 * the pair to merge next; it is found without a branch by comparing the numbers of all pairs. In a
 * long word, pairs are kept by rank: a list of positions for each rank, and a heap of the ranks
 * whose lists are not empty. All pairs of a rank are merged in one pass. This takes far less time
 * than a heap of all pairs would, and a text may have words of millions of letters.
 *
 * The positions in a list are ascending, so a pass goes from left to right. The reason: merges
 * inside the bytes of a token are the same whatever is around them. So all tokens of one id are
 * made in one pass, and the pairs that they form are appended to the lists in the order of that
 * pass. */
#include "data/tokenizer/merger.h"

#include "model/core/check.h"

#include <stdlib.h>
#include <string.h>

enum { FEW_SYMBOLS = 64 };

void merger_reserve(Merger *m, int64_t count)
{
    CHECK(count < (int64_t)NO_SYMBOL / 3, "a word of %lld symbols", (long long)count);
    if (count <= m->capacity) return;
    m->capacity = 2 * count + 256;
    free(m->id);
    m->id = must_alloc((size_t)m->capacity * sizeof *m->id);
}

void merger_free(Merger *m)
{
    free(m->id);
    free(m->symbol);
    free(m->pair);
    free(m->head);
    free(m->tail);
    heap_free(&m->ranks);
    *m = (Merger){0};
}

/* Returns the rank of the merge of two ids; INT32_MAX if there is none. */
static inline int32_t rank_of(const Tokenizer *t, int32_t left, int32_t right)
{
    int32_t rank = pair_table_get(&t->rank, left, right);
    return rank < 0 ? INT32_MAX : rank;
}

/* ---- short words ----------------------------------------------------------------------------- */

/* A pair as a number: its rank, then its position, so that the smallest number is the pair that is
 * merged next. NO_PAIR: the symbol at this position has no merge with the next one. */
#define NO_PAIR UINT32_MAX

static inline uint32_t pair_number(int32_t rank, int place)
{
    return rank < 0 ? NO_PAIR : (uint32_t)rank * FEW_SYMBOLS + (uint32_t)place;
}

/* Returns the number of the pair of two symbols, the left one at `place`, and sets *made to the id
 * that the merge makes. */
static inline uint32_t find_number(const Tokenizer *t, int32_t left, int32_t right, int place,
                                   int32_t *made)
{
    const PairSlot *s = pair_table_find(&t->rank, left, right);
    if (s == NULL) return NO_PAIR;
    *made = s->other;
    return pair_number(s->value, place);
}

/* Returns the smallest of `count` numbers; `count` is a multiple of 4. */
static inline uint32_t least_of(const uint32_t *number, int count)
{
    uint32_t least[4] = {NO_PAIR, NO_PAIR, NO_PAIR, NO_PAIR};
    for (int i = 0; i < count; i += 4)
        for (int k = 0; k < 4; k++)
            least[k] = number[i + k] < least[k] ? number[i + k] : least[k];
    uint32_t a = least[0] < least[1] ? least[0] : least[1];
    uint32_t b = least[2] < least[3] ? least[2] : least[3];
    return a < b ? a : b;
}

/* Merges the symbols in place, and closes the gaps. Returns the number of symbols left. */
static int64_t merge_few(int32_t *id, const uint8_t *bytes, const Tokenizer *t, int count)
{
    uint32_t number[FEW_SYMBOLS]; /* number[i]: the pair of symbol i and the next one */
    int32_t made[FEW_SYMBOLS];    /* made[i]: the id that merging this pair makes */
    uint64_t there = UINT64_MAX >> (FEW_SYMBOLS - count); /* bit i: there is a symbol at i */
    int rounded = (count + 3) / 4 * 4, kept = 0;
    for (int i = 0; i + 1 < count; i++)
        if (bytes) {
            const BytePair *pair = &t->byte_pair[N_BYTES * bytes[i] + bytes[i + 1]];
            number[i] = pair_number(pair->rank, i);
            made[i] = pair->made;
        } else {
            number[i] = find_number(t, id[i], id[i + 1], i, &made[i]);
        }
    for (int i = count - 1; i < rounded; i++)
        number[i] = NO_PAIR;
    for (uint32_t least; (least = least_of(number, rounded)) != NO_PAIR;) {
        int at = (int)(least % FEW_SYMBOLS);
        uint64_t after = there & (UINT64_MAX << at << 1), before = there & ~(UINT64_MAX << at);
        int right = __builtin_ctzll(after);
        id[at] = made[at];
        there &= ~((uint64_t)1 << right);
        after &= after - 1;
        number[at] = number[right] = NO_PAIR;
        if (after) {
            int next = __builtin_ctzll(after);
            number[at] = find_number(t, id[at], id[next], at, &made[at]);
        }
        if (before) {
            int last = 63 - __builtin_clzll(before);
            number[last] = find_number(t, id[last], id[at], last, &made[last]);
        }
    }
    for (; there; there &= there - 1)
        id[kept++] = id[__builtin_ctzll(there)];
    return kept;
}

/* ---- long words ------------------------------------------------------------------------------ */

/* Adds the pair of a symbol and the one after it to the list of its rank. Returns the rank;
 * INT32_MAX if no merge joins them. */
static int32_t add_pair(Merger *m, const Tokenizer *t, uint32_t left, int32_t left_id,
                        int32_t right_id)
{
    int32_t rank = rank_of(t, left_id, right_id);
    if (rank == INT32_MAX) return rank;
    if (m->n_pairs == m->pairs_capacity) {
        m->pairs_capacity = 2 * m->pairs_capacity + 1024;
        m->pair = must_realloc(m->pair, (size_t)m->pairs_capacity * sizeof *m->pair);
    }
    uint32_t pair = (uint32_t)m->n_pairs++;
    m->pair[pair] = (SymbolPair){.left = left, .next = NO_SYMBOL};
    if (m->head[rank] == NO_SYMBOL) {
        m->head[rank] = pair;
        heap_push(&m->ranks, (HeapItem){.first = rank});
    } else {
        m->pair[m->tail[rank]].next = pair;
    }
    m->tail[rank] = pair;
    return rank;
}

/* Links the symbols and lists their pairs. */
static void start_long(Merger *m, const Tokenizer *t, int64_t count)
{
    if (m->head == NULL) {
        size_t size = ((size_t)t->n_merges + 1) * sizeof *m->head;
        m->head = must_alloc(size);
        m->tail = must_alloc(size);
        memset(m->head, 0xFF, size);
    }
    if (count > m->symbols_capacity) {
        free(m->symbol);
        m->symbol = must_alloc((size_t)m->capacity * sizeof *m->symbol);
        m->symbols_capacity = m->capacity;
    }
    m->n_pairs = m->ranks.n = 0;
    for (int64_t i = 0; i < count; i++)
        m->symbol[i] = (Symbol){.id = m->id[i],
                                .before = i > 0 ? (uint32_t)(i - 1) : NO_SYMBOL,
                                .after = i + 1 < count ? (uint32_t)(i + 1) : NO_SYMBOL};
    for (int64_t i = 0; i + 1 < count; i++)
        add_pair(m, t, (uint32_t)i, m->id[i], m->id[i + 1]);
}

/* Merges a symbol with the one after it, and lists the two pairs that this makes. Returns the lower
 * of their ranks. */
static int32_t merge_at(Merger *m, const Tokenizer *t, uint32_t place, int32_t rank)
{
    Symbol *left = &m->symbol[place], *right = &m->symbol[left->after];
    int32_t least = INT32_MAX, other = INT32_MAX;
    left->id = t->merged[rank];
    right->id = -1; /* no longer in the list, and no longer the left symbol of a pair */
    left->after = right->after;
    if (left->before != NO_SYMBOL)
        least = add_pair(m, t, left->before, m->symbol[left->before].id, left->id);
    if (left->after != NO_SYMBOL) {
        m->symbol[left->after].before = place;
        other = add_pair(m, t, place, left->id, m->symbol[left->after].id);
    }
    return other < least ? other : least;
}

/* Merges all pairs of a rank. If a merge makes a pair of a lower rank, which happens only if merges
 * are in an unusual order, that pair comes first, and the rest of this rank is left for later. A
 * pair is skipped if one of its two symbols has already been merged with another symbol. */
static void merge_rank(Merger *m, const Tokenizer *t, int32_t rank)
{
    Merge pair = t->merge[rank];
    uint32_t p = m->head[rank];
    m->head[rank] = NO_SYMBOL;
    while (p != NO_SYMBOL) {
        uint32_t place = m->pair[p].left, next = m->pair[p].next;
        const Symbol *left = &m->symbol[place];
        if (next != NO_SYMBOL) __builtin_prefetch(&m->symbol[m->pair[next].left]);
        if (left->id == pair.left && left->after != NO_SYMBOL &&
            m->symbol[left->after].id == pair.right && merge_at(m, t, place, rank) < rank &&
            next != NO_SYMBOL) {
            m->head[rank] = next;
            heap_push(&m->ranks, (HeapItem){.first = rank});
            return;
        }
        p = next;
    }
}

void merger_run(Merger *m, const Tokenizer *t, const uint8_t *bytes, int64_t count,
                TokenBuffer *out)
{
    if (count <= FEW_SYMBOLS) {
        token_buffer_append(out, m->id, merge_few(m->id, bytes, t, (int)count));
        return;
    }
    start_long(m, t, count);
    while (m->ranks.n > 0)
        merge_rank(m, t, (int32_t)heap_pop(&m->ranks).first);
    /* The first symbol always survives, because merging keeps the left one. */
    for (uint32_t i = 0; i != NO_SYMBOL; i = m->symbol[i].after)
        token_buffer_add(out, m->symbol[i].id);
}

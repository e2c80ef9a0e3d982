/* The functions of liblustreapi that a copy program may use. Compiled with OLD_LIBRARY, those of 2.14 and later are
   left out. Errors are printed on standard error, until llapi_msg_set_level(0). */
#ifndef LLAPI_H
#define LLAPI_H

#include "standin.h"

#define DEFAULT 0x1000000000000002ull
#define WIDE_MIN 0x1000000000000003ull
#define WIDE_MAX 0x1000000000000022ull
#define SPECIFIC 0x2000000000000000ull /* of a pattern: the OST of each stripe is given */
enum { FIRST = 1, LAST, NEXT, PREVIOUS };

struct part {
    uint64_t pattern, size, count, offset, start, end;
    uint32_t id, flags;
    char pool[POOL_BYTES];
    uint64_t objects, ost[MOST_OSTS];
};

struct llapi_layout {
    bool composite;
    uint16_t mirrors, flags;
    int parts, current;
    struct part part[MOST_COMPONENTS];
};
typedef struct llapi_layout layout_t;

layout_t *llapi_layout_alloc(void);

static inline int failing(int number)
{
    errno = number;
    return -1;
}

#endif

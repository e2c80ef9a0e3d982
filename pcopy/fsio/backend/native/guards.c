/* The guards that the environment disables, in the test build only. */
#include "internal.h"

#ifdef PK_TEST_BUILD
#define PK_GUARD_NAME(name, harm) #name,
static const char *const names[] = {PK_GUARDS(PK_GUARD_NAME)};
#define NUMBER (sizeof names / sizeof *names)

static unsigned char is_disabled[NUMBER];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Read the environment variable. A name that is no guard ends the program: its test would prove nothing. */
static void read_environment(void)
{
    const char *at = getenv("PCOPY_TEST_DISABLED_GUARDS");
    while (at != NULL && *at) {
        const size_t length = strcspn(at, ",");
        size_t each = 0;
        while (each < NUMBER && (strlen(names[each]) != length || strncmp(names[each], at, length)))
            each++;
        if (each == NUMBER)
            abort();
        is_disabled[each] = 1;
        at += length + (at[length] == ',');
    }
}

int pk_is_disabled(enum pk_guard guard)
{
    pthread_once(&once, read_environment);
    return is_disabled[guard];
}
#endif

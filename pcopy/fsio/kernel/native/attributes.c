/* What is done with extended attributes, by their names: Python tells it of each, once. */
#include "internal.h"

#define MOST_LEARNT 256 /* a hostile owner may have any number of attributes, which would be compared one by one */

void pk_learn(pk_kernel *kernel, const char *name, int what)
{
    size_t size = strlen(name) + 1;
    pk_attribute *attribute = kernel->learnt < MOST_LEARNT ? malloc(sizeof *attribute + size) : NULL;
    if (attribute != NULL) {
        attribute->what = what;
        memcpy(attribute->name, name, size);
        attribute->following = kernel->attributes;
        atomic_store_explicit(&kernel->attributes, attribute, memory_order_release);
    }
    pthread_mutex_lock(&kernel->lock);
    kernel->learnt++;
    kernel->unknown[0] = '\0';
    pthread_mutex_unlock(&kernel->lock);
}

int pk_unknown(pk_kernel *kernel, char *name)
{
    pthread_mutex_lock(&kernel->lock);
    memcpy(name, kernel->unknown, sizeof kernel->unknown);
    pthread_mutex_unlock(&kernel->lock);
    return name[0] != '\0';
}

int pk_attribute_of(pk_kernel *kernel, const char *name)
{
    pk_attribute *each = atomic_load_explicit(&kernel->attributes, memory_order_acquire);
    for (; each != NULL; each = each->following)
        if (!strcmp(each->name, name))
            return each->what;
    pthread_mutex_lock(&kernel->lock);
    if (kernel->unknown[0] == '\0' && kernel->learnt < MOST_LEARNT)
        strncpy(kernel->unknown, name, sizeof kernel->unknown - 1);
    pthread_mutex_unlock(&kernel->lock);
    return 0;
}

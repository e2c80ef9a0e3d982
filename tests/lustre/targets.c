/* The file systems that are Lustre, their OSTs and pools, and the log, as set in the environment. */
#include "standin.h"
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>

#define MOST_POINTS 16

static struct {
    int points, osts, mdts;
    struct point point[MOST_POINTS];
    char *pools, *refused, *log;
} setup;

static char *copy_of_variable(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? strdup(value) : NULL;
}

static int told_number(const char *name, int usual)
{
    const char *value = getenv(name);
    int number = value != NULL ? atoi(value) : 0;
    return number < 1 ? usual : number > MOST_OSTS ? MOST_OSTS : number;
}

static void look(void)
{
    char *rest, *path = copy_of_variable("LUSTRE_STANDIN");
    struct stat status;
    int before = errno;

    setup.osts = told_number("LUSTRE_STANDIN_OSTS", 8);
    setup.mdts = told_number("LUSTRE_STANDIN_MDTS", 1);
    setup.pools = copy_of_variable("LUSTRE_STANDIN_POOLS");
    setup.refused = copy_of_variable("LUSTRE_STANDIN_REFUSE");
    setup.log = copy_of_variable("LUSTRE_STANDIN_LOG");
    for (path = path ? strtok_r(path, ":", &rest) : NULL; path != NULL; path = strtok_r(NULL, ":", &rest))
        if (setup.points < MOST_POINTS && stat(path, &status) == 0)
            setup.point[setup.points++] = (struct point){status.st_dev, status.st_ino, path};
    errno = before;
}

int standin_points(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (getenv("LUSTRE_STANDIN") == NULL)
        return 0; /* not yet, where runs are forked */
    pthread_once(&once, look);
    return setup.points;
}

const struct point *standin_point(dev_t device)
{
    for (int each = 0; each < standin_points(); each++)
        if (setup.point[each].device == device)
            return &setup.point[each];
    return NULL;
}

int standin_osts(void)
{
    standin_points();
    return setup.osts;
}

int standin_mdts(void)
{
    standin_points();
    return setup.mdts;
}

int standin_pool(const char *name, uint16_t *osts)
{
    const char *pool = setup.pools;
    size_t length = strlen(name);
    int count = 0;

    while (pool != NULL && pool[0] != '\0') {
        bool found = !strncmp(pool, name, length) && pool[length] == ':';
        const char *ost = strchr(pool, ':');
        while (found && ost != NULL && (*ost == ':' || *ost == ',') && count < MOST_OSTS) {
            char *rest;
            osts[count++] = (uint16_t)strtoul(ost + 1, &rest, 10);
            ost = rest;
        }
        if (found)
            break;
        pool = strchr(pool, ';');
        pool += pool != NULL;
    }
    return count;
}

int standin_taking(uint16_t *osts, int count)
{
    char word[16];
    int taking = 0;

    for (int each = 0; each < count; each++) {
        snprintf(word, sizeof word, "ost%d", osts[each]);
        if (!standin_refuses(word))
            osts[taking++] = osts[each];
    }
    return taking ? taking : count; /* Lustre would return ENOSPC, which no test needs */
}

bool standin_refuses(const char *word)
{
    size_t length = strlen(word);

    standin_points();
    for (const char *each = setup.refused; each != NULL; each = strchr(each, ',')) {
        each += *each == ',';
        if (!strncmp(each, word, length) && (each[length] == ',' || each[length] == '\0'))
            return true;
    }
    return false;
}

/* Writes one line, not mixed with those of other processes. */
void standin_log(const char *format, ...)
{
    char line[PATH_MAX + 128];
    int log, length, before = errno;
    va_list more;

    standin_points();
    if (setup.log == NULL)
        return;
    length = snprintf(line, sizeof line, "%d ", (int)getpid());
    va_start(more, format);
    length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, more);
    va_end(more);
    if (length > (int)sizeof line - 2)
        length = sizeof line - 2;
    for (int each = 0; each < length; each++)
        if (line[each] == '\n')
            line[each] = '?';
    line[length++] = '\n';
    log = (int)syscall(SYS_openat, AT_FDCWD, setup.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log >= 0) {
        syscall(SYS_write, log, line, length);
        syscall(SYS_close, log);
    }
    errno = before;
}

/* False for an item that is not on Lustre, or missing. */
bool standin_item_of_descriptor(int descriptor, struct item *item)
{
    int before = errno;

    if (standin_points() == 0 || descriptor < 0 || fstat(descriptor, &item->status)) {
        errno = before;
        return false;
    }
    item->point = standin_point(item->status.st_dev);
    item->descriptor = descriptor;
    snprintf(item->own_path, sizeof item->own_path, "/proc/self/fd/%d", descriptor);
    item->path = item->own_path;
    item->follows = true;
    return item->point != NULL;
}

bool standin_item_of_path(const char *path, bool follows, struct item *item)
{
    int before = errno;

    if (standin_points() == 0 || path == NULL || (follows ? stat : lstat)(path, &item->status)) {
        errno = before;
        return false;
    }
    item->point = standin_point(item->status.st_dev);
    item->descriptor = -1;
    item->path = path;
    item->follows = follows;
    return item->point != NULL;
}

/* A descriptor of the directory that holds the item, which `path` has led to from `directory`; -1 if it is unknown.
   Without a path, or if it leads elsewhere, the kernel returns the name of an open item. */
int standin_open_above(const struct item *item, int directory, const char *path)
{
    char above[PATH_MAX];
    struct stat status;
    ssize_t length = 0;

    for (int tried = 0; tried < 2; tried++) {
        if (tried == 0) {
            length = path != NULL && strlen(path) < sizeof above ? stpcpy(above, path) - above : 0;
        } else {
            directory = AT_FDCWD;
            length = readlink(item->path, above, sizeof above - 1);
        }
        if (length <= 0)
            continue;
        while (length > 1 && above[length - 1] == '/')
            length--;
        while (length > 0 && above[length - 1] != '/')
            length--;
        if (length == 0)
            above[length++] = '.';
        above[length] = '\0';
        int opened = (int)syscall(SYS_openat, directory, above, O_PATH | O_DIRECTORY | O_CLOEXEC);
        if (opened >= 0 && fstat(opened, &status) == 0 && status.st_dev == item->status.st_dev)
            return opened;
        if (opened >= 0)
            syscall(SYS_close, opened);
    }
    return -1;
}

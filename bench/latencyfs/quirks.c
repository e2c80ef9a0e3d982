/* Quirks: ways in which real file systems differ from ext4, XFS, btrfs and tmpfs. Each can be switched on. */
#include "latencyfs.h"

#include <linux/limits.h>
#include <stdatomic.h>

struct quirks quirks = {.fixed_mode = -1, .fixed_owner = -1, .list_ends = -1, .list_fails = -1};

/* Operations that can be refused: all types, and the parts of setattr. */
#define AS_WORD(name, group) #name,
#define AS_PART(name) #name,
static const char *const operations[] = {KINDS(AS_WORD) SETATTR_PARTS(AS_PART)};

int refusal_errno(int operation)
{
    return quirks.refusals[operation];
}

static bool set_number(const char *value, int base, long *number)
{
    char *end;
    *number = strtol(value, &end, base);
    return end != value && !*end;
}

static bool set_word(const char *value, char *word)
{
    return *value && snprintf(word, QUIRK_WORD, "%s", value) < QUIRK_WORD;
}

static int errno_named(const char *name)
{
    for (int number = 1; number < 134; number++) {
        const char *known = strerrorname_np(number);
        if (known && !strcmp(known, name))
            return number;
    }
    return 0;
}

static bool set_refusal(struct quirks *wanted, const char *operation, const char *value)
{
    for (int at = 0; at < OPERATION_COUNT; at++)
        if (!strcmp(operations[at], operation))
            return (wanted->refusals[at] = errno_named(value)) != 0;
    return false;
}

static bool set_switch(struct quirks *wanted, const char *name)
{
    const struct {
        const char *name;
        bool *value;
    } switches[] = {
        {"close_time", &wanted->close_time},
        {"decompose", &wanted->decompose},
        {"fixed_ctime", &wanted->fixed_ctime},
        {"fold_case", &wanted->fold_case},
        {"listed_inodes", &wanted->listed_inodes},
        {"no_blocks", &wanted->no_blocks},
        {"no_dot_names", &wanted->no_dot_names},
        {"sequential", &wanted->sequential},
        {"short_reads", &wanted->short_reads},
        {"silent", &wanted->silent},
        {"twice", &wanted->twice},
        {"untyped", &wanted->untyped},
        {"utf8_only", &wanted->utf8_only},
    };
    for (size_t at = 0; at < sizeof switches / sizeof *switches; at++)
        if (!strcmp(switches[at].name, name))
            return *switches[at].value = true;
    return false;
}

static bool set_value(struct quirks *wanted, const char *name, const char *value)
{
    const struct {
        const char *name;
        int base;
        long *number;
    } numbers[] = {
        {"coarse_times", 10, &wanted->coarse_times}, {"early_end", 10, &wanted->early_end},
        {"fixed_mode", 8, &wanted->fixed_mode},      {"fixed_owner", 10, &wanted->fixed_owner},
        {"list_ends", 10, &wanted->list_ends},       {"list_fails", 10, &wanted->list_fails},
        {"stale", 10, &wanted->stale},
    };
    for (size_t at = 0; at < sizeof numbers / sizeof *numbers; at++)
        if (!strcmp(numbers[at].name, name))
            return set_number(value, numbers[at].base, numbers[at].number);
    if (!strcmp(name, "foreign"))
        return set_word(value, wanted->foreign);
    if (!strcmp(name, "full"))
        return set_word(value, wanted->full);
    if (!strcmp(name, "unknown"))
        return set_word(value, wanted->unknown);
    return set_refusal(wanted, name, value);
}

/* Replace all quirks by "SWITCH,NAME=VALUE,OPERATION=ERRNO,...". Return false, and change nothing, for an unknown
 * word. */
bool set_quirks(char *text)
{
    struct quirks wanted = {.fixed_mode = -1, .fixed_owner = -1, .list_ends = -1, .list_fails = -1};
    char *state = NULL;
    for (char *word = strtok_r(text, ",", &state); word; word = strtok_r(NULL, ",", &state)) {
        char *value = strchr(word, '=');
        if (value)
            *value++ = 0;
        if (value ? !set_value(&wanted, word, value) : !set_switch(&wanted, word))
            return false;
    }
    quirks = wanted;
    return true;
}

/* ---- status ---- */

static void coarsen(struct timespec *time)
{
    time->tv_sec -= time->tv_sec % quirks.coarse_times;
    time->tv_nsec = 0;
}

/* Change a status before it is returned, as the quirks say. */
void apply_status_quirks(struct stat *status)
{
    if (quirks.fixed_mode >= 0 && !S_ISLNK(status->st_mode))
        status->st_mode = (status->st_mode & S_IFMT) | quirks.fixed_mode;
    if (quirks.fixed_owner >= 0)
        status->st_uid = status->st_gid = quirks.fixed_owner;
    if (quirks.early_end && S_ISREG(status->st_mode))
        status->st_size += quirks.early_end;
    if (quirks.coarse_times > 0) {
        coarsen(&status->st_atim);
        coarsen(&status->st_mtim);
        coarsen(&status->st_ctim);
    }
    if (quirks.fixed_ctime)
        status->st_ctim = (struct timespec){1000000000, 0};
}

/* ---- names ---- */

/* Return the name under which the file system stores ``name``. */
const char *stored_name(const char *name, char room[NAME_MAX + 1])
{
    static const char composed[] = "\u00e9", decomposed[] = "e\u0301";
    size_t used = 0;
    if (!quirks.fold_case && !quirks.decompose)
        return name;
    while (*name && used < NAME_MAX - sizeof decomposed) {
        if (quirks.decompose && !strncmp(name, composed, strlen(composed))) {
            memcpy(room + used, decomposed, strlen(decomposed));
            used += strlen(decomposed);
            name += strlen(composed);
        } else {
            bool upper = *name >= 'A' && *name <= 'Z';
            room[used++] = quirks.fold_case && upper ? *name - 'A' + 'a' : *name;
            name++;
        }
    }
    room[used] = 0;
    return room;
}

/* Return the length of the first UTF-8 character of ``text``, or 0 if there is none (overlong forms are accepted). */
static int utf8_length(const unsigned char *text)
{
    int length = *text < 0x80 ? 1 : *text >> 5 == 6 ? 2 : *text >> 4 == 14 ? 3 : *text >> 3 == 30 ? 4 : 0;
    for (int at = 1; at < length; at++)
        if (text[at] >> 6 != 2)
            return 0;
    return length;
}

static bool is_utf8(const char *name)
{
    const unsigned char *at = (const unsigned char *)name;
    while (*at) {
        int length = utf8_length(at);
        if (!length)
            return false;
        at += length;
    }
    return true;
}

static bool is_full(int directory)
{
    char path[PATH_MAX + 1];
    ssize_t length = readlink(path_of(directory).text, path, PATH_MAX);
    if (length < 0)
        return false;
    path[length] = 0;
    const char *slash = strrchr(path, '/');
    return slash && !strcmp(slash + 1, quirks.full);
}

/* Return the errno with which a new name in ``directory`` is refused, or 0. */
int name_error(int directory, const char *name)
{
    if (quirks.no_dot_names && *name == '.')
        return EINVAL;
    if (quirks.utf8_only && !is_utf8(name))
        return EILSEQ;
    return *quirks.full && is_full(directory) ? ENOSPC : 0;
}

/* ---- open files ---- */

#define MAX_FILES (1 << 16)
static atomic_bool written[MAX_FILES];

void record_open(int fd)
{
    if (fd < MAX_FILES)
        written[fd] = false;
}

void record_write(int fd)
{
    if (fd < MAX_FILES)
        written[fd] = true;
}

/* With the quirk "close_time", set the mtime of a file that was written, as some servers do when it is closed. */
void record_close(int fd)
{
    if (quirks.close_time && fd < MAX_FILES && atomic_exchange(&written[fd], false))
        futimens(fd, (struct timespec[]){{0, UTIME_OMIT}, {0, UTIME_NOW}});
}

/* Return true if this open has to fail with ESTALE. Linux tries once more after ESTALE; that fails, too. */
bool is_stale(void)
{
    static atomic_long opened;
    return quirks.stale > 0 && atomic_fetch_add(&opened, 1) % quirks.stale < 2;
}

/* Return true if ``fd`` may be opened for writing with the quirk "sequential". */
bool may_open_sequentially(int fd, int flags)
{
    struct stat status;
    return (flags & O_ACCMODE) == O_RDONLY || flags & O_TRUNC || (!fstat(fd, &status) && status.st_size == 0);
}

bool is_at_end(int fd, off_t place)
{
    struct stat status;
    return !fstat(fd, &status) && status.st_size == place;
}

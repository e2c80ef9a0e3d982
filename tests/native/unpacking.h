/* Batches of PK_UNPACK: directories with small files, some of which exist before. Only the harness includes this file,
 * after batches.h.
 *
 * Columns and outcomes have a row for each directory, then one for each file.
 */
#define MOST_IN_DIRECTORY 5
#define DEEP 45            /* levels: more than a row opens */
#define LONGEST 2000       /* bytes of a path */
#define NEW_DIRECTORY 0755 /* mode of a directory that no member describes: 0777 without the umask of the batch */
#define OTHER_USER 1234
#define BEFORE "before"    /* an item in each directory that existed before the batch */

/* Store the path of each directory: a name in the target, or one below another directory of the batch. */
static void make_paths(batch *batch, uint32_t number)
{
    const char *paths[MOST_ROWS];
    char *at = batch->paths;
    for (uint32_t each = 0; each < batch->in_c.finished; each++) {
        const char *const above = each && below(2) ? paths[below(each)] : "";
        const int is_below = *above && strlen(above) < 100;
        char name[257];
        a_name(name, number + each);
        paths[each] = at;
        at += sprintf(at, "%s%s%s", is_below ? above : "", is_below ? "/" : "", name);
        for (int level = below(20) ? 0 : DEEP; level; level--)
            at = stpcpy(at, "/d");
        at++;
    }
}

/* Return true if another directory of the batch is below the one with this path. */
static int has_others_below(const batch *batch, const char *path)
{
    const char *other = batch->paths;
    for (uint32_t each = 0; each < batch->in_c.finished; each++, other += strlen(other) + 1)
        if (pk_leads_to(path, strlen(path), other))
            return 1;
    return 0;
}

static void make_old_file(int target, const char *path, const char *name)
{
    char inner[LONGEST];
    snprintf(inner, sizeof inner, "%s%s%s", path, *name ? "/" : "", name);
    const int old = openat(target, inner, O_WRONLY | O_CREAT | O_EXCL, 0600);
    if (old < 0)
        return;
    expect(write(old, "old", 3) == 3, "old");
    close(old);
}

static void make_old_directory(int target, const char *path)
{
    if (mkdirat(target, path, 0700))
        return;
    expect(!fchmodat(target, path, NEW_DIRECTORY, 0), "chmod");
    make_old_file(target, path, BEFORE);
}

/* Create a directory, perhaps with a file of this name, and the directories above it; or create another item in its
 * place. Nothing is created below another item. */
static void make_existing(int target, const char *path, const char *name)
{
    char above[LONGEST];
    for (size_t end = strcspn(path, "/"); path[end]; end += 1 + strcspn(path + end + 1, "/")) {
        snprintf(above, sizeof above, "%.*s", (int)end, path);
        make_old_directory(target, above);
    }
    const uint32_t kind = below(8);
    if (kind == 0) {
        (void)!symlinkat(".", target, path);
    } else if (kind == 1) {
        make_old_file(target, path, "");
    } else {
        make_old_directory(target, path);
        if (below(2))
            make_old_file(target, path, name);
        if (kind == 2) /* only root may give it away */
            (void)!fchownat(target, path, OTHER_USER, OTHER_USER, AT_SYMLINK_NOFOLLOW);
    }
}

/* Choose the metadata of a directory or a file. */
static void choose_metadata(batch *batch, uint32_t row)
{
    static const int64_t odd[] = {-1, 0, INT64_MAX};
    const int is_others = !geteuid() && !below(4);
    batch->mode[row] = below(3) ? 0700 | (below(0100) & (below(3) ? 055 : 077)) : below(010000);
    batch->uid[row] = is_others ? OTHER_USER : geteuid();
    batch->gid[row] = is_others ? OTHER_USER : getegid();
    batch->mtime[row] = below(20) ? 1000000000000000000 + (int64_t)below(UINT32_MAX) : odd[below(3)];
}

/* Choose `number` files of a directory: their names, metadata and sizes. Return the end of the names. The directories
 * before it have `files` files. */
static char *choose_files(batch *batch, uint32_t number, uint32_t files, char *names)
{
    for (uint32_t each = files; each < files + number; each++) {
        const uint32_t row = batch->in_c.finished + each;
        choose_metadata(batch, row);
        batch->size[row] = below(10) ? below(5000) : below(300000);
        batch->offsets[each + 1] = batch->offsets[each] + batch->size[row];
        a_name(names, each);
        names += strlen(names) + 1;
    }
    return names;
}

/* Choose the directories and their files, and create some of them. Return the number of the files. */
static uint32_t choose_members(batch *batch, int target, uint32_t number)
{
    uint32_t files = 0;
    char *names = batch->names;
    make_paths(batch, number);
    const char *path = batch->paths;
    for (uint32_t each = 0; each < batch->in_c.finished; each++, path += strlen(path) + 1) {
        const int has_room = batch->in_c.finished + files + MOST_IN_DIRECTORY <= MOST_ROWS;
        const char *const first = names;
        choose_metadata(batch, each);
        if (below(4))
            batch->plans[each] = has_others_below(batch, path) ? PK_IS_MEMBER : PK_IS_MEMBER | PK_IS_LEAF;
        batch->links[each] = has_room ? below(1 + MOST_IN_DIRECTORY) : 0;
        names = choose_files(batch, batch->links[each], files, names);
        files += batch->links[each];
        if (!below(3))
            make_existing(target, path, names > first ? first : BEFORE);
    }
    return files;
}

/* Return columns that begin at a row. */
static pk_columns columns_from(batch *batch, uint32_t row)
{
    return (pk_columns){.mode = batch->mode + row, .uid = batch->uid + row, .gid = batch->gid + row,
                        .links = batch->links + row, .mtime = batch->mtime + row, .size = batch->size + row};
}

static void prepare_unpacking(batch *batch, int target, uint32_t number)
{
    struct stat status;
    pk_batch *const in_c = &batch->in_c;
    memset(batch, 0, sizeof *batch);
    in_c->finished = 1 + below(MOST_ROWS / 2);
    const uint32_t files = choose_members(batch, target, number);
    expect((batch->arena = malloc(batch->offsets[files] + 1)) != NULL, "memory");
    for (uint64_t at = 0; at < batch->offsets[files]; at++)
        batch->arena[at] = (uint8_t)(at * 7 + number);
    expect(!fstat(target, &status), "stat");
    batch->tree = (pk_tree){.target_device = status.st_dev + !below(8), .user = geteuid(),
                            .flags = !geteuid() && below(2) ? PK_POWERFUL : 0,
                            .deadline = below(6) ? UINT64_MAX : pk_now() + below(2000000)};
    in_c->kind = PK_UNPACK;
    in_c->flags = (int)(below(8) * PK_OWNER) | (below(2) ? PK_EXCUSED : 0) | (below(4) ? 0 : PK_LATE);
    in_c->rows = 1;
    in_c->at_once = (int)below(5);
    in_c->directory = in_c->target = target;
    in_c->umask = 0777 & ~NEW_DIRECTORY;
    in_c->names = batch->paths;
    in_c->names_size = strcspn(batch->paths, "/");
    in_c->prefixes = batch->paths;
    in_c->paths = batch->names;
    in_c->plans = batch->plans;
    in_c->outcomes = batch->outcomes;
    in_c->made = batch->made;
    in_c->wanted = columns_from(batch, 0);
    in_c->given = columns_from(batch, in_c->finished);
    in_c->verdicts = (pk_verdicts){batch->codes, batch->operations, batch->errnos, batch->bytes, batch->nanoseconds};
    in_c->arena = batch->arena;
    in_c->offsets = batch->offsets;
    in_c->tree = &batch->tree;
}

/* An item has the chosen metadata, as far as the flags of the batch require it. */
static void check_metadata(const batch *batch, const struct stat *status, uint32_t row, int has_owner)
{
    const uint32_t denied = batch->in_c.flags & PK_MODE ? 0 : batch->in_c.umask | S_ISUID | S_ISGID;
    expect((status->st_mode & 07777) == (batch->mode[row] & ~denied), "row %u: mode %o", row, status->st_mode);
    if (batch->in_c.flags & PK_OWNER && has_owner)
        expect(status->st_uid == batch->uid[row] && status->st_gid == batch->gid[row], "row %u: another owner", row);
    if (batch->in_c.flags & PK_TIMES)
        expect(status->st_mtim.tv_sec == batch->mtime[row] / 1000000000 &&
               status->st_mtim.tv_nsec == batch->mtime[row] % 1000000000, "row %u: another time", row);
}

/* A file was created completely, or nothing of it exists. Return its size if it was created. */
static uint64_t check_file(const batch *batch, int target, const char *path, const char *name, uint32_t file)
{
    const uint32_t row = batch->in_c.finished + file, code = batch->outcomes[row];
    const ssize_t size = (ssize_t)batch->size[row];
    char inner[LONGEST];
    struct stat status;
    snprintf(inner, sizeof inner, "%s/%s", path, name);
    const ssize_t there = all_of(target, inner, other);
    if (!code) {
        expect(there < 0 || (there == 3 && !memcmp(other, "old", 3)), "row %u: a part is left", row);
        return 0;
    }
    expect(code == DONE || (code == LACKS && batch->in_c.flags & PK_EXCUSED), "row %u: code %u", row, code);
    const int is_same = there == size && !memcmp(other, batch->arena + batch->offsets[file], (size_t)size);
    expect(is_same, "row %u: other contents", row);
    expect(!fstatat(target, inner, &status, AT_SYMLINK_NOFOLLOW), "row %u: stat", row);
    expect(code == DONE || !(status.st_mode & (S_ISUID | S_ISGID)), "row %u: set-id for another user", row);
    check_metadata(batch, &status, row, code == DONE);
    return (uint64_t)size;
}

/* A directory that the batch has used is finished, or private until the caller finishes it. One that existed before, or
 * that no member describes, keeps the mode of a new directory. */
static void check_used(const batch *batch, int target, const char *path, uint32_t row)
{
    const int code = batch->outcomes[row], is_leaf = batch->plans[row] & PK_IS_LEAF;
    char inner[LONGEST];
    struct stat status, before;
    const int is_directory = !fstatat(target, path, &status, AT_SYMLINK_NOFOLLOW) && S_ISDIR(status.st_mode);
    expect(is_directory, "row %u: no directory", row);
    expect(status.st_uid == geteuid(), "row %u: a directory of another user was used", row);
    expect(status.st_dev == batch->tree.target_device, "row %u: a directory of another file system was used", row);
    snprintf(inner, sizeof inner, "%s/%s", path, BEFORE);
    const int existed = !fstatat(target, inner, &before, 0);
    if (code == DONE) {
        expect(is_leaf && !existed && !(status.st_mode & 022), "row %u: finished too early", row);
        check_metadata(batch, &status, row, 1);
        return;
    }
    expect(code == DECIDE_AGAIN, "row %u: code %d", row, code);
    const uint32_t mode = batch->plans[row] & PK_IS_MEMBER && !existed ? 0700 : NEW_DIRECTORY;
    /* After an error its mode may be set, and its times are not. */
    const int may_be_set = is_leaf && !existed && !(status.st_mode & 022);
    expect((status.st_mode & 07777) == mode || may_be_set, "row %u: mode %o", row, status.st_mode);
}

/* A directory that the batch has not used does not exist, or has the mode of a new directory: it existed before, or the
 * batch has created it to reach others. If a member describes it, or the batch says that it is unprepared, it may be
 * private: the caller prepares it. */
static void check_unused(int target, const char *path, int may_be_private)
{
    struct stat status;
    if (!fstatat(target, path, &status, AT_SYMLINK_NOFOLLOW) && S_ISDIR(status.st_mode))
        expect((status.st_mode & 07777) == (may_be_private && !(status.st_mode & 077) ? 0700 : NEW_DIRECTORY), "%s is left with the mode %o", path, status.st_mode);
}

/* Check a directory whose path may be that of a row, or lead to one. */
static void check_path(const batch *batch, int target, const char *path)
{
    const char *other = batch->paths;
    int may_be_private = 0;
    for (uint32_t row = 0; row < batch->in_c.finished; row++, other += strlen(other) + 1) {
        if (batch->outcomes[row] && !strcmp(path, other)) {
            check_used(batch, target, path, row);
            return;
        }
        may_be_private |= batch->plans[row] & PK_IS_MEMBER && !strcmp(path, other);
        may_be_private |= batch->made[row] == strlen(path) && !strncmp(path, other, strlen(path));
    }
    check_unused(target, path, may_be_private);
}

/* Each directory and each file is in one of the permitted states. No file was created in a directory that was not used,
 * and a finished directory has all files. */
static void check_unpacked(batch *batch, int target)
{
    const char *path = batch->paths, *name = batch->names;
    uint64_t moved = 0;
    uint32_t file = 0;
    for (uint32_t row = 0; row < batch->in_c.finished; row++, path += strlen(path) + 1) {
        char above[LONGEST];
        uint32_t created = 0;
        for (size_t end = strcspn(path, "/"); path[end]; end += 1 + strcspn(path + end + 1, "/")) {
            snprintf(above, sizeof above, "%.*s", (int)end, path);
            check_path(batch, target, above);
        }
        check_path(batch, target, path);
        for (uint32_t left = batch->links[row]; left; left--, file++, name += strlen(name) + 1) {
            moved += check_file(batch, target, path, name, file);
            created += batch->outcomes[batch->in_c.finished + file] != 0;
        }
        expect(batch->outcomes[row] || !created, "row %u: files in an unused directory", row);
        expect(batch->outcomes[row] != DONE || created == batch->links[row], "row %u: finished without all files", row);
    }
    expect(pk_moved(&batch->in_c) == moved, "%u bytes moved", (unsigned)moved);
}

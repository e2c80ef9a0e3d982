/* What a tally sums up, against sums that are made here; for the harness alone, behind batches.h. */
/* How many of a tally's bounds are before `moment`: the oldest class is that of what no bound is before. */
static uint32_t class_of(const pk_tally *tally, int64_t moment)
{
    uint32_t before = 0;
    for (int each = 0; each < PK_BOUNDS; each++)
        before += tally->bounds[each] < moment;
    return PK_BOUNDS - before;
}

/* Sums over columns that are no longer than they have to be, so that whatever is read behind them is told. */
static void check_tally(void)
{
    static const uint32_t types[] = {S_IFREG, S_IFREG, S_IFREG, S_IFDIR, S_IFLNK, S_IFIFO};
    static const uint8_t letters[] = "fffdl?";
    const uint32_t number = 1 + below(40);
    uint8_t *kinds = malloc(number);
    uint32_t *mode = malloc(number * sizeof *mode), *links = malloc(number * sizeof *links);
    uint64_t *size = malloc(number * sizeof *size), *blocks = malloc(number * sizeof *blocks);
    int64_t *atime = malloc(number * sizeof *atime), *mtime = malloc(number * sizeof *mtime);
    pk_tally tally, wanted, full;
    memset(&tally, 0, sizeof tally);
    for (int each = 0; each < PK_BOUNDS; each++)
        tally.bounds[each] = 100 * (each + 1);
    wanted = tally;
    for (uint32_t row = 0; row < number; row++) {
        const uint32_t type = below(6);
        kinds[row] = letters[type];
        mode[row] = types[type] | below(010000);
        links[row] = 1 + below(2);
        size[row] = below(4) ? below(5000) : 1ull << below(50);
        blocks[row] = below(2) ? below(20) : size[row] / 512 + 1;
        atime[row] = (int64_t)below(1100);
        mtime[row] = (int64_t)below(1100) - 50;
        wanted.allocated += blocks[row] * 512;
        wanted.world_writable += mode[row] & 2 && type != 4 && !(type == 3 && mode[row] & 01000);
        wanted.future += mtime[row] > 900;
        if (type > 2)
            continue;
        uint32_t power = 0;
        while (power < 64 && size[row] >> power)
            power++;
        wanted.bytes += size[row];
        wanted.sizes[power]++;
        wanted.size_bytes[power] += size[row];
        wanted.modified[class_of(&tally, mtime[row])]++;
        wanted.modified_bytes[class_of(&tally, mtime[row])] += size[row];
        wanted.read[class_of(&tally, atime[row])]++;
        wanted.set_id += (mode[row] & 06000) != 0;
        wanted.hard_linked += links[row] > 1;
        wanted.sparse += blocks[row] * 512 < size[row];
        wanted.holes += blocks[row] * 512 < size[row] ? size[row] - blocks[row] * 512 : 0;
        wanted.last_largest = size[row] > wanted.last_largest ? size[row] : wanted.last_largest;
    }
    wanted.last_bytes = wanted.bytes;
    wanted.last_allocated = wanted.allocated;
    expect(!pk_tally_add(&tally, kinds, number, mode, links, size, blocks, atime, mtime), "tally: refused");
    expect(!memcmp(&tally, &wanted, sizeof tally), "tally: other sums");
    blocks[below(number)] = UINT64_MAX - below(3);
    full = tally;
    expect(pk_tally_add(&tally, kinds, number, mode, links, size, blocks, atime, mtime) == -1, "tally: more than fits");
    expect(!memcmp(&tally, &full, sizeof tally), "tally: some of it was added");
    free(kinds);
    free(mode);
    free(links);
    free(size);
    free(blocks);
    free(atime);
    free(mtime);
}
